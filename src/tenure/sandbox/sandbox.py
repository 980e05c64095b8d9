"""A sandbox: programs that nobody trusts, started by an agent inside of it.

Laws:
1. All programs of a sandbox share its processes, files and loopback, and nothing with other sandboxes. When it is closed, all of them end.
2. Variables reach a program through the agent's socket: they are in no command line and no file. Nothing of this process's environment and
   none of its descriptors is passed on.
3. `close` returns when no process is left. A process that is killed takes its sandboxes with it.
4. Without isolation (`none`), the same agent runs without namespaces: only its ends and its limits on processes are kept.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from tenure.errors import TenureError
from tenure.futures import fail_future
from tenure.logs import get_logger
from tenure.sandbox.bubblewrap import (
    AGENT_FILE,
    INNER_ID,
    JOB_FOLDER,
    PROXY_FOLDER,
    PROXY_SOCKET,
    Mount,
    bubblewrap_argv,
    own_python,
    readable_paths,
    require_bubblewrap,
)
from tenure.sandbox.usage_limits import PROCESSES_SPARE

log = get_logger(__name__)

START_SECONDS = 30.0
"""A busy machine may need this long; an idle one needs a tenth of a second."""
PROXY_PORT = 3128
END_SECONDS = 20.0
OUTPUT_PIPE_BYTES = 1 << 20
STDERR_BYTES_MAX = 8_192

IsolationKind = Literal["bubblewrap", "none"]


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    isolation: IsolationKind = "bubblewrap"
    folder: Path | None = None
    """A folder with `workspace`, `home`, `tmp` and `incoming`, which the programs own. None: they can write nothing but a small /tmp."""
    files: Path
    """A folder that `make_sandbox_files` has filled. Programs cannot write to it."""
    mounts: tuple[Mount, ...] = ()
    proxy_folder: Path | None = None
    """A folder with the socket of a `NetworkProxy`. None: no network."""
    uid: int | None = None
    """The user of the programs, where this process is root."""
    processes: int | None = None
    file_bytes: int | None = None
    """The largest file that a program may write."""
    memory_bytes: int | None = None
    """The address space of each program, for a sandbox that no `UsageMeter` measures."""

    def inside(self, path: str) -> str:
        """The path of something in `folder`, as the programs see it."""
        root = JOB_FOLDER if self.isolation == "bubblewrap" or self.folder is None else str(self.folder)
        return f"{root}/{path}"


class SandboxCommand(msgspec.Struct, frozen=True, kw_only=True):
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    title: str = ""
    """A line that is written to the output before the program starts."""


class _Answer(msgspec.Struct):
    ready: bool = False
    landlock: int = 0
    error: str = ""
    id: int = 0
    status: int = 0


_decode_answer = msgspec.json.Decoder(_Answer).decode


class SandboxEnded(Exception):
    """The sandbox has ended, and the program with it."""


class Sandbox:
    """Use `open_sandbox`."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._programs: dict[int, asyncio.Future[int]] = {}
        self._next_id = 1
        self._stderr = b""
        self._ended = asyncio.Event()
        self._closed = False
        self._agent = -1
        """A descriptor of the agent's process: when process 1 of a sandbox is killed, the kernel ends all others."""
        self._sending: asyncio.Task[None] | None = None
        self._tasks = [asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._keep_stderr())]
        self._ready: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self.landlock = 0
        """The version of Landlock that restricts the programs; 0: this kernel has none."""

    @property
    def pid(self) -> int:
        """The process outside of the sandbox whose descendants are all of its processes."""
        return self._process.pid

    async def start(self, *, isolated: bool) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await self._ready
        except TimeoutError:
            raise TenureError(
                "SANDBOX_UNAVAILABLE", f"a sandbox did not start within {START_SECONDS:.0f} s"
            ) from None
        except SandboxEnded:
            await asyncio.wait([self._tasks[1]], timeout=1.0)
            why = self._stderr.decode(errors="replace").strip() or "it ended without a message"
            raise TenureError("SANDBOX_UNAVAILABLE", f"a sandbox could not be started: {why}") from None
        if answer.error:
            raise TenureError("SANDBOX_UNAVAILABLE", f"a sandbox could not be prepared: {answer.error}")
        self.landlock = answer.landlock
        if isolated:
            children = _children(self.pid)
            self._agent = os.pidfd_open(int(children[0]))

    def start_program(self, command: SandboxCommand) -> asyncio.Future[int]:
        """Start a program. The future is its exit code, negative for a signal; SandboxEnded if the sandbox ends first."""
        number, self._next_id = self._next_id, self._next_id + 1
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._ended.is_set():
            fail_future(ended, SandboxEnded())
            return ended
        self._programs[number] = ended
        self._send({"id": number, **msgspec.to_builtins(command)})
        return ended

    async def run(self, command: SandboxCommand) -> int:
        return await self.start_program(command)

    def signal_all(self, number: signal.Signals) -> None:
        """Signal every process of the sandbox, except the agent."""
        self._send({"signal": int(number)})

    def _send(self, message: Any) -> None:
        data = msgspec.json.encode(message) + b"\n"
        if not self._ended.is_set():
            self._sending = asyncio.ensure_future(self._send_after(self._sending, data))

    async def _send_after(self, before: asyncio.Task[None] | None, data: bytes) -> None:
        if before is not None:
            await asyncio.wait([before])
        with suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self._control, data)

    async def _receive(self) -> None:
        loop, rest = asyncio.get_running_loop(), b""
        with suppress(OSError):
            while data := await loop.sock_recv(self._control, 1 << 16):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._handle(_decode_answer(line))
        self._ended.set()
        fail_future(self._ready, SandboxEnded())
        for ended in self._programs.values():
            fail_future(ended, SandboxEnded())
        self._programs.clear()

    def _handle(self, answer: _Answer) -> None:
        if not answer.id:
            if not self._ready.done():
                self._ready.set_result(answer)
            return
        ended = self._programs.pop(answer.id, None)
        if ended is not None and not ended.done():
            ended.set_result(os.waitstatus_to_exitcode(answer.status))

    async def _keep_stderr(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(4096):
            self._stderr = (self._stderr + data)[-STDERR_BYTES_MAX:]

    def kill(self) -> None:
        """End every process at once, without waiting for that."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        if self._agent >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._agent, signal.SIGKILL)

    async def close(self) -> None:
        """End all processes, and return when none is left. May be repeated."""
        if self._closed:
            return
        self._closed = True
        self.kill()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()  # bubblewrap ends after the last process of the sandbox
        except TimeoutError:
            log.error("sandbox_not_ended", pid=self.pid)
            self._process.kill()
            await self._process.wait()
        await asyncio.wait([*self._tasks, *([] if self._sending is None else [self._sending])])
        self._control.close()
        if self._agent >= 0:
            os.close(self._agent)
            self._agent = -1


@asynccontextmanager
async def open_sandbox(
    spec: SandboxSpec, *, output: int, errors: int | None = None, stdin: int | None = None
) -> AsyncIterator[Sandbox]:
    """Start a sandbox whose programs write to the descriptor `output`. SANDBOX_UNAVAILABLE if it cannot be started."""
    ours, theirs = socket.socketpair()
    try:
        ours.setblocking(False)
        fds = {theirs.fileno(), output, *(each for each in (errors, stdin) if each is not None)}
        process = await asyncio.create_subprocess_exec(
            *_argv(spec, theirs.fileno(), output, output if errors is None else errors, stdin),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={},
            cwd="/",
            pass_fds=tuple(fds),
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    sandbox = Sandbox(process, ours)
    try:
        await sandbox.start(isolated=spec.isolation == "bubblewrap")
        yield sandbox
    finally:
        await asyncio.shield(sandbox.close())


def _argv(spec: SandboxSpec, control: int, output: int, errors: int, stdin: int | None) -> list[str]:
    isolated = spec.isolation == "bubblewrap"
    as_root = isolated and os.geteuid() == 0
    if as_root and spec.uid is None:
        raise TenureError("INVALID_INPUT", "a sandbox that root starts needs a uid of its own")
    own = [] if spec.folder is None else [JOB_FOLDER]
    plan = {
        "control": control,
        "out": output,
        "err": errors,
        "in": stdin,
        "namespaces": isolated,
        "uid": spec.uid if as_root else None,
        "gid": spec.uid if as_root else None,
        "inner_id": INNER_ID,
        "readable": readable_paths(spec.mounts),
        "devices": ["/dev", "/proc"],
        "writable": [*own, "/tmp", "/dev/shm"],
        "processes": None if spec.processes is None or not isolated else spec.processes + PROCESSES_SPARE,
        "file_bytes": spec.file_bytes,
        "memory_bytes": spec.memory_bytes,
        "forward": (
            [PROXY_PORT, f"{PROXY_FOLDER}/{PROXY_SOCKET}"]
            if isolated and spec.proxy_folder is not None
            else None
        ),
    }
    agent = AGENT_FILE if isolated else str(spec.files / "agent.py")
    inner = [own_python()[0], "-I", "-S", agent, msgspec.json.encode(plan).decode()]
    if not isolated:
        return inner
    return bubblewrap_argv(
        require_bubblewrap(),
        inner,
        folder=spec.folder,
        files=spec.files,
        mounts=spec.mounts,
        proxy_folder=spec.proxy_folder,
        as_root=as_root,
    )


def make_output_pipe() -> tuple[int, int]:
    """A pipe for the output of programs: where to read, and where they write."""
    reading, writing = os.pipe()
    with suppress(OSError):  # the user has too many pipes
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, OUTPUT_PIPE_BYTES)
    return reading, writing


def base_environment(spec: SandboxSpec, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of a program: the given ones over the few that every program has."""
    home, tmp = (
        (spec.inside("home"), "/tmp" if spec.isolation == "bubblewrap" else spec.inside("tmp"))
        if spec.folder is not None
        else ("/tmp", "/tmp")
    )
    own = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": home,
        "TMPDIR": tmp,
        "LANG": "C.UTF-8",
        "USER": "job",
    }
    if spec.isolation == "bubblewrap" and spec.proxy_folder is not None:
        address = f"http://127.0.0.1:{PROXY_PORT}"
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            own |= {name: address, name.lower(): address}
        own |= {"NO_PROXY": "localhost,127.0.0.1,::1", "no_proxy": "localhost,127.0.0.1,::1"}
    return {**own, **given}


