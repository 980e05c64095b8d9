"""The protocol between the bench and a measured system: one JSON object per line, over the system's standard input and output.

The system's process reports when its clock starts and stops, and waits for an answer each time. So the bench can read CPU
time and log positions at these moments, outside of the clock. This module uses only the standard library, because it also
runs in the peers' environments.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

from bench.peers.usage import family

STEPS = 5
"""No-op durable steps of one run."""
STOP_SECONDS_MAX = 10.0
LISTEN_SECONDS_MAX = 30.0


T = TypeVar("T")


class Peer:
    """A system with durable steps, or a queue with jobs."""

    def prepare(self) -> None:
        """Start its programs and make its tables."""
        raise NotImplementedError

    def throughput(self, runs: int) -> int:
        """Do `runs` runs of five steps, many at a time, within `site.clock()`. The result is the number of durable steps. A queue does as
        many jobs instead. If anything is not done, that is an error."""
        raise NotImplementedError

    def lone(self, runs: int) -> list[float]:
        """Do `runs` runs one after another, within `site.clock()`. The result has the seconds of each from submit to done; it is empty for
        a queue."""
        del runs
        return []

    def figures(self) -> Mapping[str, Callable[[int], int]]:
        """Other figures by name. Each works like `throughput`."""
        return {}

    def settings(self) -> Mapping[str, str]:
        """Versions and settings, for the report."""
        raise NotImplementedError

    def close(self) -> None:
        """End its programs. Threads and connections end with the process."""


class Site:
    """The resources of a measured system, and its link to the bench."""

    def __init__(self, dsn: str, folder: Path, tool: str, options: Mapping[str, str], link: Link) -> None:
        self.dsn = dsn
        """An empty database on the bench's PostgreSQL; "" for systems without one."""
        self.folder = folder
        """An empty folder on the same disk."""
        self.tool = tool
        """The program of its npm package, if it has one."""
        self._options = options
        self._link = link

    def text(self, name: str, default: str) -> str:
        """A setting, which the bench may override."""
        return self._options.get(name, default)

    def number(self, name: str, default: int) -> int:
        return int(self._options.get(name, default))

    @contextmanager
    def clock(self) -> Iterator[Clock]:
        """Measure the block."""
        self._link.mark({"mark": "start"})
        clock = Clock()
        yield clock
        clock.stop()
        self._link.mark({"mark": "stop", "seconds": clock.seconds})


class Clock:
    """Stops at the end of its block, or when `stop` is called."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = time.perf_counter()

    def stop(self) -> None:
        if not self.seconds:
            self.seconds = time.perf_counter() - self._started


class Link:
    """The system's end of the connection with the bench."""

    def __init__(self, requests: TextIO, answers: TextIO) -> None:
        self._requests = requests
        self._answers = answers

    def say(self, what: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(what) + "\n")
        self._answers.flush()

    def mark(self, what: Mapping[str, Any]) -> None:
        """Report the state of the clock, and wait until the bench has read the costs."""
        self.say(what)
        if not self._requests.readline():
            raise EOFError("the bench has ended")

    def requests(self) -> Iterator[dict[str, Any]]:
        while line := self._requests.readline():
            yield json.loads(line)


def serve(make: Callable[[Site], Peer]) -> None:
    """The main function of a system's process. It serves requests until the bench sends `stop` or ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries goes to the log, not into the protocol
    link = Link(sys.stdin, answers)
    given = json.loads(sys.stdin.readline())
    site = Site(given["dsn"], Path(given["folder"]), given["tool"], given["options"], link)
    peer = make(site)
    try:
        for request in link.requests():
            if request["do"] == "stop":
                break
            try:
                answer = _obey(peer, request)
            except Exception as error:
                traceback.print_exc()
                answer = {"failed": f"{type(error).__name__}: {error}"}
            link.say(answer)
    finally:
        peer.close()
        _end_the_rest()
        os._exit(0)  # the process must end even if threads of a library do not


def _end_the_rest() -> None:
    """End the processes that the peer's programs started and left behind. All are in the session of this process."""
    us = os.getpid()
    if os.getsid(0) == us:
        for pid in family(us):
            with suppress(ProcessLookupError):
                if pid != us and os.getsid(pid) == us:
                    os.kill(pid, signal.SIGKILL)


def _obey(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    match request["do"]:
        case "prepare":
            peer.prepare()
            return {"settings": dict(peer.settings()), "figures": list(peer.figures())}
        case "throughput":
            return {"done": peer.throughput(request["count"])}
        case "lone":
            return {"seconds": peer.lone(request["count"])}
        case name:
            return {"done": peer.figures()[name](request["count"])}


# ------------------------------------------------------------------------------------- for the peers


def expect(found: object, wanted: object, what: str) -> None:
    """Raise an error for an unexpected result, so that broken runs do not count as fast ones."""
    if found != wanted:
        raise RuntimeError(f"{what}: {wanted} expected, {found} found")


async def run_concurrently(count: int, in_flight: int, work: Callable[[], Awaitable[T]]) -> list[T]:
    """Do some work `count` times, `in_flight` at a time. The result has what each returned."""
    left = iter(range(count))

    async def lane() -> list[T]:
        return [await work() for _ in left]

    lanes = [asyncio.ensure_future(lane()) for _ in range(min(in_flight, count))]
    try:
        return list(itertools.chain(*await asyncio.gather(*lanes)))
    finally:
        for task in lanes:
            task.cancel()


def time_calls(count: int, work: Callable[[], object]) -> list[float]:
    """The seconds of each of `count` calls, one after another."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return seconds


def free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a program listens on a port. If it ends before, that is an error."""
    give_up_at = time.monotonic() + LISTEN_SECONDS_MAX
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode} before it listened")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(
        f"{process.args!r} does not listen on port {port} after {LISTEN_SECONDS_MAX:g} seconds"
    )


def end(process: subprocess.Popen[bytes] | None) -> None:
    """Terminate a program. If it does not end in time, kill it."""
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS_MAX)
