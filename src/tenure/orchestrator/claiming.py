"""Claims, one at a time: where they wait, and how they are tried again.

Laws:
1. Claims of one process do not compete: each is a transaction, and the next begins when it is over.
2. A remote claim waits at the bell that hung there before it looked: work that becomes ready while it looks is heard of.
3. Whose turn it is is remembered for each tenant that is claimed for alone, and for claims of everybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from tenure.errors import TenureError
from tenure.kernel.decide.checks import is_name
from tenure.kernel.draft import Chance
from tenure.kernel.snapshot import Snapshot
from tenure.orchestrator.claims import Claim, Claimed, Dispatch, claim
from tenure.store.port import Ambiguous, Conflict, Rejected

if TYPE_CHECKING:
    from tenure.orchestrator.core import Orchestrator

POLL_SECONDS = 1.0
"""The poll beneath the wake-ups: what a lost one costs."""
TRIES_MAX = 5
"""How often a claim looks again at once when the runs it chose are held by others."""
RETRY_SECONDS = 0.002


class Claiming:
    """See the laws above."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        cache: dict[int, Snapshot],
        chance: Chance,
        lane: int,
        command_seconds: float,
    ) -> None:
        self._orchestrator = orchestrator
        self._cache = cache
        self._chance = chance
        self._lane = lane
        self._command_seconds = command_seconds
        self._dispatch: dict[str | None, Dispatch] = {}
        self._one = asyncio.Lock()
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """Work became ready here."""
        self._bell.set()
        self._bell = asyncio.Event()

    async def remote(
        self, wanted: Claim, wait_seconds: float, goes_on: Callable[[], Awaitable[bool]]
    ) -> Claimed:
        """A remote runner's claim (`Claim.remote`): what is granted, or what was granted to the same claim before.
        Waits for some when there are none, while the runner `goes_on` to wait."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_seconds
        while True:
            bell = self._bell
            claimed = await self.once(wanted)
            left = deadline - clock()
            if claimed.leases or claimed.before or left <= 0 or not await goes_on():
                return claimed
            await self.until(bell, min(left, POLL_SECONDS))

    async def until(self, ready: asyncio.Event, timeout_s: float) -> None:
        """Until this is set, or another process says that work became ready, or the time is over."""
        here = asyncio.ensure_future(ready.wait())
        elsewhere = asyncio.ensure_future(self._orchestrator.store.wait_for_work(timeout_s))
        try:
            await asyncio.wait((here, elsewhere), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in (here, elsewhere):
                waiter.cancel()

    async def once(self, wanted: Claim) -> Claimed:
        """Take what there is now."""
        for name in (wanted.by.worker, *wanted.queues):
            if not is_name(name):
                raise TenureError("INVALID_INPUT", f"{name!r} is no name of a worker or a queue")
        dispatch = self._dispatch.get(wanted.tenant)
        if dispatch is None:
            dispatch = self._dispatch[wanted.tenant] = Dispatch(wanted.tenant)
        make = partial(claim, wanted, dispatch, self._cache, self._chance)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._command_seconds
        tries = 0
        async with self._one:
            while True:
                try:
                    claimed = await self._orchestrator.store.transact(make, lane=self._lane)
                except Rejected as refused:
                    raise TenureError("INVALID_INPUT", f"the database refused it: {refused}") from refused
                except (Conflict, Ambiguous) as fault:
                    # Leases of a commit of unknown fate that did happen are not ours to use: they expire. (A remote
                    # claim finds them again under its name.)
                    if clock() >= deadline:
                        raise TenureError(
                            "COMMAND_DEADLINE", f"the claim did not get through: {fault}"
                        ) from fault
                    await asyncio.sleep(RETRY_SECONDS * (0.5 + self._chance.random()))
                    continue
                self._orchestrator.finish(claimed.outcome)
                tries += 1
                if claimed.leases or not claimed.more or tries >= TRIES_MAX:
                    return claimed
                await asyncio.sleep(RETRY_SECONDS)
