"""A request as our routes see it."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request
from litestar.serialization import decode_json
from litestar.types import Empty

from tenure.embedded import Engine
from tenure.server.identity.principals import Principal
from tenure.server.service import Service
from tenure.server.work import LARGE_BYTES, run_aside


class Call(Request[Principal, Any, Any]):
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
            return await run_aside(msgspec.convert, value, field.annotation)
        return msgspec.convert(value, field.annotation)

    async def value(self) -> Any:
        """The body as the JSON value that it is."""
        body, state = await self.body(), self._connection_state
        if len(body) > LARGE_BYTES and state.json is Empty:
            state.json = await run_aside(decode_json, body)
        return await super().json()

    @property
    def service(self) -> Service:
        """What all routes share."""
        service: Service = self.scope["state"]["service"]
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
