"""The application: all routes, with authentication before them and one shape of errors.

Law: an exception that no route catches becomes an error of the registry (`error_responses`).
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
    "ci",
    "run_creation",
    "evidence",
    "hooks",
    "hook_deliveries",
    "policies",
    "receipts",
    "reports",
    "run_parts",
    "job_results",
    "runner",
    "runner_storage",
    "runs",
    "schedules",
    "session",
    "run_control",
    "event_stream",
    "identity",
    "webhooks",
    "workflows",
)


def handlers() -> list[Any]:
    modules = (import_module(f"tenure.server.routes.{name}") for name in MODULES)
    return [handler for module in modules for handler in module.HANDLERS]


def make_app(server: ServerContext) -> ASGIApp:
    """The application of a server. The caller starts and stops the server."""
    return RequestMiddleware(FastRoutes(_router(), server), server.settings, server.observer)


@cache
def _router() -> Litestar:
    """The router. It takes half a second to build, so a process builds one. The server comes with each request (`FastRoutes`)."""
    return Litestar(
        route_handlers=handlers(),
        request_class=ApiRequest,
        guards=[_admit, reject_unknown_parameters],
        exception_handlers={Exception: handle_exception},
        openapi_config=None,  # `http.openapi` builds and serves the document
        debug=False,
        logging_config=None,
    )


async def _admit(connection: ASGIConnection, _handler: BaseRouteHandler) -> None:  # type: ignore[type-arg]  # any of them
    server: ServerContext = connection.scope["state"]["server"]
    await server.authenticator.admit(connection)
