"""Runs a command as a process.

Laws:
1. There is no shell. Of the worker's environment the command gets only PATH, HOME and LANG, so it does not get the worker's
   secrets. A `Confinement` keeps it from looking for them.
2. A command runs in its own session and ends as a whole: what it leaves behind in its process group is killed. On cancel and
   timeout it gets SIGTERM first, and SIGKILL after a grace period.
3. The end of the output is kept, within limits. A command never blocks because nobody reads its output.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Literal

import msgspec

from tenure.canonical import decode_json
from tenure.commands.confinement import UNCONFINED, Confinement
from tenure.errors import TenureError
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
"""Exit codes of commands that could not be started, as in shells."""
_CHUNK_BYTES = 64 * 1024
_DRAIN_SECONDS = 1.0
"""How long to read output after the process group is gone: a process that left the group may hold the pipe open for ever."""
_ENVELOPE_BYTES = 1024
"""The size of an output besides its texts."""

OnLine = Callable[[str, str], None]
"""Takes the stream (`stdout` or `stderr`) and a line without its line end."""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int
    """Negative: the signal that ended the command."""
    stdout: str = ""
    """The end of the output, without trailing line ends."""
    stderr_tail: str = ""
    json: Any = msgspec.UNSET
    truncated: bool = False
    code: str | None = None
    """The error code, or None if the command succeeded or was canceled."""
    message: str = ""
    canceled: bool = False

    @property
    def ok(self) -> bool:
        return self.code is None and not self.canceled

    def output(self) -> dict[str, Any]:
        return {
            "exit_code": self.exit_code,
            "stdout": self.stdout,
            "stderr_tail": self.stderr_tail,
            **({"truncated": True} if self.truncated else {}),
            **({} if self.json is msgspec.UNSET else {"json": self.json}),
        }


class _Tail:
    """Keeps the last bytes of a stream, and reports its lines."""

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
            self._report(line)
        while len(rest) > COMMAND_LINE_BYTES_MAX:
            self._report(rest[:COMMAND_LINE_BYTES_MAX])
            rest = rest[COMMAND_LINE_BYTES_MAX:]
        self.line = rest

    def end(self) -> None:
        if self.line:
            self._report(self.line)
            self.line = bytearray()

    def _report(self, line: bytes | bytearray) -> None:
        if self.on_line is None:
            return
        for at in range(0, max(len(line), 1), COMMAND_LINE_BYTES_MAX):
            piece = line[at : at + COMMAND_LINE_BYTES_MAX]
            self.on_line(self.name, piece.decode(errors="replace").removesuffix("\r"))

    def text(self) -> str:
        return self.kept.decode(errors="replace").rstrip("\r\n")


async def run_command(
    resolved: ResolvedCommand,
    *,
    cancel: asyncio.Event | None = None,
    on_line: OnLine | None = None,
    timeout: float | None = None,
    confinement: Confinement = UNCONFINED,
    grace_seconds: float = COMMAND_GRACE_SECONDS,
) -> CommandResult:
    """Run a command until it ends, times out (seconds) or is canceled. No process of it is left when this returns, even if this task
    is canceled.
    """
    if not resolved.argv:
        return _not_started(resolved, ValueError("the step has no command"))
    tails = (_Tail("stdout", on_line), _Tail("stderr", on_line))
    async with AsyncExitStack() as open_pipes:
        # Own pipes: with asyncio's, the end of the process would wait for every other process that holds them.
        pipes = [await open_pipes.enter_async_context(_open_pipe(tail)) for tail in tails]
        report = open_pipes.enter_context(_Report())
        try:
            process = await _start(resolved, confinement, pipes[0][0].inlet, pipes[1][0].inlet, report)
        except (OSError, ValueError) as fault:
            return _not_started(resolved, fault)
        for pipe, _ in pipes:
            pipe.close_inlet()
        try:
            why = await _wait(process, cancel, timeout, grace_seconds)
        finally:
            _signal(process, signal.SIGKILL)  # also ends processes that the command left behind
            await process.wait()
        await asyncio.wait([reading for _, reading in pipes], timeout=_DRAIN_SECONDS)
        if (refused := report.fault()) is not None:
            return _not_started(resolved, refused)
    for tail in tails:
        tail.end()
    return _result(resolved, process.returncode or 0, tails[0], tails[1], why, timeout)


async def _start(
    resolved: ResolvedCommand, confinement: Confinement, out: int, err: int, report: _Report
) -> asyncio.subprocess.Process:
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


class _Pipe:
    def __init__(self) -> None:
        self.outlet, self.inlet = os.pipe()

    def close_inlet(self) -> None:
        if self.inlet >= 0:
            os.close(self.inlet)
            self.inlet = -1


class _Report(_Pipe):
    """A pipe on which a launcher reports why it could not start the command."""

    def __enter__(self) -> _Report:
        os.set_blocking(self.outlet, False)
        return self

    def __exit__(self, *_: object) -> None:
        self.close_inlet()
        os.close(self.outlet)

    def fault(self) -> OSError | None:
        try:
            number, _, text = os.read(self.outlet, 1000).decode(errors="replace").partition(" ")
        except BlockingIOError:  # another process holds it open
            return None
        return OSError(int(number), text) if text else None


@asynccontextmanager
async def _open_pipe(tail: _Tail) -> AsyncIterator[tuple[_Pipe, asyncio.Task[None]]]:
    """A pipe, and the task that reads it into a tail. An exception of `on_line` is raised when it closes."""
    pipe, stream = _Pipe(), asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(pipe.outlet, "rb", 0)
    )
    reading = asyncio.create_task(_read(stream, tail))
    try:
        yield pipe, reading
    finally:
        pipe.close_inlet()
        reading.cancel()
        await asyncio.wait([reading])
        transport.close()
    if not reading.cancelled():
        reading.result()


def environment(given: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command: the given variables over the few that a worker passes on."""
    passed = {name: worker[name] for name in PASSED_ON if name in worker}
    return {"PATH": DEFAULT_PATH, "LANG": "C.UTF-8", **passed, **given}


