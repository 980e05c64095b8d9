"""Signing keys: their sources, refused keys, and the keys that a trust file trusts."""

import base64
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import TenureError
from tenure.govern.signing import Signer, configured_signer, make_key
from tenure.proof.ed25519 import public_pem
from tenure.proof.signatures import (
    TrustedKey,
    TrustedKeys,
    endorsement,
    is_valid_signature,
    key_id,
    read_public,
)

MESSAGE = b"what was done"
DAY = 86_400 * 1_000_000


def trusted(signer: Signer, **more: Any) -> TrustedKey:
    return TrustedKey(id=signer.id, public=base64.b64encode(signer.public).decode(), **more)


def endorsed(new: Signer, by: Signer, at: int, **more: Any) -> TrustedKey:
    signature = base64.b64encode(by.sign_now(endorsement(new.public, by.id, at))).decode()
    return trusted(new, created_at=at, endorsed_by=by.id, endorsement=signature, **more)


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return make_key(tmp_path / "seal.key")


@pytest.fixture
def newer(tmp_path: Path) -> Signer:
    return make_key(tmp_path / "newer.key")


async def test_a_key_in_a_file_signs_and_its_id_is_the_hash_of_its_public_half(tmp_path: Path) -> None:
    made = make_key(tmp_path / "seal.key")
    assert (tmp_path / "seal.key").stat().st_mode & 0o777 == 0o600
    signer = Signer.open(f"file:{tmp_path / 'seal.key'}")
    assert signer.id == made.id == key_id(signer.public)
    signature = await signer.sign(MESSAGE)
    assert is_valid_signature(signer.public, MESSAGE, signature)
    assert not is_valid_signature(signer.public, MESSAGE + b".", signature)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666])
def test_a_key_that_others_can_read_is_refused(signer: Signer, tmp_path: Path, mode: int) -> None:
    file = tmp_path / "seal.key"
    file.chmod(mode)
    with pytest.raises(TenureError, match=rf"\(mode {mode:04o}\): run chmod 600") as refused:
        Signer.open(f"file:{file}")
    assert refused.value.code == "SIGNING_KEY_UNAVAILABLE"
    with pytest.raises(TenureError, match="chmod 600"):
        signer.sign_now(MESSAGE)  # a signer that is already open checks too


def test_a_key_is_never_overwritten(signer: Signer, tmp_path: Path) -> None:
    with pytest.raises(TenureError, match="never overwritten"):
        make_key(tmp_path / "seal.key")
    assert Signer.open(f"file:{tmp_path / 'seal.key'}").id == signer.id


def test_a_key_in_the_environment_is_pem_or_base64(
    signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEAL", (tmp_path / "seal.key").read_text())
    assert Signer.open("env:SEAL").id == signer.id
    seed = bytes(range(32))
    monkeypatch.setenv("SEAL", base64.b64encode(seed).decode())
    raw = Signer.open("env:SEAL")
    assert is_valid_signature(raw.public, MESSAGE, raw.sign_now(MESSAGE))


def test_an_invalid_reference_is_reported_without_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOT_A_KEY", "hunter2-hunter2")
    (tmp_path / "other.key").write_text("-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n")
    (tmp_path / "other.key").chmod(0o600)
    for reference in (
        "env:NOT_A_KEY",
        "env:NOT_SET_AT_ALL",
        f"file:{tmp_path}/none.key",
        f"file:{tmp_path}/other.key",
        f"file:{tmp_path}",
        "hunter2",
        "command:",
        "command:signer 'open",
        "",
    ):
        with pytest.raises(TenureError) as refused:
            Signer.open(reference, "A" * 44)
        assert refused.value.code == "SIGNING_KEY_UNAVAILABLE"
        assert "hunter2" not in str(refused.value)


def _command(tmp_path: Path, body: str) -> str:
    program = tmp_path / "signer.py"
    program.write_text(body)
    return f"command:{shlex.join([sys.executable, str(program)])}"


SIGNS = """
import base64, os, sys
from tenure.govern.signing import Signer
assert not any(name.startswith("TENURE_") for name in os.environ)
signature = Signer.open("file:{key}").sign_now(sys.stdin.buffer.read())
{answer}
"""


@pytest.mark.parametrize(
    "answer", ["sys.stdout.buffer.write(signature)", "print(base64.b64encode(signature).decode())"]
)
async def test_a_signer_command_signs_without_our_environment(
    signer: Signer, tmp_path: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_DB", "postgresql://app:hunter2@db/tenure")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    reference = _command(tmp_path, SIGNS.format(key=tmp_path / "seal.key", answer=answer))
    asked = Signer.open(reference, base64.b64encode(signer.public).decode())
    assert asked.id == signer.id
    assert is_valid_signature(signer.public, MESSAGE, await asked.sign(MESSAGE))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("import sys; print('hunter2', file=sys.stderr); sys.exit(3)", "ended with exit code 3"),
        ("print('hunter2')", "printed no signature"),
        ("import sys; sys.stdout.buffer.write(bytes(64))", "does not sign as key"),
    ],
)
def test_a_signer_command_that_fails_or_lies_is_refused(
    signer: Signer, tmp_path: Path, body: str, problem: str
) -> None:
    asked = Signer.open(_command(tmp_path, body), base64.b64encode(signer.public).decode())
    with pytest.raises(TenureError, match=problem) as refused:
        asked.sign_now(MESSAGE)
    assert "hunter2" not in str(refused.value)


