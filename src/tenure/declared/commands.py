"""Commands: the `run` of a step, executed.

Laws:
1. No shell, and nothing of the worker's environment but PATH, HOME and LANG: a worker's secrets are not a command's. Where it runs, so
   that it cannot look for them, is its `Confinement`.
2. A command is a session of its own. It ends as a whole: whatever it leaves behind in its process group is killed, on
   cancel and timeout after TERM and a grace.
3. Output is kept from the end, within limits, however much there is; a command is never held up by what nobody reads.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec

from tenure.canonical import decode_json
from tenure.declared.confinement import UNCONFINED, Confinement
from tenure.declared.resolving import Resolved
from tenure.limits import (
    COMMAND_GRACE_SECONDS,
    COMMAND_LINE_BYTES_MAX,
    COMMAND_MESSAGE_BYTES_MAX,
    COMMAND_OUTPUT_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
)

FAILED = "COMMAND_FAILED"
TIMED_OUT = "STEP_TIMED_OUT"
PASSED_ON = ("PATH", "HOME", "LANG")
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
NOT_FOUND, NOT_STARTED = 127, 126
"""Exit codes of commands that never began, as shells have them."""
_CHUNK_BYTES = 64 * 1024
_DRAIN_SECONDS = 1.0
"""How long output may still come once the whole group is gone; who left the group may hold the pipe for good."""
_ENVELOPE_BYTES = 1024
"""What an output has beside its texts."""

OnLine = Callable[[str, str], None]
"""Takes the stream (`stdout` or `stderr`) and a line without its end."""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended."""

    exit_code: int
    """Below zero: the signal that ended it."""
    stdout: str = ""
    """The end of its output, without line ends at the very end."""
    stderr_tail: str = ""
    json: Any = msgspec.UNSET
    truncated: bool = False
    """Whether there was more output than is kept."""
    code: str | None = None
    """The failure's code; None where it succeeded or was canceled."""
    message: str = ""
    canceled: bool = False

    @property
    def ok(self) -> bool:
        """Whether the step succeeded."""
        return self.code is None and not self.canceled

    def output(self) -> dict[str, Any]:
        """The output of the step."""
        made: dict[str, Any] = {
            "exit_code": self.exit_code,
            "stdout": self.stdout,
            "stderr_tail": self.stderr_tail,
        }
        if self.truncated:
            made["truncated"] = True
        if self.json is not msgspec.UNSET:
            made["json"] = self.json
        return made


class _Tail:
    """The last bytes of a stream, and its lines as they come."""

    def __init__(self, name: str, on_line: OnLine | None) -> None:
        self.name = name
        self.on_line = on_line
        self.kept = bytearray()
        self.cut = False
        self.line = bytearray()

    def take(self, chunk: bytes) -> None:
        self.kept += chunk
        if len(self.kept) > COMMAND_OUTPUT_BYTES_MAX:
            del self.kept[: len(self.kept) - COMMAND_OUTPUT_BYTES_MAX]
            self.cut = True
        if self.on_line is None:
            return
        self.line += chunk
        *whole, rest = self.line.split(b"\n")
        for line in whole:
            self._hand_on(line)
        while len(rest) > COMMAND_LINE_BYTES_MAX:
            self._hand_on(rest[:COMMAND_LINE_BYTES_MAX])
            rest = rest[COMMAND_LINE_BYTES_MAX:]
        self.line = rest

    def end(self) -> None:
        if self.line:
            self._hand_on(self.line)
            self.line = bytearray()

    def _hand_on(self, line: bytes | bytearray) -> None:
        if self.on_line is None:
            return
        for at in range(0, max(len(line), 1), COMMAND_LINE_BYTES_MAX):
            piece = line[at : at + COMMAND_LINE_BYTES_MAX]
            self.on_line(self.name, piece.decode(errors="replace").removesuffix("\r"))

    def text(self) -> str:
        return self.kept.decode(errors="replace").rstrip("\r\n")


