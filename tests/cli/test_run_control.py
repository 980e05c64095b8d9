"""`tenure runs revoke`, `label` and `reported`."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.cli.plan_worker import hold, upload, work
from tests.cli.shell import Tenure, in_folder

CREATE = ("runs", "create", "--workflow", "w", "--plan", "one.json", "--profile", "delta-ci", "--by", "ci")


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    (tmp_path / "one.json").write_text('[{"name": "build"}, {"name": "ok", "kind": "approval"}]')
    return in_folder(tmp_path, monkeypatch, capsys)


def test_a_revoked_step_is_done_by_another_worker(tenure: Tenure) -> None:
    run = tenure(*CREATE).out.strip()
    nobody = tenure("runs", "revoke", run)
    assert (nobody.code, "no worker holds a step of the run" in nobody.err) == (1, True)
    assert hold() == "build"
    assert tenure("runs", "revoke", run).out == f"the step of {run} is ready\n"
    assert hold() == "build"
    assert "STEP_NOT_FOUND" in tenure("runs", "revoke", run, "test").err
    shown = tenure("runs", "revoke", run, "build", "--json").json()
    assert shown == {"run": run, "step": "build", "state": "ready"}
    assert work() == ["build"]


def test_labels_are_set_removed_and_shown(tenure: Tenure) -> None:
    run = tenure(*CREATE, "--label", "stage=test").out.strip()
    assert tenure("runs", "label", run).out == "stage=test\n"
    assert len(tenure("runs", "events", run, "--json").json()) == 1, "reading the labels added an event"
    assert tenure("runs", "label", run, "team=a", "--remove", "stage").out == "team=a\n"
    about = ("--metadata", '{"pr": 7}')
    shown = tenure("runs", "label", run, *about, "--json").json()
    assert shown == {"run": run, "labels": {"team": "a"}, "metadata": {"pr": 7}}
    assert run in tenure("runs", "list", "--label", "team=a").out
    assert tenure("runs", "label", run, "team").code == 2
    assert "must be a JSON object" in tenure("runs", "label", run, "--metadata", "[1]").err

    assert work() == ["build"]
    assert "APPROVER_IS_REQUESTER" in tenure("approvals", "approve", run).err, (
        "the person who changed the labels could approve"
    )


def test_marking_a_run_as_reported_is_shown_and_changes_no_status(tenure: Tenure) -> None:
    run = tenure(*CREATE).out.strip()
    assert "no outcome to report yet" in tenure("runs", "reported", run).err
    tenure("runs", "cancel", run)
    me = f"uid:{os.getuid()}"
    assert tenure("runs", "reported", run).out == f"{run}: marked as reported by {me}\n"
    reply = tenure("runs", "reported", run, "--by", "ci", "--json").json()
    assert (reply["run"], reply["statement"]["by"]) == (run, me), "a second statement replaced the first"
    shown = tenure("runs", "show", run).out
    assert "REPORTED" not in shown
    assert "CANCELED in delta-ci" in shown
    assert f"by {me} at" in shown
    assert tenure("runs", "events", run, "--json").json()[-1]["kind"] == "report_stated"


def test_the_files_of_a_run_are_listed_and_read(tenure: Tenure, tmp_path: Path) -> None:
    run = tenure(*CREATE).out.strip()
    assert tenure("runs", "artifacts", run).out == "no artifacts\n"
    assert hold() == "build"
    assert asyncio.run(upload("tenure.db", run, "logs/build.txt", b"built")) == [False]
    listed = tenure("runs", "artifacts", run, "--json").json()["artifacts"]
    assert [(one["name"], one["step"], one["attempt"], one["state"]) for one in listed] == [
        ("logs/build.txt", "build", 1, "pending")
    ]
    assert "logs/build.txt" in tenure("runs", "artifacts", run).out
    assert tenure("runs", "artifacts", run, "logs/build.txt").out == "built"
    to = tmp_path / "copy.txt"
    where = ("--step", "build", "--attempt", "1", "--in-time", "--to", str(to))
    assert tenure("runs", "artifacts", run, "logs/build.txt", *where).code == 0
    assert to.read_bytes() == b"built"
    assert "ARTIFACT_NOT_FOUND" in tenure("runs", "artifacts", run, "other.txt").err


@pytest.mark.parametrize("verb", ["resume", "rerun", "label"])
def test_an_approval_requested_by_a_program_can_be_answered_locally(tenure: Tenure, verb: str) -> None:
    """With a local database, `tenure run` requests approvals as `cli`."""
    run = tenure(*CREATE[:-1], "cli").out.strip()
    if verb == "label":
        assert tenure("runs", "label", run, "team=a").code == 0
    else:
        tenure("runs", "cancel", run)
        run = tenure("runs", verb, run).out.strip()
    assert tenure("runs", "show", run, "--json").json()["run"]["requester"] == "cli"
    assert work() == ["build"]
    assert tenure("approvals", "approve", run).out == "approved\n"


def test_a_person_who_resumes_a_run_is_its_requester(tenure: Tenure) -> None:
    by_ci = tenure(*CREATE).out.strip()
    tenure("runs", "cancel", by_ci)
    for verb in ("resume", "rerun"):
        run = tenure("runs", verb, by_ci).out.strip()
        assert tenure("runs", "show", run, "--json").json()["run"]["requester"] == f"uid:{os.getuid()}"
    by_program = tenure(*CREATE[:-1], "cli").out.strip()
    tenure("runs", "cancel", by_program)
    named = tenure("runs", "rerun", by_program, "--by", "ada").out.strip()
    assert tenure("runs", "show", named, "--json").json()["run"]["requester"] == "ada"
