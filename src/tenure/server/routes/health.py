"""Whether the server lives, and whether it can do its work."""

from __future__ import annotations

import msgspec
from litestar import get

from tenure.errors import TenureError
from tenure.server.call import Call


class Health(msgspec.Struct, frozen=True):
    """How it is."""

    status: str


@get("/healthz", summary="Whether the process lives")
async def healthz() -> Health:
    """It does."""
    return Health("ok")


@get("/readyz", summary="Whether it can do its work")
async def readyz(request: Call) -> Health:
    """It does when the database answers."""
    try:
        await request.service.engine.store.read("now")
    except TenureError as fault:
        raise TenureError("NOT_READY", "the database cannot be reached") from fault
    return Health("ready")


HANDLERS = [healthz, readyz]
