"""Commands: their environment, their recorded output, and their end when they are stopped.

Processes take real time. These tests wait for conditions, never for a number of seconds.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tenure.commands.process import CommandResult, ResolvedCommand, environment, run_command
from tenure.limits import COMMAND_LINE_BYTES_MAX, COMMAND_OUTPUT_BYTES_MAX, PAYLOAD_BYTES_MAX


def shell(text: str, **rest: object) -> ResolvedCommand:
    return msgspec.structs.replace(ResolvedCommand(argv=("sh", "-c", text)), **rest)


def python(text: str, **rest: object) -> ResolvedCommand:
    return msgspec.structs.replace(ResolvedCommand(argv=(sys.executable, "-c", text)), **rest)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - another process changes the condition
        await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie, which only its parent can reap."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile, or there is no /proc
        return not Path("/proc/self/stat").exists()
    return stat.rpartition(")")[2].split()[0] != "Z"


class Lines:
    """The output of a command so far."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, stream: str, line: str) -> None:
        self.seen.append((stream, line))

    def pids(self) -> list[int]:
        return [int(line) for _, line in self.seen if line.isdecimal()]


@asynccontextmanager
async def started(
    work: ResolvedCommand, *, pids: int, grace: float = 60.0, timeout: float | None = None
) -> AsyncIterator[tuple[Lines, asyncio.Event, asyncio.Task[CommandResult]]]:
    """A command that has printed the ids of its processes."""
    lines, cancel = Lines(), asyncio.Event()
    task = asyncio.create_task(
        run_command(work, cancel=cancel, on_line=lines, grace_seconds=grace, timeout=timeout)
    )
    await until(lambda: len(lines.pids()) >= pids or task.done())
    yield lines, cancel, task
    await until(lambda: not any(map(is_alive, lines.pids())))


async def test_a_successful_command_returns_its_output() -> None:
    lines = Lines()
    result = await run_command(shell("echo one; echo two; echo hm >&2"), on_line=lines)
    assert result.ok
    assert result.output() == {"exit_code": 0, "stdout": "one\ntwo", "stderr_tail": "hm"}
    assert [line for stream, line in lines.seen if stream == "stdout"] == ["one", "two"]
    assert ("stderr", "hm") in lines.seen


async def test_a_failed_command_shows_the_end_of_its_output() -> None:
    result = await run_command(shell("echo working; echo no such image >&2; exit 3"))
    assert not result.ok
    assert (result.code, result.exit_code) == ("COMMAND_FAILED", 3)
    assert result.message == "sh ended with exit code 3\nno such image"


async def test_a_command_ended_by_a_signal_has_failed() -> None:
    result = await run_command(shell("kill -9 $$"))
    assert (result.code, result.exit_code, result.message) == (
        "COMMAND_FAILED",
        -9,
        "sh was ended by signal 9",
    )


@pytest.mark.parametrize(
    ("work", "exit_code", "message"),
    [
        (ResolvedCommand(), 126, "a command cannot be started: the step has no command"),
        (ResolvedCommand(argv=("no-such-program-here",)), 127, "no-such-program-here cannot be started: No such file"),
        (ResolvedCommand(argv=("/",)), 126, "/ cannot be started: Permission denied"),
        (ResolvedCommand(argv=("true",), cwd="/no/such/folder"), 127, "true cannot be started in /no/such/folder: No such"),
    ],
)  # fmt: skip
async def test_a_command_that_cannot_start_has_failed(
    work: ResolvedCommand, exit_code: int, message: str
) -> None:
    result = await run_command(work)
    assert (result.code, result.exit_code) == ("COMMAND_FAILED", exit_code)
    assert result.message.startswith(message)


async def test_arguments_do_not_pass_through_a_shell(tmp_path: Path) -> None:
    word = f"$(touch {tmp_path}/x); `touch {tmp_path}/x` && $HOME *"
    result = await run_command(ResolvedCommand(argv=("printf", "%s", word)))
    assert result.stdout == word
    assert os.listdir(tmp_path) == []


async def test_a_command_does_not_get_the_secrets_of_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_SECRET", "s3cret")
    result = await run_command(ResolvedCommand(argv=("env",), env={"REF": "main", "LANG": "C"}))
    names = {line.partition("=")[0] for line in result.stdout.splitlines()}
    assert "WORKER_SECRET" not in names
    assert {"PATH", "REF", "LANG"} <= names <= {"PATH", "HOME", "LANG", "REF", "PWD", "SHLVL", "_"}
    assert "LANG=C" in result.stdout.splitlines()


