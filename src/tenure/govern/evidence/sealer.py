"""Seals runs that have ended: builds their evidence, keeps it among the artifacts, and commits that it is there.

Laws:
1. First the files, then the commit: its record, the run's seal and the leaf of its tenant's ledger are one transaction. Files of
   a commit that did not happen are harmless: their names are their digests.
2. One part per number and run (I52), however many seal at once: of two the second finds the run sealed. A run that has gone on
   meanwhile is left for the next look.
3. It is polite: one run at a time, never more than a share of the time, and not while commands wait.
4. A history that does not recompute is not sealed: it is told in the log, and by the doctor.
5. Without its key nothing is sealed. One that cannot be read, is another by now, or is revoked is told in the log as such and not of
   every run; no evidence is built in vain, and when it is back sealing goes on by itself.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence
from math import inf

import msgspec

from tenure import ids
from tenure.artifacts import Artifacts
from tenure.clock import us
from tenure.errors import TenureError
from tenure.govern.evidence.bundle import EVENTS, Built, Line, build, supplement
from tenure.govern.evidence.statement import ENVELOPE_SUFFIX, enveloped, statement_of
from tenure.govern.ledger.keys import Keys
from tenure.govern.signing import Signer
from tenure.kernel import leaves
from tenure.kernel.commands import Context, Seal, SealedPart
from tenure.kernel.governance import Evidence
from tenure.kernel.model import CLOSED_RUN, Event, Run
from tenure.logs import get_logger
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.batch import Item, Outcome, locked
from tenure.orchestrator.chance import SystemChance
from tenure.orchestrator.rounds import Rounds
from tenure.store.beside import settled
from tenure.store.evidence import Unsealed
from tenure.store.ledger import appended, ledger_lock
from tenure.store.port import Query, Store, Transaction

log = get_logger(__name__)

LOOK_SECONDS = 1.0
RUNS_AT_ONCE = 50
QUIET_SECONDS = 1.0
"""How long a run has told nothing new when it is sealed."""
LATER_QUIET_SECONDS = 60.0
"""Likewise before a supplement: what changes often is sealed once."""
SHARE = 0.25
"""Of the time that is spent on it where there is more to seal than that."""
BUSY_COMMANDS = 64
"""Where more than these wait for their commit, sealing waits too."""
YIELD_SECONDS = 0.02
YIELDS_MAX = 10
"""But not for ever."""
RETRY_SECONDS = 10.0
"""When a run is tried again whose evidence could not be kept."""
REFUSED_SECONDS = 600.0
"""And one that cannot be sealed as it is: it is told again, not every second."""
REFUSED_MAX = 10_000
KEY_TROUBLE = frozenset({"SIGNING_KEY_UNAVAILABLE", "SIGNING_KEY_UNKNOWN"})
"""What is wrong with the key, and so with no run."""
SEALER = Context("system:sealer", "system", "evidence")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part with its envelope, as it lies among the artifacts."""

    built: Built
    envelope: bytes
    key_id: str | None

    @property
    def path(self) -> str:
        """Where the zip lies; the envelope beside it."""
        return path_of(self.built.manifest.run, self.built.manifest.part, self.built.sha256)


def path_of(run: str, part: int, digest: bytes) -> str:
    """Where a part's zip lies, below the place for evidence."""
    ids.run_int(run)  # a path is made from it
    return f"{run}/{part}-{digest.hex()}.zip"


