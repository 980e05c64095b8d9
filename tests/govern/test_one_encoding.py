"""Checkpoints, proofs, statements and signatures have one encoding: whichever bit is flipped, nothing verifies."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenure.errors import TenureError
from tenure.govern.evidence.ledgered import check_ledger, leaf_of
from tenure.govern.evidence.statement import Predicate, opened
from tenure.govern.evidence.verify import check_signature, verify
from tenure.govern.evidence.wrong import Wrong
from tenure.govern.ledger import notes
from tenure.govern.signing import Trust, b64, make_key, unb64
from tenure.kernel import merkle
from tests.govern.bundles import Sealed
from tests.govern.test_ledger_notes import AT, BODIES, ORIGIN


def flips(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Every copy of some bytes with one bit changed."""
    for place in range(len(body) * 8):
        changed = bytearray(body)
        changed[place // 8] ^= 1 << place % 8
        yield place, bytes(changed)


def accepted(body: bytes, read: Callable[[bytes], object]) -> list[int]:
    """The bits that may be flipped without anybody noticing."""
    found = []
    for place, changed in flips(body):
        try:
            read(changed)
        except (TenureError, Wrong, ValueError):
            continue
        found.append(place)
    return found


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    return Sealed(tmp_path_factory.mktemp("sealed"))


class Proven:
    """A bundle's predicate, a checkpoint over its leaf and some others, and the proof."""

    def __init__(self, said: Predicate, checkpoint: notes.Checkpoint, proof: str) -> None:
        self.said = said
        self.checkpoint = checkpoint
        self.proof = proof.encode()


async def proven(sealed: Sealed, at: int = AT) -> Proven:
    assert sealed.bundle.envelope is not None
    said = opened(sealed.bundle.envelope).statement.predicate
    bodies = [*BODIES[:4], leaf_of(said).body, *BODIES[4:]]
    hashes = [merkle.leaf_hash(body) for body in bodies]
    steps = [merkle.root_of(hashes[low:high]) for low, high in merkle.inclusion(4, len(bodies))]
    checkpoint = await notes.signed(sealed.signer, ORIGIN, len(bodies), merkle.root_of(hashes), at)
    return Proven(said, checkpoint, notes.proof_text(4, steps, bodies[4], checkpoint))


async def test_no_bit_of_a_checkpoint_can_be_flipped(sealed: Sealed) -> None:
    note = (await proven(sealed)).checkpoint.note.encode()
    notes.signer_of(notes.parse(note), sealed.trust)
    assert accepted(note, lambda body: notes.signer_of(notes.parse(body), sealed.trust)) == []


@pytest.mark.parametrize("trusting", [True, False], ids=["with a key", "without"])
async def test_no_bit_of_a_proof_can_be_flipped(sealed: Sealed, trusting: bool) -> None:
    given = await proven(sealed)
    trust = sealed.trust if trusting else None

    def read(body: bytes) -> str:
        return check_ledger(given.said, body, given.checkpoint.note.encode(), trust)

    assert "leaf 4" in read(given.proof)
    assert accepted(given.proof, read) == []


async def test_no_bit_of_a_proof_for_another_signature_can_be_flipped(sealed: Sealed) -> None:
    """The proof has a checkpoint over the same leaves that was signed at another time: its signature counts."""
    given, later = await proven(sealed), await proven(sealed, AT + 60_000_000)

    def read(body: bytes) -> str:
        return check_ledger(given.said, body, later.checkpoint.note.encode(), sealed.trust)

    assert "leaf 4" in read(given.proof)
    assert accepted(given.proof, read) == []
    with pytest.raises(Wrong, match="PROOF_INVALID"):
        check_ledger(given.said, given.proof, later.checkpoint.note.encode(), None)


def test_no_bit_of_a_statement_or_its_signature_can_be_flipped(sealed: Sealed) -> None:
    body = sealed.bundle.envelope
    assert body is not None

    def read(envelope: bytes) -> None:
        found = opened(envelope)
        check_signature(found.signatures, found.signed, found.statement.predicate.sealed_at, sealed.trust)

    read(body)
    assert accepted(body, read) == []
    (report,) = verify([sealed.bundle], sealed.trust)
    assert report.wrong is None


def test_base64_has_one_text() -> None:
    for body in (b"", b"a", b"ab", b"abc", bytes(32), bytes(64)):
        assert unb64(b64(body)) == body
    for other in ("YR==", "YWJ=", "YQ", "YQ=", "YQ==\n", " YQ==", "YQ===", "YQ==YQ=="):
        assert unb64(other) is None, other


def _with(change: Callable[[dict[str, object]], None], sealed: Sealed, **how: object) -> bytes:
    assert sealed.bundle.envelope is not None
    envelope = json.loads(sealed.bundle.envelope)
    change(envelope)
    options: dict[str, object] = {"separators": (",", ":"), **how}
    return json.dumps(envelope, **options).encode() + b"\n"  # type: ignore[arg-type]  # options of json


def test_an_envelope_has_one_form(sealed: Sealed) -> None:
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
            opened(other)


async def test_a_note_has_one_form(sealed: Sealed) -> None:
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
        with pytest.raises(TenureError, match="checkpoint of a ledger"):
            notes.parse(other)
    for old, new in (
        ("index 4", "4"),
        ("index 4", "index  4"),
        ("extra ", "extra  "),
        ("index 4", "index 04"),
    ):
        with pytest.raises(TenureError):
            notes.parse_proof(proof.replace(old, new))
    extra = proof.split("\n")[1]
    with pytest.raises(TenureError, match="no leaf in base64"):
        notes.parse_proof(proof.replace(extra, "extra "))
    other_leaf = proof.replace(extra, f"extra {base64.b64encode(BODIES[0]).decode()}").encode()
    with pytest.raises(Wrong, match="NOT_IN_LEDGER"):
        check_ledger(given.said, other_leaf, note.encode(), sealed.trust)


def test_a_wrong_signature_of_a_trusted_key_is_not_passed_over(sealed: Sealed, tmp_path: Path) -> None:
    assert sealed.bundle.envelope is not None
    other = make_key(tmp_path / "second.key")
    both = Trust.of_public(sealed.signer.public, other.public)
    wrong = {"keyid": other.id, "sig": b64(bytes(64))}

    def add(envelope: dict[str, object]) -> None:
        signatures = envelope["signatures"]
        assert isinstance(signatures, list)
        signatures.append(wrong)

    found = opened(_with(add, sealed))
    at = found.statement.predicate.sealed_at
    with pytest.raises(Wrong, match="SIGNATURE_WRONG"):
        check_signature(found.signatures, found.signed, at, both)
    assert check_signature(found.signatures, found.signed, at, sealed.trust) == sealed.signer.id
