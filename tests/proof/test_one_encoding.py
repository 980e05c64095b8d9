"""Checkpoints, proofs, statements and signatures have one encoding. With any bit flipped, they do not verify."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenure.canonical import decode_base64, encode_base64
from tenure.errors import TenureError
from tenure.govern.evidence.defects import EvidenceDefect
from tenure.govern.evidence.statement import Predicate, open_envelope
from tenure.govern.evidence.verification import build_leaf, check_ledger_proof, check_signature, verify_parts
from tenure.govern.signing import make_key, sign_checkpoint
from tenure.proof import merkle, signed_notes
from tenure.proof.signatures import TrustedKeys
from tests.govern.evidence_samples import Sealed
from tests.proof.test_merkle import tree_root
from tests.proof.test_signed_notes import AT, BODIES, ORIGIN


def flips(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield every copy of the bytes with one bit flipped."""
    for place in range(len(body) * 8):
        changed = bytearray(body)
        changed[place // 8] ^= 1 << place % 8
        yield place, bytes(changed)


def accepted(body: bytes, read: Callable[[bytes], object]) -> list[int]:
    """Return the flipped bits that the reader accepts."""
    found = []
    for place, changed in flips(body):
        try:
            read(changed)
        except (TenureError, EvidenceDefect, ValueError):
            continue
        found.append(place)
    return found


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    return Sealed(tmp_path_factory.mktemp("sealed"))


class Proven:
    """The predicate of a bundle, a checkpoint over its leaf and other leaves, and the proof of its leaf."""

    def __init__(self, subject: Predicate, checkpoint: signed_notes.LedgerCheckpoint, proof: str) -> None:
        self.subject = subject
        self.checkpoint = checkpoint
        self.proof = proof.encode()


async def proven(sealed: Sealed, at: int = AT) -> Proven:
    assert sealed.bundle.envelope is not None
    subject = open_envelope(sealed.bundle.envelope).statement.predicate
    bodies = [*BODIES[:4], build_leaf(subject).body, *BODIES[4:]]
    hashes = [merkle.leaf_hash(body) for body in bodies]
    steps = [tree_root(hashes[low:high]) for low, high in merkle.inclusion_ranges(4, len(bodies))]
    checkpoint = await sign_checkpoint(sealed.signer, ORIGIN, len(bodies), tree_root(hashes), at)
    return Proven(subject, checkpoint, signed_notes.format_proof(4, steps, bodies[4], checkpoint))


async def test_no_bit_of_a_checkpoint_can_be_flipped(sealed: Sealed) -> None:
    note = (await proven(sealed)).checkpoint.note.encode()
    signed_notes.find_signer(signed_notes.parse_checkpoint(note), sealed.trust)
    assert (
        accepted(
            note, lambda body: signed_notes.find_signer(signed_notes.parse_checkpoint(body), sealed.trust)
        )
        == []
    )


@pytest.mark.parametrize("trusting", [True, False], ids=["with a key", "without a key"])
async def test_no_bit_of_a_proof_can_be_flipped(sealed: Sealed, trusting: bool) -> None:
    given = await proven(sealed)
    trust = sealed.trust if trusting else None

    def read(body: bytes) -> str:
        return check_ledger_proof(given.subject, body, given.checkpoint.note.encode(), trust)

    assert "leaf 4" in read(given.proof)
    assert accepted(given.proof, read) == []


async def test_no_bit_of_a_proof_for_another_signature_can_be_flipped(sealed: Sealed) -> None:
    """The proof has a checkpoint over the same leaves with another signature time. Its signature is verified."""
    given, later = await proven(sealed), await proven(sealed, AT + 60_000_000)

    def read(body: bytes) -> str:
        return check_ledger_proof(given.subject, body, later.checkpoint.note.encode(), sealed.trust)

    assert "leaf 4" in read(given.proof)
    assert accepted(given.proof, read) == []
    with pytest.raises(EvidenceDefect, match="PROOF_INVALID"):
        check_ledger_proof(given.subject, given.proof, later.checkpoint.note.encode(), None)


def test_no_bit_of_a_statement_or_its_signature_can_be_flipped(sealed: Sealed) -> None:
    body = sealed.bundle.envelope
    assert body is not None

    def read(envelope: bytes) -> None:
        found = open_envelope(envelope)
        check_signature(found.signatures, found.signed, found.statement.predicate.sealed_at, sealed.trust)

    read(body)
    assert accepted(body, read) == []
    (report,) = verify_parts([sealed.bundle], sealed.trust)
    assert report.wrong is None


def test_base64_has_one_accepted_encoding() -> None:
    for body in (b"", b"a", b"ab", b"abc", bytes(32), bytes(64)):
        assert decode_base64(encode_base64(body)) == body
    for other in ("YR==", "YWJ=", "YQ", "YQ=", "YQ==\n", " YQ==", "YQ===", "YQ==YQ=="):
        assert decode_base64(other) is None, other


def _with(change: Callable[[dict[str, object]], None], sealed: Sealed, **how: object) -> bytes:
    assert sealed.bundle.envelope is not None
    envelope = json.loads(sealed.bundle.envelope)
    change(envelope)
    options: dict[str, object] = {"separators": (",", ":"), **how}
    return json.dumps(envelope, **options).encode() + b"\n"  # type: ignore[arg-type]  # options of json


def test_an_envelope_has_one_accepted_encoding(sealed: Sealed) -> None:
    body = sealed.bundle.envelope
    assert body is not None
    assert _with(lambda _: None, sealed) == body
    twice = json.loads(body)["signatures"] * 2
    reordered = dict(reversed(json.loads(body).items()))
    others = [
        body.rstrip(b"\n"),
        body + b"\n",
        b" " + body,
        body.replace(b'":"', b'": "', 1),
        _with(lambda envelope: envelope.update(more=1), sealed),
        _with(lambda envelope: envelope.update(signatures=twice), sealed),
        json.dumps(reordered, separators=(",", ":")).encode() + b"\n",
        body.replace(b"keyid", b"key\\u0069d"),
    ]
    for other in others:
        with pytest.raises(ValueError, match=r"form|unknown|twice|field"):
            open_envelope(other)


async def test_a_note_has_one_accepted_encoding(sealed: Sealed) -> None:
    given = await proven(sealed)
    note, proof = given.checkpoint.note, given.proof.decode()
    line = note.rpartition("\n\n")[2]
    for other in (
        f"{note}\n",
        note + line,
        f" {note}",
        note.replace("\ntime ", "\ntime 0"),
        note.replace("\ntime ", "\ntime 1\ntime "),
    ):
        with pytest.raises(TenureError, match="ledger checkpoint"):
            signed_notes.parse_checkpoint(other)
    for old, new in (
        ("index 4", "4"),
        ("index 4", "index  4"),
        ("extra ", "extra  "),
        ("index 4", "index 04"),
    ):
        with pytest.raises(TenureError):
            signed_notes.parse_proof(proof.replace(old, new))
    extra = proof.split("\n")[1]
    with pytest.raises(TenureError, match="not a leaf in base64"):
        signed_notes.parse_proof(proof.replace(extra, "extra "))
    other_leaf = proof.replace(extra, f"extra {base64.b64encode(BODIES[0]).decode()}").encode()
    with pytest.raises(EvidenceDefect, match="NOT_IN_LEDGER"):
        check_ledger_proof(given.subject, other_leaf, note.encode(), sealed.trust)


def test_a_wrong_signature_of_a_trusted_key_is_not_ignored(sealed: Sealed, tmp_path: Path) -> None:
    assert sealed.bundle.envelope is not None
    other = make_key(tmp_path / "second.key")
    both = TrustedKeys.from_public_keys(sealed.signer.public, other.public)
    wrong = {"keyid": other.id, "sig": encode_base64(bytes(64))}

    def add(envelope: dict[str, object]) -> None:
        signatures = envelope["signatures"]
        assert isinstance(signatures, list)
        signatures.append(wrong)

    found = open_envelope(_with(add, sealed))
    at = found.statement.predicate.sealed_at
    with pytest.raises(EvidenceDefect, match="SIGNATURE_WRONG"):
        check_signature(found.signatures, found.signed, at, both)
    assert check_signature(found.signatures, found.signed, at, sealed.trust) == sealed.signer.id
