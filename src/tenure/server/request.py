"""A request, as routes see it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.types import Empty

from tenure.engine import Engine
from tenure.server.context import ServerContext
from tenure.services.identity.principals import Principal
from tenure.work_pool import LARGE_BYTES, run_in_pool

_decode = msgspec.json.Decoder().decode
T = TypeVar("T")


async def decode_body(body: bytes, kind: type[T]) -> tuple[Any, T]:
    """A body as a JSON value, and converted to the type that its route takes."""
    return await run_in_pool(_decode_as, body, kind) if len(body) > LARGE_BYTES else _decode_as(body, kind)


def _decode_as(body: bytes, kind: Any) -> Any:
    value = _decode(body)
    return value, msgspec.convert(value, kind)


class ApiRequest(Request[Principal, Any, Any]):
    """A request that was authenticated. (On routes for `anyone` and for leases there is no `who`.)

    Law: the values of a body are not coerced. The framework would convert the text `"5"` to a number and `"false"` to a boolean; here a
    value of another type than the route declares is INVALID_INPUT. (Queries and headers are texts, and are parsed.)
    """

    async def json(self) -> Any:
        """The body as its route declares it. The framework passes it to the route."""
        value = await self.value()
        field = self.route_handler.parsed_data_field
        if field is None:
            return value
        if len(await self.body()) > LARGE_BYTES:
            return await run_in_pool(msgspec.convert, value, field.annotation)
        return msgspec.convert(value, field.annotation)

    async def value(self) -> Any:
        """The body as a JSON value; no body is null."""
        state = self._connection_state
        if state.json is Empty:
            body = await self.body() or b"null"
            state.json = await run_in_pool(_decode, body) if len(body) > LARGE_BYTES else _decode(body)
        return state.json

    @property
    def server(self) -> ServerContext:
        server: ServerContext = self.scope["state"]["server"]
        return server

    @property
    def who(self) -> Principal:
        """The owner of the request's credential."""
        return self.user

    @property
    def address(self) -> str:
        return self.client.host if self.client else ""

    async def change_rights(self, change: Awaitable[T]) -> T:
        """Make a change of keys, roles or accounts, and forget cached credentials."""
        changed = await change
        self.server.authenticator.forget()
        return changed

    @property
    def engine(self) -> Engine:
        """The engine of the caller's tenant, acting as the caller."""
        return self.server.engine_of(self.user)

    @property
    def request_id(self) -> str:
        return str(self.scope["state"]["request_id"])
