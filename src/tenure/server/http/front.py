"""What stands before the router: paths with encoded slashes, and the two routes that are asked most.

Laws:
1. `GET /runs/{id}/status` and `POST /runs` are answered here, by the same gate and with the same words as every route: the
   router is the larger part of what such an answer costs. Whatever is unusual about the request is left to the router.
2. Everything else goes on unchanged, but for encoded slashes (see `segments`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from litestar.connection import ASGIConnection

from tenure.server.http import quick
from tenure.server.http.segments import keep_slashes
from tenure.server.problems import body_of, headers_of, noted
from tenure.server.runs.statuses import CACHED, look

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send

    from tenure.server.service import Service

_STATUS = re.compile(r"/runs/([0-9a-z_-]{1,64})/status")
_QUERY = re.compile(rb"(?:profile=([a-z0-9-]{1,64}))?")
PATH = "/runs/{run_id}/status"
ROUTE = f"GET {PATH}"
_ENCODE = msgspec.json.Encoder().encode


class Front:
    """See the laws above."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] == "http":
            asked = _STATUS.fullmatch(scope["path"]) if scope["method"] == "GET" else None
            if asked is not None and (query := _QUERY.fullmatch(scope["query_string"])) is not None:
                headers = dict(scope["headers"])
                if len(headers) == len(list(scope["headers"])):  # what is said twice is unusual, too
                    profile = None if query[1] is None else query[1].decode()
                    await self._status(scope, send, headers, asked[1], profile)
                    return
            elif scope["method"] == "POST" and scope["path"] == quick.PATH and not scope["query_string"]:
                await self._create(scope, receive, send)
                return
            keep_slashes(scope)
        scope["state"]["service"] = self._service
        await self._app(scope, receive, send)

    async def _status(
        self, scope: Any, send: Send, headers: dict[bytes, bytes], run_id: str, profile: str | None
    ) -> None:
        scope["path_template"] = PATH  # as the router does, for those who count and log
        try:
            who = await self._service.gate.caller(ASGIConnection(scope))
            self._service.gate.permit(who, ROUTE)
            match = headers.get(b"if-none-match")
            looked = await look(
                self._service, who.tenant, run_id, profile, None if match is None else match.decode("latin-1")
            )
        except Exception as fault:  # one shape of errors, as everywhere
            await _refuse(scope, send, fault)
            return
        told = [(b"etag", looked.tag.encode()), (b"cache-control", CACHED.encode())]
        if looked.body is None:
            await _send(send, 304, told, b"")
        else:
            await _send(send, 200, told, _ENCODE(looked.body))

    async def _create(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            answer = await quick.create_run(self._service, scope, receive)
        except Exception as fault:  # one shape of errors, as everywhere
            await _refuse(scope, send, fault)
            return
        await _send(send, answer.status, _encoded(answer.headers()), answer.body)


async def _refuse(scope: Any, send: Send, fault: Exception) -> None:
    request_id = scope["state"]["request_id"]
    error = noted(fault, request_id, scope["path"])
    scope["state"]["code"] = error.code
    await _send(send, error.spec.status, _encoded(headers_of(error)), body_of(error, request_id))


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    if status != 304:
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
