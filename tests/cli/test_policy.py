"""`tenure policy`, `freeze` and `thaw` with a local database, and by two people over a server."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.shell import Tenure, in_folder
from tests.cli.test_serve import served

POLICY = """\
version: 1
rules:
  - name: labels
    connector: github
    operation: label.add
    when: size(action.fields.labels) < 3
    allow: true
  - name: many
    connector: github
    operation: label.add
    when: size(action.fields.labels) >= 3
    approval: {people: 2, group: ops, within: 2h}
    why: many labels at once are seldom meant
tests:
  - name: one label is added
    action: github.label.add
    fields: {labels: [bug]}
    expect: allow
    rules: [labels]
  - name: many labels take two people of ops
    action: github.label.add
    fields: {labels: [a, b, c]}
    expect: needs_approval
    rules: [many]
    approval: {people: 2, group: ops, within: 2h}
  - name: nothing else is allowed
    action: github.comment.create
    expect: deny
    error: POLICY_NO_RULE
  - name: what is missing denies
    action: github.label.add
    expect: deny
    error: POLICY_ERROR
"""


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    for name in ("TENURE_SERVER", "TENURE_KEY", "TENURE_KEY_FILE", "TENURE_CONNECTORS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "policy.yaml").write_text(POLICY)
    return in_folder(tmp_path, monkeypatch, capsys)


def test_a_policy_is_checked_and_tested(tenure: Tenure, tmp_path: Path) -> None:
    good = tenure("policy", "check", "policy.yaml")
    assert (good.code, good.out) == (0, "policy.yaml: good (2 rules, 4 tests)\n"), good.err
    done = tenure("policy", "test", "policy.yaml")
    assert (done.code, done.out.splitlines()[-1]) == (0, "4 tests, none failed")
    (tmp_path / "wrong.yaml").write_text(POLICY.replace("< 3", "< 1").replace("labels) >= 3", "label) >= 3"))
    bad = tenure("policy", "check", "policy.yaml", "wrong.yaml")
    assert bad.code == 1
    assert (
        "wrong.yaml:11:11: rules[1].when: there is no action.fields.label; did you mean 'labels'?" in bad.err
    )
    listed = tenure("policy", "check", "wrong.yaml", "--json")
    assert json.loads(listed.out)[0]["error"]["code"] == "POLICY_INVALID"
    failed = tenure("policy", "test", "wrong.yaml")
    assert failed.code == 1
    assert "FAIL  one label is added  (wrong.yaml:15)" in failed.out
    assert "outcome: deny, not allow" in failed.out
    assert tenure("policy", "check", "nowhere.yaml").code == 1
    schema = json.loads(tenure("policy", "schema").out)
    assert set(schema["properties"]) == {"version", "rules", "tests"}


def test_without_people_one_command_activates_a_policy(tenure: Tenure) -> None:
    made = tenure("policy", "publish", "policy.yaml", "--json").json()
    assert (made["version"], made["active"]) == (1, False)
    assert tenure("policy", "publish", "policy.yaml", "--json").json()["version"] == 1
    assert tenure("policy", "show").code == 1, "no version is active"
    assert tenure("policy", "activate", "1").out == "version 1 is active\n"
    assert tenure("policy", "show").out == POLICY
    assert [row["active"] for row in tenure("policy", "list", "--json").json()] == [True]
    assert "active" in tenure("policy", "list").out
    missing = tenure("policy", "activate", "2")
    assert (missing.code, "POLICY_NOT_FOUND" in missing.err) == (1, True)
    assert tenure("policy", "withdraw", "1").code == 1
    kinds = [line["kind"] for line in tenure("tenants", "audit", "default", "--json").json()["lines"]]
    assert kinds == ["policy.activated", "policy.published"]
    looked = tenure("policy", "shadow", "policy.yaml")
    assert looked.out.startswith("0 decisions: 0 the same"), looked.err
    assert tenure("policy", "explain", "run_2026-02-14_080000_abc123").code == 1


def test_with_people_the_local_command_line_cannot_activate_a_policy(tenure: Tenure) -> None:
    assert tenure("tenants", "create", "acme").code == 0
    assert tenure("policy", "publish", "policy.yaml", "--tenant", "acme").code == 0
    assert tenure("people", "create", "ada", "--role", "admin", "--tenant", "acme").code == 0
    assert tenure("freeze", "--tenant", "acme").code == 0
    for command in (("policy", "activate", "1"), ("thaw",)):
        refused = tenure(*command, "--tenant", "acme", "--by", "bob")
        assert (refused.code, "SECOND_PERSON_NEEDED" in refused.err) == (1, True)
    assert tenure("freeze", "--list", "--tenant", "acme").out == "frozen: tenant acme\n"


def test_freezing_and_thawing_with_a_local_database(tenure: Tenure) -> None:
    assert tenure("freeze").code == 2
    assert tenure("freeze", "--workflow", "a", "--connector", "b").code == 2
    assert tenure("freeze", "--connector", "github").out == "frozen: connector github\n"
    assert tenure("freeze", "--workflow", "triage", "--json").json()[1]["scope"] == "workflow"
    assert tenure("thaw", "--connector", "github").out == "frozen: workflow triage\n"
    assert tenure("thaw", "--workflow", "triage").out == "nothing is frozen\n"


def key_of(tenure: Tenure, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, role: str) -> str:
    """Make a person of tenant acme with this role. Return the file of their key."""
    code = tenure("people", "create", name, "--role", role, "--tenant", "acme").out
    monkeypatch.setattr(sys, "stdin", io.StringIO(code))
    (folder / f"{name}.key").write_text(tenure("people", "redeem").out)
    return str(folder / f"{name}.key")


def test_two_people_activate_and_thaw_over_a_server(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tenure("tenants", "create", "acme").code == 0
    ada = key_of(tenure, tmp_path, monkeypatch, "ada", "admin")
    bob = key_of(tenure, tmp_path, monkeypatch, "bob", "approver")
    with served(tmp_path) as (_, address):
        monkeypatch.setenv("TENURE_SERVER", address)
        monkeypatch.setenv("TENURE_KEY_FILE", ada)
        assert tenure("policy", "publish", "policy.yaml", "--json").json()["version"] == 1
        assert "proposed; another person" in tenure("policy", "activate", "1").out
        again = tenure("policy", "activate", "1")
        assert (again.code, "SECOND_PERSON_NEEDED" in again.err) == (1, True)
        assert "proposed by ada" in tenure("policy", "list").out
        assert tenure("policy", "show", "1").out == POLICY
        assert tenure("policy", "shadow", "policy.yaml", "--since", "1d", "--json").json()["looked_at"] == 0
        assert tenure("freeze", "--tenant", "acme").out == "frozen: tenant acme\n"
        other = tenure("freeze", "--tenant", "globex")
        assert (other.code, "this key is of tenant 'acme'" in other.err) == (1, True)
        assert "proposed" in tenure("thaw", "--tenant", "acme").out
        monkeypatch.setenv("TENURE_KEY_FILE", bob)
        assert tenure("policy", "activate", "1").out == "version 1 is active\n"
        assert tenure("thaw", "--tenant", "acme").out == "nothing is frozen\n"
        assert tenure("policy", "show").out == POLICY
