"""Checkpoints and proofs of a ledger, as text in public formats.

Laws:
1. A checkpoint is a signed note as in C2SP's tlog-checkpoint: origin, size, root, and one extension line, `time`, with the
   second of the signature, because keys can be revoked. The signature line has Ed25519 (type 1) and the origin as its name.
2. A proof has the format of C2SP's tlog-proof: index, hashes from the leaf up, and the checkpoint it leads to. Its `extra` line
   is the leaf.
3. Input is bounded and has one encoding. Text that Tenure would write differently is refused: base64 has zero padding bits,
   numbers have no leading zeros, lines end with one newline, and no line occurs twice.
4. A checkpoint is trusted only if a key of the trust file has signed it and was valid at its time.
5. Every byte of a proof is checked: its leaf is the expected one, and its own checkpoint is either the stored one or one over
   the same leaves that a trusted key has signed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from urllib.parse import quote

import msgspec

from tenure.canonical import decode_base64, encode_base64
from tenure.clock import SECOND_US
from tenure.errors import TenureError
from tenure.proof import merkle
from tenure.proof.signatures import TrustedKeys

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


class LedgerCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    origin: str
    size: int
    root: bytes
    at: int | None
    """The time of the signature, or None if the note does not have one."""
    text: str
    note: str
    signatures: tuple[tuple[str, bytes, bytes], ...]
    """(name, the first four bytes of the key's hash, signature)."""


class InclusionProof(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    hashes: tuple[bytes, ...]
    body: bytes | None
    """The leaf. The hashes prove or disprove it."""
    checkpoint: LedgerCheckpoint


def ledger_origin(first: bytes, tenant: str) -> str:
    """The name of a ledger. The hash of the first leaf of its own ledger identifies an installation and never changes."""
    installation = f"tenure/{first.hex()[:32]}"
    return f"{installation}/{quote(tenant, safe='')}" if tenant else installation


def checkpoint_text(origin: str, size: int, root: bytes, at: int) -> str:
    return f"{origin}\n{size}\n{encode_base64(root)}\ntime {at // SECOND_US}\n"


def build_checkpoint(text: str, origin: str, public: bytes, signature: bytes) -> LedgerCheckpoint:
    return parse_checkpoint(
        f"{text}\n{_DASH}{origin} {encode_base64(_key_hash(origin, public) + signature)}\n"
    )


def parse_checkpoint(note: str | bytes) -> LedgerCheckpoint:
    """Parse a checkpoint without trusting it (law 3)."""
    whole = _decoded(note, "a checkpoint")
    text, blank, lines = whole.rpartition("\n\n")
    if not blank or not lines.endswith("\n"):
        raise _invalid("it has no signatures")
    head = text.split("\n")
    if len(head) < 3 or not all(head):
        raise _invalid("its first three lines must be origin, size and root")
    origin, size, root, *more = head
    if not _ORIGIN.fullmatch(origin):
        raise _invalid("its first line is not an origin: an origin has no blanks and no +")
    if not _NUMBER.fullmatch(size):
        raise _invalid("its second line is not a size")
    hashed = decode_base64(root)
    if hashed is None or len(hashed) != merkle.HASH_BYTES:
        raise _invalid("its third line is not a hash in base64")
    return LedgerCheckpoint(
        origin=origin,
        size=int(size),
        root=hashed,
        at=_time(more),
        text=f"{text}\n",
        note=whole,
        signatures=_signatures(lines.removesuffix("\n").split("\n")),
    )


def find_signer(checkpoint: LedgerCheckpoint, trust: TrustedKeys) -> str:
    """The id of the trusted key that signed a checkpoint; SEAL_UNTRUSTED with the reason if there is none (law 4)."""
    problem = "no trusted key has signed it"
    for known in trust.keys.values():
        signer = (checkpoint.origin, _key_hash(checkpoint.origin, decode_base64(known.public) or b""))
        for name, hint, signature in checkpoint.signatures:
            if (name, hint) == signer:
                found = trust.problem(known.id, checkpoint.text.encode(), signature, checkpoint.at)
                if found is None:
                    return known.id
                problem = found
    raise TenureError("SEAL_UNTRUSTED", f"the checkpoint of {checkpoint.size} leaves: {problem}")


# ------------------------------------------------------------------------------------------------ proofs


def format_proof(index: int, hashes: Sequence[bytes], body: bytes, checkpoint: LedgerCheckpoint) -> str:
    lines = [PROOF_FIRST, f"extra {encode_base64(body)}", f"index {index}", *map(encode_base64, hashes)]
    return "\n".join(lines) + f"\n\n{checkpoint.note}"


def parse_proof(text: str | bytes) -> InclusionProof:
    """Parse a proof without trusting it."""
    head, blank, note = _decoded(text, "a proof").partition("\n\n")
    first, *lines = head.split("\n")
    if not blank or first != PROOF_FIRST:
        raise _invalid(f"its first line is not {PROOF_FIRST}", "proof")
    body = None
    if lines and lines[0].startswith("extra "):
        body = decode_base64(lines.pop(0).removeprefix("extra "))
        if not body:
            raise _invalid("its `extra` line is not a leaf in base64", "proof")
    word, _, index = lines[0].partition(" ") if lines else ("", "", "")
    if word != "index" or not _NUMBER.fullmatch(index):
        raise _invalid("it has no index line", "proof")
    hashes = [decode_base64(line) for line in lines[1:]]
    if len(hashes) > PROOF_HASHES_MAX or any(one is None or len(one) != merkle.HASH_BYTES for one in hashes):
        raise _invalid("one of its lines is not a hash in base64", "proof")
    return InclusionProof(
        index=int(index),
        hashes=tuple(one for one in hashes if one is not None),
        body=body,
        checkpoint=parse_checkpoint(note),
    )


def find_own_checkpoint_problem(
    proof: InclusionProof, checkpoint: LedgerCheckpoint, trust: TrustedKeys | None
) -> str | None:
    """Why a proof's own checkpoint is not acceptable (law 5), or None if it is."""
    if proof.checkpoint.note == checkpoint.note:
        return None
    if trust is None:
        return "its own checkpoint differs from the stored one, and its signature cannot be checked without --key or --trust"
    try:
        find_signer(proof.checkpoint, trust)
    except TenureError as refused:
        return refused.message
    return None


def find_inclusion_problem(body: bytes, proof: InclusionProof, checkpoint: LedgerCheckpoint) -> str | None:
    """Why a proof does not show that the leaf `body` is in the ledger of a trusted checkpoint, or None if it does."""
    its = proof.checkpoint
    if its.origin != checkpoint.origin:
        return f"the proof is for the ledger {its.origin}, the checkpoint for {checkpoint.origin}"
    if its.size != checkpoint.size:
        later = (
            "was sealed after this checkpoint, or was left out of it"
            if proof.index >= checkpoint.size
            else "may be covered by it"
        )
        return (
            f"the proof is for the checkpoint of {its.size} leaves, not for this one of {checkpoint.size}: the run {later};"
            " export the evidence again for this checkpoint"
        )
    if its.root != checkpoint.root:
        return f"two checkpoints of {its.size} leaves have different roots: the ledger was rewritten"
    if not merkle.is_included(
        merkle.leaf_hash(body), proof.index, checkpoint.size, proof.hashes, checkpoint.root
    ):
        return f"leaf {proof.index} of the ledger is a different leaf: the run was changed, or the proof belongs to another run"
    if proof.body is not None and proof.body != body:
        return f"the `extra` line of the proof is not leaf {proof.index}: the proof was changed"
    return None


# ------------------------------------------------------------------------------------------------ reading


def _decoded(given: str | bytes, what: str) -> str:
    body = given.encode() if isinstance(given, str) else given
    if len(body) > NOTE_BYTES_MAX:
        raise _invalid(f"{what} has at most {NOTE_BYTES_MAX} bytes")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise _invalid(f"{what} must be UTF-8 text") from None
    if any(ord(letter) < 32 and letter != "\n" for letter in text):
        raise _invalid(f"{what} must not contain control characters")
    return text


def _signatures(lines: Sequence[str]) -> tuple[tuple[str, bytes, bytes], ...]:
    if len(lines) > SIGNATURES_MAX:
        raise _invalid(f"it has more than {SIGNATURES_MAX} signatures")
    found = []
    for line in lines:
        match = _SIGNATURE.fullmatch(line)
        body = decode_base64(match[2]) if match else None
        if match is None or body is None or len(body) < 5:
            raise _invalid("one of its last lines is not a signature")
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
        raise _invalid("its `time` line is not a number of seconds, or occurs twice")
    return int(number) * SECOND_US


def _key_hash(name: str, public: bytes) -> bytes:
    """How a note identifies a key: four bytes of this hash (C2SP signed-note)."""
    return sha256(name.encode() + b"\n" + _ED25519 + public).digest()[:4]


def _invalid(problem: str, what: str = "checkpoint") -> TenureError:
    return TenureError("LEDGER_CHECKPOINT_INVALID", f"this is not a ledger {what}: {problem}")
