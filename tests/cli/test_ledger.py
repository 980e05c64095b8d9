"""`tenure signing-keys` and `tenure ledger`, from the first key to a tampered ledger."""

import asyncio
from pathlib import Path

import apsw
import pytest

from tenure.engine import Engine
from tenure.govern.signing import Signer, sign_checkpoint
from tenure.proof import signed_notes
from tests.cli.shell import Tenure, in_folder
from tests.cli.test_policy import key_of
from tests.cli.test_serve import served


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    monkeypatch.delenv("TENURE_SIGNING_KEY", raising=False)
    return in_folder(tmp_path, monkeypatch, capsys)


def make_sealed_run(tenant: str = "default") -> str:
    """Make an ended and sealed run."""

    async def make() -> str:
        async with Engine("sqlite:tenure.db", tenant=tenant, sweep=False) as engine:
            run = await engine.create("build", [{"name": "compile", "tool": "make"}])
            await engine.cancel(run)
            await engine.evidence.seal(run)
            return run

    return asyncio.run(make())


def test_a_key_is_created_used_rotated_and_revoked(tenure: Tenure, tmp_path: Path) -> None:
    made = tenure("signing-keys", "new", "--to", "seal.key")
    assert made.out.startswith("-----BEGIN PUBLIC KEY-----\n"), "stdout must contain only the public key"
    assert "PRIVATE" not in made.out + made.err
    assert "ALREADY_EXISTS" in tenure("signing-keys", "new", "--to", "seal.key").err
    other = tenure("signing-keys", "new", "--to", "next.key", "--json").json()
    make_sealed_run()
    first = tenure("signing-keys", "add", "file:seal.key", "--json").json()["id"]
    rotated = tenure("signing-keys", "rotate", "--old", "file:seal.key", "--new", "file:next.key")
    assert f"key {other['id']} is endorsed by {first[:12]}" in rotated.out
    assert "ALREADY_EXISTS" in tenure("signing-keys", "add", "file:next.key").err

    # Both commands revoke.
    done = tenure("signing-keys", "revoke", first[:12], "--from", "2100-01-01T00:00Z")
    assert done.out == f"key {first} is revoked from 2100-01-01 00:00:00 UTC on\n"
    done = tenure("keys", "revoke", first, "--from", "2026-02-14T08:00Z")
    assert done.out == f"key {first} is revoked from 2026-02-14 08:00:00 UTC on\n"
    assert "KEY_NOT_FOUND" in tenure("signing-keys", "revoke", "0" * 64).err
    assert [key["revoked_from"] for key in tenure("signing-keys", "list", "--json").json()] == [
        "2026-02-14 08:00:00",
        None,
    ]
    assert "endorsed by" in tenure("signing-keys", "list").out

    assert tenure("signing-keys", "export-trust", "--to", "trust.json").code == 0
    assert (tmp_path / "trust.json").read_text() == tenure("signing-keys", "export-trust").out
    audit = tenure("tenants", "audit").out
    for word in ("signing_key.added", "signing_key.rotated", "signing_key.revoked"):
        assert word in audit
    (tmp_path / "next.key").chmod(0o644)
    refused = tenure("ledger", "sign", "--signing-key", "file:next.key")
    assert "chmod 600" in refused.err
    assert (refused.code, refused.out) == (1, "")


