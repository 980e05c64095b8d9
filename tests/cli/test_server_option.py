"""Commands with --server work as they do with a local database."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.shell import Tenure, in_folder
from tests.cli.test_serve import served, words

APP = """
import tenure

@tenure.step
async def build(ref: str) -> str:
    return f"shop:{ref}"

@tenure.workflow
async def release(ref: str, ask: bool = False) -> str:
    tenure.log("building", ref=ref)
    image = await build(ref)
    if ask:
        await tenure.approve(f"Deploy {image}?")
        await tenure.wait("healthy")
    return image
"""
FILE = """
name: tidy
version: "1"
inputs:
  folder: {type: string}
steps:
  - id: sweep
    approval: {title: "Sweep ${{ inputs.folder }}?"}
"""


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    for name in ("TENURE_SERVER", "TENURE_KEY", "TENURE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    return in_folder(tmp_path, monkeypatch, capsys)


@contextmanager
def site(tenure: Tenure, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start a server and a worker, and make keys: TENURE_KEY_FILE of an operator, `grace.key` of a person."""
    (folder / "app.py").write_text(APP)
    (folder / "tidy.yaml").write_text(FILE)
    assert tenure("tenants", "create", "acme").code == 0
    assert (
        tenure(
            "clients",
            "create",
            "ci",
            "--name",
            "CI",
            "--role",
            "operator",
            "--role",
            "viewer",
            "--tenant",
            "acme",
        ).code
        == 0
    )
    (folder / "ci.key").write_text(tenure("keys", "create", "--client", "ci", "--tenant", "acme").out)
    invited = tenure(
        "people",
        "create",
        "grace",
        "--name",
        "Grace",
        "--role",
        "approver",
        "--role",
        "viewer",
        "--tenant",
        "acme",
    )
    redeemed = subprocess.run(
        words("people", "redeem"), input=invited.out, cwd=folder, capture_output=True, text=True, check=True
    )
    (folder / "grace.key").write_text(redeemed.stdout)
    with served(folder) as (_, address):
        worker = subprocess.Popen(words("worker", "app"), cwd=folder, stderr=subprocess.DEVNULL)
        try:
            while not tenure("workflows", "list", "--db", "tenure.db", "--json").json():
                assert worker.poll() is None  # the worker registers its workflows when it starts
            monkeypatch.setenv("TENURE_SERVER", address)
            monkeypatch.setenv("TENURE_KEY_FILE", str(folder / "ci.key"))
            yield address
        finally:
            worker.terminate()
            worker.wait(30)


