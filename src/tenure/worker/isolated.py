"""A step's function in a process of its own, which can be killed.

Laws:
1. What goes in and comes out is JSON by the types the function declares: nothing is unpickled.
2. The process and everything it started is killed when the step is cancelled or times out, when the function has
   returned, and when the worker dies, whichever way that happens.
3. What it prints goes to the worker's stderr; words of progress, log lines, costs and the answer have a pipe of their own.
4. A process that ends without an answer fails its step, and nothing else. One that was killed from outside (out of memory)
   may be tried again under every profile: that says nothing about the work.
5. The function is called only on the worker's word, which says by when: a process that comes to it later asks again.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from tenure import clock
from tenure.kernel.costs import Cost
from tenure.limits import ARTIFACT_BYTES_MAX
from tenure.sdk import here
from tenure.sdk.codec import Parameters, encode
from tenure.sdk.definitions import Step
from tenure.sdk.faults import Failure
from tenure.sdk.frame import Frame

LINE_BYTES_MAX = ARTIFACT_BYTES_MAX + 1024 * 1024
FOREVER_SECONDS = 1e15
DRAIN_SECONDS = 1.0
"""How long the pipe is read once the whole group is gone: who left the group may hold it for good."""


class _Call(msgspec.Struct):
    module: str
    name: str
    path: list[str]
    arguments: msgspec.Raw
    run_id: str = ""
    workflow: str = ""
    step: str = ""
    attempt: int = 1
    key: str = ""
    trace: str | None = None


class _Said(msgspec.Struct, omit_defaults=True):
    """A line from the process: that it is ready to begin, a word of progress, a log line, a cost, or the answer."""

    ready: bool = False
    progress: str | None = None
    log: tuple[str, str, dict[str, Any]] | None = None
    cost: Cost | None = None
    value: msgspec.Raw = msgspec.Raw(b"null")
    code: str | None = None
    message: str = ""
    retryable: bool | None = None

    @property
    def is_answer(self) -> bool:
        """Whether it is the last."""
        return not self.ready and self.progress is None and self.log is None and self.cost is None


def _whenever() -> float:
    return math.inf


async def run_isolated(
    step: Step[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    begin_by: Callable[[], float] = _whenever,
) -> Any:
    """Call a step's function in a fresh process and answer what it returns. `begin_by` is asked when the process is ready: by
    when the function must begin, by `clock.boot_seconds`. What it raises ends the process before that."""
    call = msgspec.json.encode(_call(step, args, kwargs))
    reading, writing = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from tenure.worker.isolated import main; main()",
            str(writing),
            stdin=asyncio.subprocess.PIPE,
            stdout=sys.stderr.fileno() if _has_fileno() else asyncio.subprocess.DEVNULL,
            pass_fds=(writing,),
            start_new_session=True,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    stdin = process.stdin
    assert stdin is not None

    def begin() -> None:
        by = begin_by()
        with suppress(ConnectionError):
            stdin.write(b"%r\n" % min(by, FOREVER_SECONDS))

    listening = asyncio.ensure_future(_listen(reading, here.frame(), begin))
    ending = asyncio.ensure_future(process.wait())
    try:
        with suppress(ConnectionError):
            stdin.write(call + b"\n")
            await stdin.drain()
        # Its stdin stays open: that it ends is how the process learns that the worker is gone.
        await asyncio.wait((listening, ending), return_when=asyncio.FIRST_COMPLETED)
        if not (listening.done() and listening.exception() is not None):
            await asyncio.wait((ending,))
        _kill(process)
        await asyncio.wait((listening,), timeout=DRAIN_SECONDS)
    finally:
        _kill(process)
        await asyncio.wait((ending,))
        stdin.close()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    answer = None if listening.cancelled() else listening.result()
    if answer is None:
        code = process.returncode or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        killed = True if code in (-signal.SIGKILL, -signal.SIGTERM) else None
        raise Failure("STEP_FAILED", f"the process of step {step.name!r} {how}", retryable=killed)
    if answer.code is not None:
        raise Failure(answer.code, answer.message, retryable=answer.retryable)
    return step.codec.decode(bytes(answer.value))


def _call(step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    function = step.function
    if "<locals>" in function.__qualname__:
        raise Failure("STEP_FAILED", f"{function.__qualname__} cannot run in a process of its own: define it in a module",
                      retryable=False)  # fmt: skip
    if function.__module__ == "__main__":
        raise Failure("STEP_FAILED", "a function of __main__ cannot run in a process of its own: move it to a module",
                      retryable=False)  # fmt: skip
    arguments = Parameters(function, f"step {step.name!r}").bind(args, kwargs)
    call = _Call(function.__module__, function.__qualname__, sys.path, msgspec.Raw(arguments))
    frame = here.frame()
    if frame is not None:
        call.run_id, call.workflow, call.step = frame.run_id, frame.workflow, frame.step
        call.attempt, call.key, call.trace = frame.attempt, frame.key, frame.traceparent
    return call


def _kill(process: asyncio.subprocess.Process) -> None:
    """End the whole group, whose number is the process's own: it began the session."""
    with suppress(ProcessLookupError, PermissionError):  # there is nobody left; macOS says so with EPERM
        os.killpg(process.pid, signal.SIGKILL)


