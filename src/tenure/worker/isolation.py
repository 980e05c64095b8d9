"""A step's function in its own process, which can be killed.

Laws:
1. Arguments and results are JSON by the types the function declares: nothing is unpickled.
2. The process and everything it started is killed when the step is canceled or times out, when the function has returned, and when the
   worker dies in any way.
3. What the function prints goes to the worker's stderr. Progress, log lines, costs and the result have their own pipe.
4. A process that ends without a result fails its step, and nothing else. One that was killed from outside (out of memory) is retryable
   under every profile, because the function is not at fault.
5. The worker sends the process a deadline by which the function must begin. A process that is later asks for a new deadline.
"""

from __future__ import annotations

import asyncio
import importlib
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
from tenure.sdk import context
from tenure.sdk.codec import Parameters, encode
from tenure.sdk.definitions import StepFunction
from tenure.sdk.errors import Failure
from tenure.sdk.frame import Frame

LINE_BYTES_MAX = ARTIFACT_BYTES_MAX + 1024 * 1024
DRAIN_SECONDS = 1.0
"""How long the pipe is read after the process group is gone: a process that left the group may keep it open forever."""


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


class _Message(msgspec.Struct, omit_defaults=True):
    """A line from the process: it is ready to begin, or its progress, a log line, a cost, or the result."""

    ready: bool = False
    progress: str | None = None
    log: tuple[str, str, dict[str, Any]] | None = None
    cost: Cost | None = None
    value: msgspec.Raw = msgspec.Raw(b"null")
    code: str | None = None
    message: str = ""
    retryable: bool | None = None

    @property
    def is_result(self) -> bool:
        return not self.ready and self.progress is None and self.log is None and self.cost is None