def test_a_run_is_controlled_over_a_server(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site(tenure, tmp_path, monkeypatch) as address:
        done = tenure("run", "app.py", "--input", "ref=main", "--no-watch")
        assert (done.code, json.loads(done.out)) == (0, "shop:main"), done.err
        named = tenure("run", "release", "--input", "ref=v2", "--no-watch", "--label", "team=a")
        assert json.loads(named.out) == "shop:v2"
        lines = tenure("runs", "list", "--label", "team=a", "--json").json()
        assert [line["status"] for line in lines] == ["succeeded"]
        run = lines[0]["id"]
        shown = tenure("runs", "show", run, "--json").json()
        assert shown["run"]["output"] == "shop:v2"
        assert [step["name"] for step in shown["steps"]] == ["build"]
        while "building" not in tenure("runs", "logs", run).out:  # log lines arrive shortly after the end
            time.sleep(0.05)
        assert tenure("runs", "events", run, "--timeline", "--json").json()[-1]["state"] == "succeeded"
        assert len(tenure("runs", "events", run, "--json").json()) == shown["run"]["events"]
        document = tenure("runs", "show", run, "--profile", "git-with-intent", "--json").json()
        assert document["status"] == "completed"
        again = tenure("runs", "rerun", run).out.strip()
        assert tenure("runs", "watch", again).code == 0
        refused = tenure("runs", "cancel", run)
        assert (refused.code, "RUN_TERMINAL_STATE" in refused.err) == (1, True)
        assert [row["name"] for row in tenure("workflows", "list", "--json").json()] == ["release"]
        assert tenure("workflows", "show", "release", "--json").json()["version"] == "1"
        elsewhere = tenure("runs", "list", "--server", address, "--db", "tenure.db")
        assert (elsewhere.code, "exclude each other" in elsewhere.err) == (1, True)


def test_approvals_signals_files_and_schedules_work_over_a_server(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site(tenure, tmp_path, monkeypatch):
        run = tenure("run", "app.py", "--input", "ref=main", "--input", "ask=true", "--detach").out.strip()
        sent = tenure("signal", run, "healthy", "--id", "one")
        assert "kept until the run waits for it" in sent.out
        refused = tenure("approvals", "approve", run)
        while "has no pending approval" in refused.err:
            refused = tenure("approvals", "approve", run)
        assert refused.code == 1  # a program cannot decide an approval
        assert "FORBIDDEN" in refused.err or "APPROVER_NOT_ELIGIBLE" in refused.err
        monkeypatch.setenv("TENURE_KEY_FILE", str(tmp_path / "grace.key"))
        asked = tenure("approvals", "list", "--json").json()
        assert [(one["run_id"], one["title"]) for one in asked] == [(run, "Deploy shop:main?")]
        assert tenure("approvals", "approve", run, "--reason", "fine").out == "approved\n"
        monkeypatch.setenv("TENURE_KEY_FILE", str(tmp_path / "ci.key"))
        assert tenure("runs", "watch", run).code == 0
        assert tenure("workflows", "register", "tidy.yaml").out == "registered tidy version 1\n"
        assert "by their workers" in tenure("workflows", "register", "app.py").err
        filed = tenure("run", "tidy.yaml", "--input", "folder=here", "--detach", "--json").json()["run"]
        assert tenure("runs", "why", filed, "--json").json()["reason"] == "approval"
        assert "canceled" in tenure("runs", "cancel", filed).out
        made = tenure(
            "schedule", "create", "nightly", "app.py", "--cron", "30 2 * * *", "--input", "ref=main", "--json"
        )
        assert made.json()["workflow"] == "release"
        assert len(tenure("schedule", "next", "nightly", "--count", "3", "--json").json()) == 3
        assert tenure("schedule", "pause", "nightly", "--json").json()["paused"]
        started = tenure("schedule", "trigger", "nightly").out.strip()
        assert tenure("runs", "watch", started).code == 0
        assert tenure("schedule", "delete", "nightly").code == 0
        assert tenure("schedule", "list").out == "no schedules\n"


def test_tenants_people_clients_and_keys_are_managed_over_a_server(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "operator.key").write_text(tenure("keys", "create", "--operator").out)
    with served(tmp_path) as (_, address):
        monkeypatch.setenv("TENURE_SERVER", address)
        monkeypatch.setenv("TENURE_KEY_FILE", str(tmp_path / "operator.key"))
        assert tenure("tenants", "create", "acme", "--name", "Acme", "--json").json()["id"] == "acme"
        assert tenure("tenants", "rename", "acme", "Acme Inc", "--json").json()["name"] == "Acme Inc"
        assert [row["id"] for row in tenure("tenants", "list", "--json").json()] == ["acme"]
        assert (
            tenure("tenants", "caps", "acme", "--weight", "3", "--workflow", "release", "--json").json()[-1][
                "weight"
            ]
            == 3
        )
        limits = tenure("tenants", "caps", "acme", "--max-concurrency", "5", "--json").json()
        assert [(cap["scope"], cap["weight"], cap["max_concurrency"]) for cap in limits] == [
            ("", 1, 5),
            ("wf:release", 3, None),
        ]
        assert tenure("tenants", "audit", "--json").json()["lines"][-1]["kind"] == "key.created"
        refused = tenure("keys", "create", "--operator")
        assert (refused.code, "with database access" in refused.err) == (1, True)
        monkeypatch.delenv("TENURE_SERVER")
        invited = tenure("people", "create", "ada", "--name", "Ada", "--role", "admin", "--tenant", "acme")
        monkeypatch.setenv("TENURE_SERVER", address)
        redeemed = subprocess.run(
            words("people", "redeem"),
            input=invited.out,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        (tmp_path / "ada.key").write_text(redeemed.stdout)
        monkeypatch.setenv("TENURE_KEY_FILE", str(tmp_path / "ada.key"))
        assert tenure("clients", "create", "ci", "--role", "viewer", "--json").json()["roles"] == ["viewer"]
        assert tenure("clients", "change", "ci", "--role", "operator", "--json").json()["roles"] == [
            "operator"
        ]
        first = tenure("keys", "create", "--client", "ci", "--json").json()
        second = tenure("keys", "rotate", first["id"], "--overlap", "1h", "--json").json()
        assert {row["id"] for row in tenure("keys", "list", "--client", "ci", "--json").json()} == {
            first["id"],
            second["id"],
        }
        assert tenure("keys", "revoke", first["id"], "--json").json()["revoked_at"] is not None
        assert (
            tenure(
                "people", "create", "grace", "--name", "Grace", "--role", "approver", "--group", "release"
            ).code
            == 0
        )
        assert tenure("people", "show", "grace", "--json").json()["groups"] == ["release"]
        assert (
            tenure("people", "change", "grace", "--name", "Grace H.", "--json").json()["name"] == "Grace H."
        )
        assert tenure("people", "close", "grace", "--json").json()["closed_at"] is not None
        assert {row["id"] for row in tenure("people", "list", "--json").json()} == {"ada", "grace"}
        assert tenure("clients", "close", "ci", "--json").json()["closed_at"] is not None
        assert tenure("tenants", "audit", "acme", "--json").json()["lines"][0]["kind"] == "client.closed"
        stranger = tenure("tenants", "list")
        assert (stranger.code, "FORBIDDEN" in stranger.err) == (1, True)


def test_a_missing_key_and_a_command_that_needs_a_database_are_reported(
    tenure: Tenure, tmp_path: Path
) -> None:
    missing = tenure("runs", "list", "--server", "http://127.0.0.1:9", "--key-file", "nowhere")
    assert (missing.code, "the key file cannot be read" in missing.err) == (1, True)
    plan = tmp_path / "plan.json"
    plan.write_text('[{"name": "a"}]')
    here = tenure("runs", "create", "--workflow", "w", "--plan", str(plan), "--server", "http://127.0.0.1:9")
    assert (here.code, "works on a database" in here.err) == (1, True)
    doctor = subprocess.run(
        [sys.executable, "-m", "tenure.cli", "doctor", "--server", "http://x"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert doctor.returncode == 2