async def run_command(
    resolved: Resolved,
    *,
    cancel: asyncio.Event | None = None,
    on_line: OnLine | None = None,
    timeout: float | None = None,
    confinement: Confinement = UNCONFINED,
    grace_seconds: float = COMMAND_GRACE_SECONDS,
) -> CommandResult:
    """Execute a command to its end, its timeout (seconds) or its cancellation; it is gone when this returns, also
    when this task is canceled itself."""
    if not resolved.argv:
        return _not_started(resolved, ValueError("the step has no command"))
    tails = (_Tail("stdout", on_line), _Tail("stderr", on_line))
    async with AsyncExitStack() as open_pipes:
        # The pipes are ours: asyncio's own would make the end of the process wait for whoever else holds them.
        pipes = [await open_pipes.enter_async_context(_piped(tail)) for tail in tails]
        report = open_pipes.enter_context(_Report())
        try:
            process = await _started(resolved, confinement, pipes[0].inlet, pipes[1].inlet, report)
        except (OSError, ValueError) as fault:
            return _not_started(resolved, fault)
        for pipe in pipes:
            pipe.close_inlet()
        swept = False
        try:
            why = await _wait(process, cancel, timeout, grace_seconds)
            _signal(process, signal.SIGKILL)  # what the command left behind
            swept = True
            await asyncio.wait([pipe.reading for pipe in pipes], timeout=_DRAIN_SECONDS)
        finally:
            if not swept:
                _signal(process, signal.SIGKILL)
                await process.wait()
        refused = report.fault()
        if refused is not None:
            return _not_started(resolved, refused)
    for tail in tails:
        tail.end()
    return _result(resolved, process.returncode or 0, tails[0], tails[1], why, timeout)


async def _started(
    resolved: Resolved, confinement: Confinement, out: int, err: int, report: _Report
) -> asyncio.subprocess.Process:
    """The command as a process: itself, or its launcher."""
    env = environment(resolved.env, os.environ)
    argv, cwd = list(resolved.argv), resolved.cwd
    passed: tuple[int, ...] = ()
    if confinement.kind != "none":
        env = confinement.environment(env)
        if "\0" in "".join(argv):
            raise ValueError("embedded null byte")
        argv, cwd, passed = confinement.command(resolved.argv, cwd, report.inlet), None, (report.inlet,)
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=env,
            cwd=cwd,
            start_new_session=True,
            pass_fds=passed,
        )
    finally:
        report.close_inlet()


class _Report:
    """Where a launcher says why it started nothing."""

    def __init__(self) -> None:
        self._outlet, self.inlet = os.pipe()
        os.set_blocking(self._outlet, False)

    def __enter__(self) -> _Report:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_inlet()
        os.close(self._outlet)

    def close_inlet(self) -> None:
        if self.inlet >= 0:
            os.close(self.inlet)
            self.inlet = -1

    def fault(self) -> OSError | None:
        """What was told, if anything was."""
        try:
            number, _, text = os.read(self._outlet, 1000).decode(errors="replace").partition(" ")
        except BlockingIOError:  # somebody has kept it open
            return None
        return OSError(int(number), text) if text else None


class _Pipe:
    """A pipe that is being read."""

    def __init__(self, inlet: int, reading: asyncio.Task[None]) -> None:
        self.inlet = inlet
        self.reading = reading

    def close_inlet(self) -> None:
        if self.inlet >= 0:
            os.close(self.inlet)
            self.inlet = -1


@asynccontextmanager
async def _piped(tail: _Tail) -> AsyncIterator[_Pipe]:
    """A pipe into a tail. A fault of whoever takes the lines comes out at its end."""
    outlet, inlet = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(outlet, "rb", 0)
    )
    pipe = _Pipe(inlet, asyncio.create_task(_read(stream, tail)))
    try:
        yield pipe
    finally:
        pipe.close_inlet()
        pipe.reading.cancel()
        await asyncio.wait([pipe.reading])
        transport.close()
    if not pipe.reading.cancelled():
        pipe.reading.result()


