"""`tenure confirm` and `tenure tenants slack-app` with a local database. tests/server covers the server."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.engine import Engine
from tests.cli.hook_rows import HOOK, add_hook
from tests.cli.shell import Tenure, in_folder

ACME = ("--tenant", "acme")


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    made = in_folder(tmp_path, monkeypatch, capsys)
    assert made("tenants", "create", "acme").code == 0
    return made


def test_the_database_owner_cannot_confirm_their_own_changes(tenure: Tenure) -> None:
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
    shown = tenure("confirm", "schedule", "s", "--revision", "1", *ACME, "--json").json()
    assert shown == {"kind": "schedule", "name": "s", "confirmed": ["ada"], "unconfirmed": []}
    again = tenure("confirm", "schedule", "s", "--revision", "1", *ACME)
    assert again.out == "schedule s has nothing to confirm\n"
    assert tenure("confirm", "person", "ada", "--revision", "1", *ACME, "--json").code == 1
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


LONG = "rm -rf " + " ".join(f"/srv/part-{number}" for number in range(60))
FLOW = f"""
name: tidy
version: "1"
inputs:
  folder: {{type: string}}
steps:
  - id: sweep
    run: ["sh", "-c", "{LONG}"]
    env: {{MODE: all of it}}
"""
RULES = f"""[{{"when": "body.folder != '{LONG}'", "workflow": "tidy", "input": {{"folder": "x"}}}}, {{"workflow": "last"}}]"""


async def _add_hook() -> None:
    async with Engine("tenure.db", tenant="acme", sweep=False) as engine:
        name = "of the shop\nunconfirmed: nobody"  # the values are unlike any other field
        await add_hook(engine, name, RULES, '{"channel": "C0123456789"}')


def _texts(value: Any) -> Iterator[str]:
    """Yield every line of every text in a value."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield from (line.strip() for line in value.splitlines())


def test_a_confirmation_shows_everything_that_is_confirmed(tenure: Tenure) -> None:
    """`show` prints every text that `--json` prints, in full."""
    asyncio.run(_add_hook())
    (Path.cwd() / "tidy.yaml").write_text(FLOW)
    (Path.cwd() / "plan.json").write_text(
        f'[{{"name": "sweep", "tool": "sweeper", "input": {{"script": "{LONG}"}}}}]'
    )
    registered = tenure("workflows", "register", "tidy.yaml", *ACME)
    assert registered.code == 0, registered.err
    schedule = ("s", "w", "--cron", "0 3 * * *", "--plan", "plan.json", "--label", "of=shop")
    made = tenure("schedule", "create", *schedule, "--input", f'{{"note": "{LONG}"}}', *ACME)
    assert made.code == 0, made.err
    swept = ("of_a_file", "tidy.yaml", "--cron", "0 3 * * *", "--input", "folder=x")
    assert tenure("schedule", "create", *swept, *ACME).code == 0
    people = [f"group-{number:03}" for number in range(40)]
    groups = [word for group in people for word in ("--group", group)]
    assert tenure("people", "create", "ada", "--role", "admin", *groups, *ACME).code == 0
    assert tenure("clients", "create", "ci", "--role", "operator", "--owner", "ada", *ACME).code == 0
    key = tenure("keys", "create", "--client", "ci", "--name", "of ci", *ACME, "--json").json()["id"]
    for asked in (
        ("hooks", "show", HOOK),
        ("workflows", "show", "tidy"),
        ("schedule", "show", "s"),
        ("schedule", "show", "of_a_file"),
        ("clients", "show", "ci"),
        ("people", "show", "ada"),
        ("keys", "show", key),
    ):
        whole = tenure(*asked, *ACME, "--json").json()
        if asked[0] == "workflows":
            whole["definition"] = whole["definition"]["document"]  # the rest is derived from the document
        shown = tenure(*asked, *ACME).out
        assert LONG in shown or asked[0] in ("clients", "people", "keys")
        missing = [text for text in _texts(whole) if text not in shown and _moment(text) not in shown]
        assert missing == [], asked
    lines = tenure("hooks", "show", HOOK, *ACME).out.splitlines()
    assert [line for line in lines if line.startswith("unconfirmed:")] == ["unconfirmed:   -"]


def _moment(text: str) -> str:
    """Return a time as `show` prints it, to the minute."""
    return text[:16].replace("T", " ")
