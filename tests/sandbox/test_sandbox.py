"""Sandboxes: real bubblewrap, as root and as an ordinary user."""

import asyncio
import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure.errors import TenureError
from tenure.sandbox import usage_limits
from tenure.sandbox.bubblewrap import find_bubblewrap, make_sandbox_files, own_python
from tenure.sandbox.isolation import UID_BASE, choose_isolation
from tenure.sandbox.sandbox import (
    SandboxCommand,
    SandboxEnded,
    SandboxSpec,
    base_environment,
    make_job_folders,
    make_output_pipe,
    open_sandbox,
    run_sandboxed,
)

UID = UID_BASE + 900 if os.geteuid() == 0 else None


@pytest.fixture
def spec(tmp_path: Path) -> SandboxSpec:
    make_sandbox_files(tmp_path / "files")
    make_job_folders(tmp_path / "job", UID)
    return SandboxSpec(
        files=tmp_path / "files", folder=tmp_path / "job", uid=UID, processes=64, file_bytes=1 << 20
    )


async def run(spec: SandboxSpec, script: str, **how: Any) -> tuple[int, str]:
    result = await run_sandboxed(["sh", "-c", script], spec, **how)
    return result.exit_code, (result.stdout + result.stderr).decode()


async def test_programs_have_their_own_user_processes_files_and_no_privileges(spec: SandboxSpec) -> None:
    script = """
    id -u; id -un; hostname; echo processes $(ls -d /proc/[0-9]* | wc -l)
    grep -E '^(CapEff|NoNewPrivs|Seccomp)' /proc/self/status | tr '\\t' ' '
    for f in /usr/x /etc/x /x /dev/x /run/x; do (touch $f) 2>/dev/null && echo wrote $f; done
    touch /job/workspace/x /job/home/x /tmp/x && echo wrote own
    for f in /roo? /hom? /sys /boot /var/lib /etc/shadow /etc/ssh; do (ls $f) >/dev/null 2>&1 && echo sees $f; done
    unshare -Ur true 2>/dev/null && echo nested
    ls /proc/self/fd | wc -l; env | cut -d= -f1 | sort | tr '\\n' ' '
    """
    code, out = await run(spec, script)
    lines = out.splitlines()
    assert code == 0, out
    assert lines[:3] == ["1000", "job", "job"]
    assert int(lines[3].split()[1]) <= 6
    assert "CapEff: 0000000000000000" in lines
    assert "NoNewPrivs: 1" in lines
    assert "wrote own" in lines
    assert not [
        line
        for line in lines
        if line.startswith(
            ("wrote /", "sees /hom", "sees /roo", "sees /sys", "sees /etc", "sees /var", "nested")
        )
    ]
    assert lines[-2] == "4"  # the standard ones, and the list's own
    assert set(lines[-1].split()) <= {"HOME", "LANG", "PATH", "PWD", "TMPDIR", "USER", "OLDPWD", "SHLVL", "_"}


async def test_landlock_is_a_second_layer(spec: SandboxSpec) -> None:
    if ctypes.CDLL(None).syscall(444, None, 0, 1) < 1:
        pytest.skip("this kernel has no Landlock")
    assert (await choose_isolation("bubblewrap")).landlock
    code, out = await run(spec, "ls /")  # the mounts would allow it
    assert code != 0
    assert "Permission denied" in out


async def test_a_sandbox_ends_with_everything_in_it(spec: SandboxSpec) -> None:
    marker = f"9{os.getpid()}.{os.getpid()}"
    reading, writing = make_output_pipe()
    try:
        async with open_sandbox(spec, output=writing) as sandbox:
            env = base_environment(spec, {})
            script = f"setsid sh -c 'trap \"\" TERM; sleep {marker}' & echo begun"
            assert await sandbox.run(SandboxCommand(argv=("sh", "-c", script), cwd="/", env=env)) == 0
            assert os.read(reading, 100) == b"begun\n"
            waiting = sandbox.start_program(SandboxCommand(argv=("sleep", "1000"), cwd="/", env=env))
            sandbox.kill()
            with pytest.raises(SandboxEnded):
                await waiting
        os.close(writing)
        writing = -1
        assert await asyncio.to_thread(os.read, reading, 100) == b""  # no process is left that holds the pipe
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