def test_a_signer_command_needs_its_public_key_beside_it(tmp_path: Path) -> None:
    with pytest.raises(TenureError, match="TENURE_SIGNING_PUBLIC"):
        Signer.open("command:/usr/bin/signer")


def test_the_key_is_configured_by_the_environment(
    signer: Signer, newer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENURE_SIGNING_KEY", raising=False)
    assert configured_signer() is None
    monkeypatch.setenv("TENURE_SIGNING_KEY", f"file:{tmp_path / 'seal.key'}")
    found = configured_signer()
    assert found is not None
    assert found.id == signer.id
    with pytest.raises(TenureError, match="does not belong to"):
        configured_signer(public=base64.b64encode(newer.public).decode())


def test_a_replaced_key_is_detected(signer: Signer, newer: Signer, tmp_path: Path) -> None:
    (tmp_path / "newer.key").replace(tmp_path / "seal.key")
    with pytest.raises(TenureError, match="the key was replaced"):
        signer.sign_now(MESSAGE)


def test_a_public_key_is_read_in_common_formats(signer: Signer, tmp_path: Path) -> None:
    (tmp_path / "seal.pub").write_text(public_pem(signer.public))
    (tmp_path / "seal.b64").write_text(base64.b64encode(signer.public).decode() + "\n")
    assert read_public(str(tmp_path / "seal.pub")) == signer.public
    assert read_public(str(tmp_path / "seal.b64")) == signer.public
    for wrong in ("", "nonsense", "A" * 44 + "A", str(tmp_path / "seal.key")):
        with pytest.raises(TenureError):
            read_public(wrong)


# ------------------------------------------------------------------------------------------------ trust


def test_a_trusted_key_is_accepted_and_another_is_named(signer: Signer, newer: Signer) -> None:
    trust = TrustedKeys.from_public_keys(signer.public)
    signature = signer.sign_now(MESSAGE)
    assert trust.problem(signer.id, MESSAGE, signature, DAY) is None
    assert "and these bytes" in (trust.problem(signer.id, MESSAGE + b".", signature, DAY) or "")
    untrusted = trust.problem(newer.id, MESSAGE, newer.sign_now(MESSAGE), DAY)
    assert "not among the trusted" in (untrusted or "")
    # Signed by another key under the id of the trusted key.
    assert trust.problem(signer.id, MESSAGE, newer.sign_now(MESSAGE), DAY) is not None


def test_signatures_after_a_revocation_are_refused(signer: Signer) -> None:
    trust = TrustedKeys([trusted(signer, revoked_from=5 * DAY)])
    signature = signer.sign_now(MESSAGE)
    assert trust.problem(signer.id, MESSAGE, signature, 5 * DAY - 1) is None
    assert "is revoked from 1970-01-06T00:00:00Z on" in (
        trust.problem(signer.id, MESSAGE, signature, 5 * DAY) or ""
    )
    assert "the time of this signature is unknown" in (
        trust.problem(signer.id, MESSAGE, signature, None) or ""
    )


def test_a_new_key_is_trusted_by_the_endorsement_of_the_old_one(signer: Signer, newer: Signer) -> None:
    signature = newer.sign_now(MESSAGE)
    keys = [trusted(signer), endorsed(newer, signer, 3 * DAY)]
    assert TrustedKeys(keys).problem(newer.id, MESSAGE, signature, 4 * DAY) is None
    # A verifier that pins the first key trusts the endorsed second key, but no unendorsed key in the same file.
    pinned = TrustedKeys(keys, roots=[signer.id])
    assert pinned.problem(newer.id, MESSAGE, signature, 4 * DAY) is None
    stranger = TrustedKeys([trusted(signer), trusted(newer)], roots=[signer.id])
    assert "no trusted key endorses" in (stranger.problem(newer.id, MESSAGE, signature, 4 * DAY) or "")


def test_an_endorsement_by_a_revoked_key_is_ignored(signer: Signer, newer: Signer) -> None:
    signature = newer.sign_now(MESSAGE)
    for revoked_from, problem in ((4 * DAY, None), (3 * DAY, "after that key was revoked")):
        trust = TrustedKeys([trusted(signer, revoked_from=revoked_from), endorsed(newer, signer, 3 * DAY)])
        found = trust.problem(newer.id, MESSAGE, signature, 9 * DAY)
        assert (found is None) if problem is None else (problem in (found or ""))


def test_a_forged_endorsement_is_named(signer: Signer, newer: Signer, tmp_path: Path) -> None:
    mallory = make_key(tmp_path / "mallory.key")
    forged = endorsed(mallory, newer, DAY)
    claimed = TrustedKey(
        id=forged.id,
        public=forged.public,
        created_at=DAY,
        endorsed_by=signer.id,
        endorsement=forged.endorsement,
    )
    trust = TrustedKeys([trusted(signer), claimed])
    assert "the endorsement of key" in (
        trust.problem(mallory.id, MESSAGE, mallory.sign_now(MESSAGE), DAY) or ""
    )
    moved = endorsed(newer, signer, DAY)
    backdated = TrustedKey(
        id=moved.id, public=moved.public, created_at=0, endorsed_by=signer.id, endorsement=moved.endorsement
    )
    assert TrustedKeys([trusted(signer), backdated]).key_problem(newer.id) is not None


def test_keys_that_endorse_each_other_are_not_trusted(signer: Signer, newer: Signer) -> None:
    trust = TrustedKeys([endorsed(signer, newer, DAY), endorsed(newer, signer, DAY)])
    assert "endorses itself" in (trust.key_problem(newer.id) or "")


def test_a_trust_file_survives_a_round_trip(signer: Signer, newer: Signer, tmp_path: Path) -> None:
    file = tmp_path / "trust.json"
    written = TrustedKeys([trusted(signer, revoked_from=9 * DAY), endorsed(newer, signer, 3 * DAY)])
    file.write_bytes(written.dump())
    read = TrustedKeys.load(file)
    assert read.keys == written.keys
    assert read.dump() == written.dump()
    assert read.key_problem(newer.id) is None
    swapped = written.dump().replace(signer.id.encode(), b"0" * 64)
    assert TrustedKeys.parse(swapped).key_problem("0" * 64) is not None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format": "other", "keys": []}',
        b'{"format": "tenure-trust-1", "keys": [{"id": 1}]}',
        b"\xff",
    ],
)
def test_an_invalid_trust_file_is_refused(body: bytes) -> None:
    with pytest.raises(TenureError) as refused:
        TrustedKeys.parse(body)
    assert refused.value.code == "INVALID_INPUT"


def test_a_signer_does_not_reveal_its_key(signer: Signer, tmp_path: Path) -> None:
    """I53."""
    secret = "".join((tmp_path / "seal.key").read_text().splitlines()[1:-1])
    assert secret not in repr(signer) + repr(vars(signer))
