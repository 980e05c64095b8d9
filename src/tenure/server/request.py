"""A request as our routes see it."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.types import Empty

from tenure.engine import Engine
from tenure.server.context import ServerContext
from tenure.services.identity.principals import Principal
from tenure.work_pool import LARGE_BYTES, run_in_thread

_decode = msgspec.json.Decoder().decode
T = TypeVar("T")


async def decode_body(body: bytes, kind: type[T]) -> tuple[Any, T]:
    """A body as the JSON value that it is, and as the shape that its route takes."""
    return await run_in_thread(_decode_as, body, kind) if len(body) > LARGE_BYTES else _decode_as(body, kind)


def _decode_as(body: bytes, kind: Any) -> Any:
    value = _decode(body)
    return value, msgspec.convert(value, kind)


class ApiRequest(Request[Principal, Any, Any]):
    """A request whose caller the gate has let in. (On routes for `anyone` and for leases there is no `who`.)

    Law: a body is taken as it is. The framework would make a number of the text `"5"` and a truth value of `"false"`; here a
    value of another type than its route declares is INVALID_INPUT. (Queries and headers are texts, and are read as such.)
    """

    async def json(self) -> Any:
        """The body as its route declares it: what the framework hands to the route."""
        value = await self.value()
        field = self.route_handler.parsed_data_field
        if field is None:
            return value
        if len(await self.body()) > LARGE_BYTES:
            return await run_in_thread(msgspec.convert, value, field.annotation)
        return msgspec.convert(value, field.annotation)

    async def value(self) -> Any:
        """The body as the JSON value that it is; no body is null."""
        state = self._connection_state
        if state.json is Empty:
            body = await self.body() or b"null"
            state.json = await run_in_thread(_decode, body) if len(body) > LARGE_BYTES else _decode(body)
        return state.json

    @property
    def service(self) -> ServerContext:
        """What all routes share."""
        service: ServerContext = self.scope["state"]["service"]
        return service

    @property
    def who(self) -> Principal:
        """Whose credential it is."""
        return self.user

    @property
    def engine(self) -> Engine:
        """The engine of the caller's tenant, acting as the caller."""
        return self.service.engine_of(self.user)

    @property
    def request_id(self) -> str:
        """What this request is called in answers and logs."""
        return str(self.scope["state"]["request_id"])
