"""Seals runs that have ended: builds their evidence, stores it among the artifacts, and commits the seal.

Laws:
1. The files are written first, then the commit: the evidence row, the run's seal and the ledger leaf are one transaction. Files of a commit
   that failed are harmless: their names are their digests.
2. A run has one part per number (I52), however many processes seal it at once: the second one finds the run sealed. A run that has changed
   meanwhile is left for the next round.
3. Sealing has low priority: one run at a time, a limited share of the time, and not while commands wait.
4. An inconsistent history is not sealed. The log and the doctor report it.
5. Nothing is sealed without the key. A key that cannot be read, was replaced or is revoked is logged once, not for every run. No evidence is
   built in vain, and sealing continues when the key is available again.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence
from math import inf

import msgspec

from tenure import ids
from tenure.artifacts import ArtifactStore
from tenure.chance import SystemChance
from tenure.clock import us
from tenure.errors import TenureError
from tenure.govern.evidence.bundle import EVENTS, BuiltPart, EventLine, build_bundle, build_supplement
from tenure.govern.evidence.statement import ENVELOPE_SUFFIX, build_envelope, build_statement
from tenure.govern.ledger.signing_keys import SigningKeys
from tenure.govern.signing import Signer
from tenure.kernel.commands import Context, SealedBundle, SealRun
from tenure.kernel.governance_rows import EvidenceRow
from tenure.kernel.run_rows import CLOSED_RUN, EventRow, RunRow
from tenure.logs import get_logger
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.batch import BatchOutcome, PendingCommand, commit_locked
from tenure.orchestrator.periodic_task import PeriodicTask
from tenure.proof import ledger_leaves
from tenure.store.evidence import UnsealedRun
from tenure.store.ledger import append_leaves, ledger_lock
from tenure.store.port import Query, Store, Transaction
from tenure.store.transactions import run_transaction

log = get_logger(__name__)

LOOK_SECONDS = 1.0
RUNS_AT_ONCE = 50
QUIET_SECONDS = 1.0
"""How long a run has had no new events when it is sealed."""
LATER_QUIET_SECONDS = 60.0
"""The same before a supplement, so that frequent changes are sealed once."""
SHARE = 0.25
"""The largest share of the time that sealing may take."""
BUSY_COMMANDS = 64
"""If more commands than this wait for their commit, sealing waits too."""
YIELD_SECONDS = 0.02
YIELDS_MAX = 10
"""How often sealing waits for commands at most, before each run."""
RETRY_SECONDS = 10.0
"""The delay before the next attempt if evidence could not be stored."""
REFUSED_SECONDS = 600.0
"""The delay before the next attempt and log line if a run cannot be sealed as it is."""
REFUSED_MAX = 10_000
KEY_TROUBLE = frozenset({"SIGNING_KEY_UNAVAILABLE", "SIGNING_KEY_UNKNOWN"})
"""Problems of the key, which affect all runs."""
SEALER = Context("system:sealer", "system", "evidence")


class SignedPart(msgspec.Struct, frozen=True, kw_only=True):
    built: BuiltPart
    envelope: bytes
    key_id: str | None

    @property
    def path(self) -> str:
        manifest = self.built.manifest
        ids.run_int(manifest.run)  # validates the run id, which becomes a part of the path
        return f"{manifest.run}/{manifest.part}-{self.built.sha256.hex()}.zip"


class RunSealer:
    def __init__(self, store: Store, artifacts: ArtifactStore, signer: Signer | None) -> None:
        self.store = store
        self.artifacts = artifacts
        self.signer = signer

    async def check_key(self) -> None:
        """SIGNING_KEY_UNKNOWN if the key may no longer sign. Whether the key is available shows at each signature."""
        if self.signer is not None:
            await SigningKeys(self.store).ready(self.signer)

    async def missing(self, run_id: int) -> list[SignedPart]:
        """The missing parts, up to the run's last event, signed if there is a key. Nothing is stored."""
        found: list[RunRow] = await self.store.read("get_run", run_id)
        if not found:
            return []
        run = found[0]
        if run.status not in CLOSED_RUN:
            raise TenureError(
                "RUN_INVALID_TRANSITION",
                f"{ids.run_text(run_id)} is {run.status}: there is evidence only of runs that have ended",
            )
        known: list[EvidenceRow] = await self.store.read("evidence_of", run_id)
        events: list[EventRow] = await self.store.read("events_of", run_id)
        now: int = (await self.store.read("now"))[0].now_us
        parts = []
        if known:
            part, done, head = known[-1].no + 1, known[-1].events, known[-1].head
        else:
            built = await asyncio.to_thread(build_bundle, run_id, run.tenant, events)
            parts.append(built)
            part, done, head = 1, built.manifest.chain.last, built.head
        later = events[done:]
        if any(event.kind != "sealed" for event in later):
            parts.append(
                await asyncio.to_thread(build_supplement, run_id, run.tenant, part, head, later, run.status)
            )
        return [
            SignedPart(
                built=built,
                envelope=await build_envelope(build_statement(built, now), self.signer),
                key_id=None if self.signer is None else self.signer.id,
            )
            for built in parts
        ]

    async def seal(self, orchestrator: Orchestrator, run_id: int) -> list[EvidenceRow]:
        """Store the missing parts and seal the run (laws 1 and 2). Returns the new parts. RUN_MOVED_ON: try again."""
        parts = await self.missing(run_id)
        if not parts:
            return []
        own = []
        for part in parts:
            await self.artifacts.keep(part.path, part.built.zip)
            own.append(await self.artifacts.keep(part.path + ENVELOPE_SUFFIX, part.envelope))
        outcome, rows, item = await run_transaction(self.store, lambda: _commit_seal(run_id, parts))
        orchestrator.finish(outcome)
        if item.error is not None:
            raise item.error
        for part, mine in zip(parts if rows else (), own, strict=False):
            if not mine:  # the envelope of another process whose commit failed: the recorded one counts
                await self.artifacts.keep(part.path + ENVELOPE_SUFFIX, part.envelope, replace=True)
        return rows


