"""The application: routes, the gate before them, one shape of errors.

Law: whatever answers, answers through here: what no route catches becomes an error of the registry (`problems`).
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from litestar import Litestar

from tenure.server.context import ServerContext
from tenure.server.error_responses import handle_exception
from tenure.server.http.fast_routes import FastRoutes
from tenure.server.http.middleware import RequestMiddleware
from tenure.server.http.openapi import reject_unknown_parameters
from tenure.server.request import ApiRequest

if TYPE_CHECKING:
    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler
    from litestar.types import ASGIApp

MODULES = (
    "server_info",
    "admin",
    "approvals",
    "costs",
    "run_creation",
    "errors",
    "evidence",
    "freezes",
    "health",
    "hooks",
    "hook_deliveries",
    "inbox",
    "ledger",
    "policies",
    "receipts",
    "run_parts",
    "runner",
    "runs",
    "schedules",
    "session",
    "run_control",
    "event_stream",
    "identity",
    "undo",
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


def make_app(service: ServerContext) -> ASGIApp:
    """The application over a service, which whoever serves it starts and stops."""
    return RequestMiddleware(FastRoutes(_router(), service), service.settings, service.observer)


@cache
def _router() -> Litestar:
    """All routes. It takes half a second to make, so a process makes one; the service comes with each request (`FastRoutes`)."""
    return Litestar(
        route_handlers=handlers(),
        request_class=ApiRequest,
        guards=[_admit, reject_unknown_parameters],
        exception_handlers={Exception: handle_exception},
        openapi_config=None,  # the document is made, completed and served by ourselves
        debug=False,
        logging_config=None,
    )


async def _admit(connection: ASGIConnection, _handler: BaseRouteHandler) -> None:  # type: ignore[type-arg]  # any of them
    service: ServerContext = connection.scope["state"]["service"]
    await service.gate.admit(connection)