def environment(given: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """A command's environment: what it is given, over the little of the worker's that is passed on."""
    passed = {name: worker[name] for name in PASSED_ON if name in worker}
    return {"PATH": DEFAULT_PATH, "LANG": "C.UTF-8", **passed, **given}


async def _read(stream: asyncio.StreamReader, tail: _Tail) -> None:
    """Read to the end, also when whoever takes the lines fails: nobody else would empty the pipe."""
    fault: Exception | None = None
    while chunk := await stream.read(_CHUNK_BYTES):
        try:
            tail.take(chunk)
        except Exception as raised:  # the listener's, whatever it is
            fault = raised
            tail.on_line = None
    if fault is not None:
        raise fault


async def _wait(
    process: asyncio.subprocess.Process, cancel: asyncio.Event | None, timeout: float | None, grace: float
) -> str:
    """Wait for its end and say what ended it: nothing, `cancel` or `timeout`."""
    ended = asyncio.create_task(process.wait())
    canceled = asyncio.create_task(cancel.wait()) if cancel is not None else None
    watched: set[asyncio.Task[Any]] = {ended} if canceled is None else {ended, canceled}
    try:
        done, _ = await asyncio.wait(watched, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if ended in done:
            return ""
        _signal(process, signal.SIGTERM)
        await asyncio.wait({ended}, timeout=grace)
        if not ended.done():
            _signal(process, signal.SIGKILL)
            await ended
        return "cancel" if done else "timeout"
    finally:
        for task in watched:
            task.cancel()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal the whole group, whose number is the command's own: it began the session."""
    with suppress(ProcessLookupError, PermissionError):  # there is nobody left; macOS says so with EPERM
        os.killpg(process.pid, number)


def _not_started(resolved: Resolved, fault: Exception) -> CommandResult:
    why = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
    folder = f" in {resolved.cwd}" if resolved.cwd else ""
    return CommandResult(
        exit_code=NOT_FOUND if isinstance(fault, FileNotFoundError) else NOT_STARTED,
        code=FAILED,
        message=f"{resolved.argv[0] if resolved.argv else 'a command'} cannot be started{folder}: {why}",
    )


def _result(
    resolved: Resolved, exit_code: int, out: _Tail, err: _Tail, why: str, timeout: float | None
) -> CommandResult:
    made = _fitting(exit_code, out, err)
    shown = err.text() or out.text()
    tail = shown.encode()[-COMMAND_MESSAGE_BYTES_MAX:].decode(errors="ignore")
    name = resolved.argv[0]
    if why == "cancel":
        return msgspec.structs.replace(made, canceled=True, message=f"{name} was stopped as requested")
    if why == "timeout":
        return _failed(made, TIMED_OUT, f"{name} was stopped after {timeout:g} s", tail)
    if exit_code < 0:
        return _failed(made, FAILED, f"{name} was ended by signal {-exit_code}", tail)
    if exit_code:
        return _failed(made, FAILED, f"{name} ended with exit code {exit_code}", tail)
    if resolved.output == "json":
        if out.cut:
            said = f"{name} printed over {COMMAND_OUTPUT_BYTES_MAX} bytes, which is too much for an output in JSON"
            return _failed(made, FAILED, said, "")
        try:
            value = decode_json(bytes(out.kept))
        except (msgspec.DecodeError, RecursionError) as fault:
            return _failed(made, FAILED, f"{name} should have printed JSON: {fault}", tail)
        # The value stands for the text: an output has to fit a payload.
        return msgspec.structs.replace(made, json=value, stdout="")
    return made


def _failed(made: CommandResult, code: str, message: str, tail: str) -> CommandResult:
    return msgspec.structs.replace(made, code=code, message=f"{message}\n{tail}" if tail else message)


def _fitting(exit_code: int, out: _Tail, err: _Tail) -> CommandResult:
    """Both ends, short enough for a payload: JSON may write a byte as six characters."""
    stdout, stderr, cut = out.text(), err.text(), out.cut or err.cut
    while len(msgspec.json.encode((stdout, stderr))) > PAYLOAD_BYTES_MAX - _ENVELOPE_BYTES:
        cut = True
        if len(stderr) >= len(stdout):
            stderr = stderr[len(stderr) // 2 + 1 :]
        else:
            stdout = stdout[len(stdout) // 2 + 1 :]
    return CommandResult(exit_code=exit_code, stdout=stdout, stderr_tail=stderr, truncated=cut)