async def _listen(reading: int, frame: Frame | None, begin: Callable[[], None]) -> _Said | None:
    """Hear what the process says; its answer, or None where it ends without one. What `begin` raises is raised."""
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", buffering=0)
    )
    try:
        while line := await reader.readline():
            try:
                said = msgspec.json.decode(line, type=_Said)
            except msgspec.DecodeError:
                return None  # cut off by its end
            if said.is_answer:
                return said
            if said.ready:
                begin()
            if frame is not None and said.progress is not None:
                frame.progress(said.progress)
            if frame is not None and said.log is not None:
                frame.log(*said.log)
            if frame is not None and said.cost is not None:
                frame.spend(said.cost)
    finally:
        transport.close()
    return None


def _has_fileno() -> bool:
    try:
        sys.stderr.fileno()
    except (OSError, AttributeError, ValueError):
        return False
    return True


# ------------------------------------------------------------------------------------------ in the process


class _Beside:
    """What the function says beside its outcome is said to the worker, which keeps it."""

    def __init__(self, say: Callable[[_Said], None]) -> None:
        self.stop = threading.Event()
        self._say = say

    @property
    def progress(self) -> str:
        """See `sdk.frame.Beside`."""
        return ""

    @progress.setter
    def progress(self, text: str) -> None:
        self._say(_Said(progress=text))

    def log(self, _step: str, level: str, text: str, fields: dict[str, Any]) -> None:
        """See `sdk.frame.Beside`."""
        self._say(_Said(log=(level, text, fields)))

    def spend(self, cost: Cost) -> None:
        """See `sdk.frame.Beside`."""
        self._say(_Said(cost=cost))


def main() -> None:
    """Read the call, make it, say what came of it."""
    from tenure.sdk.outcomes import failure_of
    from tenure.sdk.trying import plainly

    saying = int(sys.argv[1])
    os.set_inheritable(saying, False)
    call = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Call)
    words: queue.SimpleQueue[float] = queue.SimpleQueue()
    threading.Thread(target=_hear_the_worker, args=(words,), daemon=True).start()
    sys.path[:] = call.path
    lock = threading.Lock()

    def say(said: _Said) -> None:
        line = msgspec.json.encode(said, enc_hook=repr) + b"\n"
        with lock:
            while line:
                line = line[os.write(saying, line) :]

    here.enter(Frame(call.run_id, call.workflow, call.step, call.attempt, call.key, _Beside(say), call.trace))
    answer = _Said()
    try:
        target: Any = importlib.import_module(call.module)
        for part in call.name.split("."):
            target = getattr(target, part)
        function = target.function if isinstance(target, Step) else target
        parameters = Parameters(function, f"step {call.name!r}")
        may_begin = False
        while not may_begin:
            say(_Said(ready=True))
            may_begin = clock.boot_seconds() < words.get()
        value = plainly(lambda: parameters.call(function, bytes(call.arguments)))
        answer.value = msgspec.Raw(encode(value, f"the result of {call.name}") or b"null")
    except Exception as fault:
        answer.code, answer.message, answer.retryable = failure_of(fault)
    say(answer)
    sys.stdout.flush()
    os._exit(0)  # threads that the function has left behind do not count


def _hear_the_worker(words: queue.SimpleQueue[float]) -> None:
    """See laws 2 and 5: what the worker says is by when to begin, and stdin ends when the worker does."""
    while line := sys.stdin.buffer.readline():
        words.put(float(line))
    os.killpg(0, signal.SIGKILL)