async def _read(stream: asyncio.StreamReader, tail: _Tail) -> None:
    """Read to the end, even if `on_line` fails: otherwise the pipe would fill up."""
    fault: Exception | None = None
    while chunk := await stream.read(_CHUNK_BYTES):
        try:
            tail.take(chunk)
        except Exception as raised:  # any exception of on_line
            fault = raised
            tail.on_line = None
    if fault is not None:
        raise fault


async def _wait(
    process: asyncio.subprocess.Process, cancel: asyncio.Event | None, timeout: float | None, grace: float
) -> str:
    """Wait for the end, and return its cause: "", "cancel" or "timeout"."""
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
    """Signal the process group of the command, which leads its session."""
    with suppress(ProcessLookupError, PermissionError):  # the group is gone; macOS reports that as EPERM
        os.killpg(process.pid, number)


def _not_started(resolved: ResolvedCommand, fault: Exception) -> CommandResult:
    why = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
    folder = f" in {resolved.cwd}" if resolved.cwd else ""
    return CommandResult(
        exit_code=NOT_FOUND if isinstance(fault, FileNotFoundError) else NOT_STARTED,
        code=FAILED,
        message=f"{resolved.argv[0] if resolved.argv else 'a command'} cannot be started{folder}: {why}",
    )


def _result(
    resolved: ResolvedCommand, exit_code: int, out: _Tail, err: _Tail, why: str, timeout: float | None
) -> CommandResult:
    made = _fitting(exit_code, out, err)
    tail = (err.text() or out.text()).encode()[-COMMAND_MESSAGE_BYTES_MAX:].decode(errors="ignore")
    name = resolved.argv[0]
    if why == "cancel":
        return msgspec.structs.replace(made, canceled=True, message=f"{name} was stopped as requested")
    if why == "timeout":
        return _failed(made, TIMED_OUT, f"{name} was stopped after {timeout:g} s", tail)
    if exit_code:
        ended = f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        return _failed(made, FAILED, f"{name} {ended}", tail)
    if resolved.output != "json":
        return made
    if out.cut:
        problem = f"printed more than {COMMAND_OUTPUT_BYTES_MAX} bytes, which is too much for JSON output"
        return _failed(made, FAILED, f"{name} {problem}", "")
    try:
        value = decode_json(bytes(out.kept))
    except (msgspec.DecodeError, RecursionError) as fault:
        return _failed(made, FAILED, f"{name} must print JSON: {fault}", tail)
    # The value replaces the text, because an output must fit into a payload.
    return msgspec.structs.replace(made, json=value, stdout="")


def _failed(made: CommandResult, code: str, message: str, tail: str) -> CommandResult:
    return msgspec.structs.replace(made, code=code, message=f"{message}\n{tail}" if tail else message)


def _fitting(exit_code: int, out: _Tail, err: _Tail) -> CommandResult:
    """Shorten both texts until they fit into a payload: JSON may need six characters for one byte."""
    stdout, stderr, cut = out.text(), err.text(), out.cut or err.cut
    while len(msgspec.json.encode((stdout, stderr))) > PAYLOAD_BYTES_MAX - _ENVELOPE_BYTES:
        cut = True
        if len(stderr) >= len(stdout):
            stderr = stderr[len(stderr) // 2 + 1 :]
        else:
            stdout = stdout[len(stdout) // 2 + 1 :]
    return CommandResult(exit_code=exit_code, stdout=stdout, stderr_tail=stderr, truncated=cut)


class ResolvedCommand(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A command without templates: the input of a `run` step."""

    argv: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    output: Literal["text", "json"] = "text"


_COMMAND = msgspec.json.Decoder(ResolvedCommand)


def decode_command(step_input: bytes | None) -> ResolvedCommand:
    try:
        return _COMMAND.decode(step_input or b"{}")
    except (msgspec.DecodeError, RecursionError) as fault:
        raise TenureError("INVALID_INPUT", f"this is not the input of a command: {fault}") from fault
