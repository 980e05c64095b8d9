"""`python -m bench.streams`: how soon an event reaches thousands of idle listeners of one server process, and what they cost.

Laws:
1. The server is a process of its own, so that its memory can be measured. The listeners are plain sockets on loopback.
2. Both processes read the same monotonic clock. The time runs from the moment before the run is created to the last byte of the last
   listener. A listener that gets no event, or another one, ends the program with 2.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop

from bench.service import TENANT, create_key
from tenure.engine import Engine
from tenure.server.http_server import serving
from tenure.server.settings import Settings

OPEN_AT_ONCE = 200
SECONDS_MAX = 60.0


class Figures(msgspec.Struct, frozen=True):
    listeners: int
    rounds: int
    last_seconds: list[float]
    """For each event, the time until the last listener had it."""
    first_seconds: list[float]
    rss_mb: float
    """The server's memory with all listeners connected."""
    rss_before_mb: float
    peak_mb: float


# --------------------------------------------------------------------------------------------- the server


async def _serve(database: str) -> None:
    """Serve. For each line on stdin, create a run and print when that began."""
    async with (
        Engine(database) as engine,
        serving(
            engine,
            Settings(
                port=0,
                log_runs=False,
                connections_max=10**6,
                connections_per_address_max=10**6,
                streams_per_key_max=10**6,
                streams_per_tenant_max=10**6,
            ),
        ) as (_service, address),
    ):
        key = await create_key(engine, "viewer")
        print(f"{address} {key}", flush=True)
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while await lines.readline():
            began = time.monotonic()
            run = await engine.scoped(tenant=TENANT).create("bench", [{"name": "a"}])
            print(f"{began} {run}", flush=True)


# ------------------------------------------------------------------------------------------- the listeners


class Crowd:
    """The state of all listeners."""

    def __init__(self) -> None:
        self.ready = 0
        self.heard: list[float] = []
        self.broken: list[str] = []
        self.changed = asyncio.Event()

    async def wait_for(self, what: Callable[[], int], count: int) -> None:
        """Wait until a count is reached; RuntimeError if a listener is broken."""
        async with asyncio.timeout(SECONDS_MAX):
            while what() < count:
                if self.broken:
                    raise RuntimeError(self.broken[0])
                self.changed.clear()
                await self.changed.wait()


class Listener(asyncio.Protocol):
    def __init__(self, crowd: Crowd, request: bytes) -> None:
        self._crowd = crowd
        self._request = request
        self._got = b""
        self._ready = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]  # a TCP transport has it

    def data_received(self, data: bytes) -> None:
        crowd = self._crowd
        self._got += data
        if not self._ready and b": listening" in self._got:
            self._ready = True
            if not self._got.startswith(b"HTTP/1.1 200"):
                crowd.broken.append(self._got[:40].decode("latin-1"))
            crowd.ready += 1
            self._got = b""
        elif self._ready and b"data: " in self._got and self._got.endswith((b"\n\n", b"\n\n\r\n")):
            if b'"run.status.changed"' not in self._got:
                crowd.broken.append(self._got[:80].decode("latin-1"))
            crowd.heard.append(time.monotonic())
            self._got = b""
        crowd.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.broken.append(f"a connection was lost: {exc}")
        self._crowd.changed.set()


def _memory(pid: int) -> tuple[float, float]:
    """A process's resident memory and its peak, in MB."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return tuple(int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]  # a tuple of two


async def measure(listeners: int, rounds: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        server = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.streams", "--serve", f"sqlite:{folder}/bench.db",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            address, key = (await server.stdout.readline()).decode().split()
            before, _ = _memory(server.pid)
            host, _, port = address.removeprefix("http://").rpartition(":")
            request = (
                f"GET /events/stream HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n\r\n"
            ).encode()
            crowd = Crowd()
            loop = asyncio.get_running_loop()
            for start in range(0, listeners, OPEN_AT_ONCE):
                some = min(OPEN_AT_ONCE, listeners - start)
                await asyncio.gather(
                    *(
                        loop.create_connection(lambda: Listener(crowd, request), host, int(port))
                        for _ in range(some)
                    )
                )
                await crowd.wait_for(lambda: crowd.ready, start + some)
            first, last = [], []
            for _ in range(rounds):
                crowd.heard = []
                server.stdin.write(b"go\n")
                began = float((await server.stdout.readline()).split()[0])
                await crowd.wait_for(lambda: len(crowd.heard), listeners)
                first.append(min(crowd.heard) - began)
                last.append(max(crowd.heard) - began)
                await asyncio.sleep(0.5)
            rss, peak = _memory(server.pid)
            return Figures(listeners, rounds, last, first, rss, before, peak)
        finally:
            server.kill()
            await server.wait()


def main(
    listeners: Annotated[int, typer.Option(help="How many connections.")] = 2000,
    rounds: Annotated[int, typer.Option(help="How many events.")] = 5,
    serve: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure how soon an event reaches thousands of idle listeners, and what they cost the server."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if serve:
        uvloop.run(_serve(serve))
        return
    if hard < listeners + 100:
        raise typer.BadParameter(
            f"this process may open only {hard} files: raise that (ulimit -n), or use fewer listeners"
        )
    try:
        found = uvloop.run(measure(listeners, rounds))
    except (RuntimeError, TimeoutError) as broken:
        typer.echo(f"broken: {broken!r}", err=True)
        raise typer.Exit(2) from broken
    for name, value in msgspec.structs.asdict(found).items():
        shown = " ".join(f"{one:.3f}" for one in value) if isinstance(value, list) else f"{value:g}"
        typer.echo(f"{name:16} {shown}")


if __name__ == "__main__":
    typer.run(main)
