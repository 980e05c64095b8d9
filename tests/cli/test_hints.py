"""Hints for new users about repeated events, parked runs, failed tries, missing files, titles and codes."""

import asyncio
import json
from pathlib import Path

import pytest

from tenure import ids
from tenure.engine import Engine
from tenure.kernel.commands import Park
from tests.cli.apps import app
from tests.cli.plan_worker import work
from tests.cli.shell import Tenure, in_folder
from tests.engine.stage import head, queues, stage

TITLED = """\
name: titled
profile: tenure
steps:
  - id: ok
    approval: {title: "Send it to Ada, who has asked for it since a week?"}
"""


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    (tmp_path / "told.py").write_text(app("told"))
    (tmp_path / "titled.yaml").write_text(TITLED)
    (tmp_path / "one.json").write_text('[{"name": "build"}]')
    waits = [{"name": "go", "kind": "wait", "wait": {"event": "carrier.collected"}}]
    (tmp_path / "waits.json").write_text(json.dumps(waits))
    return in_folder(tmp_path, monkeypatch, capsys)


def create(tenure: Tenure, plan: str, *more: str) -> str:
    made = tenure("runs", "create", "--workflow", "w", "--plan", plan, "--profile", "tenure", *more)
    assert made.code == 0, made.err
    return made.out.strip()


def test_a_repeated_event_is_reported_and_its_id_cannot_be_reused(tenure: Tenure) -> None:
    run = create(tenure, "waits.json")
    kept = tenure("signal", run, "goo", "--id", "m1").out
    assert kept == "kept until the run waits for it (it waits for 'carrier.collected' now)\n"
    assert tenure("signal", run, "goo", "--id", "m1").out.startswith("already delivered: kept until")
    other = tenure("signal", run, "carrier.collected", "--id", "m1")
    assert other.code == 1
    assert "error INVALID_INPUT: event id 'm1' was already delivered as 'goo'" in other.err
    assert tenure("runs", "why", run, "--json").json()["reason"] == "event", (
        "the refused signal changed the run"
    )
    assert tenure("signal", run, "carrier.collected", "--id", "m2").out == "taken\n"
    again = tenure("signal", run, "carrier.collected", "--id", "m2")
    assert (again.code, again.out) == (0, "already delivered: taken\n")
    assert tenure("doctor").code == 0


def test_a_step_shows_its_output_and_its_failed_tries(tenure: Tenure) -> None:
    run = create(tenure, "one.json")

    async def play() -> None:
        async with stage("sqlite:tenure.db") as engine:
            await engine.fail(await engine.claim("first"), "NETWORK_DOWN", retryable=True)
            await engine.later(3600)
            await engine.claim("second")
            await engine.later(3600)
            await engine.complete(await engine.claim("third"), b'"the image"')

    asyncio.run(play())
    (step,) = tenure("runs", "show", run, "--json").json()["steps"]
    assert (step["state"], step["output"], step["last_failure"]) == ("succeeded", "the image", "STEP_LOST")
    shown = tenure("runs", "show", run).out
    assert "the image (failed before: STEP_LOST)" in shown
    assert "done:" not in shown
    assert "in tenure)" not in shown, "the kernel state is shown although the profile uses the same word"
    timeline = tenure("runs", "events", run, "--timeline", "--json").json()
    assert [(x["state"], x["attempt"], x["by"], x["about"]) for x in timeline if x["what"] == "build"] == [
        ("failed", 1, "first", "NETWORK_DOWN"),
        ("lost", 2, "second", "STEP_LOST"),
        ("taken over", 3, "third", ""),
        ("succeeded", 3, "third", "the image"),
    ]


def test_failed_tries_of_checkpoints_are_in_the_timeline(tenure: Tenure) -> None:
    assert tenure("run", "told.py:told").code == 0
    (line,) = tenure("runs", "list", "--json").json()
    timeline = tenure("runs", "events", line["id"], "--timeline", "--json").json()
    tries = [x for x in timeline if x["what"] == "build"]
    assert [(x["state"], x["attempt"]) for x in tries] == [("failed", 1), ("succeeded", 2)]
    assert tries[0]["about"].startswith("STEP_FAILED: ConnectionError: the network is down")
    assert tries[0]["by"]
    assert tries[1]["by"] == f"builder ({tries[0]['by']})"
    assert "the network is down" in tenure("runs", "events", line["id"], "--timeline").out
    assert "(failed before: STEP_FAILED: ConnectionError" in " ".join(
        tenure("runs", "show", line["id"]).out.split()
    )


def test_parked_and_paused_runs_are_marked_and_explained(tenure: Tenure) -> None:
    run, other = create(tenure, "one.json"), create(tenure, "one.json")

    async def park() -> None:
        async with Engine("sqlite:tenure.db", sweep=False) as engine:
            leases = await engine.orchestrator.claim("me", queues=await queues(engine), limit=10)
            (lease,) = [each for each in leases if ids.run_text(each.run_id) == run]
            await engine.orchestrator.send(Park(**head(lease, 1), why="the code has changed"))

    asyncio.run(park())
    tenure("runs", "pause", other)
    assert [line["id"] for line in tenure("runs", "list", "--parked", "--json").json()] == [run]
    listed = tenure("runs", "list").out
    assert "(parked)" in next(line for line in listed.splitlines() if run in line)
    assert "(paused)" in next(line for line in listed.splitlines() if other in line)
    why = tenure("runs", "why", run).out
    for part in ("the code has changed", f"tenure runs unpause {run}", "tenure.patched", "accepts="):
        assert part in why
    assert tenure("runs", "unpause", run).code == 0
    assert tenure("runs", "list", "--parked").out == "no runs\n"


def test_every_code_is_explained_and_empty_advice_is_omitted(tenure: Tenure) -> None:
    refused = tenure("run", "told.py:nobody")
    assert "What to do" not in refused.err
    assert "More: tenure explain INVALID_INPUT" in refused.err
    explained = tenure("explain", "store_busy")
    assert explained.code == 0
    assert "STORE_BUSY" in explained.out
    assert "What to do:" in explained.out
    assert tenure("explain", "STORE_BUSY", "--json").json()["retryable"] is True
    assert "RUN_NOT_FOUND" in tenure("explain").out
    assert "Not an error" in tenure("explain", "CONDITION_FALSE").out
    assert tenure("explain", "CONDITION_FALSE", "--json").json()["retryable"] is False
    wrong = tenure("explain", "STORE_BUSI")
    assert (wrong.code, "STORE_BUSY" in wrong.err) == (2, True)


def test_a_missing_file_is_reported_with_its_full_path(tenure: Tenure, tmp_path: Path) -> None:
    refused = tenure("runs", "list")
    assert refused.code == 1
    for part in ("STORE_NOT_MIGRATED", str(tmp_path / "tenure.db"), "--db", "TENURE_DB", "`tenure run`"):
        assert part in refused.err
    assert str(tmp_path / "tenure.db") in json.loads(tenure("runs", "list", "--json").err)["error"]["remedy"]


def test_a_declared_approval_is_shown_by_its_title_with_full_ids(
    tenure: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tenure("run", "titled.yaml", "--detach").out.strip()
    assert work() == []
    assert "'Send it to Ada, who has asked for it since a week?'" in tenure("runs", "why", run).out
    (asked,) = tenure("approvals", "list", "--json").json()
    assert asked["title"].startswith("Send it to Ada")
    monkeypatch.setattr("tenure.cli.common.console._PIPE_WIDTH", 80)
    listed = tenure("approvals", "list").out
    assert run in listed
    assert run in tenure("runs", "list").out
    assert "Send it" in " ".join(listed.split())
