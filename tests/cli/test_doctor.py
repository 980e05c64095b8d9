"""`tenure migrate` and `tenure doctor`, run as processes."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenure import ids
from tenure.config import Database, choose_database
from tenure.errors import TenureError
from tenure.store.sqlite import SqliteStore
from tests.doctor import healthy_runs
from tests.doctor.saved_stories import put
from tests.kernel.story import RUN_ID, Story


def tenure(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tenure.cli.main import main; main()", *arguments]
    inherited = {name: value for name, value in os.environ.items() if name != "TENURE_DB"}
    return subprocess.run(
        command,
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def fill(path: Path, *stories: Story) -> None:
    async def write() -> None:
        store = SqliteStore(path)
        await store.migrate()
        await store.open()
        await put(store, *stories)
        await store.close()

    asyncio.run(write())


def damage(path: Path, statement: str) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("ignore_check_constraints", True)
    connection.execute(statement)
    connection.close()


def test_migrate_creates_a_database_and_reports_when_it_is_up_to_date(tmp_path: Path) -> None:
    first = tenure("migrate", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines() == [
        "applied 0001_kernel.sql",
        "applied 0002_operations.sql",
        "applied 0003_service.sql",
        "applied 0004_govern.sql",
        "applied 0005_ci_storage.sql",
        "tenure.db is up to date now.",
    ]
    again = tenure("migrate", cwd=tmp_path)
    assert again.stdout.splitlines() == ["tenure.db is up to date already."]
    as_json = json.loads(tenure("migrate", "--db", "sqlite:other.db", "--json", cwd=tmp_path).stdout)
    assert as_json == {
        "database": "other.db",
        "applied": [
            "0001_kernel.sql",
            "0002_operations.sql",
            "0003_service.sql",
            "0004_govern.sql",
            "0005_ci_storage.sql",
        ],
    }


def test_a_healthy_database_gets_a_clean_report(tmp_path: Path) -> None:
    fill(tmp_path / "tenure.db", healthy_runs.retried(), healthy_runs.asking(run_id=RUN_ID + 1))
    report = tenure("doctor", cwd=tmp_path)
    assert report.returncode == 0, report.stdout + report.stderr
    lines = report.stdout.splitlines()
    assert lines[-1].startswith("tenure.db: 2 runs,")
    assert lines[-1].endswith("no violation.")
    assert any(line.startswith("I3 ") and line.rstrip().endswith("holds") for line in lines)
    assert any(line.startswith("I34 ") and "shown by the tests of hooks" in line for line in lines)
    assert any(line.startswith("I29 ") and "--settled" in line for line in lines)


def test_damage_is_reported_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    fill(path, healthy_runs.retried())
    damage(path, "update step set last_error = 'OTHER' where name = 'build'")
    damage(path, "update event set actor = 'u_mallory' where seq = 2")
    report = tenure("doctor", "--db", str(path), cwd=tmp_path)
    assert report.returncode == 1
    run = ids.run_text(RUN_ID)
    assert f"I3  {run} step 0: last_error is 'OTHER', its history says 'HTTP_503'" in report.stdout
    assert f"I51  {run} event 2: its hash does not follow" in report.stdout
    assert report.stdout.splitlines()[-1].endswith("2 violations.")


def test_the_report_is_available_as_json(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    fill(path, healthy_runs.retried())
    damage(path, "update run set steps_done = 9")
    ran = tenure("doctor", "--json", cwd=tmp_path, TENURE_DB=str(path))
    assert ran.returncode == 1
    report: dict[str, Any] = json.loads(ran.stdout)
    assert report["clean"] is False
    assert report["found"] == {"I3": 1, "I20": 1}
    assert report["runs"] == 1
    assert {violation["row"] for violation in report["violations"]} == {"run"}
    assert {violation["run"] for violation in report["violations"]} == {ids.run_text(RUN_ID)}
    assert "I34" in report["elsewhere"]


def test_eventual_invariants_are_checked_on_request(tmp_path: Path) -> None:
    fill(tmp_path / "tenure.db", healthy_runs.working())
    assert tenure("doctor", cwd=tmp_path).returncode == 0
    settled = tenure("doctor", "--settled", cwd=tmp_path)
    assert settled.returncode == 1
    assert "I29" in settled.stdout
    assert "attempt 0/1: expired at" in settled.stdout


def test_a_missing_or_foreign_database_is_refused(tmp_path: Path) -> None:
    missing = tenure("doctor", "--db", "nowhere.db", cwd=tmp_path)
    assert missing.returncode == 1
    assert missing.stderr.startswith("error STORE_NOT_MIGRATED: there is no database at nowhere.db")
    (tmp_path / "notes.txt").write_text("this is no database at all, only some text\n" * 50)
    for command in ("doctor", "migrate"):
        text = tenure(command, "--db", "notes.txt", cwd=tmp_path)
        assert text.returncode == 1
        assert text.stderr.startswith("error STORE_NOT_A_DATABASE"), text.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt"]


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "t.db", healthy_runs.failed())
    damage(tmp_path / "t.db", "insert into schema_version values (9999, '9999_future.sql', 1, 'x')")
    for command in ("doctor", "migrate"):
        newer = tenure(command, "--db", "t.db", cwd=tmp_path)
        assert newer.returncode == 1
        assert newer.stderr.startswith("error STORE_TOO_NEW")


def test_a_postgres_database_is_chosen_by_its_dsn(tmp_path: Path, postgres_dsn: str) -> None:
    empty = tenure("doctor", "--db", postgres_dsn, cwd=tmp_path)
    assert empty.stderr.startswith("error STORE_NOT_MIGRATED"), empty.stderr
    assert tenure("migrate", cwd=tmp_path, TENURE_DB=postgres_dsn).returncode == 0
    report = tenure("doctor", cwd=tmp_path, TENURE_DB=postgres_dsn)
    assert report.returncode == 0, report.stderr
    assert ": 0 runs, 0 events," in report.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("runs.db", Database("sqlite", "runs.db")),
        ("sqlite:runs.db", Database("sqlite", "runs.db")),
        ("sqlite:/var/lib/runs.db", Database("sqlite", "/var/lib/runs.db")),
        ("sqlite:///var/lib/runs.db", Database("sqlite", "/var/lib/runs.db")),
        ("postgresql://localhost/x", Database("postgres", "postgresql://localhost/x")),
        ("postgres://localhost/x", Database("postgres", "postgres://localhost/x")),
    ],
)
def test_database_addresses_are_parsed(text: str, expected: Database) -> None:
    assert Database.parse(text) == expected


def test_an_option_takes_precedence_over_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TENURE_DB", "b.db")
    assert choose_database("a.db").address == "a.db"
    assert choose_database(None).address == "b.db"
    monkeypatch.delenv("TENURE_DB")
    assert choose_database(None).address == "tenure.db"


def test_no_password_is_shown() -> None:
    shown = str(Database.parse("postgresql://ann:secret@db.example:5433/runs?sslmode=require"))
    assert shown == "postgresql://ann:***@db.example:5433/runs?sslmode=require"
    assert str(Database.parse("postgresql://ann@db.example/runs")) == "postgresql://ann@db.example/runs"
    shown = str(Database.parse("postgresql:///runs?user=ann&password=secret&sslpassword=secret&port=1"))
    assert shown == "postgresql:///runs?user=ann&password=***&sslpassword=***&port=1"
    assert "cret" not in str(Database.parse("postgresql://ann:se/cr?et@db.example/runs"))


@pytest.mark.parametrize("text", ["sqlite:", "mysql://x/y"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(TenureError, match="STORE_NOT_A_DATABASE"):
        Database.parse(text)
