"""Evidence of runs: what was sealed, to be listed and taken out.

Law: a bundle that leaves here is a line of the tenant's admin chain. Another tenant's evidence is none.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from litestar import Response, get
from litestar.params import FromPath, QueryParameter

from tenure import ids
from tenure.errors import TenureError
from tenure.govern.evidence.bundle import file_name
from tenure.kernel.governance_rows import EvidenceRow
from tenure.limits import INTEGER_MAX, MOMENT_US_MAX
from tenure.proof import signed_notes
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, decode_cursor, encode_cursor, page_of_list
from tenure.server.request import ApiRequest
from tenure.services.evidence import load_bundle, load_proof, record_export, show_evidence_part
from tenure.shapes.evidence import EvidencePart
from tenure.shapes.pages import Page

ForCheckpoint = Annotated[
    str | None,
    QueryParameter(
        max_length=8_000,
        description="The checkpoint that the proof is to lead to, as base64url; else the newest.",
    ),
]


@get("/evidence", summary="Bundles that were sealed, newest first")
async def list_bundles(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[EvidencePart]:
    """The first part of each run's evidence; also of runs that were deleted since."""
    at = (request.who.tenant, "evidence", None)
    place = [MOMENT_US_MAX, 0] if cursor is None else decode_cursor(cursor, *at)
    if len(place) != 2 or not all(type(part) is int and abs(part) < 2**63 for part in place):
        raise TenureError("CURSOR_INVALID")
    found: list[EvidenceRow] = await request.engine.store.read("evidence_after", at[0], *place, limit + 1)
    items = found[:limit]
    last = [items[-1].at, items[-1].run_id] if len(found) > limit else None
    return Page(
        items=[show_evidence_part(row) for row in items],
        next_cursor=None if last is None else encode_cursor(*at, last),
    )


@get("/runs/{run_id:str}/evidence", summary="The evidence of a run")
async def list_evidence(
    request: ApiRequest, run_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[EvidencePart]:
    """Its bundle (part 0) and its supplements, by number; also of a run that was deleted since."""
    at = (request.who.tenant, f"evidence {run_id}", None)
    items = await request.engine.evidence.list(run_id)
    return page_of_list(items, lambda one: one.part, at, cursor, limit)


@get("/runs/{run_id:str}/evidence/{part:int}/bundle", summary="A bundle's zip", media_type="application/zip")
async def get_bundle(request: ApiRequest, run_id: FromPath[str], part: FromPath[int]) -> Response[bytes]:
    """The bytes that were sealed. That it was taken out is a line of the admin chain."""
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
    """The DSSE envelope that lies beside the zip."""
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
    """In the form of C2SP's tlog-proof. NOT_READY where no checkpoint covers it yet."""
    row = await _part(request, run_id, part)
    try:
        note = None if checkpoint is None else base64.urlsafe_b64decode(checkpoint)
    except (binascii.Error, ValueError) as fault:
        raise TenureError("INVALID_INPUT", "`checkpoint` is a checkpoint in base64url") from fault
    proof = await load_proof(
        request.engine.scope, row, None if note is None else signed_notes.parse_checkpoint(note)
    )
    return _file(f"{file_name(run_id, row.no)}{signed_notes.PROOF_SUFFIX}", proof.encode(), "text/plain")


async def _part(request: ApiRequest, run_id: str, part: int) -> EvidenceRow:
    engine, number = request.engine, ids.run_int(run_id)
    rows: list[EvidenceRow] = await engine.store.read("evidence_of", number)
    mine = [row for row in rows if row.tenant == engine.tenant]
    if not mine:
        await engine.scope.reader.row(number)  # another tenant's run looks exactly like none
    for row in mine:
        if row.no == part:
            return row
    shown = part if abs(part) <= INTEGER_MAX else "of that number"
    raise TenureError("EVIDENCE_NOT_FOUND", f"{run_id} has no part {shown}")


def _file(name: str, body: bytes, kind: str) -> Response[bytes]:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "private, no-cache"}
    return Response(content=body, media_type=kind, headers=headers)


HANDLERS = [list_bundles, list_evidence, get_bundle, get_statement, get_proof]
