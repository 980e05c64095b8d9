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
from tenure.embedded.evidence import EvidenceView, evidence_view, proof_of, taken_out, zip_of
from tenure.errors import TenureError
from tenure.govern.evidence.bundle import file_name
from tenure.govern.ledger import notes
from tenure.kernel.governance import Evidence
from tenure.limits import INTEGER_MAX, MOMENT_US_MAX
from tenure.server.call import Call
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page, cursor_of, place_of
from tenure.server.runs.pieces import piece

ForCheckpoint = Annotated[
    str | None,
    QueryParameter(
        max_length=8_000,
        description="The checkpoint that the proof is to lead to, as base64url; else the newest.",
    ),
]


@get("/evidence", summary="Bundles that were sealed, newest first")
async def list_bundles(
    request: Call, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[EvidenceView]:
    """The first part of each run's evidence; also of runs that were deleted since."""
    at = (request.who.tenant, "evidence", None)
    place = [MOMENT_US_MAX, 0] if cursor is None else place_of(cursor, *at)
    if len(place) != 2 or not all(type(part) is int and abs(part) < 2**63 for part in place):
        raise TenureError("CURSOR_INVALID")
    found: list[Evidence] = await request.engine.store.read("evidence_after", at[0], *place, limit + 1)
    items = found[:limit]
    last = [items[-1].at, items[-1].run_id] if len(found) > limit else None
    return Page(
        items=[evidence_view(row) for row in items],
        next_cursor=None if last is None else cursor_of(*at, last),
    )


@get("/runs/{run_id:str}/evidence", summary="The evidence of a run")
async def list_evidence(
    request: Call, run_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[EvidenceView]:
    """Its bundle (part 0) and its supplements, by number; also of a run that was deleted since."""
    at = (request.who.tenant, f"evidence {run_id}", None)
    items = await request.engine.evidence(run_id)
    return piece(items, lambda one: one.part, at, cursor, limit)


@get("/runs/{run_id:str}/evidence/{part:int}/bundle", summary="A bundle's zip", media_type="application/zip")
async def get_bundle(request: Call, run_id: FromPath[str], part: FromPath[int]) -> Response[bytes]:
    """The bytes that were sealed. That it was taken out is a line of the admin chain."""
    row = await _part(request, run_id, part)
    body = await zip_of(request.engine, row)
    name = file_name(run_id, row.no)
    await taken_out(request.engine, run_id, [name], request.who.actor)
    return _file(name, body, "application/zip")


@get(
    "/runs/{run_id:str}/evidence/{part:int}/statement",
    summary="A bundle's signed statement",
    media_type="application/json",
)
async def get_statement(request: Call, run_id: FromPath[str], part: FromPath[int]) -> Response[bytes]:
    """The DSSE envelope that lies beside the zip."""
    row = await _part(request, run_id, part)
    return _file(f"{file_name(run_id, row.no)}.dsse.json", row.envelope, "application/json")


@get(
    "/runs/{run_id:str}/evidence/{part:int}/proof",
    summary="The proof that the ledger has a bundle",
    media_type="text/plain",
)
async def get_proof(
    request: Call, run_id: FromPath[str], part: FromPath[int], checkpoint: ForCheckpoint = None
) -> Response[bytes]:
    """In the form of C2SP's tlog-proof. NOT_READY where no checkpoint covers it yet."""
    row = await _part(request, run_id, part)
    try:
        note = None if checkpoint is None else base64.urlsafe_b64decode(checkpoint)
    except (binascii.Error, ValueError) as fault:
        raise TenureError("INVALID_INPUT", "`checkpoint` is a checkpoint in base64url") from fault
    proof = await proof_of(request.engine, row, None if note is None else notes.parse(note))
    return _file(f"{file_name(run_id, row.no)}{notes.PROOF_SUFFIX}", proof.encode(), "text/plain")


async def _part(request: Call, run_id: str, part: int) -> Evidence:
    engine, number = request.engine, ids.run_int(run_id)
    rows: list[Evidence] = await engine.store.read("evidence_of", number)
    mine = [row for row in rows if row.tenant == engine.tenant]
    if not mine:
        await engine.views.row(number)  # another tenant's run looks exactly like none
    for row in mine:
        if row.no == part:
            return row
    shown = part if abs(part) <= INTEGER_MAX else "of that number"
    raise TenureError("EVIDENCE_NOT_FOUND", f"{run_id} has no part {shown}")


def _file(name: str, body: bytes, kind: str) -> Response[bytes]:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "private, no-cache"}
    return Response(content=body, media_type=kind, headers=headers)


HANDLERS = [list_bundles, list_evidence, get_bundle, get_statement, get_proof]
