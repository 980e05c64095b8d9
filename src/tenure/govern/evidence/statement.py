"""The statement about a bundle: in-toto's Statement v1 in a DSSE envelope, which lies beside the zip.

Laws:
1. Its subjects are the zip and every file in it, each with its SHA-256: whoever has the zip, or one file of it, can tell.
2. What is signed is DSSE's pre-authentication encoding of the statement's bytes, with Ed25519. An envelope without a signature
   says by that that it is not signed.
3. An envelope has one encoding: exactly these fields in this order, no blanks, one newline at the end, base64 with zero padding
   bits. Whatever is written otherwise is refused.
4. `sealed_at` is the store's time; a key that is revoked from a moment on is believed for what was sealed before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tenure.govern.evidence.archive import MANIFEST
from tenure.govern.evidence.bundle import Built, Manifest, digest_of
from tenure.govern.signing import Signer, unb64

if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:tenure:evidence:v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
ENVELOPE_SUFFIX = ".dsse.json"
ENVELOPE_BYTES_MAX = 4 * 1024 * 1024


class Digest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a subject."""

    sha256: str


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A thing that a statement is about."""

    name: str
    digest: Digest


class Predicate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of it."""

    format: str
    tenant: str
    run: str
    part: int
    outcome: str | None
    events: int
    """How long the chain is at its end."""
    head: str
    sealed_at: int


class Statement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See law 1."""

    type: str = msgspec.field(name="_type")
    subject: list[Subject]
    predicate_type: str = msgspec.field(name="predicateType")
    predicate: Predicate


def statement_of(built: Built, sealed_at: int) -> bytes:
    """The bytes of a bundle's statement."""
    manifest = built.manifest
    named = {built.name: built.sha256.hex(), MANIFEST: digest_of(built.files[MANIFEST]).sha256}
    named |= {name: one.sha256 for name, one in manifest.files.items()}
    return msgspec.json.encode(
        Statement(
            type=STATEMENT_TYPE,
            subject=[Subject(name, Digest(digest)) for name, digest in named.items()],
            predicate_type=PREDICATE_TYPE,
            predicate=predicate_of(manifest, sealed_at),
        )
    )


def predicate_of(manifest: Manifest, sealed_at: int) -> Predicate:
    """What is said of a part."""
    return Predicate(
        format=manifest.format,
        tenant=manifest.tenant,
        run=manifest.run,
        part=manifest.part,
        outcome=manifest.outcome,
        events=manifest.chain.last,
        head=manifest.chain.head,
        sealed_at=sealed_at,
    )


async def enveloped(statement: bytes, signer: Signer | None) -> bytes:
    """The envelope as it lies beside the zip (law 2)."""
    envelope = _envelope(statement)
    if signer is not None:
        from securesystemslib.signer import Signature  # type: ignore[attr-defined]  # it names no exports

        signature = await signer.sign(envelope.pae())
        envelope.signatures[signer.id] = Signature(signer.id, signature.hex())
    return msgspec.json.encode(envelope.to_dict()) + b"\n"


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """An envelope, read."""

    statement: Statement
    signed: bytes
    """The bytes that signatures are over."""
    signatures: dict[str, bytes]
    """Key id -> signature."""


def opened(body: bytes) -> Opened:
    """Read an envelope; ValueError says why it cannot be."""
    if len(body) > ENVELOPE_BYTES_MAX:
        raise ValueError("it is too large for an envelope")
    try:
        read: Any = msgspec.json.decode(body, type=_Envelope)
        if msgspec.json.encode(read) + b"\n" != body:
            raise ValueError("it is not in the one form of an envelope")
        payload = _unb64(read.payload)
        signatures = {one.keyid: _unb64(one.sig) for one in read.signatures}
        if len(signatures) != len(read.signatures):
            raise ValueError("one key has signed it twice")
        if read.payload_type != PAYLOAD_TYPE:
            raise ValueError(f"its payload is {read.payload_type[:100]!r}, not {PAYLOAD_TYPE}")
        statement = msgspec.json.decode(payload, type=Statement)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise ValueError(str(fault)) from None
    if statement.type != STATEMENT_TYPE or statement.predicate_type != PREDICATE_TYPE:
        raise ValueError("it is no in-toto Statement v1 about evidence")
    signed = _envelope(payload).pae()
    return Opened(statement=statement, signed=signed, signatures=signatures)


def _unb64(text: str) -> bytes:
    body = unb64(text)
    if body is None:
        raise ValueError("a part of it is no base64, or not in its one form")
    return body


def _envelope(payload: bytes) -> Envelope:
    from securesystemslib.dsse import (
        Envelope,  # late: it brings cryptography along, and most processes seal nothing
    )

    return Envelope(payload, PAYLOAD_TYPE, {})


class _Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keyid: str
    sig: str


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    payload: str
    payload_type: str = msgspec.field(name="payloadType")
    signatures: list[_Signature]