def test_the_environment_always_has_a_path() -> None:
    assert environment({}, {"SECRET": "x"}) == {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    assert environment({"HOME": "/a"}, {"HOME": "/b", "PATH": "/c"})["HOME"] == "/a"


async def test_a_command_starts_in_its_folder_without_input() -> None:
    result = await run_command(shell("pwd -P; cat", cwd="/"))
    assert result.stdout == "/"


async def test_json_output_is_parsed() -> None:
    result = await run_command(shell("""echo '{"image": "a:1", "n": [1]}'""", output="json"))
    assert result.ok
    assert result.output() == {
        "exit_code": 0,
        "stdout": "",
        "stderr_tail": "",
        "json": {"image": "a:1", "n": [1]},
    }


async def test_invalid_json_output_fails_the_step() -> None:
    result = await run_command(shell("echo done", output="json"))
    assert result.code == "COMMAND_FAILED"
    assert result.message.startswith("sh must print JSON: ")
    assert result.message.endswith("\ndone")


async def test_long_output_is_cut_to_its_end_and_every_line_is_logged() -> None:
    lines = Lines()
    result = await run_command(
        python("for i in range(60_000): print(f'line {i}')\nimport sys; sys.stderr.write('x' * 300_000)"),
        on_line=lines,
    )
    assert result.ok
    assert result.truncated
    assert result.stdout.endswith("line 59998\nline 59999")
    assert len(result.stdout) <= COMMAND_OUTPUT_BYTES_MAX
    assert len([1 for stream, _ in lines.seen if stream == "stdout"]) == 60_000
    assert max(len(line) for _, line in lines.seen) <= COMMAND_LINE_BYTES_MAX
    assert sum(len(line) for stream, line in lines.seen if stream == "stderr") == 300_000


async def test_output_of_any_bytes_fits_a_payload() -> None:
    result = await run_command(
        python(
            "import sys; sys.stdout.buffer.write(bytes([1]) * 200_000); sys.stderr.buffer.write(b'\\xff' * 200_000)"
        )
    )
    assert result.ok
    assert result.truncated
    assert len(msgspec.json.encode(result.output())) <= PAYLOAD_BYTES_MAX


async def test_a_canceled_command_gets_sigterm() -> None:
    work = shell("trap 'echo bye; exit 0' TERM; echo $$; while :; do sleep 0.05; done")
    async with started(work, pids=1) as (_, cancel, task):
        cancel.set()
        result = await task
    assert result.canceled
    assert not result.ok
    assert result.code is None
    assert result.stdout.endswith("bye")


async def test_a_command_that_ignores_term_is_killed_after_its_grace() -> None:
    work = shell("trap '' TERM; echo $$; while :; do sleep 0.05; done")
    async with started(work, pids=1, grace=0.2) as (lines, cancel, task):
        cancel.set()
        result = await task
        assert not is_alive(lines.pids()[0])
    assert result.canceled
    assert result.exit_code == -9


async def test_a_timeout_kills_children_and_grandchildren_that_ignore_term() -> None:
    grandchild = 'trap "" TERM; echo $$; while :; do sleep 0.05; done'
    work = shell(f"sh -c 'sh -c '\\''{grandchild}'\\'' & echo $$; wait' & echo $$; wait")
    async with started(work, pids=3, grace=0.2, timeout=1.0) as (lines, _, task):
        assert len(lines.pids()) == 3
        result = await task
    assert (result.code, result.canceled) == ("STEP_TIMED_OUT", False)
    assert result.message.startswith("sh was stopped after 1 s")


async def test_background_processes_end_with_their_command() -> None:
    work = shell("(trap '' TERM; while :; do sleep 0.05; done) & echo $!; exit 0")
    async with started(work, pids=1) as (_, _, task):
        result = await task
    assert result.ok


async def test_a_daemon_outside_of_the_group_does_not_block_the_step(tmp_path: Path) -> None:
    daemon = "import os, time; os.setsid(); open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    work = shell(
        f'"$PYTHON" -c "{daemon}" & while [ ! -s pid ]; do sleep 0.02; done', env={"PYTHON": sys.executable}
    )
    result = await run_command(msgspec.structs.replace(work, cwd=str(tmp_path)))
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 9)
    assert result.ok


async def test_a_canceled_task_leaves_no_process() -> None:
    work = shell("trap '' TERM; echo $$; while :; do sleep 0.05; done")
    async with started(work, pids=1) as (_, _, task):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_early_cancel_stops_the_command_immediately() -> None:
    cancel = asyncio.Event()
    cancel.set()
    result = await run_command(shell("while :; do sleep 0.05; done"), cancel=cancel)
    assert result.canceled


async def test_an_error_in_the_log_callback_does_not_block_the_command() -> None:
    def broken(stream: str, line: str) -> None:
        raise RuntimeError("full")

    with pytest.raises(RuntimeError, match="full"):
        await run_command(python("print('x' * 1_000_000 + '\\n' * 100)"), on_line=broken)
