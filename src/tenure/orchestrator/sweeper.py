"""The sweeper: a periodic look at everything that time or a lost message has left lying.

Laws:
1. It may run everywhere at once and depends on nobody's memory: it asks the database what is due.
2. It decides nothing: it submits ticks, and the kernel knows what the moment means.
"""

from __future__ import annotations

import asyncio

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.commands import TIMER, Admit, Command, Tick
from tenure.limits import SWEEP_SECONDS, SWEEP_TIMERS_MAX
from tenure.logs import get_logger
from tenure.orchestrator.core import Orchestrator
from tenure.orchestrator.rounds import Rounds
from tenure.store.port import Timer

log = get_logger(__name__)

OUTBOX_GRACE_SECONDS = 2.0
"""Whoever wrote a row delivers it; only after this does the sweeper take it up."""


def command_of(timer: Timer) -> Command:
    """The command for a moment that has come."""
    if timer.entity == "run" and not timer.admitted:
        return Admit(context=TIMER, run_id=timer.run_id, gate_tenant=timer.tenant)
    assert timer.entity in ("run", "step", "wait")
    return Tick(context=TIMER, run_id=timer.run_id, entity=timer.entity, at=timer.at)  # type: ignore[arg-type]  # asserted


class Sweeper(Rounds):
    """Sweeps until it is stopped."""

    def __init__(self, orchestrator: Orchestrator, *, seconds: float = SWEEP_SECONDS) -> None:
        super().__init__("sweeper", self.sweep, seconds, SWEEP_TIMERS_MAX)
        self._orchestrator = orchestrator

    async def sweep(self) -> int:
        """Do what is due now; how much that was."""
        store = self._orchestrator.store
        now = store.estimate_us() or (await store.read("now"))[0].now_us
        timers: list[Timer] = await store.read("due", now, SWEEP_TIMERS_MAX)
        answers = await asyncio.gather(
            *(self._orchestrator.send(command_of(timer)) for timer in timers), return_exceptions=True
        )
        for timer, answer in zip(timers, answers, strict=True):
            if isinstance(answer, Exception) and not isinstance(answer, TenureError):
                log.warning("tick_failed", timer=repr(timer), error=repr(answer))
        owed = await store.read("outbox_pending", now - us(OUTBOX_GRACE_SECONDS), SWEEP_TIMERS_MAX)
        if owed:
            await self._orchestrator.deliver(owed)
        return len(timers) + len(owed)
