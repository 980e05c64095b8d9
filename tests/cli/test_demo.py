"""`tenure demo` checks its own result, and it detects a wrong result."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.demo.scenario import DemoApproval, DemoProgress, DemoResult, DemoScenario
from tenure.engine import Engine
from tenure.shapes.approvals import Approval
from tests.cli.shell import in_folder

TENURE = str(Path(sys.executable).parent / "tenure")


def test_the_demo_succeeds_and_prints_its_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = in_folder(tmp_path, monkeypatch, capsys)("demo")
    assert ended.code == 0, ended.out + ended.err
    in_order = (
        "async def release(ref: str) -> str:",
        "test     again  failed with TESTS_FAILED",
        "the run waits for a person",
        "worker-1 dies in the middle of deploy",
        "worker-2 resumes at deploy",
        "it counts once",
        "The history of run_",
        "build is done: shop:v42",
        "test is done at attempt 2",
        "ada                   approved",
        "kill -9",
        ": its lease has ended, and the run can be claimed",  # a proven death, or missing heartbeats
        'deploy is done: ["us-1","us-2"]',
        "monitor               delivered 'deploy.healthy'",
        "verify is done: shop:v42 runs on 4 servers",
        "the run succeeded",
        "no violation",
    )
    rest = ended.out
    for part in in_order:
        before, found, rest = rest.partition(part)
        assert found, f"{part!r} does not come after:\n{before}"
    assert list(tmp_path.iterdir()) == [], "the demo left files"


def test_the_demo_asks_the_user_at_a_terminal(tmp_path: Path) -> None:
    """With `--folder`, the folder is kept and cannot be used twice."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = (TENURE, "demo", "--folder", "kept")
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as shown:
        os.close(theirs)
        seen = b""
        try:
            while True:
                seen += os.read(ours, 65_536)
                if b"Your answer?" in seen:
                    os.write(ours, b"maybe\nn\n")
                    break
            while piece := os.read(ours, 65_536):
                seen += piece
        except OSError:  # the terminal is closed
            pass
        finally:
            os.close(ours)
    assert shown.returncode == 0, seen.decode()
    assert "nothing was deployed" in seen.decode()
    assert (tmp_path / "kept" / "demo.db").exists()
    again = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert again.returncode == 1
    assert "is not empty" in again.stderr


async def test_an_unexpected_end_of_the_run_is_detected(tmp_path: Path) -> None:
    async with Engine(f"sqlite:{tmp_path}/d.db", actor="demo", sweep_seconds=0.1) as engine:
        progress: list[DemoProgress] = []

        async def cancel_then_reject(question: Approval) -> DemoApproval:
            await engine.cancel(question.run_id, reason="NOT_NEEDED")
            return DemoApproval(False, "ada")

        async def gone(*_: object, **__: object) -> str:
            return "canceled"

        engine.reject = gone  # type: ignore[method-assign]  # the planted fault: the run is canceled instead
        verdict, lines, report = await DemoScenario(
            engine, tmp_path, progress.append, cancel_then_reject
        ).play()
    assert isinstance(verdict, DemoResult)
    assert verdict.problems == ["a rejection should end the run, but it is canceled (NOT_NEEDED)"]
    assert lines[-1].seq == len(lines)
    assert report.clean
    assert {now.status for now in progress} >= {"queued", "waiting_approval", "canceled"}


async def test_a_worker_that_cannot_start_is_reported_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def must_not_be_called(_: Approval) -> DemoApproval:
        raise AssertionError("the demo asked for an approval")

    async with Engine(f"sqlite:{tmp_path}/d.db", actor="demo") as engine:
        with pytest.raises(Exception, match="a worker process ended unexpectedly"):
            await DemoScenario(engine, tmp_path, lambda _: None, must_not_be_called).play()