def test_a_ledger_is_signed_shown_exported_and_checked(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seal.pub").write_text(tenure("signing-keys", "new", "--to", "seal.key").out)
    run = make_sealed_run()
    refused = tenure("ledger", "sign")
    assert "no signing key is named" in refused.err
    monkeypatch.setenv("TENURE_SIGNING_KEY", "file:seal.key")
    assert tenure("ledger", "sign").out == "signed 2 checkpoints\n"
    seen = tenure("ledger", "show")
    assert run in seen.out
    assert "2 leaves, root" in seen.out
    assert "newest checkpoint, over the first 2 leaves" in seen.out
    assert [leaf["kind"] for leaf in tenure("ledger", "show", "--json").json()["leaves"]] == [
        "created",
        "sealed",
    ]
    assert tenure("ledger", "show", "--installation", "--json").json()["leaves"][0]["kind"] == "key"

    assert tenure("ledger", "export", "--to", "kept.checkpoint").code == 0
    assert "ledger.exported" in tenure("tenants", "audit", "default").out
    whole = tenure("ledger", "check", "--checkpoint", "kept.checkpoint", "--key", "seal.pub")
    assert (whole.code, whole.out.count("not checked")) == (0, 1), "only rows without a history are unchecked"
    assert "the checkpoint was signed over the first" in whole.out
    assert "payloads match the digests in their histories" in whole.out
    every = tenure("ledger", "check")
    assert every.out.count("not checked") == 6, (
        "three lines for each of two ledgers, without a checkpoint and a key"
    )
    assert tenure("doctor").code == 0

    connection = apsw.Connection("tenure.db")
    connection.execute("delete from ledger_leaf where tenant = 'default' and pos = 1")
    connection.close()
    cut = tenure("ledger", "check", "--checkpoint", "kept.checkpoint", "--key", "seal.pub")
    assert cut.code == 1
    assert "WRONG        TRUNCATED" in cut.out
    found = tenure("ledger", "check", "--tenant", "default", "--json")
    assert found.code == 1
    assert '"code": "TRUNCATED"' in found.out
    assert "I51" in tenure("doctor").out


def test_an_invalid_checkpoint_is_refused(tenure: Tenure, tmp_path: Path) -> None:
    make_sealed_run()
    (tmp_path / "nonsense").write_text("nonsense")
    for file in ("nonsense", "missing"):
        refused = tenure("ledger", "check", "--checkpoint", file)
        assert refused.code == 1
        assert "LEDGER_CHECKPOINT_INVALID" in refused.err or "INVALID_INPUT" in refused.err
    assert tenure("ledger", "show", "--tenant", "acme", "--installation").code == 2


def test_a_ledger_is_shown_exported_and_checked_over_a_server(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seal.pub").write_text(tenure("signing-keys", "new", "--to", "seal.key").out)
    assert tenure("tenants", "create", "acme").code == 0
    key = key_of(tenure, tmp_path, monkeypatch, "ada", "viewer")
    run = make_sealed_run("acme")
    kept = ("--checkpoint", "kept.checkpoint", "--key", "seal.pub")
    with served(tmp_path) as (_, address):
        there = ("--server", address, "--key-file", key)
        none = tenure("ledger", "show", *there)
        assert (none.code, "nothing is signed yet" in none.out) == (0, True)
        assert "NOT_READY" in tenure("ledger", "export", "--to", "kept.checkpoint", *there).err
        assert tenure("ledger", "sign", "--signing-key", "file:seal.key").code == 0
        seen = tenure("ledger", "show", "--json", *there).json()
        here = tenure("ledger", "show", "--tenant", "acme", "--json").json()
        assert seen == here
        assert [leaf.get("run") for leaf in seen["leaves"]].count(run) == 2
        assert tenure("ledger", "export", "--to", "kept.checkpoint", *there).code == 0
        assert (tmp_path / "kept.checkpoint").read_text() == seen["checkpoint"]["note"]
        make_sealed_run("acme")
        assert tenure("ledger", "sign", "--signing-key", "file:seal.key").code == 0
        whole = tenure("ledger", "check", *kept, *there)
        assert (whole.code, "the server proves that the ledger begins with" in whole.out) == (0, True)
        assert whole.out.count("not checked") == 1, "only the check of the runs needs the database"
        assert "this check needs the database" in whole.out
        assert tenure("ledger", "check", *there).out.count("not checked") == 3
        assert tenure("ledger", "export", "--to", "kept.checkpoint", *there).code == 0
        other = tenure("ledger", "show", "--tenant", "globex", *there)
        assert (other.code, "this key is of tenant 'acme'" in other.err) == (1, True)
        assert "in its database" in tenure("ledger", "show", "--installation", *there).err

        connection = apsw.Connection("tenure.db")
        connection.execute(
            "delete from ledger_checkpoint where tenant = 'acme' and size = (select max(size) from ledger_checkpoint where tenant = 'acme')"
        )
        connection.close()
        back = tenure("ledger", "check", *kept, *there)
        assert (back.code, "WRONG        RESTORED" in back.out) == (1, True)
        refused = tenure("ledger", "export", "--to", "kept.checkpoint", *there)
        assert (refused.code, "LEDGER_BROKEN" in refused.err) == (1, True)


def test_a_server_that_presents_another_ledger_is_not_trusted(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seal.pub").write_text(tenure("signing-keys", "new", "--to", "seal.key").out)
    assert tenure("tenants", "create", "acme").code == 0
    key = key_of(tenure, tmp_path, monkeypatch, "ada", "viewer")
    make_sealed_run("acme")
    assert tenure("ledger", "sign", "--signing-key", "file:seal.key").code == 0
    assert tenure("ledger", "export", "--tenant", "acme", "--to", "kept.checkpoint").code == 0
    read = signed_notes.parse_checkpoint((tmp_path / "kept.checkpoint").read_text())
    signer = Signer.open("file:seal.key")
    forked = asyncio.run(sign_checkpoint(signer, read.origin, read.size - 1, b"r" * 32, read.at or 0))
    (tmp_path / "forked.checkpoint").write_text(forked.note)
    with served(tmp_path) as (_, address):
        there = ("--server", address, "--key-file", key)
        connection = apsw.Connection("tenure.db")
        connection.execute(
            "update ledger_leaf set body = cast(replace(body, 'run_', 'ruN_') as blob) where tenant = 'acme' and pos = 1"
        )
        connection.close()
        assert "problem" in tenure("ledger", "show", "--json", *there).json()["leaves"][1]
        wrong = tenure("ledger", "check", "--checkpoint", "forked.checkpoint", "--key", "seal.pub", *there)
        assert (wrong.code, "WRONG        REWRITTEN" in wrong.out) == (1, True)
        refused = tenure("ledger", "export", "--to", "forked.checkpoint", *there)
        assert (refused.code, "LEDGER_BROKEN" in refused.err) == (1, True)
        assert (tmp_path / "forked.checkpoint").read_text() == forked.note
        (tmp_path / "other.pub").write_text(tenure("signing-keys", "new", "--to", "other.key").out)
        wrong = tenure("ledger", "check", "--checkpoint", "kept.checkpoint", "--key", "other.pub", *there)
        assert (wrong.code, "WRONG        SIGNATURE_WRONG" in wrong.out) == (1, True)


def test_signing_key_commands_need_the_database(tenure: Tenure) -> None:
    for command in (("list",), ("add", "file:seal.key"), ("export-trust",), ("revoke", "0" * 64)):
        tenure("signing-keys", "new", "--to", "seal.key")
        refused = tenure("signing-keys", *command, "--server", "http://127.0.0.1:9")
        assert (refused.code, "stay with the operator's database" in refused.err) == (1, True), command
    refused = tenure("ledger", "sign", "--signing-key", "file:seal.key", "--server", "http://127.0.0.1:9")
    assert (refused.code, "takes the database and the signing key" in refused.err) == (1, True)
