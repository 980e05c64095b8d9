"""The sweeper: a periodic look at everything that time or a lost message has left lying.

Laws:
1. It may run everywhere at once and depends on nobody's memory: it asks the database what is due.
2. It decides nothing: it submits ticks, and the kernel knows what the moment means.
3. What is due to a run whose profile this process lacks is another process's: it is set aside, so that it stands in
   nobody's way, for as long as it is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.commands import Admit, Command, Context, Tick
from tenure.kernel.run_rows import OutboxRow
from tenure.limits import SET_ASIDE_MAX, SWEEP_SECONDS, SWEEP_TIMERS_MAX
from tenure.logs import get_logger
from tenure.orchestrator.core import Orchestrator
from tenure.orchestrator.periodic_task import PeriodicTask
from tenure.store.port import DueTimer

log = get_logger(__name__)

T = TypeVar("T")

OUTBOX_GRACE_SECONDS = 2.0
"""Whoever wrote a row delivers it; only after this does the sweeper take it up."""


def build_timer_command(timer: DueTimer) -> Command:
    """The command for a moment that has come."""
    context = Context("system:sweeper", "timeout", f"timer:{timer.entity}:{timer.at}")
    if timer.entity == "run" and not timer.admitted:
        return Admit(context=context, run_id=timer.run_id, gate_tenant=timer.tenant)
    assert timer.entity in ("run", "step", "wait")
    return Tick(context=context, run_id=timer.run_id, entity=timer.entity, at=timer.at)  # type: ignore[arg-type]  # asserted


class _Aside(Generic[T]):
    """What is left to other processes (law 3), by its key."""

    def __init__(self, key: Callable[[T], Hashable]) -> None:
        self._key = key
        self._keys: set[Hashable] = set()

    @property
    def most(self) -> int:
        """How much to ask for, so that there is room for the others behind it."""
        return SWEEP_TIMERS_MAX + len(self._keys)

    def others(self, found: list[T]) -> list[T]:
        """Those that are not set aside. Where that is all there is, the rest of those set aside is done or gone."""
        if not self._keys:
            return found
        if len(found) < self.most:
            self._keys.intersection_update(map(self._key, found))
        return [one for one in found if self._key(one) not in self._keys]

    def put(self, lacking: list[T]) -> None:
        """Set aside what this process cannot do."""
        room = SET_ASIDE_MAX - len(self._keys)
        if lacking and room > 0:
            log.warning("set_aside", count=len(lacking), first=repr(lacking[0]), error="PROFILE_NOT_HERE")
            self._keys.update(map(self._key, lacking[:room]))


class Sweeper(PeriodicTask):
    """Sweeps until it is stopped."""

    def __init__(self, orchestrator: Orchestrator, *, seconds: float = SWEEP_SECONDS) -> None:
        super().__init__("sweeper", self.sweep, seconds, SWEEP_TIMERS_MAX)
        self._orchestrator = orchestrator
        self._timers: _Aside[DueTimer] = _Aside(lambda timer: (timer.entity, timer.run_id, timer.at))
        self._owed: _Aside[OutboxRow] = _Aside(lambda row: (row.run_id, row.seq, row.part))

    async def sweep(self) -> int:
        """Do what is due now; how much that was."""
        store = self._orchestrator.store
        now = store.estimate_us() or (await store.read("now"))[0].now_us
        timers = self._timers.others(await store.read("due", now, self._timers.most))
        answers = await asyncio.gather(
            *(self._orchestrator.send(build_timer_command(timer)) for timer in timers), return_exceptions=True
        )
        lacking = []
        for timer, answer in zip(timers, answers, strict=True):
            if isinstance(answer, TenureError) and answer.code == "PROFILE_NOT_HERE":
                lacking.append(timer)
            elif isinstance(answer, Exception) and not isinstance(answer, TenureError):
                log.warning("tick_failed", timer=repr(timer), error=repr(answer))
        self._timers.put(lacking)
        return len(timers) - len(lacking) + await self._deliver(now)

    async def _deliver(self, now: int) -> int:
        """Deliver what whoever owes it has not; how much that was."""
        before = now - us(OUTBOX_GRACE_SECONDS)
        owed = self._owed.others(
            await self._orchestrator.store.read("outbox_pending", before, self._owed.most)
        )
        lacking: list[OutboxRow] = []
        if owed:
            await self._orchestrator.deliver(owed, lacking)
        self._owed.put(lacking)
        return len(owed) - len(lacking)
