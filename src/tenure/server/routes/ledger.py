"""A tenant's ledger, for whoever keeps its checkpoints elsewhere: checkpoints, proofs, and the keys that sign.

Law: everything here is public half, hash or id. Another tenant's ledger is none of it.
"""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.params import QueryParameter

from tenure.clock import to_datetime
from tenure.errors import TenureError
from tenure.govern.ledger.signing_keys import SigningKeys
from tenure.govern.ledger.tenant_ledger import NEWEST, TenantLedger
from tenure.kernel.governance_rows import LedgerLeafRow, SignedCheckpointRow
from tenure.proof import signed_notes
from tenure.proof.signatures import TrustFile
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, decode_cursor, encode_cursor
from tenure.server.request import ApiRequest
from tenure.shapes.pages import Page

_SIZE_MAX = 2**53


class SignedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that was signed."""

    size: int
    root: str
    """In hex."""
    note: str
    """The whole, in the form of C2SP's tlog-checkpoint."""
    key_id: str
    signed_at: datetime


class ConsistencyProof(msgspec.Struct, frozen=True, kw_only=True, rename={"old": "from", "new": "to"}):
    """That the ledger of one size begins with that of another (RFC 6962, 2.1.2)."""

    old: int
    new: int
    hashes: list[str]
    """In base64, in the order of the RFC."""


@get("/ledger/checkpoints", summary="Signed checkpoints of the ledger, newest first")
async def list_checkpoints(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[SignedCheckpoint]:
    """Keep them where nobody who can write the database can write."""
    at = (request.who.tenant, "checkpoints", None)
    place = [NEWEST] if cursor is None else decode_cursor(cursor, *at)
    if len(place) != 1 or type(place[0]) is not int or not 0 <= place[0] <= NEWEST:
        raise TenureError("CURSOR_INVALID")
    found: list[SignedCheckpointRow] = await request.engine.store.read(
        "ledger_checkpoints_before", at[0], place[0], limit + 1
    )
    items = found[:limit]
    more = len(found) > limit
    return Page(
        items=[
            SignedCheckpoint(
                size=row.size,
                root=row.root.hex(),
                note=row.note,
                key_id=row.key_id,
                signed_at=to_datetime(row.at),
            )
            for row in items
        ],
        next_cursor=encode_cursor(*at, [items[-1].size]) if more else None,
    )


@get("/ledger/proof", summary="The proof that a leaf is in the ledger", media_type="text/plain")
async def get_proof(
    request: ApiRequest,
    index: Annotated[int, QueryParameter(ge=0, le=_SIZE_MAX, description="The leaf, from 0.")],
    size: Annotated[
        int | None,
        QueryParameter(ge=1, le=_SIZE_MAX, description="Of the checkpoint; else the newest."),
    ] = None,
) -> Response[str]:
    """In the form of C2SP's tlog-proof; `extra` is the leaf. Of a run: GET /runs/{id}/evidence/{part}/proof."""
    store, book = request.engine.store, TenantLedger(request.engine.store, request.who.tenant)
    leaves: list[LedgerLeafRow] = await store.read("leaves_after", book.tenant, index - 1, 1)
    if not leaves or leaves[0].pos != index:
        raise TenureError("NOT_FOUND", f"the ledger has no leaf {index}")
    checkpoint = None
    if size is not None:
        found: list[SignedCheckpointRow] = await store.read("ledger_checkpoints_from", book.tenant, size)
        if not found or found[0].size != size:
            raise TenureError("NOT_FOUND", f"the ledger has no checkpoint of {size} leaves")
        checkpoint = signed_notes.parse_checkpoint(found[0].note)
    return Response(content=await book.proof(leaves[0], checkpoint), media_type="text/plain")


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
    """Between two sizes."""
    found = await TenantLedger(request.engine.store, request.who.tenant).consistency(old, new)
    return ConsistencyProof(old=old, new=new, hashes=[base64.b64encode(one).decode() for one in found])


@get("/ledger/trust", summary="The keys that sign here, as a trust file")
async def get_trust(request: ApiRequest) -> TrustFile:
    """For `tenure verify --trust`. Compare it with a copy that you got another way."""
    return (await SigningKeys(request.engine.store).trust()).file()


HANDLERS = [list_checkpoints, get_proof, get_consistency, get_trust]
