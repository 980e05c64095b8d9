"""The logs, tests and artifacts of a CI job at the command line."""

import asyncio
from pathlib import Path

import pytest

from tenure.cli.runs.job_logs import TerminalText
from tests.cli.shell import Tenure, in_folder
from tests.server.job_files import lease, start
from tests.server.stage import site


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    return in_folder(tmp_path, monkeypatch, capsys)


async def run_a_job(folder: Path) -> str:
    """A job of a runner that a server has seen from its claim to its end."""
    async with site(f"sqlite:{folder / 'tenure.db'}", log_runs=False) as s:
        run = await start(s)
        held = await lease(s)
        await held.log(1, 0, b"one\ntwo\n")
        await held.log(2, 8, b"three\n")
        case = {"test": "t.test_a", "message": "1 != 2", "file": "t.py", "line": 3}
        await held.report(
            passed=4, failed=1, skipped=2, seconds=1.5, failed_cases=[case], notes=["x.xml: no XML"]
        )
        await held.upload("dist", b"first ", b"second", retention_seconds=3_600)
        await held.say("complete")
        await held.log(3, 14, b"late\n")
        return run


def test_what_a_job_stored_is_shown(tenure: Tenure, tmp_path: Path) -> None:
    run = asyncio.run(run_a_job(tmp_path))
    mine = ("--tenant", "acme")
    shown = tenure("runs", "logs", run, "--step", "build", *mine)
    assert (shown.code, shown.out) == (0, "one\ntwo\nthree\n")
    assert "5 bytes arrived after the end of the lease" in shown.err
    assert tenure("runs", "logs", run, "--step", "build", "--late", *mine).out == "one\ntwo\nthree\nlate\n"
    assert tenure("runs", "logs", run, "--step", "build", "--tail", "2", *mine).out == "two\nthree\n"
    assert tenure("runs", "logs", run, "--step", "build", "--follow", *mine).out == "one\ntwo\nthree\n"
    assert tenure("runs", "logs", run, "--step", "build", "--attempt", "9", *mine).err.startswith(
        "error LOG_NOT_FOUND"
    )
    assert tenure("runs", "logs", run, *mine).out == ""
    assert tenure("runs", "logs", run, "--tail", "2", *mine).code == 2
    tests = tenure("runs", "tests", run, *mine).out
    for text in ("build", "failed t.test_a  (build, attempt 1)  t.py:3", "  1 != 2", "note: x.xml: no XML"):
        assert text in tests
    [found] = tenure("runs", "tests", run, "--step", "build", "--json", *mine).json()["tests"]
    assert (found["report"]["passed"], found["report"]["failed"]) == (4, 1)
    assert tenure("runs", "artifacts", run, "dist", *mine).out == "first second"
    assert tenure("runs", "artifacts", run, "dist", "--to", "copy", *mine).code == 0
    assert (tmp_path / "copy").read_bytes() == b"first second"
    assert tenure("doctor").code == 0


def test_the_doctor_notices_files_that_are_missing_or_cut(tenure: Tenure, tmp_path: Path) -> None:
    asyncio.run(run_a_job(tmp_path))
    files = sorted(path for path in (tmp_path / "tenure.db.artifacts").rglob("*") if path.is_file())
    [first, *_] = [path for path in files if "/log/" in str(path)]
    [*_, part] = [path for path in files if "/uploads/" in str(path)]
    first.unlink()
    part.write_bytes(b"cut")
    found = tenure("doctor")
    assert found.code == 1
    for text in (
        "log chunk 1 of 0/1",
        "not in the artifact store",
        "part 2 of artifact 'dist'",
        "has 6 bytes",
    ):
        assert text in found.out + found.err


def test_a_jobs_output_cannot_control_the_terminal() -> None:
    text = TerminalText()
    pieces = [
        b"\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2Jplain\r\nprogress 1\rprogress 2\x1b[3",
        b"2mgreen\xe2",
        b"\x82\xac\x00\x07\n",
    ]
    cleaned = "".join(text.clean(piece) for piece in pieces) + text.clean(b"", final=True)
    assert cleaned == "\x1b[31mred\x1b[0m plain\nprogress 1\nprogress 2\x1b[32mgreen€\n"
