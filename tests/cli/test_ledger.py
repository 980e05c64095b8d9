"""`tenure signing-keys` and `tenure ledger`: from the first key to a ledger that was tampered with."""

import asyncio
from pathlib import Path

import apsw
import pytest

from tenure.embedded import Engine
from tests.cli.shell import Tenure, in_folder


@pytest.fixture
def tenure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tenure:
    monkeypatch.delenv("TENURE_SIGNING_KEY", raising=False)
    return in_folder(tmp_path, monkeypatch, capsys)


def a_run() -> str:
    """One that has ended and is sealed."""

    async def make() -> str:
        async with Engine("sqlite:tenure.db", sweep=False) as engine:
            run = await engine.create("build", [{"name": "compile", "tool": "make"}])
            await engine.cancel(run)
            await engine.seal(run)
            return run

    return asyncio.run(make())


def test_a_key_is_made_used_rotated_and_revoked(tenure: Tenure, tmp_path: Path) -> None:
    made = tenure("signing-keys", "new", "--to", "seal.key")
    assert made.out.startswith("-----BEGIN PUBLIC KEY-----\n"), "the public half alone, to be piped"
    assert "PRIVATE" not in made.out + made.err
    assert "ALREADY_EXISTS" in tenure("signing-keys", "new", "--to", "seal.key").err
    other = tenure("signing-keys", "new", "--to", "next.key", "--json").json()
    a_run()
    first = tenure("signing-keys", "add", "file:seal.key", "--json").json()["id"]
    rotated = tenure("signing-keys", "rotate", "--old", "file:seal.key", "--new", "file:next.key")
    assert f"key {other['id']} is endorsed by {first[:12]}" in rotated.out
    assert "ALREADY_EXISTS" in tenure("signing-keys", "add", "file:next.key").err

    # Both words of revoking.
    told = tenure("signing-keys", "revoke", first[:12], "--from", "2100-01-01T00:00Z")
    assert told.out == f"key {first} is revoked from 2100-01-01 00:00:00 UTC on\n"
    told = tenure("keys", "revoke", first, "--from", "2026-02-14T08:00Z")
    assert told.out == f"key {first} is revoked from 2026-02-14 08:00:00 UTC on\n"
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


def test_a_ledger_is_signed_for_shown_taken_out_and_checked(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seal.pub").write_text(tenure("signing-keys", "new", "--to", "seal.key").out)
    run = a_run()
    refused = tenure("ledger", "sign")
    assert "no signing key is named" in refused.err
    monkeypatch.setenv("TENURE_SIGNING_KEY", "file:seal.key")
    assert tenure("ledger", "sign").out == "signed 2 checkpoints\n"
    seen = tenure("ledger", "show")
    assert run in seen.out
    assert "2 leaves, root" in seen.out
    assert "signed for up to 2" in seen.out
    assert [leaf["kind"] for leaf in tenure("ledger", "show", "--json").json()["leaves"]] == [
        "created",
        "sealed",
    ]
    assert tenure("ledger", "show", "--installation", "--json").json()["leaves"][0]["kind"] == "key"

    assert tenure("ledger", "export", "--to", "kept.checkpoint").code == 0
    assert "ledger.exported" in tenure("tenants", "audit", "default").out
    whole = tenure("ledger", "check", "--checkpoint", "kept.checkpoint", "--key", "seal.pub")
    assert (whole.code, "it is what was signed for" in whole.out, "not checked" in whole.out) == (
        0,
        True,
        False,
    )
    every = tenure("ledger", "check")
    assert every.out.count("not checked") == 4, "of two ledgers: neither a checkpoint nor a key was given"
    assert tenure("doctor").code == 0

    connection = apsw.Connection("tenure.db")
    connection.execute("delete from leaf where tenant = 'default' and pos = 1")
    connection.close()
    cut = tenure("ledger", "check", "--checkpoint", "kept.checkpoint", "--key", "seal.pub")
    assert cut.code == 1
    assert "WRONG        TRUNCATED" in cut.out
    found = tenure("ledger", "check", "--tenant", "default", "--json")
    assert found.code == 1
    assert '"code": "TRUNCATED"' in found.out
    assert "I51" in tenure("doctor").out


def test_what_is_no_checkpoint_is_refused(tenure: Tenure, tmp_path: Path) -> None:
    a_run()
    (tmp_path / "nonsense").write_text("nonsense")
    for file in ("nonsense", "missing"):
        refused = tenure("ledger", "check", "--checkpoint", file)
        assert refused.code == 1
        assert "LEDGER_CHECKPOINT_INVALID" in refused.err or "INVALID_INPUT" in refused.err
    assert tenure("ledger", "show", "--tenant", "acme", "--installation").code == 2
