"""Checkpoints and proofs are read and written only in the text formats of C2SP."""

import base64
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import TenureError
from tenure.govern.signing import Signer, make_key, sign_checkpoint
from tenure.proof import ledger_leaves, merkle, signed_notes
from tenure.proof.signatures import TrustedKeys, is_valid_signature
from tests.govern.ledger_databases import RUN
from tests.proof.test_merkle import tree_root

AT = 1_770_000_000_123_456
BODIES = [ledger_leaves.created_leaf("acme", RUN + n, bytes([n]) * 32).body for n in range(7)]
ORIGIN = signed_notes.ledger_origin(merkle.leaf_hash(b"first"), "acme")


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return make_key(tmp_path_factory.mktemp("keys") / "seal.key")


async def checkpoint_of(
    signer: Signer, bodies: list[bytes], origin: str = ORIGIN
) -> signed_notes.LedgerCheckpoint:
    root = tree_root(map(merkle.leaf_hash, bodies))
    return await sign_checkpoint(signer, origin, len(bodies), root, AT)


async def proof_of(signer: Signer, bodies: list[bytes], index: int) -> signed_notes.InclusionProof:
    hashes = [merkle.leaf_hash(body) for body in bodies]
    spans = merkle.inclusion_ranges(index, len(bodies))
    steps = [tree_root(hashes[low:high]) for low, high in spans]
    return signed_notes.parse_proof(
        signed_notes.format_proof(index, steps, bodies[index], await checkpoint_of(signer, bodies))
    )


async def test_a_checkpoint_is_a_signed_note(signer: Signer) -> None:
    """The test verifies the note by the specifications: c2sp.org/tlog-checkpoint and c2sp.org/signed-note."""
    note = (await checkpoint_of(signer, BODIES)).note
    text, line = note.split("\n\n")
    origin, size, root, time = text.split("\n")
    assert origin.startswith("tenure/")
    assert origin.endswith("/acme")
    assert (size, time) == ("7", "time 1770000000")
    assert base64.b64decode(root) == tree_root(map(merkle.leaf_hash, BODIES))
    dash, name, body = line.rstrip("\n").split(" ")
    assert (dash, name) == ("—", origin)
    decoded = base64.b64decode(body)
    assert decoded[:4] == sha256(name.encode() + b"\n\x01" + signer.public).digest()[:4]
    assert is_valid_signature(signer.public, f"{text}\n".encode(), decoded[4:])


async def test_a_checkpoint_is_verified_by_its_signature(signer: Signer, tmp_path: Path) -> None:
    kept = signed_notes.parse_checkpoint((await checkpoint_of(signer, BODIES)).note.encode())
    assert signed_notes.find_signer(kept, TrustedKeys.from_public_keys(signer.public)) == signer.id
    other = make_key(tmp_path / "other.key")
    with pytest.raises(TenureError, match="no trusted key has signed it"):
        signed_notes.find_signer(kept, TrustedKeys.from_public_keys(other.public))
    for old, new in (("\n7\n", "\n8\n"), ("time 177", "time 178"), ("/acme\n7", "/beta\n7")):
        changed = signed_notes.parse_checkpoint(kept.note.replace(old, new, 1))
        with pytest.raises(TenureError) as refused:
            signed_notes.find_signer(changed, TrustedKeys.from_public_keys(signer.public))
        assert refused.value.code == "SEAL_UNTRUSTED"


async def test_additional_signatures_are_ignored(signer: Signer) -> None:
    kept = await checkpoint_of(signer, BODIES)
    witness = "— witness.example/w1 " + base64.b64encode(bytes(100)).decode() + "\n"
    assert (
        signed_notes.find_signer(
            signed_notes.parse_checkpoint(kept.note + witness), TrustedKeys.from_public_keys(signer.public)
        )
        == signer.id
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda note: note[:0],
        lambda note: note.encode() + b"\xff",
        lambda note: note.replace("\n\n", "\n"),
        lambda note: note.replace("\n7\n", "\n07\n"),
        lambda note: note.replace("\n7\n", "\n-7\n"),
        lambda note: note.replace("\n7\n", "\n\n"),
        lambda note: note.replace("\n7\n", "\nseven\n"),
        lambda note: note.replace("=\n", "\n", 1),
        lambda note: note.replace("—", "-"),
        lambda note: note.rstrip("\n"),
        lambda note: note.replace("\n", "\r\n"),
        lambda note: note + "x" * 70_000,
        lambda note: note.partition("\n\n")[0] + "\n\n",
    ],
)
async def test_an_invalid_checkpoint_is_refused(signer: Signer, damage: Callable[[str], str | bytes]) -> None:
    note = (await checkpoint_of(signer, BODIES)).note
    with pytest.raises(TenureError) as refused:
        signed_notes.parse_checkpoint(damage(note))
    assert refused.value.code == "LEDGER_CHECKPOINT_INVALID"


@given(st.binary(max_size=300) | st.text(max_size=300))
def test_random_bytes_are_refused_without_a_crash(body: bytes | str) -> None:
    for read in (signed_notes.parse_checkpoint, signed_notes.parse_proof):
        with pytest.raises(TenureError):
            read(body)


async def test_a_proof_shows_that_a_leaf_is_in_the_ledger(signer: Signer) -> None:
    kept = await checkpoint_of(signer, BODIES)
    for index, body in enumerate(BODIES):
        proof = await proof_of(signer, BODIES, index)
        assert (proof.index, proof.body) == (index, body)
        assert signed_notes.find_inclusion_problem(body, proof, kept) is None


async def test_defects_of_a_proof_are_named(signer: Signer) -> None:
    kept = await checkpoint_of(signer, BODIES)
    proof = await proof_of(signer, BODIES, 3)
    assert "leaf 3 of the ledger is a different leaf" in (
        signed_notes.find_inclusion_problem(BODIES[4], proof, kept) or ""
    )
    older = await checkpoint_of(signer, BODIES[:2])
    assert "was sealed after this checkpoint" in (
        signed_notes.find_inclusion_problem(BODIES[3], proof, older) or ""
    )
    newer = await checkpoint_of(signer, [*BODIES, b"{}"])
    assert "export the evidence again" in (signed_notes.find_inclusion_problem(BODIES[3], proof, newer) or "")
    rewritten = await checkpoint_of(signer, [*BODIES[:6], b"{}"])
    assert "the ledger was rewritten" in (
        signed_notes.find_inclusion_problem(BODIES[3], proof, rewritten) or ""
    )
    elsewhere = await checkpoint_of(
        signer, BODIES, signed_notes.ledger_origin(merkle.leaf_hash(b"other"), "acme")
    )
    assert "the proof is for the ledger" in (
        signed_notes.find_inclusion_problem(BODIES[3], proof, elsewhere) or ""
    )


async def test_a_proof_is_in_the_form_of_a_tlog_proof(signer: Signer) -> None:
    kept = await checkpoint_of(signer, BODIES)
    text = signed_notes.format_proof(6, [bytes(32), bytes(32)], BODIES[6], kept)
    first, extra, index, *hashes = text.partition("\n\n")[0].split("\n")
    assert first == "c2sp.org/tlog-proof@v1"
    assert extra == f"extra {base64.b64encode(BODIES[6]).decode()}"
    assert (index, len(hashes)) == ("index 6", 2)
    assert text.partition("\n\n")[2] == kept.note
    for old, new in (("@v1", "@v2"), ("index 6", "index x"), ("index 6\n", ""), ("index 6", "index 06")):
        with pytest.raises(TenureError):
            signed_notes.parse_proof(text.replace(old, new))


def test_a_tenant_name_cannot_imitate_another_ledger() -> None:
    first = merkle.leaf_hash(b"first")
    names = ["", "acme", "a/b", "a b", "a+b", "a\nb", "ä"]
    origins = [signed_notes.ledger_origin(first, name) for name in names]
    assert len(set(origins)) == len(names)
    assert all(origin.isascii() and not set(origin) & set(" +\n") for origin in origins)
