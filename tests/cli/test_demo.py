"""The demonstration, small: it judges itself, and a judge must also be able to say no."""

import json
from pathlib import Path
from typing import Any

import pytest

from tenure.cli import demo
from tenure.embedded import Engine
from tenure.embedded.demo import Demo, Tally, Verdict
from tests.cli.shell import in_folder


def test_the_demo_ends_well_and_tells_its_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = in_folder(tmp_path, monkeypatch, capsys)("demo", "--runs", "40")
    assert ended.code == 0, ended.out + ended.err
    for part in (
        "40 of 40 runs finished",
        "worker-2 was killed with",
        "How the runs ended",
        "APPROVAL_REJECTED",
        "TESTS_FAILED",
        "RUN_CANCELED",
        "What worker-2 lost when it was killed",
        "lease_expired",
        "The history of one of them",
        "no violation",
        "Everything is as it must be.",
    ):
        assert part in ended.out
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_the_demo_on_a_database_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tenure = in_folder(tmp_path, monkeypatch, capsys)
    for _ in range(2):
        ended = tenure("demo", "--runs", "12", "--db", "kept.db", "--json")
        assert ended.code == 0, ended.out + ended.err
        told = json.loads(ended.out)
        assert told["verdict"]["runs"] == 12
        assert told["verdict"]["problems"] == []
        assert told["doctor"] == {"clean": True, "found": {}}
    assert (tmp_path / "kept.db").exists()


def test_a_demo_that_goes_wrong_says_so_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = Demo._judge

    async def harsh(self: Demo) -> Verdict:
        verdict = await judge(self)
        verdict.problems.append("the moon is in the wrong house")
        return verdict

    monkeypatch.setattr(Demo, "_judge", harsh)
    ended = in_folder(tmp_path, monkeypatch, capsys)("demo", "--runs", "12")
    assert ended.code == 1
    assert "the moon is in the wrong house" in ended.err
    assert "Everything is as it must be" not in ended.out


async def test_the_judge_notices_a_run_that_ended_otherwise(tmp_path: Path) -> None:
    async with Engine(f"sqlite:{tmp_path}/d.db", tenant="demo", sweep_seconds=0.1) as engine:
        play = Demo(engine, 12, 1, lambda _: None)
        answer = engine.reject

        async def lenient(run_id: str, **how: Any) -> str:
            del how["reason"]
            return await engine.approve(run_id, **how)

        engine.reject = lenient  # type: ignore[method-assign]  # the planted fault
        verdict = await play.play()
        engine.reject = answer  # type: ignore[method-assign]  # back to what it was
    assert any("(rejected" in p and "should be failed APPROVAL_REJECTED" in p for p in verdict.problems)


def test_progress_has_a_line_a_second_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with demo._progress(10, quiet=False) as tell:
        tell(Tally(0.1, 10, {"queued": 10}, "three workers"))
        tell(Tally(0.2, 10, {"running": 10}, "three workers"))
        tell(Tally(1.2, 10, {"running": 6, "retry_wait": 2, "succeeded": 2}, "three workers"))
        tell(Tally(1.3, 10, {"running": 6, "retry_wait": 2, "succeeded": 2}, "one was killed"))
        tell(Tally(1.4, 10, {"succeeded": 10}, "one was killed"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "2 of 10 runs finished  6 running · 2 backing off · three workers" in lines[1]
