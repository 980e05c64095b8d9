"""`python -m bench.streams`: thousands of idle listeners on one server process, and how soon an event reaches all of them.

Laws:
1. The server is a process of its own, so that its memory is its own; listeners are plain sockets on loopback.
2. Both processes read the same monotonic clock: from the moment before the run is created to the last listener's last
   byte. A listener that did not get the event, or got another one, ends the program with 2.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop

from bench.service import TENANT, a_key
from tenure.engine import Engine
from tenure.server.http_server import serving
from tenure.server.settings import Settings

OPEN_AT_ONCE = 200
SECONDS_MAX = 60.0


class Figures(msgspec.Struct, frozen=True):
    """What was measured."""

    listeners: int
    rounds: int
    last_seconds: list[float]
    """Of each event: until the last listener had it."""
    first_seconds: list[float]
    rss_mb: float
    """The server's memory with all of them connected."""
    rss_before_mb: float
    peak_mb: float


# --------------------------------------------------------------------------------------------- the server


async def _serve(database: str) -> None:
    """A server that makes a run for each line it reads, and says when it began to."""
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
        key = await a_key(engine, "viewer")
        _say(f"{address} {key}")
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while await lines.readline():
            began = time.monotonic()
            run = await engine.scoped(tenant=TENANT).create("bench", [{"name": "a"}])
            _say(f"{began} {run}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# ------------------------------------------------------------------------------------------- the listeners


class Crowd:
    """All listeners together."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.ready = 0
        self.heard: list[float] = []
        self.broken: list[str] = []
        self.event = b""
        self.changed = asyncio.Event()


class Listener(asyncio.Protocol):
    """One of them."""

    def __init__(self, crowd: Crowd, request: bytes) -> None:
        self._crowd = crowd
        self._request = request
        self._got = b""
        self._ready = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        transport.write(self._request)  # type: ignore[attr-defined]  # a TCP transport has it

    def data_received(self, data: bytes) -> None:
        """Answers, and events."""
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
        """None may be, before the end."""
        self._crowd.broken.append(f"a connection was lost: {exc}")
        self._crowd.changed.set()


async def _until(crowd: Crowd, count: int, of: str) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while (crowd.ready if of == "ready" else len(crowd.heard)) < count:
            if crowd.broken:
                raise RuntimeError(crowd.broken[0])
            crowd.changed.clear()
            await crowd.changed.wait()


def _memory(pid: int) -> tuple[float, float]:
    """A process's resident memory and its peak, in MB."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return tuple(int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]  # two of them


async def measure(listeners: int, rounds: int) -> Figures:
    """Connect them all, and send events."""
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
            crowd = Crowd(listeners)
            loop = asyncio.get_running_loop()
            for start in range(0, listeners, OPEN_AT_ONCE):
                some = min(OPEN_AT_ONCE, listeners - start)
                await asyncio.gather(
                    *(
                        loop.create_connection(lambda: Listener(crowd, request), host, int(port))
                        for _ in range(some)
                    )
                )
                await _until(crowd, start + some, "ready")
            first, last = [], []
            for _ in range(rounds):
                crowd.heard = []
                server.stdin.write(b"go\n")
                began = float((await server.stdout.readline()).split()[0])
                await _until(crowd, listeners, "heard")
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
    """Thousands of idle listeners on one server process: how soon an event reaches all, and what they cost."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if serve:
        uvloop.run(_serve(serve))
        return
    if hard < listeners + 100:
        raise typer.BadParameter(
            f"this process may have {hard} files open: raise that (ulimit -n), or ask for fewer"
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
