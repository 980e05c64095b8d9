"""Keeps the ledgers by itself: new runs get their leaf, admin chains are sealed, and what is new is signed for.

Laws:
1. Nothing is added to what a run commits: runs are found afterwards, by their ids, which are in order of their creation. What
   was found is looked at again for a while, because a run may be committed after one that is younger; a run that is sealed
   before it was found gets both its leaves then.
2. It may run everywhere at once, and stop anywhere: what is there is not appended again.
3. A ledger that has something new is signed for every so often, where there is a key that may sign; one that was changed beneath
   its last checkpoint is not, and the log says so. One ledger's trouble holds up no other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from itertools import groupby

from tenure.clock import us
from tenure.errors import TenureError
from tenure.govern.ledger.book import Book
from tenure.govern.ledger.exporting import PLACE_VARIABLE, Shelf, copy
from tenure.govern.ledger.keys import Keys
from tenure.govern.signing import Signer, configured
from tenure.kernel import leaves
from tenure.kernel.governance import Leaf, Signed
from tenure.kernel.leaves import Entry
from tenure.logs import get_logger
from tenure.orchestrator.rounds import Rounds
from tenure.store.beside import settled
from tenure.store.ledger import AdminHead, LedgerSize, NewRun, appended
from tenure.store.port import Query, RunId, Store, Transaction

log = get_logger(__name__)

LOOK_SECONDS = 2.0
RUNS_AT_ONCE = 500
LEAVES_AT_ONCE = 100
"""In one commit: those of runs wait for it."""
OVERLAP_SECONDS = 30
"""How much younger a run may be that is committed before another."""
SIGN_SECONDS = 60.0
_ID_SECOND = 1 << 31
"""Ids of runs of one second; see `tenure.ids`."""


class Keeper(Rounds):
    """See the laws above. An async context manager; or `once()` by somebody else's rounds."""

    def __init__(
        self,
        store: Store,
        *,
        signer: Callable[[], Signer | None] = configured,
        place: str | None = None,
        seconds: float = LOOK_SECONDS,
        sign_seconds: float = SIGN_SECONDS,
    ) -> None:
        """`signer` finds the key that is configured, each time; `place` is where checkpoints are copied to, else the
        environment's."""
        super().__init__("ledger-keeper", self.once, seconds, RUNS_AT_ONCE)
        self._store = store
        self._signer = signer
        self._sign_us = us(sign_seconds)
        named = place or os.environ.get(PLACE_VARIABLE)
        self._shelf = Shelf(named) if named else None
        self._after = 0
        """The id from which runs are looked at."""
        self._newest = 0
        self._said: dict[tuple[str, str | None], str] = {}
        self._owed: dict[str, Signed] | None = None
        """Checkpoints that are to be copied, by tenant; None: the newest of all, this process has just begun."""

    async def once(self) -> int:
        """One look at everything; how many runs it has seen."""
        seen = await self.enter_runs()
        if seen < RUNS_AT_ONCE:  # else there are more of them, and they come first
            await self.seal_admin()
            await self._sign_or_say()
            await self.copy_owed()
        return seen

    async def _sign_or_say(self) -> None:
        """A key that may not sign ends no round."""
        try:
            await self.sign_due()
        except TenureError as refused:
            self._say("ledgers_not_signed", None, refused)
        else:
            self._said.pop(("ledgers_not_signed", None), None)

    async def enter_runs(self) -> int:
        """Give the next runs their `created` leaf; how many were looked at."""
        page: list[RunId] = await self._store.read("run_ids_after", self._after, RUNS_AT_ONCE)
        if page:
            last = page[-1].run_id
            found: list[NewRun] = await self._store.read("runs_unledgered", self._after, last)
            for tenant, runs in groupby(sorted(found, key=lambda run: run.tenant), lambda run: run.tenant):
                await self._append(tenant, [leaves.created(tenant, run.run_id, run.hash) for run in runs])
            self._newest = max(self._newest, last)
            self._after = last
        if len(page) < RUNS_AT_ONCE:  # at the end: the next look begins a little before it
            self._after = max(0, self._newest - OVERLAP_SECONDS * _ID_SECOND)
        return len(page)

    async def seal_admin(self) -> int:
        """Seal the admin chains up to their last lines; how many."""
        heads: list[AdminHead] = await self._store.read("admin_unsealed")
        for head in heads:
            await self._append(head.tenant, [leaves.admin(head.tenant, head.seq, head.hash)])
        return len(heads)

    async def sign_due(self, *, now: bool = False) -> int:
        """Sign for the ledgers that have something new and were not signed for of late (or all that have); how many."""
        signer = await asyncio.to_thread(self._signer) if await self._unsigned() else None
        if signer is None:
            return 0
        await Keys(self._store).ready(signer)
        done = 0
        for tenant in await self._unsigned():  # anew: the first key has just been entered
            try:
                signed = await self._sign(Book(self._store, tenant), signer, now)
            except TenureError as refused:
                self._say("ledger_not_signed", tenant, refused)
                continue
            if signed:
                done += 1
                self._said.pop(("ledger_not_signed", tenant), None)
        return done

    def _say(self, event: str, tenant: str | None, refused: TenureError) -> None:
        """Into the log, once and not every round; again when it was good meanwhile."""
        if self._said.get((event, tenant)) != refused.message:
            self._said[event, tenant] = refused.message
            log.error(event, tenant=tenant, error=refused.code, message=refused.message)

    async def _unsigned(self) -> list[str]:
        sizes: list[LedgerSize] = await self._store.read("ledger_sizes")
        return [
            each.tenant for each in sizes if each.size != each.signed
        ]  # fewer: it was cut off, and is told

    async def _sign(self, book: Book, signer: Signer, at_once: bool) -> bool:
        last = await book.newest()
        moment: int = (await self._store.read("now"))[0].now_us
        if last is not None and not at_once and moment < last.at + self._sign_us:
            return False
        made = await book.sign(signer)
        if made is not None and self._owed is not None:
            self._owed[book.tenant] = made
        return made is not None

    async def copy_owed(self) -> None:
        """Copy checkpoints to where they are kept; what cannot be copied now is tried again."""
        if self._shelf is None:
            return
        if self._owed is None:
            sizes: list[LedgerSize] = await self._store.read("ledger_sizes")
            books = [Book(self._store, each.tenant) for each in sizes if each.signed]
            self._owed = {
                book.tenant: newest for book in books if (newest := await book.newest()) is not None
            }
        for tenant, signed in list(self._owed.items()):
            try:
                await copy(Book(self._store, tenant), self._shelf, signed)
            except TenureError as refused:
                self._say("checkpoint_not_copied", tenant, refused)
            else:
                del self._owed[tenant]
                self._said.pop(("checkpoint_not_copied", tenant), None)

    async def _append(self, tenant: str, entries: list[Entry]) -> None:
        for first in range(0, len(entries), LEAVES_AT_ONCE):
            some = entries[first : first + LEAVES_AT_ONCE]
            await settled(self._store, partial(_appended, tenant, some))


def _appended(tenant: str, entries: list[Entry]) -> Transaction[list[Leaf]]:
    now = (yield Query("now"))[0].now_us
    return (yield from appended(tenant, entries, now))
