"""Invalid commands are refused with an error code or a usage error before they change anything."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from tests.cli.plan_worker import work
from tests.cli.shell import Tenure, in_folder

DEEP = "[" * 100_000 + "]" * 100_000
CREATE = ("runs", "create", "--workflow", "w", "--plan", "one.json")


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    (tmp_path / "one.json").write_text('[{"name": "build"}]')
    return in_folder(tmp_path, monkeypatch, capsys)


def refused(tenure: Tenure, code: str, *words: str) -> str:
    ended = tenure(*words)
    assert ended.code == 1, ended
    assert f"error {code}" in ended.err
    assert "Traceback" not in ended.err
    return ended.err


def misused(tenure: Tenure, *words: str) -> str:
    ended = tenure(*words)
    assert ended.code == 2, ended
    assert "Traceback" not in ended.err
    return " ".join(ended.err.replace("│", " ").split())


@pytest.mark.parametrize("db", [":memory:", "sqlite::memory:", "sqlite:file:x?mode=memory&cache=shared"])
def test_an_in_memory_database_is_refused(tenure: Tenure, db: str) -> None:
    assert "use a file" in refused(tenure, "INVALID_INPUT", "runs", "list", "--db", db)


def test_json_that_is_nested_too_deeply_is_refused(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text(DEEP)
    assert "too deeply" in refused(tenure, "INVALID_INPUT", *CREATE, "--input", "@deep.json")
    plan = ("runs", "create", "--workflow", "w", "--plan", "deep.json")
    assert "too deeply" in refused(tenure, "PLAN_INVALID", *plan)


def test_times_beyond_the_calendar_are_usage_errors(tenure: Tenure) -> None:
    misused(tenure, *CREATE, "--not-before", "+99999999d")
    misused(tenure, *CREATE, "--not-before", "9999-12-31T23:59:59-12:00")
    misused(tenure, *CREATE, "--timeout", "9" * 400)


def test_a_number_beyond_64_bits_is_refused(tenure: Tenure, postgres_dsn: str) -> None:
    assert tenure("migrate", "--db", postgres_dsn).code == 0
    for db in ("tenure.db", postgres_dsn):
        run = tenure(*CREATE, "--db", db).out.strip()
        after = ("--after", "99999999999999999999")
        refused(tenure, "INVALID_INPUT", "runs", "events", run, *after, "--db", db)
        assert tenure("runs", "events", run, "--db", db).code == 0


def test_an_empty_option_is_refused(tenure: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("runs", "list"), ("doctor",), ("migrate",)):
        assert "it is empty" in misused(tenure, *words, "--db", "")
    misused(tenure, *CREATE, "--by", "")
    assert "no blanks" in misused(tenure, *CREATE, "--by", "ada lovelace")
    monkeypatch.setenv("TENURE_DB", "")
    assert tenure(*CREATE).code == 0


def test_a_cancel_reason_must_be_a_code(tenure: Tenure) -> None:
    run = tenure(*CREATE).out.strip()
    assert "is not a code" in misused(tenure, "runs", "cancel", run, "--reason", "no longer needed")
    assert tenure("runs", "cancel", run, "--reason", "NOT_NEEDED").code == 0


def test_a_refusal_is_json_with_json_output(tenure: Tenure) -> None:
    ended = tenure("runs", "list", "--json")
    assert (ended.code, ended.out) == (1, "")
    error = json.loads(ended.err)["error"]
    assert error["code"] == "STORE_NOT_MIGRATED"
    assert error["docs"] == "docs/errors/STORE_NOT_MIGRATED.md"
    assert (error["retryable"], error["details"]) == (False, [])
    assert "tenure.db" in error["message"]


def test_help_shows_defaults(tenure: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "[default: $TENURE_DB, else tenure.db]" in tenure("runs", "list", "--help").out
    assert "[default: uid:N of this account]" in tenure("runs", "cancel", "--help").out
    settled = " ".join(tenure("doctor", "--help").out.replace("│", " ").split())
    assert "wait for a worker" in settled


def test_the_log_goes_to_stderr_without_the_values_of_variables(
    tenure: Tenure, capsys: pytest.CaptureFixture[str]
) -> None:
    before = structlog.get_config()
    try:
        tenure("lifecycle", "list")
        capsys.readouterr()
        secret = "hunter" + "2"
        try:
            raise RuntimeError("boom")
        except RuntimeError:
            structlog.get_logger("x").exception("it broke")
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "it broke" in captured.err
        assert "RuntimeError: boom" in captured.err
        assert secret not in captured.err
        assert "\x1b" not in captured.err
    finally:
        structlog.configure(**before)


# --------------------------------------------------------------------------------------------- the file


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    """Switch from root to another user for a while, because root ignores file modes."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_problems_with_paths_are_reported(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for words in (("runs", "list"), ("migrate",), ("doctor",)):
        assert "folder is a folder" in refused(tenure, "STORE_NOT_A_DATABASE", *words, "--db", "folder")
    assert "folder no does not exist" in refused(tenure, "STORE_READ_ONLY", "migrate", "--db", "no/t.db")
    assert "folder no does not exist" in refused(
        tenure, "STORE_NOT_MIGRATED", "runs", "list", "--db", "no/t.db"
    )
    assert "one.json" in refused(tenure, "STORE_NOT_A_DATABASE", "runs", "list", "--db", "one.json")


