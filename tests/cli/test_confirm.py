"""`tenure confirm` and `tenure tenants slack-app`: beside a database; tests/server has what a server does."""

import os
from pathlib import Path

import pytest

from tests.cli.shell import Tenure, in_folder

ACME = ("--tenant", "acme")


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    made = in_folder(tmp_path, monkeypatch, capsys)
    assert made("tenants", "create", "acme").code == 0
    return made


def test_the_database_owner_confirms_nothing_of_their_own(tenure: Tenure) -> None:
    me = f"uid:{os.getuid()}"
    client = tenure("clients", "create", "ci", "--role", "operator", *ACME, "--json").json()
    assert (client["unconfirmed"], client["revision"]) == ([me], 1)
    assert "SECOND_PERSON_NEEDED" in tenure("confirm", "client", "ci", "--revision", "1", *ACME).err
    assert "INVALID_INPUT" in tenure("confirm", "client", "ci", *ACME).err
    assert tenure("confirm", "car", "ci", *ACME).code == 2
    assert tenure("confirm", "client", "ci", "--revision", "1", "--operator", *ACME).code == 2
    (Path.cwd() / "one.json").write_text('[{"name": "ok", "kind": "approval"}]')
    schedule = (
        "schedule",
        "create",
        "s",
        "w",
        "--cron",
        "0 3 * * *",
        "--plan",
        "one.json",
        "--by",
        "ada",
        *ACME,
    )
    assert tenure(*schedule, "--json").json()["unconfirmed"] == ["ada"]
    told = tenure("confirm", "schedule", "s", "--revision", "1", *ACME, "--json").json()
    assert told == {"kind": "schedule", "name": "s", "unconfirmed": []}
    stale = tenure("confirm", "schedule", "s", "--revision", "2", *ACME).err
    assert "CHANGED_MEANWHILE" in stale
    assert "schedule s is at revision 1, not 2;" in " ".join(stale.split())
    assert tenure("people", "create", "ada", "--role", "admin", *ACME).code == 0
    assert tenure("people", "show", "ada", *ACME, "--json").json()["unconfirmed"] == []
    lines = tenure("tenants", "audit", "acme", "--json").json()["lines"]
    assert {line["actor"] for line in lines} == {f"database-owner:{me}"}
    glass = [line["kind"] for line in lines if line["about"].get("break_glass")]
    assert glass == ["person.invited", "person.created", "schedule.confirmed"]


def test_slack_apps_are_registered_by_the_operator(tenure: Tenure) -> None:
    reference = "env:TENURE_SECRET_acme_SIGNING"
    assert tenure("tenants", "slack-app", "acme", "T1").code == 2
    assert tenure("tenants", "slack-app", "acme", "T1", "--secret", "the secret itself").code == 2
    assert "INVALID_INPUT" in tenure("tenants", "slack-app", "acme", "team", "--secret", reference).err
    made = tenure("tenants", "slack-app", "acme", "T1", "--secret", reference, "--json").json()
    assert (made["team"], made["secrets"]) == ("T1", [reference])
    assert "T1" in tenure("tenants", "slack-apps", "acme").out
    assert tenure("tenants", "slack-app", "acme", "T1", "--remove").code == 0
    assert "SLACK_APP_NOT_FOUND" in tenure("tenants", "slack-app", "acme", "T1", "--remove").err
