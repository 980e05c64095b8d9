"""Evidence of runs: list, seal and export it.

Laws:
1. A sealed part is read from the artifacts and compared with its record. A part that is not sealed yet is built for the export: the
   same bytes that the sealer would make, without a record.
2. Every export of evidence is an entry of the tenant's audit chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from tenure import ids
from tenure.clock import to_datetime
from tenure.errors import TenureError
from tenure.govern.evidence.bundle import file_name
from tenure.govern.ledger.tenant_ledger import TenantLedger
from tenure.kernel.governance_rows import EvidenceRow
from tenure.limits import MOMENT_US_MAX
from tenure.proof import signed_notes
from tenure.services.scope import Scope, Service
from tenure.shapes.evidence import EvidencePart, ExportedEvidence
from tenure.store.identity import AdminChange, ChangeResult, Identity
from tenure.store.port import Transaction

SEAL_ATTEMPTS_MAX = 5
_List = list  # `Evidence.list` hides the builtin in annotations of the class


def show_evidence_part(row: EvidenceRow) -> EvidencePart:
    run = ids.run_text(row.run_id)
    return EvidencePart(
        run_id=run,
        part=row.no,
        name=file_name(run, row.no),
        sha256=row.sha256.hex(),
        size=row.size,
        events=row.events,
        head=row.head.hex(),
        key_id=row.key_id,
        sealed_at=to_datetime(row.at),
    )


class Evidence(Service):
    """The evidence of a scope's tenant."""

    async def list(self, run_id: str) -> _List[EvidencePart]:
        """The sealed parts of a run, even if the run was deleted since."""
        return [show_evidence_part(row) for row in await self._rows(run_id)]

    async def newest(self, *, limit: int = 50) -> _List[EvidencePart]:
        """The newest parts of all runs."""
        rows = await self._scope.store.read("evidence_after", self._scope.tenant, MOMENT_US_MAX, 0, limit)
        return [show_evidence_part(row) for row in rows]

    async def seal(self, run_id: str) -> _List[EvidencePart]:
        """Seal a finished run now. Returns the new parts."""
        run = await self._scope.reader.row(ids.run_int(run_id))
        return [show_evidence_part(row) for row in await seal_run(self._scope, run.id)]

    async def export(
        self, run_id: str, *, checkpoint: bytes | None = None, actor: str | None = None
    ) -> _List[ExportedEvidence]:
        """All evidence of a run, with proofs for a checkpoint of the ledger (by default the newest)."""
        scope = self._scope
        kept = None if checkpoint is None else signed_notes.parse_checkpoint(checkpoint)
        found: _List[ExportedEvidence] = []
        for row in await self._rows(run_id):
            body = await load_bundle(scope, row)
            proof: str | None = None
            try:
                proof = await load_proof(scope, row, kept)
            except TenureError as refused:
                if kept is not None or refused.code not in ("NOT_READY", "RUN_NOT_SEALED"):
                    raise
            name = file_name(run_id, row.no)
            found.append(
                ExportedEvidence(name=name, zip=body, envelope=row.envelope, proof=proof, sealed=True)
            )
        found += [
            ExportedEvidence(
                name=part.built.name, zip=part.built.zip, envelope=part.envelope, proof=None, sealed=False
            )
            for part in await scope.runtime.sealing.missing(ids.run_int(run_id))
        ]
        await record_export(scope, run_id, [one.name for one in found], actor)
        return found

    async def _rows(self, run_id: str) -> _List[EvidenceRow]:
        scope, number = self._scope, ids.run_int(run_id)
        rows: _List[EvidenceRow] = await scope.store.read("evidence_of", number)
        mine = [row for row in rows if row.tenant == scope.tenant]
        if not mine:
            await scope.reader.row(number)  # another tenant's run looks exactly like a missing one
        return mine


async def seal_run(scope: Scope, run_id: int) -> list[EvidenceRow]:
    """Seal a run. If its history grows meanwhile, try again."""
    sealing = scope.runtime.sealing
    await sealing.check_key()
    for _ in range(SEAL_ATTEMPTS_MAX - 1):
        try:
            return await sealing.seal(scope.orchestrator, run_id)
        except TenureError as refused:
            if refused.code != "RUN_MOVED_ON":
                raise
    return await sealing.seal(scope.orchestrator, run_id)


async def load_proof(scope: Scope, row: EvidenceRow, checkpoint: signed_notes.LedgerCheckpoint | None) -> str:
    """The ledger's proof for a part; NOT_READY if no checkpoint covers it."""
    return await TenantLedger(scope.store, row.tenant).run_proof(row.run_id, row.no, checkpoint)


async def load_bundle(scope: Scope, row: EvidenceRow) -> bytes:
    """The zip of a sealed part; ARTIFACT_LOST if it is missing or differs from its record."""
    body = await scope.artifacts.kept(row.reference.decode())
    if sha256(body).digest() != row.sha256:
        raise TenureError("ARTIFACT_LOST", f"{row.reference.decode()} differs from what was sealed")
    return body


async def record_export(scope: Scope, run_id: str, names: Sequence[str], actor: str | None) -> None:
    """Write the entry of the audit chain (law 2)."""
    change = AdminChange(
        tenant=scope.tenant,
        kind="evidence.exported",
        actor=actor or scope.actor,
        about={"run": run_id, "files": list(names)},
    )

    def make(_now: int) -> Transaction[ChangeResult[None]]:
        yield from ()
        return None, [change]

    await Identity(scope.store).change(scope.tenant, make)
