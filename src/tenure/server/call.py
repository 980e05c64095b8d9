"""A request as our routes see it."""

from __future__ import annotations

from typing import Any

from litestar import Request

from tenure.embedded import Engine
from tenure.server.identity.principals import Principal
from tenure.server.service import Service


class Call(Request[Principal, Any, Any]):
    """A request whose caller the gate has let in. (On routes for `anyone` and for leases there is no `who`.)"""

    @property
    def service(self) -> Service:
        """What all routes share."""
        service: Service = self.app.state["service"]
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