async def run_isolated(
    step: StepFunction[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    begin_by: Callable[[], float],
) -> Any:
    """Call a step's function in a new process and return its result. When the process is ready, `begin_by` is called: it returns the time
    (of `clock.boot_seconds`) by which the function must begin. If it raises, the process ends."""
    call = msgspec.json.encode(_call(step, args, kwargs))
    reading, writing = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from tenure.worker.isolation import main; main()",
            str(writing),
            stdin=asyncio.subprocess.PIPE,
            stdout=_stderr_or_null(),
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
            stdin.write(b"%r\n" % by)

    listening = asyncio.ensure_future(_listen(reading, context.current_frame(), begin))
    ending = asyncio.ensure_future(process.wait())
    try:
        with suppress(ConnectionError):
            stdin.write(call + b"\n")
            await stdin.drain()
        # Stdin stays open: its end tells the process that the worker is gone.
        await asyncio.wait((listening, ending), return_when=asyncio.FIRST_COMPLETED)
        if not (listening.done() and listening.exception() is not None):
            await asyncio.wait((ending,))
        _kill_group(process)
        await asyncio.wait((listening,), timeout=DRAIN_SECONDS)
    finally:
        _kill_group(process)
        await asyncio.wait((ending,))
        stdin.close()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    result = None if listening.cancelled() else listening.result()
    if result is None:
        code = process.returncode or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise Failure(
            "STEP_FAILED",
            f"the process of step {step.name!r} {how}",
            retryable=True if code in (-signal.SIGKILL, -signal.SIGTERM) else None,
        )
    if result.code is not None:
        raise Failure(result.code, result.message, retryable=result.retryable)
    return step.codec.decode(bytes(result.value))


def _call(step: StepFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    function = step.function
    if "<locals>" in function.__qualname__:
        raise Failure("STEP_FAILED", f"{function.__qualname__} cannot run in its own process: define it in a module",
                      retryable=False)  # fmt: skip
    if function.__module__ == "__main__":
        raise Failure("STEP_FAILED", "a function of __main__ cannot run in its own process: move it to a module",
                      retryable=False)  # fmt: skip
    arguments = Parameters(function, f"step {step.name!r}").bind(args, kwargs)
    call = _Call(function.__module__, function.__qualname__, sys.path, msgspec.Raw(arguments))
    frame = context.current_frame()
    if frame is not None:
        call.run_id, call.workflow, call.step = frame.run_id, frame.workflow, frame.step
        call.attempt, call.key, call.trace = frame.attempt, frame.key, frame.traceparent
    return call


def _kill_group(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError, PermissionError):  # no process is left; macOS reports EPERM then
        os.killpg(process.pid, signal.SIGKILL)


async def _listen(reading: int, frame: Frame | None, begin: Callable[[], None]) -> _Message | None:
    """Read what the process sends, and return its result, or None if it ends without one. Raises what `begin` raises."""
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", buffering=0)
    )
    try:
        while line := await reader.readline():
            try:
                message = msgspec.json.decode(line, type=_Message)
            except msgspec.DecodeError:
                return None  # the process ended in the middle of a line
            if message.is_result:
                return message
            if message.ready:
                begin()
            if frame is not None and message.progress is not None:
                frame.progress(message.progress)
            if frame is not None and message.log is not None:
                frame.log(*message.log)
            if frame is not None and message.cost is not None:
                frame.spend(message.cost)
    finally:
        transport.close()
    return None


def _stderr_or_null() -> int:
    try:
        return sys.stderr.fileno()
    except (OSError, AttributeError, ValueError):  # it was replaced by an object that is no file
        return asyncio.subprocess.DEVNULL


# ------------------------------------------------------------------------------------------ in the process


class _PipePort:
    """An `AttemptPort` that sends everything to the worker."""

    def __init__(self, send: Callable[[_Message], None]) -> None:
        self.stop = threading.Event()
        self._send = send

    def report_progress(self, text: str) -> None:
        self._send(_Message(progress=text))

    def log(self, _step: str, level: str, text: str, fields: dict[str, Any]) -> None:
        self._send(_Message(log=(level, text, fields)))

    def spend(self, cost: Cost) -> None:
        self._send(_Message(cost=cost))


def main() -> None:
    from tenure.sdk.attempts import call_plain
    from tenure.sdk.outcomes import describe_failure

    pipe = int(sys.argv[1])
    os.set_inheritable(pipe, False)
    call = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Call)
    deadlines: queue.SimpleQueue[float] = queue.SimpleQueue()
    threading.Thread(target=_read_deadlines, args=(deadlines,), daemon=True).start()
    sys.path[:] = call.path
    lock = threading.Lock()

    def send(message: _Message) -> None:
        line = msgspec.json.encode(message, enc_hook=repr) + b"\n"
        with lock:
            while line:
                line = line[os.write(pipe, line) :]

    context.enter(
        Frame(call.run_id, call.workflow, call.step, call.attempt, call.key, _PipePort(send), call.trace)
    )
    result = _Message()
    try:
        target: Any = importlib.import_module(call.module)
        for part in call.name.split("."):
            target = getattr(target, part)
        function = target.function if isinstance(target, StepFunction) else target
        parameters = Parameters(function, f"step {call.name!r}")
        send(_Message(ready=True))
        while deadlines.get() <= clock.boot_seconds():  # see law 5
            send(_Message(ready=True))
        value = call_plain(lambda: parameters.call(function, bytes(call.arguments)))
        result.value = msgspec.Raw(encode(value, f"the result of {call.name}") or b"null")
    except Exception as fault:
        result.code, result.message, result.retryable = describe_failure(fault)
    send(result)
    sys.stdout.flush()
    os._exit(0)  # do not wait for threads that the function left behind


def _read_deadlines(deadlines: queue.SimpleQueue[float]) -> None:
    """Read the worker's deadlines. Stdin ends when the worker does, and then this process is killed; see laws 2 and 5."""
    while line := sys.stdin.buffer.readline():
        deadlines.put(float(line))
    os.killpg(0, signal.SIGKILL)