class Sealing:
    """How evidence is made of one run."""

    def __init__(self, store: Store, artifacts: Artifacts, signer: Signer | None) -> None:
        self.store = store
        self.artifacts = artifacts
        self.signer = signer

    async def check_key(self) -> None:
        """SIGNING_KEY_UNKNOWN where the key may not sign any more. (Whether it is there, each signature tells.)"""
        if self.signer is not None:
            await Keys(self.store).ready(self.signer)

    async def missing(self, run_id: int) -> list[Part]:
        """The parts that are not there yet, up to the run's last event; signed where there is a key. Nothing is kept."""
        found: list[Run] = await self.store.read("get_run", run_id)
        if not found:
            return []
        run = found[0]
        if run.status not in CLOSED_RUN:
            raise TenureError(
                "RUN_INVALID_TRANSITION",
                f"{ids.run_text(run_id)} is {run.status}: there is evidence of what has ended",
            )
        known: list[Evidence] = await self.store.read("evidence_of", run_id)
        events: list[Event] = await self.store.read("events_of", run_id)
        now: int = (await self.store.read("now"))[0].now_us
        parts = []
        part, done, head = (known[-1].no + 1, known[-1].events, known[-1].head) if known else (0, 0, b"")
        if part == 0:
            built = await asyncio.to_thread(build, run_id, run.tenant, events)
            parts.append(built)
            part, done, head = 1, built.manifest.chain.last, built.head
        later = events[done:]
        if any(event.kind != "sealed" for event in later):
            built = await asyncio.to_thread(supplement, run_id, run.tenant, part, head, later, run.status)
            parts.append(built)
        return [await self._signed(built, now) for built in parts]

    async def _signed(self, built: Built, now: int) -> Part:
        envelope = await enveloped(statement_of(built, now), self.signer)
        return Part(built=built, envelope=envelope, key_id=None if self.signer is None else self.signer.id)

    async def seal(self, orchestrator: Orchestrator, run_id: int) -> list[Evidence]:
        """Keep what is missing and seal the run with it (laws 1 and 2); the parts that are new. RUN_MOVED_ON: try again."""
        parts = await self.missing(run_id)
        if not parts:
            return []
        own = []
        for part in parts:
            await self.artifacts.keep(part.path, part.built.zip)
            own.append(await self.artifacts.keep(part.path + ENVELOPE_SUFFIX, part.envelope))
        outcome, rows, item = await settled(self.store, lambda: _sealed(run_id, parts))
        orchestrator.finish(outcome)
        if item.error is not None:
            raise item.error
        for part, mine in zip(parts if rows else (), own, strict=False):
            if (
                not mine
            ):  # somebody else's envelope lies there, whose commit did not happen: the one on record counts
                await self.artifacts.keep(part.path + ENVELOPE_SUFFIX, part.envelope, replace=True)
        return rows


def _sealed(run_id: int, parts: Sequence[Part]) -> Transaction[tuple[Outcome, list[Evidence], Item]]:
    """The commit (law 1)."""
    manifests = [part.built.manifest for part in parts]
    tenant = manifests[0].tenant
    named = tuple(
        SealedPart(one.part, one.chain.last, one.chain.head, part.built.sha256.hex())
        for one, part in zip(manifests, parts, strict=True)
    )
    item = Item(Seal(run_id=run_id, tenant=tenant, context=SEALER, parts=named), None, inf, {})
    yield ledger_lock(tenant)  # before the run's: tenants' locks come first
    outcome = yield from locked([item], {}, SystemChance(), [])
    if outcome.again and item.error is None:
        item.error = TenureError("RUN_MOVED_ON", f"{ids.run_text(run_id)} is being changed")
    rows: list[Evidence] = []
    if item.error is not None or item.result["again"]:
        return outcome, rows, item
    now = (yield Query("now"))[0].now_us
    entries = []
    for part, one in zip(parts, manifests, strict=True):
        row = Evidence(
            run_id=run_id,
            no=one.part,
            tenant=tenant,
            sha256=part.built.sha256,
            size=len(part.built.zip),
            head=part.built.head,
            events=one.chain.last,
            key_id=part.key_id,
            reference=part.path.encode(),
            envelope=part.envelope,
            at=now,
        )
        yield Query("save_evidence", scalars=msgspec.structs.astuple(row))
        rows.append(row)
        entries += leaves_of(part.built)
    yield from appended(tenant, entries, now)
    return outcome, rows, item


