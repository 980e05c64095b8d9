"""`tenure tenants`, `people`, `clients` and `keys`: every command once, starting with an empty folder."""

import io
import sys
from pathlib import Path

import pytest

from tests.cli.shell import Done, Tenure, in_folder


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    return in_folder(tmp_path, monkeypatch, capsys)


def run_with_stdin(tenure: Tenure, monkeypatch: pytest.MonkeyPatch, text: str, *arguments: str) -> Done:
    """Run a command with this text on its stdin."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return tenure(*arguments)


def test_a_tenant_gets_people_and_clients(tenure: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tenure("tenants", "create", "acme", "--name", "Acme Ltd")
    assert made.code == 0, made.err
    assert "Acme Ltd" in made.out
    assert "acme" in tenure("tenants", "list").out

    person = tenure(
        "people", "create", "ada", "--name", "Ada L.", "--role", "approver", "--group", "release",
        "--tenant", "acme",
    )  # fmt: skip
    assert person.out.startswith("tne_"), "stdout must contain only the code"
    assert len(person.out.splitlines()) == 1
    assert "works once" in person.err
    key = run_with_stdin(tenure, monkeypatch, person.out, "people", "redeem")
    assert key.out.startswith("tn_")
    assert "shown now and never again" in key.err
    again = run_with_stdin(tenure, monkeypatch, person.out, "people", "redeem")
    assert (again.code, "ENROLMENT_INVALID" in again.err) == (1, True)

    assert tenure("clients", "create", "ci", "--role", "operator", "--tenant", "acme").code == 0
    key = tenure("keys", "create", "--client", "ci", "--tenant", "acme", "--expires", "+90d")
    assert key.out.startswith("tn_")
    secret = key.out.strip().split("_", 2)[2]
    listed = tenure("keys", "list", "--tenant", "acme")
    assert key.out.split("_")[1] in listed.out
    assert secret not in listed.out
    rotated = tenure("keys", "rotate", key.out.split("_")[1], "--tenant", "acme", "--overlap", "1h")
    assert rotated.out.startswith("tn_")
    revoked = tenure("keys", "revoke", key.out.split("_")[1], "--tenant", "acme")
    assert revoked.out == f"{key.out.split('_')[1]} is revoked\n"

    audit = tenure("tenants", "audit", "acme")
    assert "the chain is whole" in audit.out
    for word in ("person.enrolled", "key.rotated", "key.revoked", "client.created"):
        assert word in audit.out
    assert "Ada L." not in audit.out
    assert tenure("doctor").code == 0


def test_people_and_clients_are_changed_and_closed(tenure: Tenure) -> None:
    tenure("tenants", "create", "default")
    tenure("people", "create", "ada", "--name", "Ada", "--role", "viewer", "--group", "a")
    tenure("clients", "create", "ci", "--role", "viewer", "--owner", "ada")
    changed = tenure("people", "change", "ada", "--role", "admin", "--json").json()
    assert (changed["name"], changed["roles"], changed["groups"]) == ("Ada", ["admin"], ["a"])
    changed = tenure("clients", "change", "ci", "--name", "Our CI", "--json").json()
    assert (changed["name"], changed["roles"], changed["owner"]) == ("Our CI", ["viewer"], "ada")
    assert "Our CI" in tenure("clients", "show", "ci").out
    assert "admin" in tenure("people", "show", "ada").out
    assert tenure("people", "enrol", "ada", "--expires", "1h").out.startswith("tne_")
    assert tenure("clients", "close", "ci").out == "ci is closed\n"
    assert tenure("people", "close", "ada").out == "ada is closed\n"
    refused = tenure("people", "enrol", "ada")
    assert (refused.code, "INVALID_INPUT" in refused.err) == (1, True)


def test_the_operator_sets_the_limits_of_a_tenant(tenure: Tenure) -> None:
    made = tenure("keys", "create", "--operator", "--json").json()
    assert (made["owner_kind"], made["key"][:3]) == ("operator", "tn_")
    assert tenure("keys", "list", "--operator", "--json").json()[0]["id"] == made["id"]
    assert tenure("keys", "rotate", made["id"], "--operator").out.startswith("tn_")
    tenure("tenants", "create", "acme")
    assert "no caps" in tenure("tenants", "caps", "acme").out
    tenure("tenants", "caps", "acme", "--weight", "2", "--max-concurrency", "5")
    tenure(
        "tenants",
        "caps",
        "acme",
        "--workflow",
        "build",
        "--max-runs-per-min",
        "7",
        "--max-writes-per-run",
        "3",
    )
    caps = {cap["scope"]: cap for cap in tenure("tenants", "caps", "acme", "--json").json()}
    assert (caps[""]["weight"], caps[""]["max_concurrency"]) == (2, 5)
    assert (caps["wf:build"]["max_runs_per_min"], caps["wf:build"]["max_writes_per_run"]) == (7, 3)
    tenure("tenants", "caps", "acme", "--clear")
    assert tenure("tenants", "caps", "acme", "--json").json()[0]["max_concurrency"] is None
    assert tenure("tenants", "close", "acme").out == "acme is closed\n"
    assert tenure("tenants", "show", "acme", "--json").json()["closed_at"] is not None
    assert tenure("tenants", "open", "acme").out == "acme is open\n"
    assert "Acme 2" in tenure("tenants", "rename", "acme", "Acme 2").out
    kinds = [line["kind"] for line in tenure("tenants", "audit", "--json").json()["lines"]]
    assert kinds[:3] == ["tenant.renamed", "tenant.opened", "tenant.closed"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("clients", "create", "ci", "--role", "viewer", "--tenant", "none"), 1, "TENANT_NOT_FOUND"),
        (("clients", "create", "a/b", "--role", "viewer"), 1, "INVALID_INPUT"),
        (("clients", "create", "ci", "--role", "boss"), 1, "boss"),
        (("clients", "create", "ci"), 2, "--role"),
        (("clients", "show", "none"), 1, "CLIENT_NOT_FOUND"),
        (("people", "show", "none"), 1, "PERSON_NOT_FOUND"),
        (("keys", "create"), 2, "--operator"),
        (("keys", "create", "--client", "x", "--operator"), 2, "--operator"),
        (("keys", "create", "--client", "none"), 1, "INVALID_INPUT"),
        (("keys", "revoke", "none"), 1, "KEY_NOT_FOUND"),
        (("tenants", "create", "default"), 1, "ALREADY_EXISTS"),
        (("tenants", "show", "none"), 1, "TENANT_NOT_FOUND"),
        (("tenants", "caps", "none"), 1, "TENANT_NOT_FOUND"),
        (("tenants", "caps", "default", "--weight", "0"), 2, "--weight"),
    ],
)
def test_invalid_requests_are_refused(
    tenure: Tenure, arguments: tuple[str, ...], code: int, message: str
) -> None:
    tenure("tenants", "create", "default")
    done = tenure(*arguments)
    assert (done.code, message in done.err) == (code, True), done.err


def test_secrets_are_written_to_new_files_with_mode_0600(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenure("tenants", "create", "default")
    tenure("clients", "create", "ci", "--role", "viewer")
    kept = []

    def keep(name: str, begins: str, done: Done) -> str:
        assert done.code == 0, done.err
        secret = (tmp_path / name).read_text().strip()
        assert secret.startswith(begins)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        assert secret not in done.out + done.err
        kept.append(secret)
        return secret

    code = keep("a", "tne_", tenure("people", "create", "ada", "--role", "viewer", "--to", "a"))
    keep("b", "tn_", run_with_stdin(tenure, monkeypatch, code, "people", "redeem", "--to", "b"))
    key = keep("c", "tn_", tenure("keys", "create", "--client", "ci", "--to", "c", "--json"))
    keep("d", "tn_", tenure("keys", "rotate", key.split("_")[1], "--to", "d"))
    keep("e", "tne_", tenure("people", "enrol", "ada", "--to", "e", "--json"))
    assert len(set(kept)) == 5

    before = tenure("keys", "list", "--json").json()
    taken = tenure("keys", "create", "--client", "ci", "--to", "c")
    assert (taken.code, "ALREADY_EXISTS" in taken.err) == (1, True)
    assert (tmp_path / "c").read_text().strip() == key
    assert "INVALID_INPUT" in tenure("keys", "create", "--client", "ci", "--to", "none/c").err
    assert tenure("keys", "list", "--json").json() == before, (
        "a key was made although its file could not be written"
    )
    assert tenure("keys", "create", "--client", "nobody", "--to", "f").code == 1
    assert not (tmp_path / "f").exists(), "a file was made although there is no key"
