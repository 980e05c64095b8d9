"""Checkpoints and proofs of a ledger, as text that other programs read too.

Laws:
1. A checkpoint is a signed note as in C2SP's tlog-checkpoint: origin, size, root; one extension line more, `time` and the second
   it was signed, because a key may be revoked from a moment on. The signature line has Ed25519 (type 1) and the origin as name.
2. A proof is in the form of C2SP's tlog-proof: index, hashes from the leaf up, and the checkpoint it leads to. Its `extra`
   is the leaf itself.
3. What comes from outside is bounded, and has one encoding: whatever is not written as we write it is refused, never guessed at.
   Base64 has zero padding bits, numbers have no leading zeros, lines end with one newline, no line comes twice.
4. A checkpoint is believed only as far as a key of a trust file has signed it for its time.
5. Every byte of a proof counts: its leaf is the one that is asked about, and its own checkpoint is the one that was kept, or one
   over the same leaves that a trusted key has signed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from urllib.parse import quote

import msgspec

from tenure.clock import SECOND_US
from tenure.errors import TenureError
from tenure.govern.signing import Signer, Trust, b64, unb64
from tenure.kernel import merkle

NOTE_BYTES_MAX = 64 * 1024
SIGNATURES_MAX = 64
PROOF_HASHES_MAX = 64
PROOF_FIRST = "c2sp.org/tlog-proof@v1"
PROOF_SUFFIX = ".tlog-proof"
_DASH = "\u2014 "
_ED25519 = b"\1"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_ORIGIN = re.compile(r"[^\s+]+")
_SIGNATURE = re.compile(rf"{_DASH}([^\s+]+) ([A-Za-z0-9+/]+=*)")


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a ledger was at a moment, as somebody signed it."""

    origin: str
    size: int
    root: bytes
    at: int | None
    """When it was signed; None: it does not say."""
    text: str
    """What is signed."""
    note: str
    """All of it, with the signatures."""
    signatures: tuple[tuple[str, bytes, bytes], ...]
    """(name, the first four bytes of the key's hash, signature)."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """That a leaf is in a ledger."""

    index: int
    hashes: tuple[bytes, ...]
    body: bytes | None
    """The leaf; what it is worth is what the hashes say."""
    checkpoint: Checkpoint


def origin_of(first: bytes, tenant: str) -> str:
    """The name of a ledger. An installation is known by the hash of the first leaf of its own ledger, which never changes."""
    installation = f"tenure/{first.hex()[:32]}"
    return f"{installation}/{quote(tenant, safe='')}" if tenant else installation


async def signed(signer: Signer, origin: str, size: int, root: bytes, at: int) -> Checkpoint:
    """Sign what a ledger is."""
    text = f"{origin}\n{size}\n{b64(root)}\ntime {at // SECOND_US}\n"
    signature = await signer.sign(text.encode())
    line = f"{_DASH}{origin} {b64(_key_hash(origin, signer.public) + signature)}\n"
    return parse(f"{text}\n{line}")


def parse(note: str | bytes) -> Checkpoint:
    """Read a checkpoint, without believing it (law 3)."""
    whole = _decoded(note, "a checkpoint")
    text, blank, lines = whole.rpartition("\n\n")
    if not blank or not lines.endswith("\n"):
        raise _invalid("it has no signatures")
    said = text.split("\n")
    if len(said) < 3 or not all(said):
        raise _invalid("it has not the three lines: origin, size, root")
    origin, size, root, *more = said
    if not _ORIGIN.fullmatch(origin):
        raise _invalid("its first line is no origin: it has no blanks and no +")
    if not _NUMBER.fullmatch(size):
        raise _invalid("its second line is no size")
    hashed = unb64(root)
    if hashed is None or len(hashed) != merkle.HASH_BYTES:
        raise _invalid("its third line is no hash in base64")
    return Checkpoint(
        origin=origin,
        size=int(size),
        root=hashed,
        at=_time(more),
        text=f"{text}\n",
        note=whole,
        signatures=_signatures(lines.removesuffix("\n").split("\n")),
    )


def signer_of(checkpoint: Checkpoint, trust: Trust) -> str:
    """The id of the key of a trust file that has signed a checkpoint for its time; SEAL_UNTRUSTED, with the reason (law 4)."""
    problem = "no key that is trusted has signed it"
    for known in trust.keys.values():
        public = unb64(known.public) or b""
        for name, hint, signature in checkpoint.signatures:
            if (name, hint) != (checkpoint.origin, _key_hash(checkpoint.origin, public)):
                continue
            found = trust.problem(known.id, checkpoint.text.encode(), signature, checkpoint.at)
            if found is None:
                return known.id
            problem = found
    raise TenureError("SEAL_UNTRUSTED", f"the checkpoint of {checkpoint.size} leaves: {problem}")


# ------------------------------------------------------------------------------------------------ proofs


def proof_text(index: int, hashes: Sequence[bytes], body: bytes, checkpoint: Checkpoint) -> str:
    """A proof as it lies in a file."""
    lines = [PROOF_FIRST, f"extra {b64(body)}", f"index {index}", *map(b64, hashes)]
    return "\n".join(lines) + f"\n\n{checkpoint.note}"


def parse_proof(text: str | bytes) -> Proof:
    """Read a proof, without believing it."""
    whole = _decoded(text, "a proof")
    head, blank, note = whole.partition("\n\n")
    first, *lines = head.split("\n")
    if not blank or first != PROOF_FIRST:
        raise _invalid(f"its first line is not {PROOF_FIRST}", "proof")
    body = None
    if lines and lines[0].startswith("extra "):
        body = unb64(lines.pop(0).removeprefix("extra "))
        if not body:
            raise _invalid("its `extra` is no leaf in base64", "proof")
    word, _, index = lines[0].partition(" ") if lines else ("", "", "")
    if word != "index" or not _NUMBER.fullmatch(index):
        raise _invalid("it has no index", "proof")
    hashes = [unb64(line) for line in lines[1:]]
    if len(hashes) > PROOF_HASHES_MAX or any(one is None or len(one) != merkle.HASH_BYTES for one in hashes):
        raise _invalid("one of its lines is no hash in base64", "proof")
    return Proof(
        index=int(index),
        hashes=tuple(one for one in hashes if one is not None),
        body=body,
        checkpoint=parse(note),
    )


def own_checkpoint_problem(proof: Proof, checkpoint: Checkpoint, trust: Trust | None) -> str | None:
    """Why a proof's own checkpoint is not what it should be, besides the one that was kept (law 5); None: it is."""
    if proof.checkpoint.note == checkpoint.note:
        return None
    if trust is None:
        return "its own checkpoint is not the one that was kept, and without --key or --trust nobody can tell who signed it"
    try:
        signer_of(proof.checkpoint, trust)
    except TenureError as refused:
        return refused.message
    return None


