"""A server process: its engine, its application, its listening socket, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from tenure.embedded import Engine
from tenure.server.app import make_app
from tenure.server.service import Service
from tenure.server.settings import Settings

GRACE_SECONDS = 10


@asynccontextmanager
async def serving(engine: Engine, settings: Settings) -> AsyncIterator[tuple[Service, str]]:
    """Serve a running engine from this event loop until the block ends; the service, and its address (port 0: any)."""
    service = Service(engine, settings)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((settings.host, settings.port))
    config = uvicorn.Config(
        make_app(service),
        log_config=None,
        access_log=False,
        lifespan="on",
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        proxy_headers=settings.behind_proxy,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        backlog=4096,
    )
    server = _Server(config)
    task = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn has only a flag
            await asyncio.sleep(0.005)
        if task.done():
            task.result()
        host, port = listening.getsockname()[:2]
        scheme = "https" if settings.tls_cert else "http"
        shown = f"[{host}]" if ":" in host else host
        yield service, f"{scheme}://{shown}:{port}"
    finally:
        server.should_exit = True
        await task
        listening.close()


class _Server(uvicorn.Server):
    """Signals are the process's business, not the server's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield
