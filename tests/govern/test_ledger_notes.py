"""Checkpoints and proofs as text: the forms of C2SP, and nothing else."""

import base64
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import TenureError
from tenure.govern.ledger import notes
from tenure.govern.signing import Signer, Trust, is_signed, make_key
from tenure.kernel import leaves, merkle
from tests.govern.ledgers import RUN

AT = 1_770_000_000_123_456
BODIES = [leaves.created("acme", RUN + n, bytes([n]) * 32).body for n in range(7)]
ORIGIN = notes.origin_of(merkle.leaf_hash(b"first"), "acme")


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return make_key(tmp_path_factory.mktemp("keys") / "seal.key")


async def checkpoint_of(signer: Signer, bodies: list[bytes], origin: str = ORIGIN) -> notes.Checkpoint:
    root = merkle.root_of(map(merkle.leaf_hash, bodies))
    return await notes.signed(signer, origin, len(bodies), root, AT)


async def proof_of(signer: Signer, bodies: list[bytes], index: int) -> notes.Proof:
    hashes = [merkle.leaf_hash(body) for body in bodies]
    spans = merkle.inclusion(index, len(bodies))
    steps = [merkle.root_of(hashes[low:high]) for low, high in spans]
    return notes.parse_proof(
        notes.proof_text(index, steps, bodies[index], await checkpoint_of(signer, bodies))
    )


async def test_a_checkpoint_is_a_signed_note(signer: Signer) -> None:
    """By hand, as the specifications say it: c2sp.org/tlog-checkpoint and c2sp.org/signed-note."""
    note = (await checkpoint_of(signer, BODIES)).note
    text, line = note.split("\n\n")
    origin, size, root, time = text.split("\n")
    assert origin.startswith("tenure/")
    assert origin.endswith("/acme")
    assert (size, time) == ("7", "time 1770000000")
    assert base64.b64decode(root) == merkle.root_of(map(merkle.leaf_hash, BODIES))
    dash, name, body = line.rstrip("\n").split(" ")
    assert (dash, name) == ("—", origin)
    decoded = base64.b64decode(body)
    assert decoded[:4] == sha256(name.encode() + b"\n\x01" + signer.public).digest()[:4]
    assert is_signed(signer.public, f"{text}\n".encode(), decoded[4:])


async def test_a_checkpoint_is_believed_by_its_signature(signer: Signer, tmp_path: Path) -> None:
    kept = notes.parse((await checkpoint_of(signer, BODIES)).note.encode())
    assert notes.signer_of(kept, Trust.of_public(signer.public)) == signer.id
    other = make_key(tmp_path / "other.key")
    with pytest.raises(TenureError, match="no key that is trusted has signed it"):
        notes.signer_of(kept, Trust.of_public(other.public))
    for old, new in (("\n7\n", "\n8\n"), ("time 177", "time 178"), ("/acme\n7", "/beta\n7")):
        changed = notes.parse(kept.note.replace(old, new, 1))
        with pytest.raises(TenureError) as refused:
            notes.signer_of(changed, Trust.of_public(signer.public))
        assert refused.value.code == "SEAL_UNTRUSTED"


async def test_signatures_of_others_beside_it_do_no_harm(signer: Signer) -> None:
    kept = await checkpoint_of(signer, BODIES)
    witness = "— witness.example/w1 " + base64.b64encode(bytes(100)).decode() + "\n"
    assert notes.signer_of(notes.parse(kept.note + witness), Trust.of_public(signer.public)) == signer.id


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
async def test_what_is_no_checkpoint_is_refused(signer: Signer, damage: Callable[[str], str | bytes]) -> None:
    note = (await checkpoint_of(signer, BODIES)).note
    with pytest.raises(TenureError) as refused:
        notes.parse(damage(note))
    assert refused.value.code == "LEDGER_CHECKPOINT_INVALID"


@given(st.binary(max_size=300) | st.text(max_size=300))
def test_no_bytes_make_the_readers_stumble(body: bytes | str) -> None:
    for read in (notes.parse, notes.parse_proof):
        with pytest.raises(TenureError):
            read(body)


async def test_a_proof_shows_that_a_leaf_is_in_the_ledger(signer: Signer) -> None:
    kept = await checkpoint_of(signer, BODIES)
    for index, body in enumerate(BODIES):
        proof = await proof_of(signer, BODIES, index)
        assert (proof.index, proof.body) == (index, body)
        assert notes.inclusion_problem(body, proof, kept) is None


async def test_what_a_proof_does_not_show_is_named(signer: Signer) -> None:
    kept = await checkpoint_of(signer, BODIES)
    proof = await proof_of(signer, BODIES, 3)
    assert "leaf 3 of the ledger is not this one" in (notes.inclusion_problem(BODIES[4], proof, kept) or "")
    older = await checkpoint_of(signer, BODIES[:2])
    assert "was sealed after it, or was left out" in (notes.inclusion_problem(BODIES[3], proof, older) or "")
    newer = await checkpoint_of(signer, [*BODIES, b"{}"])
    assert "export the evidence anew" in (notes.inclusion_problem(BODIES[3], proof, newer) or "")
    rewritten = await checkpoint_of(signer, [*BODIES[:6], b"{}"])
    assert "the ledger was rewritten" in (notes.inclusion_problem(BODIES[3], proof, rewritten) or "")
    elsewhere = await checkpoint_of(signer, BODIES, notes.origin_of(merkle.leaf_hash(b"other"), "acme"))
    assert "the proof is for the ledger" in (notes.inclusion_problem(BODIES[3], proof, elsewhere) or "")


async def test_a_proof_is_in_the_form_of_a_tlog_proof(signer: Signer) -> None:
    kept = await checkpoint_of(signer, BODIES)
    text = notes.proof_text(6, [bytes(32), bytes(32)], BODIES[6], kept)
    first, extra, index, *hashes = text.partition("\n\n")[0].split("\n")
    assert first == "c2sp.org/tlog-proof@v1"
    assert extra == f"extra {base64.b64encode(BODIES[6]).decode()}"
    assert (index, len(hashes)) == ("index 6", 2)
    assert text.partition("\n\n")[2] == kept.note
    for old, new in (("@v1", "@v2"), ("index 6", "index x"), ("index 6\n", ""), ("index 6", "index 06")):
        with pytest.raises(TenureError):
            notes.parse_proof(text.replace(old, new))


def test_a_tenants_name_cannot_pass_for_another_ledger() -> None:
    first = merkle.leaf_hash(b"first")
    names = ["", "acme", "a/b", "a b", "a+b", "a\nb", "ä"]
    origins = [notes.origin_of(first, name) for name in names]
    assert len(set(origins)) == len(names)
    assert all(origin.isascii() and not set(origin) & set(" +\n") for origin in origins)
