"""A status server process: its listening socket and its shutdown.

Laws:
1. It listens only where `listen_address` allows it.
2. On a signal it ends its streams, lets requests finish for the grace period, and exits.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import uvicorn

from tenure.errors import TenureError
from tenure.logs import get_logger
from tenure.status_server.app import StatusApp
from tenure.status_server.listen_address import bind_socket, check_tls, format_address
from tenure.status_server.published_reader import PublishedReader

log = get_logger(__name__)

CONNECTIONS_MAX = 5_000
GRACE_SECONDS = 5
LOOK_SECONDS = 0.005
DEFAULT_ADDRESS = "127.0.0.1:8710"


class StatusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a status server reads and listens."""

    documents: str
    """A folder, or s3://bucket/prefix."""
    listen: str = DEFAULT_ADDRESS
    """HOST:PORT; port 0 is any free port."""
    tls_cert: str | None = None
    tls_key: str | None = None
    behind_proxy: bool = False


def _listen(settings: StatusSettings) -> socket.socket:
    host, _, port = settings.listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise TenureError("LISTEN_REFUSED", f"{settings.listen!r} is not HOST:PORT")
    check_tls(host, tls_cert=settings.tls_cert, tls_key=settings.tls_key, behind_proxy=settings.behind_proxy)
    return bind_socket(host, int(port))


class SignalFreeServer(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def wait_until_started(self, task: asyncio.Task[None]) -> None:
        """Wait for the start of this server, which `task` serves."""
        while not self.started and not task.done():  # noqa: ASYNC110 - uvicorn has only a flag
            await asyncio.sleep(LOOK_SECONDS)
        if task.done():
            await task
            raise TenureError("INTERNAL_ERROR", "the server did not start; the log says why")


def load_config(config: uvicorn.Config) -> None:
    """Load what a configuration names, above all the certificate."""
    try:
        config.load()
    except (OSError, ssl.SSLError) as fault:
        raise TenureError("LISTEN_REFUSED", f"the certificate or its key cannot be used: {fault}") from fault


@asynccontextmanager
async def serving_documents(settings: StatusSettings) -> AsyncIterator[str]:
    """Serve published documents from this event loop until the block ends. Yields the address."""
    app = StatusApp(PublishedReader(settings.documents), behind_proxy=settings.behind_proxy)
    listening = _listen(settings)
    config = uvicorn.Config(
        app,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    try:
        load_config(config)
    except TenureError:
        listening.close()
        raise
    server = SignalFreeServer(config)
    task = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        await server.wait_until_started(task)
        yield format_address(listening, tls=settings.tls_cert is not None)
    finally:
        app.stopping.set()
        server.should_exit = True
        await task
        listening.close()


async def serve_documents(settings: StatusSettings) -> None:
    """Serve published documents until the process is signaled."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with serving_documents(settings) as address:
        log.info("status_server_started", address=address, documents=settings.documents)
        await stop.wait()
    log.info("status_server_stopped")
