"""Evidence: what was sealed of runs, and the tenant's ledger over it.

Laws:
1. The download of a bundle is an entry of the tenant's audit chain.
2. Another tenant's evidence and ledger look exactly like missing ones.
3. Of a ledger, only hashes, ids and public keys are shown.
"""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.params import FromPath, QueryParameter

from tenure import ids
from tenure.clock import to_datetime
from tenure.errors import TenureError
from tenure.govern.evidence.bundle import file_name
from tenure.govern.ledger.signing_keys import SigningKeys
from tenure.govern.ledger.tenant_ledger import NEWEST, TenantLedger
from tenure.kernel.governance_rows import EvidenceRow, LedgerLeafRow, SignedCheckpointRow
from tenure.limits import INTEGER_MAX, MOMENT_US_MAX
from tenure.proof import signed_notes
from tenure.proof.signatures import TrustFile
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, page_of_list
from tenure.server.request import ApiRequest
from tenure.services.evidence import load_bundle, load_proof, record_export, show_evidence_part
from tenure.services.paging import read_page
from tenure.shapes.evidence import EvidencePart
from tenure.shapes.pages import Page

Int64 = Annotated[int, msgspec.Meta(ge=1 - (1 << 63), le=(1 << 63) - 1)]
_SIZE_MAX = 2**53
ForCheckpoint = Annotated[
    str | None,
    QueryParameter(
        max_length=8_000,
        description="The checkpoint of the proof, as base64url; by default the newest.",
    ),
]


class SignedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A signed checkpoint."""

    size: int
    root: str
    """In hex."""
    note: str
    """The whole checkpoint, in the format of C2SP's tlog-checkpoint."""
    key_id: str
    signed_at: datetime


class ConsistencyProof(msgspec.Struct, frozen=True, kw_only=True, rename={"old": "from", "new": "to"}):
    """A proof that a ledger begins with an older ledger (RFC 6962, 2.1.2)."""

    old: int
    new: int
    hashes: list[str]
    """In base64, in the order of the RFC."""


