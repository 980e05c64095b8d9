"""Maintains the ledgers: adds leaves for new runs, seals admin chains, and signs checkpoints.

Laws:
1. Commits of runs contain nothing for the ledger: runs are found afterwards by their ids, which are ordered by creation. Recent ids are
   read again for a while, because a run may be committed after a younger one. A run that is sealed before it was found gets both leaves
   then.
2. It may run in every process and stop at any point: existing leaves are not appended again.
3. A ledger with new leaves is signed periodically, if there is a key that may sign. A ledger that was changed below its last checkpoint is not
   signed, and that is logged. A problem of one ledger does not affect others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby

from tenure.clock import us
from tenure.errors import TenureError
from tenure.govern.ledger.checkpoint_export import PLACE_VARIABLE, CheckpointStorage, copy_checkpoint
from tenure.govern.ledger.signing_keys import SigningKeys
from tenure.govern.ledger.tenant_ledger import TenantLedger
from tenure.govern.signing import Signer, configured_signer
from tenure.kernel.governance_rows import LedgerLeafRow, SignedCheckpointRow
from tenure.logs import get_logger
from tenure.orchestrator.periodic_task import PeriodicTask
from tenure.proof import ledger_leaves
from tenure.proof.ledger_leaves import LedgerEntry
from tenure.store.ledger import AdminHead, LedgerSize, UnledgeredRun, append_leaves
from tenure.store.port import Query, RunId, Store, Transaction
from tenure.store.transactions import run_transaction

log = get_logger(__name__)

LOOK_SECONDS = 2.0
RUNS_AT_ONCE = 500
LEAVES_AT_ONCE = 100
"""Leaves in one commit, which commits of runs have to wait for."""
OVERLAP_SECONDS = 30
"""How much younger a run may be that is committed earlier."""
SIGN_SECONDS = 60.0
_ID_SECOND = 1 << 31
"""The number of run ids per second; see `tenure.ids`."""


class LedgerKeeper(PeriodicTask):
    """Implements the laws above. An async context manager; or call `once()` periodically."""

    def __init__(
        self,
        store: Store,
        *,
        signer: Callable[[], Signer | None] = configured_signer,
        place: str | None = None,
        seconds: float = LOOK_SECONDS,
        sign_seconds: float = SIGN_SECONDS,
    ) -> None:
        """`signer` returns the configured key, and is called each time. `place` is for automatic copies; by default it comes from the environment."""
        super().__init__("ledger-keeper", self.once, seconds, RUNS_AT_ONCE)
        self._store = store
        self._signer = signer
        self._sign_us = us(sign_seconds)
        named = place or os.environ.get(PLACE_VARIABLE)
        self._storage = CheckpointStorage(named) if named else None
        self._after = 0
        """The id from which runs are read."""
        self._newest = 0
        self._logged: dict[tuple[str, str | None], str] = {}
        self._owed: dict[str, SignedCheckpointRow] | None = None
        """Checkpoints to be copied, by tenant. None: the newest of all, because this process has just started."""

    async def once(self) -> int:
        """One round. Returns the number of runs that were found."""
        seen = await self.append_new_runs()
        if seen < RUNS_AT_ONCE:  # otherwise there are more of them, which come first
            await self.seal_admin_chains()
            with self._log_problem(
                "ledgers_not_signed", None
            ):  # a key that may not sign does not end the round
                await self.sign_due()
            await self.copy_pending_checkpoints()
        return seen

    async def append_new_runs(self) -> int:
        """Add the `created` leaf of the next runs. Returns the number of runs that were found."""
        page: list[RunId] = await self._store.read("run_ids_after", self._after, RUNS_AT_ONCE)
        if page:
            last = page[-1].run_id
            found: list[UnledgeredRun] = await self._store.read("runs_unledgered", self._after, last)
            for tenant, runs in groupby(sorted(found, key=lambda run: run.tenant), lambda run: run.tenant):
                await self._append(
                    tenant, [ledger_leaves.created_leaf(tenant, run.run_id, run.hash) for run in runs]
                )
            self._newest = max(self._newest, last)
            self._after = last
        if len(page) < RUNS_AT_ONCE:  # at the end: the next round begins a little earlier
            self._after = max(0, self._newest - OVERLAP_SECONDS * _ID_SECOND)
        return len(page)

    async def seal_admin_chains(self) -> int:
        heads: list[AdminHead] = await self._store.read("admin_unsealed")
        for head in heads:
            await self._append(head.tenant, [ledger_leaves.admin_leaf(head.tenant, head.seq, head.hash)])
        return len(heads)

    async def sign_due(self, *, now: bool = False) -> int:
        """Sign the ledgers that have new leaves and were not signed recently (or all with new leaves). Returns their number."""
        signer = await asyncio.to_thread(self._signer) if await self._unsigned() else None
        if signer is None:
            return 0
        await SigningKeys(self._store).ready(signer)
        done = 0
        for tenant in await self._unsigned():  # again: the first key has just been added
            with self._log_problem("ledger_not_signed", tenant):
                done += await self._sign(TenantLedger(self._store, tenant), signer, now)
        return done

    @contextmanager
    def _log_problem(self, event: str, tenant: str | None) -> Iterator[None]:
        """Catch an error and log it once; the same error is logged again only after a success."""
        try:
            yield
        except TenureError as refused:
            if self._logged.get((event, tenant)) != refused.message:
                self._logged[event, tenant] = refused.message
                log.error(event, tenant=tenant, error=refused.code, message=refused.message)
        else:
            self._logged.pop((event, tenant), None)

    async def _unsigned(self) -> list[str]:
        sizes: list[LedgerSize] = await self._store.read("ledger_sizes")
        # A ledger with fewer leaves than were signed was truncated, which is reported.
        return [each.tenant for each in sizes if each.size != each.signed]

    async def _sign(self, ledger: TenantLedger, signer: Signer, at_once: bool) -> bool:
        last = await ledger.newest()
        moment: int = (await self._store.read("now"))[0].now_us
        if last is not None and not at_once and moment < last.at + self._sign_us:
            return False
        made = await ledger.sign(signer)
        if made is not None and self._owed is not None:
            self._owed[ledger.tenant] = made
        return made is not None

    async def copy_pending_checkpoints(self) -> None:
        """Copy pending checkpoints. A failed copy is retried in the next round."""
        if self._storage is None:
            return
        if self._owed is None:
            sizes: list[LedgerSize] = await self._store.read("ledger_sizes")
            ledgers = [TenantLedger(self._store, each.tenant) for each in sizes if each.signed]
            self._owed = {
                ledger.tenant: newest for ledger in ledgers if (newest := await ledger.newest()) is not None
            }
        for tenant, signed in list(self._owed.items()):
            with self._log_problem("checkpoint_not_copied", tenant):
                await copy_checkpoint(TenantLedger(self._store, tenant), self._storage, signed)
                del self._owed[tenant]

    async def _append(self, tenant: str, entries: list[LedgerEntry]) -> None:
        for first in range(0, len(entries), LEAVES_AT_ONCE):
            some = entries[first : first + LEAVES_AT_ONCE]
            await run_transaction(self._store, partial(_append_now, tenant, some))


def _append_now(tenant: str, entries: list[LedgerEntry]) -> Transaction[list[LedgerLeafRow]]:
    return (yield from append_leaves(tenant, entries, (yield Query("now"))[0].now_us))