def test_unreadable_and_read_only_files_are_reported(tenure: Tenure) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.db"
        run = tenure(*CREATE, "--db", str(path)).out.strip()
        Path(folder).chmod(0o755)
        path.chmod(0o444)
        with as_unprivileged_user():
            read_only = refused(tenure, "STORE_READ_ONLY", "runs", "list", "--db", str(path))
            assert "copy it" in read_only
        Path(folder).chmod(0o777)
        with as_unprivileged_user():
            assert run in tenure("runs", "list", "--db", str(path)).out
            assert tenure("doctor", "--db", str(path)).code == 0
            refused(tenure, "STORE_READ_ONLY", "runs", "pause", run, "--db", str(path))
        path.chmod(0)
        with as_unprivileged_user():
            printed = refused(tenure, "STORE_UNAVAILABLE", "runs", "list", "--db", str(path))
            assert f"{path} may not be read" in printed


# ------------------------------------------------------------------------------------------- what is shown


def test_runs_are_filtered_by_status_and_repository_together(tenure: Tenure) -> None:
    mine = tenure(*CREATE, "--repo", "me/app").out.strip()
    other = tenure(*CREATE, "--repo", "me/other").out.strip()
    done = tenure(*CREATE, "--repo", "me/app").out.strip()
    tenure("runs", "cancel", done)

    def listed(*words: str) -> list[str]:
        return [line["id"] for line in tenure("runs", "list", *words, "--json").json()]

    assert listed("--repo", "me/app") == [done, mine]
    assert listed("--status", "queued") == [other, mine]
    assert listed("--status", "queued", "--repo", "me/app") == [mine]
    assert listed("--status", "failed", "--repo", "me/app") == []


def test_a_failed_run_has_no_result(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text('[{"name": "a"}, {"name": "b"}]')
    run = tenure("runs", "create", "--workflow", "w", "--plan", "two.json").out.strip()
    work("half", once=True)
    work(fail="BROKEN", final=True)
    shown = tenure("runs", "show", run, "--json").json()
    assert (shown["run"]["status"], shown["run"]["output"]) == ("failed", None)
    assert shown["steps"][0]["output"] == "half"


def test_untrusted_text_cannot_control_the_terminal(tenure: Tenure) -> None:
    run = tenure("runs", "create", "--workflow", "[red]w", "--plan", "one.json", "--input", '"a\\u001b[31mb"')
    run_id = run.out.strip()
    for words in (
        ("runs", "list"),
        ("runs", "show", run_id),
    ):
        out = tenure(*words).out
        assert "\x1b" not in out
        assert "[red]w" in out
    assert "a\\x1b[31mb" in tenure("runs", "show", run_id).out


def test_an_unknown_kind_is_refused_with_the_known_ones(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('[{"name": "a", "kind": "task"}]')
    assert "one of work, approval, wait" in refused(tenure, "PLAN_INVALID", *CREATE)


def test_profiles_and_seeds_are_available_as_json(tenure: Tenure, tmp_path: Path) -> None:
    listed = tenure("lifecycle", "list", "--json").json()
    assert {"delta-ci", "agent-runs"} <= {line["name"] for line in listed}
    assert all(line["lease_seconds"] > 0 for line in listed)
    assert tenure("simulate", "--seed", "1", "--json").json()["violation"] is None
    assert tenure("simulate", "--seeds", "2", "--jobs", "1", "--json").json()["seeds"] == 2
    (tmp_path / "bad.toml").write_text("name = 1")
    ended = tenure("lifecycle", "check", "bad.toml", "--json")
    assert json.loads(ended.err)["error"]["code"] == "PROFILE_INVALID"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("runs", "list", "--status", "bogus"), "Invalid value for --status: 'bogus' is not one of"),
        (("runs", "list", "--limit", "many"), "Invalid value for '--limit'"),
        (("runs", "list", "--no-such-option"), "No such option: --no-such-option"),
        (("runs", "show"), "Missing argument 'RUN'"),
        (("rnus", "list"), "Did you mean 'runs'"),
    ],
)
def test_a_usage_error_is_json_with_json_output(tenure: Tenure, words: tuple[str, ...], message: str) -> None:
    ended = tenure(*words, "--json")
    assert (ended.code, ended.out) == (2, "")
    error = json.loads(ended.err)["error"]
    assert error["code"] == "INVALID_INPUT"
    assert message in error["message"]
    assert "Usage: tenure" in tenure(*words).err, "without --json, the usage is shown"


def test_json_output_keeps_the_exit_code(tenure: Tenure) -> None:
    run = tenure(*CREATE).out.strip()
    assert tenure("runs", "cancel", run, "--json").json() == {"run": run, "status": "canceled"}
    assert tenure("runs", "watch", run, "--json").code == 1, "the run did not succeed"
    again = tenure("runs", "cancel", run, "--json")
    assert (again.code, json.loads(again.err)["error"]["code"]) == (1, "RUN_TERMINAL_STATE")


@pytest.mark.parametrize("more", [("--start", "3"), ("--seeds", "2"), ("--jobs", "1")])
def test_one_seed_excludes_a_range_of_seeds(tenure: Tenure, more: tuple[str, ...]) -> None:
    assert "they are for several seeds" in misused(tenure, "simulate", "--seed", "7", *more)


def test_a_resume_does_not_end_an_approval_and_explains_why(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "ask.json").write_text('[{"name": "ok", "kind": "approval"}]')
    run = tenure("runs", "create", "--workflow", "w", "--plan", "ask.json").out.strip()
    printed = refused(tenure, "RUN_INVALID_TRANSITION", "runs", "resume", run)
    assert "only a decision ends that wait" in printed


def test_options_that_need_another_option_are_refused_without_it(tenure: Tenure) -> None:
    for words in (("--trusted-proxies", "2"), ("--forwarded-header", "forwarded")):
        assert "need --behind-proxy" in misused(tenure, "serve", *words)
    assert "needs --commands" in misused(tenure, "worker", "app", "--command-user", "nobody")
    assert "needs --commands" in misused(tenure, "worker", "app", "--allow-unconfined-commands")
