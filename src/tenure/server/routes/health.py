"""Whether the server lives, and whether it can do its work."""

from __future__ import annotations

import asyncio

import msgspec
from litestar import get

from tenure.errors import TenureError
from tenure.server.request import ApiRequest

READY_SECONDS = 3.0
"""How long the database may take to answer."""


class Health(msgspec.Struct, frozen=True):
    """How it is."""

    status: str


@get("/healthz", summary="Whether the process lives")
async def healthz() -> Health:
    """It does."""
    return Health("ok")


@get("/readyz", summary="Whether it can do its work")
async def readyz(request: ApiRequest) -> Health:
    """It can when the database answers, and it has not been told to end."""
    service = request.service
    if service.stopping.is_set():
        raise TenureError("NOT_READY", "the server is stopping")
    try:
        async with asyncio.timeout(READY_SECONDS):
            await service.engine.runtime.check_database()
    except (TenureError, TimeoutError) as fault:
        raise TenureError("NOT_READY", "the database cannot be reached") from fault
    return Health("ready")


HANDLERS = [healthz, readyz]
