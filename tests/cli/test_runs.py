"""`tenure runs` and `tenure approvals`: every command once, and refusals."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenure.cli.common.arguments import parse_seconds, parse_time
from tenure.cli.common.backend import caller_id
from tenure.limits import PAYLOAD_BYTES_MAX
from tenure.store.sqlite import SqliteStore
from tests.cli.plan_worker import work
from tests.cli.shell import Tenure, in_folder

PLAN: list[dict[str, Any]] = [
    {"name": "build", "input": {"ref": "main"}},
    {"name": "approve", "kind": "approval", "approval": {"action": "deploy"}},
    {"name": "healthy", "kind": "wait", "wait": {"event": "deploy.healthy"}},
    {"name": "tell", "required": False},
    {"name": "deploy"},
]


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    (tmp_path / "one.json").write_text('[{"name": "build"}]')
    return in_folder(tmp_path, monkeypatch, capsys)


def create(tenure: Tenure, plan: str = "plan.json", *more: str) -> str:
    made = tenure("runs", "create", "--workflow", "release", "--plan", plan, *more)
    assert made.code == 0, made.err
    return made.out.strip()


def test_a_run_is_controlled_from_the_shell(tenure: Tenure) -> None:
    run = create(
        tenure, "plan.json", "--profile", "delta-ci", "--label", "team=a", "--priority", "2", "--by", "ci"
    )
    assert "ready and waits for a worker" in tenure("runs", "why", run).out
    assert " 0/5 " in tenure("runs", "list").out
    assert work({"image": 1}) == ["build"]
    assert " 1/5 " in tenure("runs", "list").out

    asked = tenure("approvals", "list").out
    assert run in asked
    assert "0 of 1" in asked
    assert tenure("approvals", "approve", run, "--reason", "fine").out == "approved\n"
    assert "no open approvals" in tenure("approvals", "list").out

    shown = tenure("runs", "show", run).out
    assert "waiting_external (RUNNING in delta-ci)" in shown
    assert "succeeded (SUCCEEDED)" in shown
    assert "team=a" in shown
    assert tenure("runs", "signal", run, "deploy.healthy", "--data", "true", "--id", "e1").out == "taken\n"
    assert "step tell" in tenure("runs", "cancel-step", run, "tell").out
    assert "is paused" in tenure("runs", "pause", run).out
    assert "It is paused" in tenure("runs", "why", run).out
    assert "paused" in tenure("runs", "list").out
    assert work() == []
    assert "is unpaused" in tenure("runs", "unpause", run).out
    assert work(fail="NETWORK_DOWN", once=True) == ["deploy"]
    assert "is tried again" in tenure("runs", "why", run).out
    assert f"{run} is canceled" in tenure("runs", "cancel", run).out

    resumed = tenure("runs", "resume", run).out.strip()
    again = tenure("runs", "rerun", run).out.strip()
    assert len({run, resumed, again}) == 3
    assert f"{run} (resumption 1)" in tenure("runs", "show", resumed).out
    assert f"{run} (attempt 2)" in tenure("runs", "show", again).out
    events = tenure("runs", "events", run).out
    for part in (
        "worker:me",
        f"uid:{os.getuid()}",
        "decide_approval",
        "build: ready > leased > starting > running",
    ):
        assert part in events
    assert tenure("doctor").code == 0


def test_every_command_has_json_output(tenure: Tenure) -> None:
    made = tenure(
        "runs", "create", "--workflow", "w", "--plan", "plan.json", "--input", "[1]", "--by", "ci", "--json"
    ).json()
    run = made["id"]
    assert (made["status"], made["shown"], made["input"], made["profile"]) == (
        "queued",
        "queued",
        [1],
        "tenure",
    )
    assert [line["id"] for line in tenure("runs", "list", "--json").json()] == [run]
    assert tenure("runs", "list", "--status", "failed", "--json").json() == []
    in_words = ("runs", "list", "--profile", "approval-runs", "--status")
    assert [line["shown"] for line in tenure(*in_words, "PENDING", "--json").json()] == ["PENDING"]
    unknown = tenure(*in_words, "queued")
    assert unknown.code == 1
    assert "use one of PENDING, RUNNING, WAITING_APPROVAL" in " ".join(unknown.err.split())
    shown = tenure("runs", "show", run, "--json").json()
    assert [step["name"] for step in shown["steps"]] == [step["name"] for step in PLAN]
    assert shown["why"]["reason"] == "worker"
    assert tenure("runs", "why", run, "--json").json()["step"] == "build"
    assert work() == ["build"]
    (asked,) = tenure("approvals", "list", "--json").json()
    assert (asked["run_id"], asked["no"], asked["status"], asked["action"]) == (run, 1, "requested", "deploy")
    answer = tenure("approvals", "approve", run, "--json").json()
    assert answer == {"run": run, "status": "approved"}
    assert tenure("approvals", "list", "--run", run, "--json").json()[0]["decided_by"] == f"uid:{os.getuid()}"
    assert tenure("runs", "resume", run, "--json").json()["id"] == run, "resume did not end the wait"
    assert tenure("runs", "signal", run, "other", "--json").json() == {
        "run": run,
        "event": "other",
        "taken": False,
        "again": False,
    }
    assert tenure("runs", "pause", run, "--json").json() == {"run": run, "paused": True}
    assert tenure("runs", "unpause", run, "--json").json() == {"run": run, "paused": False}
    step = tenure("runs", "cancel-step", run, "tell", "--json").json()
    assert step == {"run": run, "step": "tell", "state": "canceled"}
    assert tenure("runs", "cancel", run, "--json").json() == {"run": run, "status": "canceled"}
    events = tenure("runs", "events", run, "--json").json()
    assert events[0]["kind"] == "create"
    assert events[0]["edges"][0] == {
        "machine": "run",
        "before": "created",
        "after": "planning",
        "owner": "orchestrator",
        "step": None,
        "attempt": None,
    }
    assert len(tenure("runs", "events", run, "--after", "2", "--json").json()) == len(events) - 2
    assert tenure("runs", "rerun", run, "--json").json()["attempt_no"] == 2
    assert tenure("runs", "resume", run, "--json").json()["resume_count"] == 1


def test_a_vote_that_does_not_suffice_is_in_the_history(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text('[{"name": "ok", "kind": "approval", "approval": {"people": 2}}]')
    run = create(tenure, "two.json", "--by", "ci")
    assert tenure("approvals", "approve", run).out == "requested: more people are needed\n"
    assert "said approved; more people are needed" in tenure("runs", "events", run).out


def test_the_local_user_cannot_satisfy_a_two_person_rule(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text('[{"name": "ok", "kind": "approval", "approval": {"people": 2}}]')
    mine = create(tenure, "two.json")
    assert "APPROVER_IS_REQUESTER" in tenure("approvals", "approve", mine).err
    run = create(tenure, "two.json", "--by", "ci")
    assert tenure("approvals", "approve", run).code == 0
    again = tenure("approvals", "approve", run)
    assert again.code == 1
    assert "APPROVER_COUNTED" in again.err
    assert "with their own key" in again.err
    assert tenure("approvals", "approve", run, "--by", "ada").code == 2, "the caller chose another approver"
    assert tenure("runs", "show", run, "--json").json()["run"]["status"] == "waiting_approval"
    assert tenure("runs", "why", run).out.count("1 of 2") == 1


def test_the_local_user_is_in_no_group(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "ours.json").write_text(
        '[{"name": "ok", "kind": "approval", "approval": {"group": "release"}}]'
    )
    run = create(tenure, "ours.json", "--by", "ci")
    assert "APPROVER_NOT_IN_GROUP" in tenure("approvals", "approve", run).err
    assert "APPROVER_NOT_IN_GROUP" in tenure("approvals", "reject", run).err


def test_a_rejection_ends_the_run(tenure: Tenure) -> None:
    run = create(tenure, "plan.json", "--by", "ci")
    work()
    assert tenure("approvals", "reject", run, "--reason", "no").out == "rejected\n"
    shown = tenure("runs", "show", run, "--json").json()
    assert (shown["run"]["status"], shown["run"]["reason"]) == ("failed", "APPROVAL_REJECTED")
    assert "no runs" in tenure("runs", "list", "--tenant", "other").out


def test_keys_delays_and_timeouts_are_understood(tenure: Tenure) -> None:
    first = create(tenure, "one.json", "--key", "k", "--concurrency-key", "c", "--timeout", "2h")
    assert create(tenure, "one.json", "--key", "k", "--concurrency-key", "c", "--timeout", "2h") == first
    later = create(tenure, "one.json", "--not-before", "+5m")
    assert tenure("runs", "why", later, "--json").json()["reason"] == "delayed"
    newest = create(tenure, "one.json", "--concurrency-key", "c", "--supersede")
    assert tenure("runs", "show", first, "--json").json()["run"]["reason"] == "SUPERSEDED"
    assert tenure("runs", "why", newest, "--json").json()["reason"] == "worker", (
        "the newest run did not get the key"
    )
    assert parse_seconds("1.5h") == 5400
    assert parse_time("2026-02-14T08:00").isoformat() == "2026-02-14T08:00:00+00:00"
    assert caller_id() == f"uid:{os.getuid()}"


def test_input_may_come_from_a_file(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"a": 1}')
    run = create(tenure, "one.json", "--input", "@in.json")
    assert tenure("runs", "show", run, "--json").json()["run"]["input"] == {"a": 1}
    (tmp_path / "big.json").write_text(json.dumps("x" * PAYLOAD_BYTES_MAX))
    for given, code in (
        ("@none.json", "INVALID_INPUT"),
        ("plain words", "INVALID_INPUT"),
        ("@big.json", "PAYLOAD_TOO_LARGE"),
    ):
        refused = tenure("runs", "create", "--workflow", "w", "--plan", "one.json", "--input", given)
        assert refused.code == 1
        assert f"error {code}" in refused.err
    assert len(tenure("runs", "list", "--json").json()) == 1


@pytest.mark.parametrize(
    ("plan", "code", "problem"),
    [
        (
            '[{"name": "a", "needs": ["b"]}, {"name": "b", "needs": ["a"]}]',
            "PLAN_INVALID",
            "cycle: a -> b -> a",
        ),
        ('[{"name": "a", "needs": ["z"]}]', "PLAN_INVALID", "no step named 'z'"),
        ('[{"nme": "a"}]', "PLAN_INVALID", "plan[0]: Object contains unknown field `nme`"),
        ("[{]", "PLAN_INVALID", "is not JSON"),
        ("[]", "PLAN_INVALID", "at least one step"),
    ],
)
def test_a_bad_plan_is_refused_with_its_place(
    tenure: Tenure, tmp_path: Path, plan: str, code: str, problem: str
) -> None:
    (tmp_path / "bad.json").write_text(plan)
    refused = tenure("runs", "create", "--workflow", "w", "--plan", "bad.json")
    assert refused.code == 1
    assert f"error {code}" in refused.err
    assert problem in refused.err
    assert "What to do:" in refused.err


def test_unknown_runs_steps_and_profiles_are_reported(tenure: Tenure) -> None:
    create(tenure, "one.json")
    nobody = "run_2026-02-14_080000_abc123"
    for words in (
        ("runs", "show", nobody),
        ("runs", "show", "nonsense"),
        ("runs", "events", nobody),
        ("runs", "why", nobody),
        ("runs", "cancel", nobody),
        ("runs", "cancel-step", nobody, "build"),
        ("runs", "pause", nobody),
        ("runs", "unpause", nobody),
        ("runs", "resume", nobody),
        ("runs", "rerun", nobody),
        ("runs", "signal", nobody, "ping"),
        ("approvals", "approve", nobody),
        ("approvals", "reject", nobody),
        ("approvals", "list", "--run", nobody),
    ):
        refused = tenure(*words)
        assert refused.code == 1, words
        assert "error RUN_NOT_FOUND" in refused.err, words
        assert "Check the id with `tenure runs list`." in refused.err
    refused = tenure("runs", "create", "--workflow", "w", "--plan", "one.json", "--profile", "none")
    assert "error PROFILE_NOT_FOUND" in refused.err


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "create", "--workflow", "w"),
        ("runs", "create", "--workflow", "w", "--plan", "none.json"),
        ("runs", "create", "--workflow", "w", "--plan", "one.json", "--label", "x"),
        ("runs", "create", "--workflow", "w", "--plan", "one.json", "--timeout", "soon"),
        ("runs", "create", "--workflow", "w", "--plan", "one.json", "--not-before", "soon"),
        ("runs", "create", "--workflow", "w", "--plan", "one.json", "--supersede"),
        ("runs", "list", "--status", "happy"),
        ("runs", "list", "--limit", "0"),
        ("runs", "show"),
    ],
)
def test_a_usage_error_exits_with_2(tenure: Tenure, words: tuple[str, ...]) -> None:
    assert tenure(*words).code == 2


def test_an_unusable_database_is_reported(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(code: str, *words: str) -> None:
        ended = tenure(*words)
        assert ended.code == 1
        assert f"error {code}" in ended.err
        assert "Traceback" not in ended.err

    refused("STORE_NOT_MIGRATED", "runs", "list")
    assert not (tmp_path / "tenure.db").exists(), "a read command made a database"
    run = create(tenure, "one.json")
    read_only = f"sqlite:file:{tmp_path}/tenure.db?mode=ro"
    refused("STORE_READ_ONLY", "runs", "pause", run, "--db", read_only)
    assert run in tenure("runs", "list", "--db", read_only).out, "a read command needs write access"
    assert tenure("doctor", "--db", read_only).code == 0
    refused("STORE_NOT_A_DATABASE", "runs", "list", "--db", "plan.json")
    refused("STORE_NOT_A_DATABASE", "runs", "list", "--db", "mysql://a/b")
    refused("STORE_UNAVAILABLE", "runs", "list", "--db", "postgresql://nobody@127.0.0.1:1/none")

    defaults = SqliteStore.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "busy_seconds", 0.2)
    locker = apsw.Connection(str(tmp_path / "tenure.db"))
    locker.execute("begin immediate")
    monkeypatch.setattr("tenure.config.COMMAND_SECONDS_MAX", 0.2)
    refused("STORE_BUSY", "runs", "pause", run)
    locker.execute("rollback")
    locker.execute("insert into schema_version values (999, 'from the future', 1, 'x')")
    locker.close()
    refused("STORE_TOO_NEW", "runs", "list")
    refused("STORE_TOO_NEW", "runs", "create", "--workflow", "w", "--plan", "one.json")


def test_commands_wait_for_a_locked_file(tenure: Tenure, tmp_path: Path) -> None:
    run = create(tenure, "one.json")
    locker = apsw.Connection(str(tmp_path / "tenure.db"))
    locker.execute("begin immediate")

    def unlock() -> None:
        time.sleep(0.3)
        locker.execute("rollback")

    other = threading.Thread(target=unlock)
    other.start()
    ended = tenure("runs", "pause", run)
    other.join()
    locker.close()
    assert ended.code == 0, ended.err


def test_a_run_is_controlled_from_the_shell_on_postgres(tenure: Tenure, postgres_dsn: str) -> None:
    refused = tenure("runs", "create", "--workflow", "w", "--plan", "one.json", "--db", postgres_dsn)
    assert "error STORE_NOT_MIGRATED" in refused.err, "a PostgreSQL database was migrated automatically"
    assert tenure("migrate", "--db", postgres_dsn).code == 0
    run = create(tenure, "one.json", "--db", postgres_dsn)
    assert work(db=postgres_dsn) == ["build"]
    assert run in tenure("runs", "list", "--status", "succeeded", "--db", postgres_dsn).out
    assert tenure("doctor", "--db", postgres_dsn).code == 0
