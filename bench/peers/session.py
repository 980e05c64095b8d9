"""Measures one system: starts its process, asks it for samples, and ends it with all processes that it started."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from bench.peers.environments import NotMeasured, python_for, tool_for
from bench.peers.known import System
from bench.peers.protocol import STEPS
from bench.peers.usage import Usage, family, postmaster_pid, usage_of
from bench.places import ROOT, connected
from tools.postgres_server import ExternalPostgres, PrivatePostgres

ASK_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 25.0
LOG_TAIL_LINES = 6
LINE_BYTES_MAX = 1 << 20

Server = ExternalPostgres | PrivatePostgres


class Sample(msgspec.Struct, kw_only=True):
    """A measured series of runs."""

    done: int
    """Durable steps, or jobs."""
    seconds: float
    cpu_seconds: float | None
    """User and system time of all its processes and of PostgreSQL; None if it cannot be read."""
    log_bytes: int | None
    """Bytes written to PostgreSQL's log (WAL), or, by a system without PostgreSQL, to storage."""
    lone_seconds: list[float] = []

    @property
    def rate(self) -> float:
        return self.done / self.seconds

    @property
    def cpu_per_thousand(self) -> float | None:
        """CPU seconds per 1,000 steps."""
        return None if self.cpu_seconds is None else self.cpu_seconds / self.done * 1000

    @property
    def log_per_thousand(self) -> float | None:
        """Bytes per 1,000 steps."""
        return None if self.log_bytes is None else self.log_bytes / self.done * 1000


class Session:
    """The connection to a running system."""

    def __init__(
        self, process: asyncio.subprocess.Process, server: Server | None, dsn: str, log: Path
    ) -> None:
        self._process = process
        self._server = server
        self._dsn = dsn
        self._log = log
        self.settings: dict[str, str] = {}
        self.figures: list[str] = []

    async def prepare(self) -> None:
        said = await self._ask({"do": "prepare"})
        self.settings, self.figures = said["settings"], said["figures"]

    async def sample(self, figure: str, count: int) -> Sample:
        """A sample of `throughput`, `lone` or another figure of the system."""
        before: tuple[Usage | None, int] = (None, 0)
        taken = Sample(done=0, seconds=0.0, cpu_seconds=None, log_bytes=None)

        async def mark(said: dict[str, Any]) -> None:
            nonlocal before
            if said["mark"] == "start":
                before = await self._cost()
                return
            usage, position = await self._cost()
            taken.seconds = said["seconds"]
            if usage is not None and before[0] is not None:
                spent = usage.since(before[0])
                taken.cpu_seconds = spent.cpu_seconds
                taken.log_bytes = position - before[1] if self._dsn else spent.written_bytes

        said = await self._ask({"do": figure, "count": count}, mark)
        taken.lone_seconds = said.get("seconds", [])
        taken.done = said.get("done", len(taken.lone_seconds) * STEPS)
        return taken

    async def stop(self) -> None:
        """End the system, and kill the processes of it that do not end."""
        members = set(family(self._process.pid))
        with suppress(OSError, NotMeasured, TimeoutError):
            self._send({"do": "stop"})
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS_MAX)
        members |= set(family(self._process.pid))
        for pid in members:
            if _of_session(pid, self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            await self._process.wait()

    async def _cost(self) -> tuple[Usage | None, int]:
        roots = [self._process.pid]
        position = 0
        if self._dsn:
            position = await wal_position(self._dsn)
            if isinstance(self._server, PrivatePostgres):
                roots.append(postmaster_pid(self._server.directory))
        return await asyncio.to_thread(usage_of, roots), position

    async def _ask(self, request: dict[str, Any], mark: Any = None) -> dict[str, Any]:
        self._send(request)
        try:
            async with asyncio.timeout(ASK_SECONDS_MAX):
                while True:
                    said = await self._answer()
                    if "mark" not in said:
                        return said
                    await mark(said)
                    self._send({})
        except TimeoutError:
            raise NotMeasured(f"no answer to {request['do']!r} in {ASK_SECONDS_MAX:g} seconds") from None

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")

    async def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise NotMeasured(f"its process ended: {self._tail()}")
        said: dict[str, Any] = json.loads(line)
        if "failed" in said:
            raise NotMeasured(said["failed"])
        return said

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return " | ".join(line.strip() for line in lines[-LOG_TAIL_LINES:]) or "its log is empty"


@asynccontextmanager
async def running(
    system: System, server: Server | None, parent: Path, options: dict[str, str] | None = None
) -> AsyncIterator[Session]:
    """A prepared system in its own process, with its own folder and database."""
    python = await asyncio.to_thread(python_for, system)
    tool = await asyncio.to_thread(tool_for, system)
    folder = Path(tempfile.mkdtemp(prefix=f"peer-{system.name}-", dir=parent))
    name, dsn = f"peer_{os.getpid()}_{system.name.replace('-', '_')}", ""
    try:
        if system.store == "postgres":
            assert server is not None, "the system needs PostgreSQL"
            await _execute(server.dsn(), f"create database {name}", "checkpoint")
            dsn = server.dsn(name)
        log = folder / "log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                python, "-m", f"bench.peers.{system.peer}", cwd=ROOT, env=_environment(), limit=LINE_BYTES_MAX,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors, start_new_session=True,
            )  # fmt: skip
        session = Session(process, server, dsn, log)
        try:
            work = folder / "data"
            work.mkdir()
            given = {
                "dsn": dsn,
                "folder": str(work),
                "tool": tool,
                "options": {**system.options, **(options or {})},
            }
            session._send(given)
            await session.prepare()
            yield session
        finally:
            await session.stop()
    finally:
        if dsn and server is not None:
            await _execute(server.dsn(), f"drop database {name} with (force)")
        shutil.rmtree(folder, ignore_errors=True)


def p50_ms(sample: Sample) -> float:
    """The median latency of runs one after another."""
    return statistics.median(sample.lone_seconds) * 1000


async def wal_position(dsn: str) -> int:
    """The number of bytes in PostgreSQL's log so far."""
    async with connected(dsn) as connection:
        return int(await connection.fetchval("select pg_current_wal_lsn() - '0/0'::pg_lsn"))


async def _execute(dsn: str, *statements: str) -> None:
    async with connected(dsn) as connection:
        for statement in statements:
            await connection.execute(statement)


def _of_session(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session
    except ProcessLookupError:
        return False


def _environment() -> dict[str, str]:
    """This process's environment without variables that change a peer. Telemetry is turned off."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "DBOS", "RESTATE"))
    }
    return {**kept, "LANGSMITH_TRACING": "false", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
