"""A server process: its engine, its application, its listening socket, and its shutdown.

Laws:
1. It listens on other addresses than loopback only with TLS, or behind a proxy that has TLS.
2. On a first signal it says NOT_READY, ends its streams, gives requests the grace period to finish, and exits. On a second signal it
   exits immediately, as in a crash; nothing that was answered is lost.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import msgspec
import structlog
import uvicorn

from tenure.engine import Engine
from tenure.engine.worker_process import shutdown_event
from tenure.errors import TenureError
from tenure.private_files import hide
from tenure.server.app import make_app
from tenure.server.context import ServerContext
from tenure.server.http.forwarded import FORWARDED, X_FORWARDED_FOR
from tenure.server.http.protocol import make_protocol
from tenure.server.observe.structured_logs import redirect_uvicorn_logs
from tenure.server.settings import LOOPBACK, Settings
from tenure.status_server.http_server import StatusSettings, serving_documents

log = structlog.get_logger(__name__)

BACKLOG = 4096
LOOK_SECONDS = 0.005
FILES_KEPT = 200
"""Files that a process needs besides its connections."""


def check_address(settings: Settings) -> None:
    """Refuse to listen where keys would be sent in the clear (law 1)."""
    if settings.tls_key is not None:
        hide(settings.tls_key)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise TenureError("LISTEN_REFUSED", "--tls-cert and --tls-key belong together")
    if settings.trusted_proxies < 1 or settings.forwarded_header not in (X_FORWARDED_FOR, FORWARDED):
        raise TenureError(
            "LISTEN_REFUSED",
            f"--trusted-proxies is at least 1, and --forwarded-header {X_FORWARDED_FOR} or {FORWARDED}",
        )
    if settings.host not in LOOPBACK and settings.tls_cert is None and not settings.behind_proxy:
        raise TenureError(
            "LISTEN_REFUSED",
            f"{settings.host} can be reached from other machines, and keys would pass in the clear: "
            "give --tls-cert and --tls-key, or --behind-proxy where something in front of it speaks TLS",
        )


def _limit_connections(settings: Settings) -> Settings:
    """Limit the connections to the files that the process may open. Beyond that it could accept none."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = settings.connections_max if files == resource.RLIM_INFINITY else max(files - FILES_KEPT, 10)
    return msgspec.structs.replace(settings, connections_max=min(settings.connections_max, most))


def _listen(settings: Settings) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as fault:
        listening.close()
        raise TenureError("LISTEN_REFUSED", f"{settings.host}:{settings.port}: {fault.strerror}") from fault
    return listening


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
    try:
        config.load()
    except (OSError, ssl.SSLError) as fault:
        raise TenureError("LISTEN_REFUSED", f"the certificate or its key cannot be used: {fault}") from fault
    return config


@asynccontextmanager
async def serving(engine: Engine, settings: Settings) -> AsyncIterator[tuple[ServerContext, str]]:
    """Serve a running engine from this event loop until the block ends. Yields its context and its address; port 0 is any free port."""
    check_address(settings)
    context = ServerContext(engine, _limit_connections(settings))
    listening = _listen(settings)
    server = _Server(_config(context))
    await context.start()
    task = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn has only a flag
            await asyncio.sleep(LOOK_SECONDS)
        if task.done():
            await task
            raise TenureError("INTERNAL_ERROR", "the server did not start; the log says why")
        host, port = listening.getsockname()[:2]
        scheme = "https" if settings.tls_cert else "http"
        shown = f"[{host}]" if ":" in host else host
        yield context, f"{scheme}://{shown}:{port}"
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


class _Server(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