def inclusion_problem(body: bytes, proof: Proof, checkpoint: Checkpoint) -> str | None:
    """Why a proof does not show that a leaf with this body is in the ledger of a checkpoint; None: it does.

    The checkpoint is the one that was kept, and believed already.
    """
    its = proof.checkpoint
    if its.origin != checkpoint.origin:
        return f"the proof is for the ledger {its.origin}, the checkpoint for {checkpoint.origin}"
    if its.size != checkpoint.size:
        later = "was sealed after it, or was left out" if proof.index >= checkpoint.size else "may be in it"
        return (
            f"the proof is for the checkpoint of {its.size} leaves, not for this one of {checkpoint.size}: the run {later};"
            " export the evidence anew for this checkpoint"
        )
    if its.root != checkpoint.root:
        return f"two checkpoints of {its.size} leaves have different roots: the ledger was rewritten"
    leaf = merkle.leaf_hash(body)
    if not merkle.is_included(leaf, proof.index, checkpoint.size, proof.hashes, checkpoint.root):
        return f"leaf {proof.index} of the ledger is not this one: the run was changed, or is another's"
    if proof.body is not None and proof.body != body:
        return f"the `extra` of the proof is not leaf {proof.index}: the proof was changed"
    return None


# ------------------------------------------------------------------------------------------------ reading


def _decoded(given: str | bytes, what: str) -> str:
    body = given.encode() if isinstance(given, str) else given
    if len(body) > NOTE_BYTES_MAX:
        raise _invalid(f"{what} has at most {NOTE_BYTES_MAX} bytes")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise _invalid(f"{what} is text in UTF-8") from None
    if any(ord(letter) < 32 and letter != "\n" for letter in text):
        raise _invalid(f"{what} has no control characters")
    return text


def _signatures(lines: Sequence[str]) -> tuple[tuple[str, bytes, bytes], ...]:
    if len(lines) > SIGNATURES_MAX:
        raise _invalid(f"it has more than {SIGNATURES_MAX} signatures")
    found = []
    for line in lines:
        match = _SIGNATURE.fullmatch(line)
        body = unb64(match[2]) if match else None
        if match is None or body is None or len(body) < 5:
            raise _invalid("one of its last lines is no signature")
        found.append((match[1], body[:4], body[4:]))
    if len({(name, hint) for name, hint, _ in found}) < len(found):
        raise _invalid("one key has signed it twice")
    return tuple(found)


def _time(lines: Sequence[str]) -> int | None:
    found = [line for line in lines if line.partition(" ")[0] == "time"]
    if not found:
        return None
    number = found[0].removeprefix("time ")
    if len(found) > 1 or not _NUMBER.fullmatch(number):
        raise _invalid("its line `time` is no second, or is there twice")
    return int(number) * SECOND_US


def _key_hash(name: str, public: bytes) -> bytes:
    """How a note names a key: C2SP's signed-note has four bytes of this."""
    return sha256(name.encode() + b"\n" + _ED25519 + public).digest()[:4]


def _invalid(problem: str, what: str = "checkpoint") -> TenureError:
    return TenureError("LEDGER_CHECKPOINT_INVALID", f"this is no {what} of a ledger: {problem}")
