"""What a measured system does, and how the bench talks to it: one JSON object a line, over its standard input and
output.

The system's process says when its clock starts and stops and waits for an answer each time, so that the bench can
read CPU time and log positions at these moments, outside of the clock. Standard library only: this runs in the
peers' environments too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

from bench.peers.usage import family

STEPS = 5
"""No-op durable steps of one run."""
STOP_SECONDS_MAX = 10.0
LISTEN_SECONDS_MAX = 30.0


class Peer(Protocol):
    """A system with durable steps, or with jobs."""

    def prepare(self) -> None:
        """Start what has to run and make the tables."""
        ...

    def throughput(self, runs: int) -> int:
        """So many runs of five steps, many at a time, within `site.clock()`: the number of durable steps done. A
        queue does so many jobs instead. Anything less than all of them done well is an error."""
        ...

    def lone(self, runs: int) -> list[float]:
        """So many runs one after another, within `site.clock()`: the seconds of each from submit to done. Empty
        for what has no runs."""
        ...

    def figures(self) -> Mapping[str, Callable[[int], int]]:
        """What else can be measured, by name; each works like `throughput`."""
        ...

    def settings(self) -> Mapping[str, str]:
        """Versions and settings, for the report."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class Site:
    """Where a system is measured, and its link to the bench."""

    def __init__(self, dsn: str, folder: Path, tool: str, options: Mapping[str, str], link: Link) -> None:
        self.dsn = dsn
        """An empty database of its own on the bench's PostgreSQL; empty for those that need none."""
        self.folder = folder
        """An empty folder of its own, on the same disk."""
        self.tool = tool
        """The program that its npm package brings, if it has one."""
        self._options = options
        self._link = link

    def text(self, name: str, usual: str) -> str:
        """A setting, which a search for the best ones may set otherwise."""
        return self._options.get(name, usual)

    def number(self, name: str, usual: int) -> int:
        """A setting that is a number."""
        return int(self._options.get(name, usual))

    @contextmanager
    def clock(self) -> Iterator[Clock]:
        """Around what is measured."""
        self._link.mark({"mark": "start"})
        clock = Clock()
        yield clock
        clock.stop()
        self._link.mark({"mark": "stop", "seconds": clock.seconds})


class Clock:
    """Stops at the end of its block, or earlier when the work was done earlier."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = time.perf_counter()

    def stop(self) -> None:
        """The work is done; only the first time counts."""
        if not self.seconds:
            self.seconds = time.perf_counter() - self._started


class Link:
    """The two ends of the conversation, seen from the system's process."""

    def __init__(self, requests: TextIO, answers: TextIO) -> None:
        self._requests = requests
        self._answers = answers

    def say(self, what: Mapping[str, Any]) -> None:
        """One line to the bench."""
        self._answers.write(json.dumps(what) + "\n")
        self._answers.flush()

    def mark(self, what: Mapping[str, Any]) -> None:
        """Say where the clock is and wait until the bench has read its own."""
        self.say(what)
        if not self._requests.readline():
            raise EOFError("the bench has ended")

    def requests(self) -> Iterator[dict[str, Any]]:
        """What the bench asks for, until it ends."""
        while line := self._requests.readline():
            yield json.loads(line)


def serve(make: Callable[[Site], Peer]) -> None:
    """The main program of a system's process: obey until the bench says stop or is gone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to the log, not between our lines
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
        os._exit(0)  # threads of a library that never end must not keep the process


def _end_the_rest() -> None:
    """What the peer's programs started themselves and left behind: all of it is in the session that we lead."""
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
    """A broken run is not a fast one."""
    if found != wanted:
        raise RuntimeError(f"{what}: {wanted} expected, {found} found")


def free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until somebody listens; the program that should has to be alive."""
    give_up_at = time.monotonic() + LISTEN_SECONDS_MAX
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode} before it listened")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"nobody listens on port {port} after {LISTEN_SECONDS_MAX:g} seconds")


def end(process: subprocess.Popen[bytes] | None) -> None:
    """Ask a program of ours to end, then make it."""
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS_MAX)
