"""The application: routes, the gate before them, one shape of errors.

Law: whatever answers, answers through here: what no route catches becomes an error of the registry (`problems`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from litestar import Litestar
from litestar.datastructures import State
from litestar.openapi import OpenAPIConfig

from tenure.server.call import Call
from tenure.server.entry import Entry
from tenure.server.problems import answer
from tenure.server.service import Service

if TYPE_CHECKING:
    from litestar.types import ASGIApp

MODULES = ("health", "runs")
"""Of `tenure.server.routes`."""


def handlers() -> list[Any]:
    """All routes."""
    found: list[Any] = []
    for name in MODULES:
        found += import_module(f"tenure.server.routes.{name}").HANDLERS
    return found


def make_app(service: Service) -> ASGIApp:
    """The application over a service whose engine is running."""

    @asynccontextmanager
    async def lifespan(_app: Litestar) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    app = Litestar(
        route_handlers=handlers(),
        request_class=Call,
        guards=[service.gate.admit],
        exception_handlers={Exception: answer},
        lifespan=[lifespan],
        state=State({"service": service}),
        openapi_config=OpenAPIConfig(title="Tenure", version=version("tenure"), path="/docs"),
        debug=False,
        logging_config=None,
    )
    return Entry(app, service.settings)