def _commit_seal(
    run_id: int, parts: Sequence[SignedPart]
) -> Transaction[tuple[BatchOutcome, list[EvidenceRow], PendingCommand]]:
    tenant = parts[0].built.manifest.tenant
    bundles = tuple(
        SealedBundle(
            built.manifest.part, built.manifest.chain.last, built.manifest.chain.head, built.sha256.hex()
        )
        for built in (part.built for part in parts)
    )
    item = PendingCommand(SealRun(run_id=run_id, tenant=tenant, context=SEALER, parts=bundles), None, inf, {})
    yield ledger_lock(tenant)  # before the run's lock: tenant locks come first
    outcome = yield from commit_locked([item], {}, SystemChance(), [])
    if outcome.again and item.error is None:
        item.error = TenureError("RUN_MOVED_ON", f"{ids.run_text(run_id)} is being changed")
    rows: list[EvidenceRow] = []
    if item.error is not None or item.result["again"]:
        return outcome, rows, item
    now = (yield Query("now"))[0].now_us
    entries = []
    for part in parts:
        manifest = part.built.manifest
        row = EvidenceRow(
            run_id=run_id,
            no=manifest.part,
            tenant=tenant,
            sha256=part.built.sha256,
            size=len(part.built.zip),
            head=part.built.head,
            events=manifest.chain.last,
            key_id=part.key_id,
            reference=part.path.encode(),
            envelope=part.envelope,
            at=now,
        )
        yield Query("save_evidence", scalars=msgspec.structs.astuple(row))
        rows.append(row)
        entries += _build_leaves(part.built)
    yield from append_leaves(tenant, entries, now)
    return outcome, rows, item


def _build_leaves(built: BuiltPart) -> list[ledger_leaves.LedgerEntry]:
    """The ledger leaves of a part. The `created` leaf precedes a run's seal."""
    manifest = built.manifest
    leaf = ledger_leaves.seal_leaf(
        manifest.tenant,
        ids.run_int(manifest.run),
        manifest.part,
        built.head,
        manifest.chain.last,
        manifest.outcome or "",
    )
    if manifest.part:
        return [leaf]
    first = msgspec.json.decode(built.files[EVENTS].partition(b"\n")[0], type=EventLine)
    return [
        ledger_leaves.created_leaf(manifest.tenant, ids.run_int(manifest.run), bytes.fromhex(first.hash)),
        leaf,
    ]


