"""The statement about a bundle: an in-toto Statement v1 in a DSSE envelope, stored next to the zip.

Laws:
1. Its subjects are the zip and every file in it, each with its SHA-256, so that the zip or a single file can be checked.
2. The signature is over DSSE's pre-authentication encoding of the statement's bytes, with Ed25519. An envelope without a signature is
   unsigned.
3. An envelope has one encoding: exactly these fields in this order, no blanks, one newline at the end, base64 with zero padding bits. Any
   other encoding is refused.
4. `sealed_at` is the store's time. A revoked key is trusted for what was sealed before its revocation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tenure.canonical import decode_base64
from tenure.govern.evidence.archive import MANIFEST
from tenure.govern.evidence.bundle import BuiltPart, Manifest, digest_file
from tenure.govern.signing import Signer

if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:tenure:evidence:v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
ENVELOPE_SUFFIX = ".dsse.json"
ENVELOPE_BYTES_MAX = 4 * 1024 * 1024


class SubjectDigest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    digest: SubjectDigest


class Predicate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    tenant: str
    run: str
    part: int
    outcome: str | None
    events: int
    head: str
    sealed_at: int


class EvidenceStatement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str = msgspec.field(name="_type")
    subject: list[Subject]
    predicate_type: str = msgspec.field(name="predicateType")
    predicate: Predicate


def build_statement(built: BuiltPart, sealed_at: int) -> bytes:
    manifest = built.manifest
    named = {built.name: built.sha256.hex(), MANIFEST: digest_file(built.files[MANIFEST]).sha256}
    named |= {name: one.sha256 for name, one in manifest.files.items()}
    return msgspec.json.encode(
        EvidenceStatement(
            type=STATEMENT_TYPE,
            subject=[Subject(name, SubjectDigest(digest)) for name, digest in named.items()],
            predicate_type=PREDICATE_TYPE,
            predicate=build_predicate(manifest, sealed_at),
        )
    )


def build_predicate(manifest: Manifest, sealed_at: int) -> Predicate:
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


async def build_envelope(statement: bytes, signer: Signer | None) -> bytes:
    """The envelope that is stored next to the zip (law 2)."""
    envelope = _envelope(statement)
    if signer is not None:
        from securesystemslib.signer import Signature  # type: ignore[attr-defined]  # it names no exports

        envelope.signatures[signer.id] = Signature(signer.id, (await signer.sign(envelope.pae())).hex())
    return msgspec.json.encode(envelope.to_dict()) + b"\n"


class OpenedEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    statement: EvidenceStatement
    signed: bytes
    signatures: dict[str, bytes]


def open_envelope(body: bytes) -> OpenedEnvelope:
    """Parse an envelope, or raise ValueError with the reason."""
    if len(body) > ENVELOPE_BYTES_MAX:
        raise ValueError("it is too large for an envelope")
    try:
        read: Any = msgspec.json.decode(body, type=_Envelope)
        if msgspec.json.encode(read) + b"\n" != body:
            raise ValueError("it does not have the canonical form of an envelope")
        payload = _unb64(read.payload)
        signatures = {one.keyid: _unb64(one.sig) for one in read.signatures}
        if len(signatures) != len(read.signatures):
            raise ValueError("one key has signed it twice")
        if read.payload_type != PAYLOAD_TYPE:
            raise ValueError(f"its payload is {read.payload_type[:100]!r}, not {PAYLOAD_TYPE}")
        statement = msgspec.json.decode(payload, type=EvidenceStatement)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise ValueError(str(fault)) from None
    if statement.type != STATEMENT_TYPE or statement.predicate_type != PREDICATE_TYPE:
        raise ValueError("it is not an in-toto Statement v1 about evidence")
    return OpenedEnvelope(statement=statement, signed=_envelope(payload).pae(), signatures=signatures)


def _unb64(text: str) -> bytes:
    body = decode_base64(text)
    if body is None:
        raise ValueError("a part of it is not base64 in its canonical form")
    return body


def _envelope(payload: bytes) -> Envelope:
    # Late: it loads cryptography, and most processes seal nothing.
    from securesystemslib.dsse import Envelope

    return Envelope(payload, PAYLOAD_TYPE, {})


class _Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keyid: str
    sig: str


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    payload: str
    payload_type: str = msgspec.field(name="payloadType")
    signatures: list[_Signature]
