"""Evidence of an engine's runs: listed, sealed by hand, and taken out.

Laws:
1. What was sealed is taken from the artifacts and compared with its record. What was not is built on the spot, the same bytes as
   a sealer would make, and leaves no record: sealing is the sealer's.
2. Taking evidence out is a line of the tenant's admin chain, also where nothing was built.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, cast

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.govern.evidence.bundle import file_name
from tenure.govern.evidence.sealer import Sealing
from tenure.govern.ledger import notes
from tenure.govern.ledger.book import Book
from tenure.kernel.governance import Evidence
from tenure.limits import MOMENT_US_MAX
from tenure.orchestrator.views import moment
from tenure.store.identity import Change, Identity, Told
from tenure.store.port import Transaction

if TYPE_CHECKING:
    from tenure.embedded.engine import Engine

TRIES_MAX = 5


class EvidenceView(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a run's evidence: the bundle (0) or a numbered supplement."""

    run_id: str
    part: int
    name: str
    """What its zip is called."""
    sha256: str
    size: int
    events: int
    """How long the run's history is at its end."""
    head: str
    """The hash of the last event in it."""
    key_id: str | None
    """The key that signed it; None: it is not signed."""
    sealed_at: datetime


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """A part, to be written to files: NAME, NAME.dsse.json and NAME.tlog-proof."""

    name: str
    zip: bytes
    envelope: bytes
    proof: str | None
    """That the ledger has it; None: it has not, or nothing covers it yet."""
    sealed: bool
    """Whether it is on record; else it was built just now."""


def evidence_view(row: Evidence) -> EvidenceView:
    """A record as people see it."""
    run = ids.run_text(row.run_id)
    return EvidenceView(
        run_id=run,
        part=row.no,
        name=file_name(run, row.no),
        sha256=row.sha256.hex(),
        size=row.size,
        events=row.events,
        head=row.head.hex(),
        key_id=row.key_id,
        sealed_at=moment(row.at),
    )


class Proving:
    """See the laws above; another part of an engine."""

    async def evidence(self, run_id: str) -> list[EvidenceView]:
        """What there is of a run; also of one that was deleted since."""
        return [evidence_view(row) for row in await self._parts(run_id)]

    async def newest_evidence(self, *, limit: int = 50) -> list[EvidenceView]:
        """The newest bundles of this engine's tenant."""
        engine = self._engine
        rows: list[Evidence] = await engine.store.read(
            "evidence_after", engine.tenant, MOMENT_US_MAX, 0, limit
        )
        return [evidence_view(row) for row in rows]

    async def seal(self, run_id: str) -> list[EvidenceView]:
        """Seal a run that has ended, now; the parts that are new."""
        engine = self._engine
        run = await engine.views.row(ids.run_int(run_id))
        rows = await sealed(engine, engine.sealing, run.id)
        return [evidence_view(row) for row in rows]

    async def export_evidence(
        self, run_id: str, *, checkpoint: bytes | None = None, actor: str | None = None
    ) -> list[Exported]:
        """All there is of a run, with proofs for a checkpoint of the ledger (without one: for the newest)."""
        engine, number = self._engine, ids.run_int(run_id)
        kept = None if checkpoint is None else notes.parse(checkpoint)
        found: list[Exported] = []
        for row in await self._parts(run_id):
            body = await zip_of(engine, row)
            proof: str | None = None
            try:
                proof = await proof_of(engine, row, kept)
            except TenureError as refused:
                if kept is not None or refused.code not in ("NOT_READY", "RUN_NOT_SEALED"):
                    raise
            name = file_name(run_id, row.no)
            found.append(Exported(name=name, zip=body, envelope=row.envelope, proof=proof, sealed=True))
        for part in await engine.sealing.missing(number):
            built = part.built
            found.append(
                Exported(name=built.name, zip=built.zip, envelope=part.envelope, proof=None, sealed=False)
            )
        await taken_out(engine, run_id, [one.name for one in found], actor)
        return found

    async def _parts(self, run_id: str) -> list[Evidence]:
        engine, number = self._engine, ids.run_int(run_id)
        rows: list[Evidence] = await engine.store.read("evidence_of", number)
        mine = [row for row in rows if row.tenant == engine.tenant]
        if not mine:
            await engine.views.row(number)  # another tenant's run looks exactly like none
        return mine

    @property
    def _engine(self) -> Engine:
        return cast("Engine", self)


async def sealed(engine: Engine, sealing: Sealing, run_id: int) -> list[Evidence]:
    """Seal a run, again where its history went on meanwhile."""
    await sealing.check_key()
    for _ in range(TRIES_MAX - 1):
        try:
            return await sealing.seal(engine.orchestrator, run_id)
        except TenureError as refused:
            if refused.code != "RUN_MOVED_ON":
                raise
    return await sealing.seal(engine.orchestrator, run_id)


async def proof_of(engine: Engine, row: Evidence, checkpoint: notes.Checkpoint | None) -> str:
    """The ledger's proof for a part; NOT_READY where no checkpoint covers it."""
    return await Book(engine.store, row.tenant).run_proof(row.run_id, row.no, checkpoint)


async def zip_of(engine: Engine, row: Evidence) -> bytes:
    """The zip of a part, as it was recorded; ARTIFACT_LOST where it is not there or is another."""
    body = await engine.artifacts.kept(row.reference.decode())
    if sha256(body).digest() != row.sha256:
        raise TenureError("ARTIFACT_LOST", f"{row.reference.decode()} is not what was sealed")
    return body


async def taken_out(engine: Engine, run_id: str, names: Sequence[str], actor: str | None) -> None:
    """The line of the admin chain (law 2)."""
    change = Change(
        tenant=engine.tenant,
        kind="evidence.exported",
        actor=actor or engine.actor,
        about={"run": run_id, "files": list(names)},
    )

    def make(_now: int) -> Transaction[Told[None]]:
        yield from ()
        return None, [change]

    await Identity(engine.store).change(engine.tenant, make)