class SealerTask(PeriodicTask):
    """Seals runs as they end, until it is stopped (law 3). An async context manager."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        sealing: RunSealer,
        *,
        seconds: float = LOOK_SECONDS,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        super().__init__("sealer", self.once, seconds, RUNS_AT_ONCE)
        self._orchestrator = orchestrator
        self._sealing = sealing
        self._quiet_us = us(quiet_seconds)
        self._later: dict[int, float] = {}
        """Runs that could not be sealed, and when they are tried again."""
        self._after = (0, 0)
        """How far this round has looked, so that runs that cannot be sealed do not block others."""
        self.sealed = 0
        self.failed = 0
        self.key_trouble: TenureError | None = None
        """The known problem of the key (law 5)."""
        self._key_retry_at = self._key_log_at = 0.0
        """When the key is tried again, and when its problem is logged again."""

    async def once(self) -> int:
        """Seal some of the runs that have ended. Returns the number of runs that were found."""
        clock = asyncio.get_running_loop().time
        if clock() < self._key_retry_at:
            return 0
        store = self._orchestrator.store
        now = store.estimate_us() or (await store.read("now"))[0].now_us
        quiet, later = now - self._quiet_us, now - us(LATER_QUIET_SECONDS)
        found: list[UnsealedRun] = await store.read("runs_unsealed", *self._after, quiet, later, RUNS_AT_ONCE)
        try:
            if found:
                await self._sealing.check_key()
            for run in found:
                if self._later.get(run.run_id, 0.0) > clock():
                    continue
                await self._yield_to_commands()
                began = clock()
                await self._seal(run)
                await asyncio.sleep((clock() - began) * (1 / SHARE - 1))
        except TenureError as refused:
            if refused.code not in KEY_TROUBLE:
                raise
            self._report_key_trouble(refused)
            return 0
        self._after = (found[-1].finished_at, found[-1].run_id) if len(found) == RUNS_AT_ONCE else (0, 0)
        return len(found)

    def _report_key_trouble(self, refused: TenureError) -> None:
        """Log a problem of the signing key (law 5): when it begins, when it changes, and from time to time."""
        now = asyncio.get_running_loop().time()
        self.failed += 1
        known, self.key_trouble = self.key_trouble, refused
        self._key_retry_at = now + RETRY_SECONDS
        if known is None or known.message != refused.message or now >= self._key_log_at:
            self._key_log_at = now + REFUSED_SECONDS
            log.error("signing_key_lost", error=refused.code, message=refused.message)

    async def _yield_to_commands(self) -> None:
        for _ in range(YIELDS_MAX):
            if self._orchestrator.waiting <= BUSY_COMMANDS:
                return
            await asyncio.sleep(YIELD_SECONDS)

    async def _seal(self, run: UnsealedRun) -> None:
        """Seal one run. A failure does not affect other runs, and is retried later. A problem of the key is raised."""
        pause = REFUSED_SECONDS
        try:
            made = await self._sealing.seal(self._orchestrator, run.run_id)
        except TenureError as refused:
            if refused.code == "RUN_MOVED_ON":
                return  # the next round finds it again
            if refused.code in KEY_TROUBLE:
                raise
            log.warning(
                "seal_failed", run=ids.run_text(run.run_id), error=refused.code, message=refused.message
            )
            pause = RETRY_SECONDS if refused.retryable else REFUSED_SECONDS
        except Exception:
            log.error("seal_failed", run=ids.run_text(run.run_id), traceback=traceback.format_exc())
        else:
            self._later.pop(run.run_id, None)
            self.sealed += bool(made)
            if made and self.key_trouble is not None:
                self.key_trouble = None
                log.info("signing_key_available")
            return
        self.failed += 1
        if len(self._later) >= REFUSED_MAX:
            self._later.clear()
        self._later[run.run_id] = asyncio.get_running_loop().time() + pause