def shell_argv(run: tuple[str, ...] | str) -> tuple[str, ...]:
    """The argv of a command: a text is a script for `sh -e`."""
    return ("sh", "-e", "-c", run) if isinstance(run, str) else run


def make_job_folders(folder: Path, uid: int | None) -> None:
    """Make the folder of a sandbox and its parts, owned by the sandbox's user."""
    for each in (folder, *(folder / name for name in ("workspace", "home", "tmp", "incoming"))):
        each.mkdir(mode=0o700)
        if uid is not None and os.geteuid() == 0:
            os.chown(each, uid, uid)


class SandboxResult(msgspec.Struct, frozen=True):
    exit_code: int
    stdout: bytes
    stderr: bytes


async def run_sandboxed(
    argv: Sequence[str],
    spec: SandboxSpec,
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: str = "/",
    timeout: float = 60.0,
    output_bytes_max: int = 16 << 20,
) -> SandboxResult:
    """Run one program with an input and return its output. SANDBOX_TIMED_OUT and SANDBOX_OUTPUT_TOO_LARGE end it."""
    pipes = [make_output_pipe() for _ in range(3)]
    (in_read, in_write), (out_read, out_write), (err_read, err_write) = pipes
    command = SandboxCommand(argv=tuple(argv), cwd=cwd, env=base_environment(spec, env or {}))
    open_here = {in_write, out_read, err_read}
    try:
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
            try:
                async with open_sandbox(spec, output=out_write, errors=err_write, stdin=in_read) as sandbox:
                    for each in (in_read, out_write, err_write):
                        os.close(each)
                    pipes.clear()
                    writing = group.create_task(asyncio.to_thread(_write_all, in_write, stdin))
                    open_here.discard(in_write)
                    out = group.create_task(asyncio.to_thread(_read_all, out_read, output_bytes_max))
                    err = group.create_task(asyncio.to_thread(_read_all, err_read, output_bytes_max))
                    open_here -= {out_read, err_read}
                    exit_code = await sandbox.run(command)
            except SandboxEnded:
                raise TenureError("SANDBOX_UNAVAILABLE", "the sandbox ended before its program") from None
            await writing
            return SandboxResult(exit_code, await out, await err)
    except TimeoutError:
        raise TenureError("SANDBOX_TIMED_OUT", f"{argv[0]} was stopped after {timeout:g} s") from None
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    finally:
        for each in {fd for pair in pipes for fd in pair} | open_here:
            with suppress(OSError):
                os.close(each)


def _write_all(target: int, data: bytes) -> None:
    with os.fdopen(target, "wb", 0) as file, suppress(BrokenPipeError):
        file.write(data)


def _read_all(source: int, bytes_max: int) -> bytes:
    read = bytearray()
    with os.fdopen(source, "rb", 0) as file:
        while data := file.read(1 << 16):
            read += data
            if len(read) > bytes_max:
                raise TenureError(
                    "SANDBOX_OUTPUT_TOO_LARGE", f"the program wrote more than {bytes_max} bytes of output"
                )
    return bytes(read)


def _children(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return file.read().split()