async def test_a_program_without_folders_reads_its_input_and_writes_nothing(tmp_path: Path) -> None:
    make_sandbox_files(tmp_path / "files")
    spec = SandboxSpec(files=tmp_path / "files", uid=UID)
    result = await run_sandboxed(
        ["sh", "-c", "tr a-z A-Z; touch /job/x || echo refused >&2"], spec, stdin=b"text" * 50_000
    )
    assert result.stdout == b"TEXT" * 50_000
    assert b"refused" in result.stderr


async def test_time_and_output_are_limited(spec: SandboxSpec) -> None:
    with pytest.raises(TenureError, match="SANDBOX_TIMED_OUT"):
        await run(spec, "sleep 1000", timeout=0.5)
    with pytest.raises(TenureError, match="SANDBOX_OUTPUT_TOO_LARGE"):
        await run(spec, "yes", output_bytes_max=100_000)
    code, _ = await run(spec, "head -c 2000000 /dev/zero > /job/workspace/large")
    assert code == 128 + 25  # SIGXFSZ
    small = msgspec.structs.replace(spec, memory_bytes=1 << 30)
    code, output = await run(small, f"{own_python()[0]} -c 'bytearray(2 << 30)' 2>&1")
    assert (code, "MemoryError" in output) == (1, True)


async def test_signals_of_programs_do_not_end_the_agent(spec: SandboxSpec) -> None:
    code, output = await run(spec, "for s in INT HUP TERM QUIT KILL CHLD; do kill -$s 1; done; echo alive")
    assert (code, output) == (0, "alive\n")


async def test_cgroups_of_killed_runners_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_limits, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(usage_limits, "_own_cgroup", lambda _: "")
    names = ["tenure-999999999-a-1", f"tenure-{os.getpid()}-a-1", "other-999999999-a"]
    for name in names:
        (tmp_path / "memory" / name).mkdir(parents=True)
    async with usage_limits.UsageMeter(cgroup_name="tenure-1-a"):
        assert sorted(each.name for each in (tmp_path / "memory").iterdir()) == sorted(names[1:])


async def test_exit_codes_and_signals_are_told_apart(spec: SandboxSpec) -> None:
    assert (await run(spec, "exit 7"))[0] == 7
    assert (await run(spec, "kill -TERM $$"))[0] == -15
    assert (await run_sandboxed(["no-such-program"], spec)).exit_code == 127


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user")
def test_an_ordinary_user_has_sandboxes_too() -> None:
    """A copy of the modules and of bubblewrap, since that user cannot read this checkout."""
    python = "/usr/bin/python3"
    found = find_bubblewrap()
    version = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info[:2] >= (3, 11))"],
        check=False,
        capture_output=True,
        text=True,
    )
    if found is None or version.stdout.strip() != "True":
        pytest.skip("this machine has no Python that every user can read")
    site = str(Path(msgspec_file()).parents[1])
    source = str(Path(__file__).parents[2] / "src")
    with tempfile.TemporaryDirectory(prefix="tenure-test-") as folder:
        os.chmod(folder, 0o755)
        program = "import asyncio; from tenure.sandbox.isolation import choose_isolation as c; print(asyncio.run(c('bubblewrap')).kind)"
        env = {"PYTHONPATH": f"{source}:{site}", "PATH": f"{Path(found).parent}:/usr/bin:/bin"}
        ended = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, "-c", program],
            env=env,
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
        )
        if "No module named" in ended.stderr or "Permission denied" in ended.stderr:
            pytest.skip("an ordinary user cannot read this checkout")
        assert ended.stdout.strip() == "bubblewrap", ended.stderr


def msgspec_file() -> str:
    return str(sys.modules["msgspec"].__file__)
