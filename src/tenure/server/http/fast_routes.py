"""The two busiest routes, without the router; and paths with encoded slashes.

Laws:
1. `GET /runs/{id}/status` and `POST /runs` are answered here, because routing is the larger part of what such an answer costs.
   Authentication, decoding and the work itself are the functions that the documented routes call, so the answers are the same
   (a test compares them). A request that is unusual in any way goes to the router.
2. Everything else is passed on unchanged, except for encoded slashes (see `path_segments`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from litestar.connection import ASGIConnection

from tenure.server.error_responses import encode_error, error_headers, log_and_convert
from tenure.server.http.middleware import send_json
from tenure.server.http.path_segments import keep_slashes
from tenure.server.routes.run_creation import start_run
from tenure.server.run_status import read_status

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send

    from tenure.server.context import ServerContext

_STATUS = re.compile(r"/runs/([0-9a-z_-]{1,64})/status")
_QUERY = re.compile(rb"(?:profile=([a-z0-9-]{1,64}))?")
STATUS_PATH = "/runs/{run_id}/status"
CREATE_PATH = "/runs"
_ENCODE = msgspec.json.Encoder().encode


class FastRoutes:
    def __init__(self, app: ASGIApp, server: ServerContext) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            method, path = scope["method"], scope["path"]
            if method == "POST" and path == CREATE_PATH and not scope["query_string"]:
                await self._create(scope, receive, send)
                return
            found = _STATUS.fullmatch(path) if method == "GET" else None
            if found is not None and (query := _QUERY.fullmatch(scope["query_string"])) is not None:
                headers = dict(scope["headers"])
                if len(headers) == len(list(scope["headers"])):  # a header that is sent twice is unusual
                    profile = None if query[1] is None else query[1].decode()
                    await self._status(scope, send, headers, found[1], profile)
                    return
            keep_slashes(scope)
        scope["state"]["server"] = self._server
        await self._app(scope, receive, send)

    async def _authenticate(self, scope: Any, path_template: str) -> None:
        scope["path_template"] = path_template  # as the router does, for metrics and the log
        await self._server.authenticator.admit(ASGIConnection(scope))

    async def _status(
        self, scope: Any, send: Send, headers: dict[bytes, bytes], run_id: str, profile: str | None
    ) -> None:
        try:
            await self._authenticate(scope, STATUS_PATH)
            match = headers.get(b"if-none-match")
            seen = None if match is None else match.decode("latin-1")
            answer = await read_status(self._server, scope["user"].tenant, run_id, profile, seen)
        except Exception as fault:  # every error has the one shape
            await _refuse(scope, send, fault)
            return
        status, body = (304, b"") if answer.body is None else (200, _ENCODE(answer.body))
        await send_json(send, status, answer.headers, body)

    async def _create(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            await self._authenticate(scope, CREATE_PATH)
            answer = await start_run(self._server, scope, await _read_body(receive))
        except Exception as fault:  # every error has the one shape
            await _refuse(scope, send, fault)
            return
        await send_json(send, answer.status, answer.headers(), answer.body)


async def _refuse(scope: Any, send: Send, fault: Exception) -> None:
    request_id = scope["state"]["request_id"]
    error = log_and_convert(fault, request_id, scope["path"])
    scope["state"]["code"] = error.code
    await send_json(send, error.spec.status, error_headers(error), encode_error(error, request_id))


async def _read_body(receive: Receive) -> bytes:
    message: Any = await receive()
    pieces = [message.get("body", b"")]
    while message.get("more_body", False):
        message = await receive()
        pieces.append(message.get("body", b""))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