@get("/evidence", summary="Sealed bundles, newest first")
async def list_bundles(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[EvidencePart]:
    """The first part of each run's evidence, including runs that were deleted since."""
    tenant, store = request.who.tenant, request.engine.store
    return await read_page(
        (tenant, "evidence", None),
        tuple[Int64, Int64],
        (MOMENT_US_MAX, 0),
        lambda place, count: store.read("evidence_after", tenant, *place, count),
        lambda row: [row.at, row.run_id],
        show_evidence_part,
        limit=limit,
        cursor=cursor,
    )


@get("/runs/{run_id:str}/evidence", summary="The evidence of a run")
async def list_evidence(
    request: ApiRequest, run_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[EvidencePart]:
    """Its bundle (part 0) and its supplements, by number. Also for a run that was deleted since."""
    at = (request.who.tenant, f"evidence {run_id}", None)
    return page_of_list(await request.engine.evidence.list(run_id), lambda one: one.part, at, cursor, limit)


@get("/runs/{run_id:str}/evidence/{part:int}/bundle", summary="A bundle's zip", media_type="application/zip")
async def get_bundle(request: ApiRequest, run_id: FromPath[str], part: FromPath[int]) -> Response[bytes]:
    """The bytes that were sealed. The audit chain records the download."""
    row = await _part(request, run_id, part)
    body = await load_bundle(request.engine.scope, row)
    name = file_name(run_id, row.no)
    await record_export(request.engine.scope, run_id, [name], request.who.actor)
    return _file(name, body, "application/zip")


@get(
    "/runs/{run_id:str}/evidence/{part:int}/statement",
    summary="A bundle's signed statement",
    media_type="application/json",
)
async def get_statement(request: ApiRequest, run_id: FromPath[str], part: FromPath[int]) -> Response[bytes]:
    """The DSSE envelope that belongs to the zip."""
    row = await _part(request, run_id, part)
    return _file(f"{file_name(run_id, row.no)}.dsse.json", row.envelope, "application/json")


@get(
    "/runs/{run_id:str}/evidence/{part:int}/proof",
    summary="The proof that the ledger has a bundle",
    media_type="text/plain",
)
async def get_proof(
    request: ApiRequest, run_id: FromPath[str], part: FromPath[int], checkpoint: ForCheckpoint = None
) -> Response[bytes]:
    """In the format of C2SP's tlog-proof. NOT_READY if no checkpoint covers it yet."""
    row = await _part(request, run_id, part)
    try:
        note = None if checkpoint is None else base64.urlsafe_b64decode(checkpoint)
    except (binascii.Error, ValueError) as fault:
        raise TenureError("INVALID_INPUT", "`checkpoint` must be a checkpoint in base64url") from fault
    proof = await load_proof(
        request.engine.scope, row, None if note is None else signed_notes.parse_checkpoint(note)
    )
    return _file(f"{file_name(run_id, row.no)}{signed_notes.PROOF_SUFFIX}", proof.encode(), "text/plain")


async def _part(request: ApiRequest, run_id: str, part: int) -> EvidenceRow:
    engine, number = request.engine, ids.run_int(run_id)
    rows: list[EvidenceRow] = await engine.store.read("evidence_of", number)
    mine = [row for row in rows if row.tenant == engine.tenant]
    if not mine:
        await engine.scope.reader.row(number)  # another tenant's run looks exactly like a missing one
    found = next((row for row in mine if row.no == part), None)
    if found is not None:
        return found
    shown = part if abs(part) <= INTEGER_MAX else "of that number"
    raise TenureError("EVIDENCE_NOT_FOUND", f"{run_id} has no part {shown}")


def _file(name: str, body: bytes, kind: str) -> Response[bytes]:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "private, no-cache"}
    return Response(content=body, media_type=kind, headers=headers)


@get("/ledger/checkpoints", summary="Signed checkpoints of the ledger, newest first")
async def list_checkpoints(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[SignedCheckpoint]:
    """Keep copies where nobody who can write the database can write."""
    tenant, store = request.who.tenant, request.engine.store
    return await read_page(
        (tenant, "checkpoints", None),
        tuple[Annotated[int, msgspec.Meta(ge=0, le=NEWEST)]],
        (NEWEST,),
        lambda place, count: store.read("ledger_checkpoints_before", tenant, *place, count),
        lambda row: [row.size],
        _show_checkpoint,
        limit=limit,
        cursor=cursor,
    )


def _show_checkpoint(row: SignedCheckpointRow) -> SignedCheckpoint:
    return SignedCheckpoint(
        size=row.size,
        root=row.root.hex(),
        note=row.note,
        key_id=row.key_id,
        signed_at=to_datetime(row.at),
    )


@get(
    "/ledger/proof",
    summary="The proof that a leaf is in the ledger",
    media_type="text/plain",
    operation_id="LedgerProofGetProof",
)
async def get_leaf_proof(
    request: ApiRequest,
    index: Annotated[int, QueryParameter(ge=0, le=_SIZE_MAX, description="The leaf, from 0.")],
    size: Annotated[
        int | None,
        QueryParameter(ge=1, le=_SIZE_MAX, description="The size of the checkpoint; by default the newest."),
    ] = None,
) -> Response[str]:
    """In the format of C2SP's tlog-proof; `extra` is the leaf. For a run, see GET /runs/{id}/evidence/{part}/proof."""
    store, ledger = request.engine.store, TenantLedger(request.engine.store, request.who.tenant)
    leaves: list[LedgerLeafRow] = await store.read("leaves_after", ledger.tenant, index - 1, 1)
    if not leaves or leaves[0].pos != index:
        raise TenureError("NOT_FOUND", f"the ledger has no leaf {index}")
    checkpoint = None
    if size is not None:
        found: list[SignedCheckpointRow] = await store.read("ledger_checkpoints_from", ledger.tenant, size)
        if not found or found[0].size != size:
            raise TenureError("NOT_FOUND", f"the ledger has no checkpoint of {size} leaves")
        checkpoint = signed_notes.parse_checkpoint(found[0].note)
    return Response(content=await ledger.proof(leaves[0], checkpoint), media_type="text/plain")


@get("/ledger/consistency", summary="The proof that the ledger has only grown")
async def get_consistency(
    request: ApiRequest,
    old: Annotated[
        int, QueryParameter(name="from", ge=0, le=_SIZE_MAX, description="The size of the older checkpoint.")
    ],
    new: Annotated[
        int, QueryParameter(name="to", ge=0, le=_SIZE_MAX, description="The size of the newer one.")
    ],
) -> ConsistencyProof:
    """Between two checkpoints, by their sizes."""
    found = await TenantLedger(request.engine.store, request.who.tenant).consistency(old, new)
    return ConsistencyProof(old=old, new=new, hashes=[base64.b64encode(one).decode() for one in found])


@get("/ledger/trust", summary="The signing keys, as a trust file")
async def get_trust(request: ApiRequest) -> TrustFile:
    """For `tenure verify --trust`. Compare it with a copy from another source."""
    return (await SigningKeys(request.engine.store).trust()).file()


HANDLERS = [
    list_bundles,
    list_evidence,
    get_bundle,
    get_statement,
    get_proof,
    list_checkpoints,
    get_leaf_proof,
    get_consistency,
    get_trust,
]
