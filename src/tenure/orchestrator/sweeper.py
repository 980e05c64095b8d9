"""The sweeper: finds expired timers and undelivered outbox rows in rounds.

Laws:
1. It may run in any number of processes and keeps no state: it asks the database what is due.
2. It decides nothing: it submits ticks, and the kernel decides.
3. Work for a run whose profile this process lacks is left to another process. It is set aside as long as it is due, so that it
   does not block the work behind it.
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
"""The process that wrote a row delivers it. After this time, the sweeper does."""


def build_timer_command(timer: DueTimer) -> Command:
    """The command for an expired timer."""
    context = Context("system:sweeper", "timeout", f"timer:{timer.entity}:{timer.at}")
    if timer.entity == "run" and not timer.admitted:
        return Admit(context=context, run_id=timer.run_id, gate_tenant=timer.tenant)
    assert timer.entity in ("run", "step", "wait")
    return Tick(context=context, run_id=timer.run_id, entity=timer.entity, at=timer.at)  # type: ignore[arg-type]  # asserted


class _SetAside(Generic[T]):
    """The keys of the work that is left to other processes (law 3)."""

    def __init__(self, key: Callable[[T], Hashable]) -> None:
        self._key = key
        self._keys: set[Hashable] = set()

    @property
    def most(self) -> int:
        """How much to read, so that there is room for the work behind it."""
        return SWEEP_TIMERS_MAX + len(self._keys)

    def others(self, found: list[T]) -> list[T]:
        """The work that is not set aside. If `found` is everything that is due, keys that are not in it are forgotten."""
        if len(found) < self.most:
            self._keys.intersection_update(map(self._key, found))
        return [one for one in found if self._key(one) not in self._keys]

    def add(self, lacking: list[T]) -> None:
        room = SET_ASIDE_MAX - len(self._keys)
        if lacking and room > 0:
            log.warning(
                "due_work_skipped", count=len(lacking), first=repr(lacking[0]), error="PROFILE_NOT_HERE"
            )
            self._keys.update(map(self._key, lacking[:room]))


class Sweeper(PeriodicTask):
    def __init__(self, orchestrator: Orchestrator, *, seconds: float = SWEEP_SECONDS) -> None:
        super().__init__("sweeper", self.sweep, seconds, SWEEP_TIMERS_MAX)
        self._orchestrator = orchestrator
        self._timers: _SetAside[DueTimer] = _SetAside(lambda timer: (timer.entity, timer.run_id, timer.at))
        self._outbox: _SetAside[OutboxRow] = _SetAside(lambda row: (row.run_id, row.seq, row.part))

    async def sweep(self) -> int:
        """Send the commands of expired timers and deliver old outbox rows; how many."""
        store = self._orchestrator.store
        now = store.estimate_us() or (await store.read("now"))[0].now_us
        timers = self._timers.others(await store.read("due", now, self._timers.most))
        commands = map(build_timer_command, timers)
        answers = await asyncio.gather(*map(self._orchestrator.send, commands), return_exceptions=True)
        lacking = []
        for timer, answer in zip(timers, answers, strict=True):
            if isinstance(answer, TenureError) and answer.code == "PROFILE_NOT_HERE":
                lacking.append(timer)
            elif isinstance(answer, Exception) and not isinstance(answer, TenureError):
                log.warning("tick_failed", timer=repr(timer), error=repr(answer))
        self._timers.add(lacking)
        return len(timers) - len(lacking) + await self._deliver(now)

    async def _deliver(self, now: int) -> int:
        """Deliver the outbox rows that their own process has not delivered; how many."""
        before = now - us(OUTBOX_GRACE_SECONDS)
        owed = self._outbox.others(
            await self._orchestrator.store.read("outbox_pending", before, self._outbox.most)
        )
        lacking: list[OutboxRow] = []
        if owed:
            await self._orchestrator.deliver(owed, lacking)
        self._outbox.add(lacking)
        return len(owed) - len(lacking)
