"""Runs claims one at a time, lets them wait for work, and retries them.

Laws:
1. Claims of one process do not compete: the next transaction begins when the last one is over.
2. A remote claim takes the event to wait for before it looks for work, so that it misses nothing that becomes ready meanwhile.
3. There is one `ClaimHistory` for each tenant that is claimed for separately, and one for claims across tenants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from tenure.errors import TenureError
from tenure.kernel.decide.validation import is_name
from tenure.kernel.draft import Chance
from tenure.kernel.snapshot import Snapshot
from tenure.orchestrator.claims import Claim, ClaimHistory, ClaimOutcome, claim_steps
from tenure.store.port import AmbiguousCommit, DataRejected, WriteConflict

if TYPE_CHECKING:
    from tenure.orchestrator.core import Orchestrator

POLL_SECONDS = 1.0
"""How long a lost wake-up delays a claim."""
TRIES_MAX = 5
"""How often a claim is tried when others hold the runs it chose."""
RETRY_SECONDS = 0.002


class ClaimDispatcher:
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
        self._histories: dict[str | None, ClaimHistory] = {}
        self._lock = asyncio.Lock()
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """Wake the waiting claims: a step became ready in this process."""
        self._bell.set()
        self._bell = asyncio.Event()

    async def remote(
        self, wanted: Claim, wait_seconds: float, goes_on: Callable[[], Awaitable[bool]]
    ) -> ClaimOutcome:
        """A remote runner's claim (`Claim.remote`): new leases, or those that the same claim got before. Without any, it waits
        as long as `goes_on` says that the runner still waits."""
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
        """Wait until the event is set, another process announces work, or the timeout passes."""
        here = asyncio.ensure_future(ready.wait())
        elsewhere = asyncio.ensure_future(self._orchestrator.store.wait_for_work(timeout_s))
        try:
            await asyncio.wait((here, elsewhere), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in (here, elsewhere):
                waiter.cancel()

    async def once(self, wanted: Claim) -> ClaimOutcome:
        """Run one claim without waiting for work."""
        for name in (wanted.by.worker, *wanted.queues):
            if not is_name(name):
                raise TenureError("INVALID_INPUT", f"{name!r} is not a valid name of a worker or queue")
        history = self._histories.get(wanted.tenant)
        if history is None:
            history = self._histories[wanted.tenant] = ClaimHistory(wanted.tenant)
        make = partial(claim_steps, wanted, history, self._cache, self._chance)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._command_seconds
        tries = 0
        async with self._lock:
            while True:
                try:
                    claimed = await self._orchestrator.store.transact(make, lane=self._lane)
                except DataRejected as refused:
                    raise TenureError(
                        "INVALID_INPUT", f"the database rejected the claim: {refused}"
                    ) from refused
                except (WriteConflict, AmbiguousCommit) as fault:
                    # If a commit of unknown fate did happen, its leases are unused and expire. (A remote claim finds
                    # them again under its name.)
                    if clock() >= deadline:
                        raise TenureError(
                            "COMMAND_DEADLINE", f"the claim was not committed in time: {fault}"
                        ) from fault
                    await asyncio.sleep(RETRY_SECONDS * (0.5 + self._chance.random()))
                    continue
                self._orchestrator.finish(claimed.outcome)
                tries += 1
                if claimed.leases or not claimed.more or tries >= TRIES_MAX:
                    return claimed
                await asyncio.sleep(RETRY_SECONDS)
