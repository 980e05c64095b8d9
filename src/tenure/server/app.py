"""The application: routes, the gate before them, one shape of errors.

Law: whatever answers, answers through here: what no route catches becomes an error of the registry (`problems`).
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from litestar import Litestar

from tenure.server.call import Call
from tenure.server.http.entry import Entry
from tenure.server.http.front import Front
from tenure.server.http.openapi import only_known
from tenure.server.problems import answer
from tenure.server.service import Service

if TYPE_CHECKING:
    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler
    from litestar.types import ASGIApp

MODULES = (
    "about",
    "admin",
    "approvals",
    "costs",
    "creating",
    "errors",
    "evidence",
    "freezes",
    "health",
    "hooks",
    "hooks_in",
    "inbox",
    "ledger",
    "policies",
    "receipts",
    "run_parts",
    "runner",
    "runs",
    "schedules",
    "session",
    "steering",
    "stream",
    "tenancy",
    "undoing",
    "webhooks",
    "workflows",
)
"""Of `tenure.server.routes`."""


def handlers() -> list[Any]:
    """All routes."""
    found: list[Any] = []
    for name in MODULES:
        found += import_module(f"tenure.server.routes.{name}").HANDLERS
    return found


def make_app(service: Service) -> ASGIApp:
    """The application over a service, which whoever serves it starts and stops."""
    return Entry(Front(_router(), service), service.settings, service.observer)


@cache
def _router() -> Litestar:
    """All routes. It takes half a second to make, so a process makes one; the service comes with each request (`Front`)."""
    return Litestar(
        route_handlers=handlers(),
        request_class=Call,
        guards=[_admit, only_known],
        exception_handlers={Exception: answer},
        openapi_config=None,  # the document is made, completed and served by ourselves
        debug=False,
        logging_config=None,
    )


async def _admit(connection: ASGIConnection, handler: BaseRouteHandler) -> None:  # type: ignore[type-arg]  # any of them
    service: Service = connection.scope["state"]["service"]
    await service.gate.admit(connection, handler)
