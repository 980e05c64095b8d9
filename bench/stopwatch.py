"""Measures where the time of a command goes, with a stopwatch around the functions that handle a command.

Laws:
1. Times are exclusive: the time of an inner stage does not count for the outer one.
2. Only code in the event loop's thread is timed, and only between two suspensions, so that no stage includes waiting.
   The rest of the thread's CPU time is asyncio, the driver's callbacks, the generators of transactions and the
   workload. The rest of the wall time is waiting.
3. Tenure has no code for this: its functions are replaced during the measurement, and restored.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.peers.usage import postmaster_pid, usage_of
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
    """Exclusive seconds per stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._within: list[float] = [0.0]
        """For each open stage, the seconds of its inner stages."""

    def end(self, stage: str, seconds: float) -> None:
        """End a stage that took this long."""
        inner = self._within.pop()
        self._within[-1] += seconds
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds - inner
        self.calls[stage] = self.calls.get(stage, 0) + 1

    def begin(self) -> None:
        self._within.append(0.0)

    def quick(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Time a function that is called for every command, with a clock that is cheap to read. The process may be preempted during a
        call, so a call that takes implausibly long counts as an average one."""

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
                    average = self.seconds.get(stage, 0.0) / calls if calls else 0.0
                    seconds = self._within[-1] + average
                self.end(stage, seconds)

        return under

    def long(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Time a function that is called once per batch, with the thread's CPU time."""

        @functools.wraps(function)
        def under(*args: Any, **kwargs: Any) -> Any:
            self._within.append(0.0)
            started = _cpu()
            try:
                return function(*args, **kwargs)
            finally:
                self.end(stage, _cpu() - started)

        return under

    def reset(self) -> None:
        self.seconds, self.calls = {}, {}

    def taken(self) -> dict[str, tuple[float, int]]:
        """Stage -> (seconds, calls), the longest first."""
        stages = sorted(self.seconds, key=lambda stage: -self.seconds[stage])
        return {stage: (self.seconds[stage], self.calls[stage]) for stage in stages}


class _Steps:
    """Times the steps of a coroutine between its suspensions."""

    def __init__(self, watch: Stopwatch, stage: str, inner: Coroutine[Any, Any, Any]) -> None:
        self._watch = watch
        self._stage = stage
        self._inner = inner

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._inner.__await__()
        send: Callable[[], Any] = functools.partial(next, steps)
        while True:
            self._watch.begin()
            started = _cpu()
            try:
                waiting_for = send()
            except StopIteration as stop:
                return stop.value
            finally:
                self._watch.end(self._stage, _cpu() - started)
            try:
                value = yield waiting_for
            except BaseException as error:
                send = functools.partial(steps.throw, error)
            else:
                send = functools.partial(steps.send, value)


class _Statement:
    """Times the calls of a prepared statement. Their first step encodes the arguments and sends them."""

    def __init__(self, watch: Stopwatch, inner: Any) -> None:
        self._watch = watch
        self._inner = inner

    async def fetch(self, *args: Any) -> Any:
        return await _Steps(self._watch, "driver: encode and send", self._inner.fetch(*args))

    async def fetchrow(self, *args: Any) -> Any:
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
"""(stage, module or class, function). A function that does not exist is reported and left out."""
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
    """A stopwatch around all these functions, and the names of those that do not exist."""
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


class UsedSeconds(msgspec.Struct):
    wall: float
    thread: float
    """CPU of the event loop's thread."""
    process: float
    """CPU of this process, all threads."""
    server: float
    """CPU of PostgreSQL's processes; 0 if it cannot be read."""

    @classmethod
    def now(cls, server: Path | None) -> UsedSeconds:
        """The seconds up to now. `server` is the directory of a private PostgreSQL."""
        usage = None if server is None else usage_of([postmaster_pid(server)])
        return cls(_clock(), time.thread_time(), time.process_time(), usage.cpu_seconds if usage else 0.0)

    def since(self, before: UsedSeconds) -> UsedSeconds:
        return UsedSeconds(
            self.wall - before.wall,
            self.thread - before.thread,
            self.process - before.process,
            self.server - before.server,
        )