def leaves_of(built: Built) -> list[leaves.Entry]:
    """What a ledger says of a part; before a run's seal stands that it was made."""
    one = built.manifest
    run_id, head, last = ids.run_int(one.run), built.head, one.chain.last
    if one.part:
        return [leaves.supplement(one.tenant, run_id, one.part, head, last, one.outcome or "")]
    first = msgspec.json.decode(built.files[EVENTS].partition(b"\n")[0], type=Line)
    return [
        leaves.created(one.tenant, run_id, bytes.fromhex(first.hash)),
        leaves.sealed(one.tenant, run_id, head, last, one.outcome or ""),
    ]


class Sealer(Rounds):
    """Seals whatever ends, until it is stopped (law 3). An async context manager."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        sealing: Sealing,
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
        """Up to where this round has looked, so that runs which cannot be sealed hold up no others."""
        self.sealed = 0
        """How often a run was sealed here."""
        self.failed = 0
        """And how often that has failed."""
        self.key_trouble: TenureError | None = None
        """What is wrong with the key, as far as is known (law 5)."""
        self._key_again = self._key_told = 0.0
        """When it is tried again, and when it is told again."""

    async def once(self) -> int:
        """Seal some of what has ended; how many runs were looked at."""
        clock = asyncio.get_running_loop().time
        if clock() < self._key_again:
            return 0
        store = self._orchestrator.store
        now = store.estimate_us() or (await store.read("now"))[0].now_us
        quiet, later = now - self._quiet_us, now - us(LATER_QUIET_SECONDS)
        found: list[Unsealed] = await store.read("runs_unsealed", *self._after, quiet, later, RUNS_AT_ONCE)
        try:
            if found:
                await self._sealing.check_key()
            for run in found:
                if self._later.get(run.run_id, 0.0) > clock():
                    continue
                await self._let_others()
                began = clock()
                await self._seal(run)
                await asyncio.sleep((clock() - began) * (1 / SHARE - 1))
        except TenureError as refused:
            if refused.code not in KEY_TROUBLE:
                raise
            self._key_is_lost(refused)
            return 0
        self._after = (found[-1].finished_at, found[-1].run_id) if len(found) == RUNS_AT_ONCE else (0, 0)
        return len(found)

    def _key_is_lost(self, refused: TenureError) -> None:
        """Law 5. It is told when it begins, when it is something else, and now and then."""
        now = asyncio.get_running_loop().time()
        self.failed += 1
        known, self.key_trouble = self.key_trouble, refused
        self._key_again = now + RETRY_SECONDS
        if known is None or known.message != refused.message or now >= self._key_told:
            self._key_told = now + REFUSED_SECONDS
            log.error("signing_key_lost", error=refused.code, message=refused.message)

    async def _let_others(self) -> None:
        for _ in range(YIELDS_MAX):
            if self._orchestrator.waiting <= BUSY_COMMANDS:
                return
            await asyncio.sleep(YIELD_SECONDS)

    async def _seal(self, run: Unsealed) -> None:
        """Seal one; what goes wrong with it holds up no other, and is tried again after a while. Trouble with the key is raised."""
        pause = REFUSED_SECONDS
        try:
            made = await self._sealing.seal(self._orchestrator, run.run_id)
        except TenureError as refused:
            if refused.code == "RUN_MOVED_ON":
                return  # the next look finds it again
            if refused.code in KEY_TROUBLE:
                raise
            name = ids.run_text(run.run_id)
            log.warning("seal_failed", run=name, error=refused.code, message=refused.message)
            pause = RETRY_SECONDS if refused.retryable else REFUSED_SECONDS
        except Exception:
            log.error("seal_failed", run=ids.run_text(run.run_id), traceback=traceback.format_exc())
        else:
            self._later.pop(run.run_id, None)
            self.sealed += bool(made)
            if made and self.key_trouble is not None:
                self.key_trouble = None
                log.info("signing_key_back")
            return
        self.failed += 1
        if len(self._later) >= REFUSED_MAX:
            self._later.clear()
        self._later[run.run_id] = asyncio.get_running_loop().time() + pause
