"""A server process: its engine, its application, its listening socket, and its shutdown.

Laws:
1. It listens only where `listen_address` allows it.
2. On a first signal it says NOT_READY, ends its streams, gives requests the grace period to finish, and exits. On a second signal it
   exits immediately, as in a crash; nothing that was answered is lost.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import structlog
import uvicorn

from tenure.engine import Engine
from tenure.engine.worker_process import shutdown_event
from tenure.errors import TenureError
from tenure.server.app import make_app
from tenure.server.context import ServerContext
from tenure.server.http.forwarded import FORWARDED, X_FORWARDED_FOR
from tenure.server.http.protocol import make_protocol
from tenure.server.observe.structured_logs import redirect_uvicorn_logs
from tenure.server.settings import Settings
from tenure.status_server.http_server import SignalFreeServer, StatusSettings, load_config, serving_documents
from tenure.status_server.listen_address import bind_socket, check_tls, format_address

log = structlog.get_logger(__name__)

BACKLOG = 4096
FILES_KEPT = 200
"""Files that a process needs besides its connections."""


def check_address(settings: Settings) -> None:
    """Refuse to listen where keys would be sent in the clear (law 1)."""
    check_tls(
        settings.host,
        tls_cert=settings.tls_cert,
        tls_key=settings.tls_key,
        behind_proxy=settings.behind_proxy,
    )
    if settings.trusted_proxies < 1 or settings.forwarded_header not in (X_FORWARDED_FOR, FORWARDED):
        raise TenureError(
            "LISTEN_REFUSED",
            f"--trusted-proxies is at least 1, and --forwarded-header {X_FORWARDED_FOR} or {FORWARDED}",
        )


def _limit_connections(settings: Settings) -> Settings:
    """Limit the connections to the files that the process may open. Beyond that it could accept none."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = settings.connections_max if files == resource.RLIM_INFINITY else max(files - FILES_KEPT, 10)
    return msgspec.structs.replace(settings, connections_max=min(settings.connections_max, most))


def _config(context: ServerContext) -> uvicorn.Config:
    settings = context.settings
    redirect_uvicorn_logs()
    config = uvicorn.Config(
        make_app(context),
        http=make_protocol(settings, context.load),
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        proxy_headers=False,  # `forwarded` reads them
        server_header=False,
        timeout_graceful_shutdown=max(round(settings.grace_seconds), 1),
        backlog=BACKLOG,
    )
    load_config(config)
    return config


@asynccontextmanager
async def serving(engine: Engine, settings: Settings) -> AsyncIterator[tuple[ServerContext, str]]:
    """Serve a running engine from this event loop until the block ends. Yields its context and its address; port 0 is any free port."""
    check_address(settings)
    context = ServerContext(engine, _limit_connections(settings))
    listening = bind_socket(settings.host, settings.port)
    server = SignalFreeServer(_config(context))
    await context.start()
    task = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        await server.wait_until_started(task)
        yield context, format_address(listening, tls=settings.tls_cert is not None)
    finally:
        context.stopping.set()
        if server.started and settings.drain_seconds:
            await asyncio.sleep(settings.drain_seconds)
        server.should_exit = True
        await task
        listening.close()
        await context.stop()


async def serve(engine: Engine, settings: Settings) -> None:
    """Run an engine and its server until the process is signaled (law 2)."""
    check_address(settings)
    with shutdown_event() as stop:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(engine)
            _service, address = await stack.enter_async_context(serving(engine, settings))
            log.info("server_started", address=address)
            if settings.status_listen is not None and engine.publisher is not None:
                status = StatusSettings(
                    documents=engine.publisher.documents.name,
                    listen=settings.status_listen,
                    tls_cert=settings.tls_cert,
                    tls_key=settings.tls_key,
                    behind_proxy=settings.behind_proxy,
                )
                shown = await stack.enter_async_context(serving_documents(status))
                log.info("status_server_started", address=shown, documents=status.documents)
            engine.log_durability_risks()
            await stop.wait()
            log.info("server_stopping", grace_seconds=settings.grace_seconds)
    log.info("server_stopped")
