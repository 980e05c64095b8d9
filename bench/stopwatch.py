"""Where the time of a command goes: a stopwatch around the functions a command passes through.

Laws:
1. Time is exclusive: what a stage spends inside another stage is the other's.
2. Only what runs in the event loop's thread is timed, and only between two suspensions, so a stage never
   counts waiting. What is left of the thread's CPU time is asyncio, the driver's callbacks, the generators of
   transactions and the workload; what is left of the wall time is waiting.
3. Nothing in Tenure knows of this: functions are replaced while it looks, and put back.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tenure.kernel import draft, history
from tenure.orchestrator import batch, claims, commit_lanes, core
from tenure.store.postgres import connection
from tenure.store.postgres import store as postgres_store
from tenure.store.sqlite import statements as sqlite_running
from tenure.store.sqlite import store as sqlite_store

_clock = time.perf_counter
_cpu = time.thread_time
PREEMPTED_SECONDS = 0.001


class Stopwatch:
    """Seconds per stage, exclusive of stages within."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._within: list[float] = [0.0]
        """What inner stages took, per stage that is open."""

    def note(self, stage: str, seconds: float) -> None:
        """A stage has ended after so many seconds."""
        inner = self._within.pop()
        self._within[-1] += seconds
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds - inner
        self.calls[stage] = self.calls.get(stage, 0) + 1

    def open(self) -> None:
        """A stage begins."""
        self._within.append(0.0)

    def quick(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that is called for every command, under a clock that is cheap to read. The machine may give
        the processor to somebody else meanwhile: a call that takes implausibly long counts as an ordinary one."""

        @functools.wraps(function)
        def under(*args: Any, **kwargs: Any) -> Any:
            self._within.append(0.0)
            started = _clock()
            try:
                return function(*args, **kwargs)
            finally:
                seconds = _clock() - started
                if seconds > PREEMPTED_SECONDS:
                    calls = self.calls.get(stage, 0)
                    usual = self.seconds.get(stage, 0.0) / calls if calls else 0.0
                    seconds = self._within[-1] + usual
                self.note(stage, seconds)

        return under

    def long(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that is called once per batch, under the thread's own clock of CPU time."""

        @functools.wraps(function)
        def under(*args: Any, **kwargs: Any) -> Any:
            self._within.append(0.0)
            started = _cpu()
            try:
                return function(*args, **kwargs)
            finally:
                self.note(stage, _cpu() - started)

        return under

    def reset(self) -> None:
        """Forget what was measured."""
        self.seconds, self.calls = {}, {}

    def taken(self) -> dict[str, tuple[float, int]]:
        """Seconds and calls of each stage up to now, the longest first."""
        stages = sorted(self.seconds, key=lambda stage: -self.seconds[stage])
        return {stage: (self.seconds[stage], self.calls[stage]) for stage in stages}


class _Steps:
    """A coroutine whose steps between suspensions are timed."""

    def __init__(self, watch: Stopwatch, stage: str, inner: Coroutine[Any, Any, Any]) -> None:
        self._watch = watch
        self._stage = stage
        self._inner = inner

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._inner.__await__()
        send: Callable[[], Any] = functools.partial(next, steps)
        while True:
            self._watch.open()
            started = _cpu()
            try:
                waiting_for = send()
            except StopIteration as stop:
                return stop.value
            finally:
                self._watch.note(self._stage, _cpu() - started)
            try:
                value = yield waiting_for
            except BaseException as error:
                send = functools.partial(steps.throw, error)
            else:
                send = functools.partial(steps.send, value)


class _Statement:
    """A prepared statement whose calls are timed; the first step encodes the arguments and sends them."""

    def __init__(self, watch: Stopwatch, inner: Any) -> None:
        self._watch = watch
        self._inner = inner

    async def fetch(self, *args: Any) -> Any:
        """As asyncpg's."""
        return await _Steps(self._watch, "driver: encode and send", self._inner.fetch(*args))

    async def fetchrow(self, *args: Any) -> Any:
        """As asyncpg's."""
        return await _Steps(self._watch, "driver: encode and send", self._inner.fetchrow(*args))


_QUICK: list[tuple[str, Any, str]] = [
    ("submit: queue the command", core.Orchestrator, "submit"),
    ("decide", batch, "decide"),
    ("decide", claims, "decide"),
    ("event: what changed", draft, "changed_columns"),
    ("event: encode", history, "encode_body"),
    ("event: hash", history, "event_hash"),
    ("payload: digest", history, "digest"),
    ("batch: accept the rows", batch.RunWork, "accept"),
    ("rows: to tuples", sqlite_running, "_tuple"),
]
"""(stage, where, name). A name that a later version no longer has is left out, and said so."""
_LONG: list[tuple[str, Any, str]] = [
    ("lane: take the batch", commit_lanes.CommitLane, "take"),
    ("batch: make the save", batch, "build_save"),
    ("batch: make the save", claims, "build_save"),
    ("batch: conclude", batch, "sort_outcomes"),
    ("batch: conclude", claims, "sort_outcomes"),
    ("lane: cache and answer", core.Orchestrator, "finish"),
    ("rows: to tuples and parameters", postgres_store, "pack_save"),
    ("database: statements", sqlite_running.SqliteTransaction, "answer"),
    ("database: statements", sqlite_running.SqliteTransaction, "save"),
    ("database: statements", sqlite_running.SqliteTransaction, "finish"),
    ("database: statements", sqlite_running.SqliteTransaction, "__init__"),
    ("transaction: locked batches and claims", sqlite_store, "_drive"),
]


@contextmanager
def stopwatch() -> Iterator[tuple[Stopwatch, list[str]]]:
    """Put the stopwatch around everything; also the names that were not found."""
    watch = Stopwatch()
    missing: list[str] = []
    replaced: list[tuple[Any, str, Any]] = []

    def put(where: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = vars(where).get(name)
        if original is None:
            missing.append(f"{getattr(where, '__name__', where)}.{name}")
            return
        replaced.append((where, name, original))
        setattr(where, name, make(original))

    for stage, where, name in _QUICK:
        put(where, name, functools.partial(watch.quick, stage))
    for stage, where, name in _LONG:
        put(where, name, functools.partial(watch.long, stage))

    def with_statements(original: Any) -> Any:
        async def statement(self: Any, text: str) -> Any:
            return _Statement(watch, await original(self, text))

        return statement

    put(connection.PostgresConnection, "statement", with_statements)
    try:
        yield watch, missing
    finally:
        for where, name, original in reversed(replaced):
            setattr(where, name, original)


# --------------------------------------------------------------------------------------------- CPU time


class Usage(msgspec.Struct):
    """Seconds since some moment."""

    wall: float
    thread: float
    """CPU of the event loop's thread."""
    process: float
    """CPU of this process, all threads."""
    server: float
    """CPU of PostgreSQL's processes; 0 where it cannot be read."""

    @classmethod
    def now(cls, server: Path | None) -> Usage:
        """Up to here; `server` is the private server's folder."""
        return cls(_clock(), time.thread_time(), time.process_time(), _server_seconds(server))

    def since(self, before: Usage) -> Usage:
        """The difference."""
        return Usage(
            self.wall - before.wall,
            self.thread - before.thread,
            self.process - before.process,
            self.server - before.server,
        )


def _server_seconds(folder: Path | None) -> float:
    """CPU of the processes whose working directory is the server's data: all of PostgreSQL's are there."""
    if folder is None or not Path("/proc/self/stat").exists():
        return 0.0
    ticks = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if not os.readlink(entry / "cwd").startswith(str(folder)):
                continue
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended, or is not ours to see
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
