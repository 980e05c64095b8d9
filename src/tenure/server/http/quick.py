"""`POST /runs`, past the router: what is asked most often to change something.

Law: it does what the route does, in its order and with its words: the gate first, then the body. (`routes/creating.py` is
that route; the document is made from it.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from litestar.connection import ASGIConnection

from tenure.server.runs.idempotency import Answer, Request, given_key, hash_of, key_text
from tenure.server.runs.new_runs import Asking, NewRun, create
from tenure.server.work import LARGE_BYTES, run_aside

if TYPE_CHECKING:
    from litestar.types import Receive

    from tenure.server.service import Service

PATH = "/runs"
ROUTE = f"POST {PATH}"
_decode = msgspec.json.Decoder().decode


async def create_run(service: Service, scope: Any, receive: Receive) -> Answer:
    """Start a run."""
    scope["path_template"] = PATH  # as the router does, for those who count and log
    scope["user"] = None
    who = await service.gate.caller(ASGIConnection(scope))
    service.gate.permit(who, ROUTE)
    scope["user"] = who
    body = await _body(receive)
    large = len(body) > LARGE_BYTES
    asked, new = await run_aside(_read, body) if large else _read(body)
    key = given_key(scope["headers"], request_id_is_key=service.settings.request_id_is_key)
    wanted: Request | None = None
    if key is not None:
        name = key_text(who.id, key)
        scope["state"]["keyed"] = name  # to be counted with its answer
        parts = ("POST", PATH, PATH, asked)
        hashed = await run_aside(hash_of, *parts) if large else hash_of(*parts)
        wanted = Request(tenant=who.tenant, source="api", name=name, hash=hashed)
    asking = Asking(who=who, request_id=scope["state"]["request_id"])
    return await create(service.engine_of(who, new.workspace), new, asking, wanted)


def _read(body: bytes) -> tuple[Any, NewRun]:
    asked = _decode(body)
    return asked, msgspec.convert(asked, NewRun)


async def _body(receive: Receive) -> bytes:
    message: Any = await receive()
    first: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return first
    pieces = [first]
    while message.get("more_body", False):
        message = await receive()
        pieces.append(message.get("body", b""))
    return b"".join(pieces)
