"""Signatures: the public half of the keys, and which keys are trusted.

Laws:
1. A key's id is the SHA-256 of its 32 public bytes, in hex. The scheme is Ed25519.
2. A trust file lists the trusted keys. A key without an endorsement is trusted because the file is. A key that another key
   endorses is trusted as far as that key is. A revoked key is not trusted for anything signed at or after its revocation.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import msgspec

from tenure.canonical import canonical, decode_base64, encode_base64
from tenure.errors import TenureError

KEY_BYTES_MAX = 64 * 1024
TRUST_BYTES_MAX = 16 * 1024 * 1024
KEYS_MAX = 10_000
PUBLIC_BYTES = 32
TRUST_FORMAT = "tenure-trust-1"
ENDORSEMENT_FORMAT = "tenure-key-endorsement-1"


def key_id(public: bytes) -> str:
    return sha256(public).hexdigest()


def endorsement(public: bytes, by: str, at: int) -> bytes:
    """The bytes that key `by` signs to endorse a new key: canonical JSON."""
    return canonical(
        {
            "format": ENDORSEMENT_FORMAT,
            "key": key_id(public),
            "public": encode_base64(public),
            "by": by,
            "at": at,
        }
    )


def is_valid_signature(public: bytes, message: bytes, signature: bytes) -> bool:
    from tenure.proof import ed25519

    return ed25519.is_valid_signature(public, message, signature)


def read_public(text: str) -> bytes:
    """A public key from base64 of its 32 bytes, from PEM, or from a file that contains either."""
    body = text.strip()
    if not body.startswith("-----") and len(body) != 44:  # base64 of 32 bytes
        try:
            body = Path(text).read_bytes()[:KEY_BYTES_MAX].decode().strip()
        except (OSError, ValueError):
            raise TenureError("INVALID_INPUT", f"no public key can be read from {text[:200]!r}") from None
    if body.startswith("-----BEGIN PUBLIC KEY"):
        from tenure.proof import ed25519

        public = ed25519.public_from_pem(body.encode())
    else:
        public = decode_base64(body)
    if public is None or len(public) != PUBLIC_BYTES:
        raise TenureError(
            "INVALID_INPUT", "a public key must be a PEM file of an Ed25519 key, or base64 of its 32 bytes"
        )
    return public


class TrustedKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key in a trust file. Times are in microseconds."""

    id: str
    public: str
    """Base64 of the 32 public bytes."""
    created_at: int = 0
    """The endorsement names this time."""
    endorsed_by: str | None = None
    endorsement: str | None = None
    """Base64 of the signature by `endorsed_by` over `endorsement(...)`."""
    revoked_from: int | None = None


class TrustFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    keys: list[TrustedKey]


class TrustedKeys:
    """Decides which keys are trusted, and until when (law 2)."""

    def __init__(self, keys: Iterable[TrustedKey], roots: Iterable[str] | None = None) -> None:
        """`roots`: the ids of the keys that need no endorsement. None: every key without an endorsement is a root."""
        self.keys = {key.id: key for key in keys}
        self._roots = None if roots is None else frozenset(roots)
        self._problems: dict[str, str | None] = {}

    @classmethod
    def load(cls, file: str | Path, roots: Iterable[bytes] | None = None) -> TrustedKeys:
        """Read a trust file. With public keys as `roots`, only keys that these endorse, directly or not, are trusted."""
        try:
            with Path(file).open("rb") as opened:
                body = opened.read(TRUST_BYTES_MAX + 1)
        except OSError as fault:
            raise TenureError("INVALID_INPUT", f"{file} cannot be read: {fault.strerror}") from None
        if len(body) > TRUST_BYTES_MAX:
            raise TenureError(
                "INVALID_INPUT",
                f"{file} is too large: a trust file must have at most {TRUST_BYTES_MAX} bytes",
            )
        return cls.parse(body, roots)

    @classmethod
    def parse(cls, body: bytes, roots: Iterable[bytes] | None = None) -> TrustedKeys:
        try:
            read = msgspec.json.decode(body, type=TrustFile)
        except (msgspec.DecodeError, UnicodeDecodeError) as fault:
            raise TenureError("INVALID_INPUT", f"this is not a trust file: {fault}") from None
        ids = [key.id for key in read.keys]
        if read.format != TRUST_FORMAT or len(ids) > KEYS_MAX or len(set(ids)) != len(ids):
            raise TenureError(
                "INVALID_INPUT",
                f"a trust file must have the format {TRUST_FORMAT!r}, at most {KEYS_MAX} keys, and each key once",
            )
        return cls(read.keys, None if roots is None else map(key_id, roots))

    @classmethod
    def from_public_keys(cls, *public: bytes) -> TrustedKeys:
        return cls(TrustedKey(id=key_id(one), public=encode_base64(one)) for one in public)

    @classmethod
    def given(cls, key: str | None, file: str | Path | None) -> TrustedKeys | None:
        """The keys that a command line names: a public key, a trust file, or a trust file with the key as its root."""
        roots = None if key is None else [read_public(key)]
        if file is not None:
            return cls.load(file, roots)
        return None if roots is None else cls.from_public_keys(*roots)

    def dump(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self.file())) + b"\n"

    def file(self) -> TrustFile:
        """The trust file, oldest key first."""
        return TrustFile(
            format=TRUST_FORMAT, keys=sorted(self.keys.values(), key=lambda key: (key.created_at, key.id))
        )

    def key_problem(self, named: str, at: int | None = None) -> str | None:
        """Why a key is not trusted (for a signature made at `at`), or None if it is trusted."""
        if named not in self._problems:
            self._problems[named] = self._find_problem(named)
        problem = self._problems[named]
        if problem is not None or at is None:
            return problem
        revoked = self.keys[named].revoked_from
        if revoked is not None and at >= revoked:
            return f"key {named[:12]} is revoked from {_format_time(revoked)} on, and this was signed at {_format_time(at)}"
        return None

    def problem(self, named: str, message: bytes, signature: bytes, at: int | None) -> str | None:
        """Why a signature is not trusted, or None if it is. With an unknown time (`at` None) a revoked key is not trusted."""
        if (problem := self.key_problem(named, at)) is not None:
            return problem
        key = self.keys[named]
        if at is None and key.revoked_from is not None:
            return f"key {named[:12]} is revoked, and the time of this signature is unknown"
        if not is_valid_signature(decode_base64(key.public) or b"", message, signature):
            return f"the signature does not match key {named[:12]} and these bytes"
        return None

    def _find_problem(self, named: str) -> str | None:
        """Follow the endorsements from a key to a root."""
        seen: set[str] = set()
        while True:
            key = self.keys.get(named)
            if key is None:
                return f"key {named[:12]} is not among the trusted keys"
            public = decode_base64(key.public)
            if public is None or key_id(public) != named:
                return f"the id of key {named[:12]} is not the SHA-256 of its public key"
            if self._roots is not None and named in self._roots:
                return None
            endorser = key.endorsed_by
            if endorser is None:
                return None if self._roots is None else f"no trusted key endorses key {named[:12]}"
            seen.add(named)
            problem = self._endorsement_problem(key, public, endorser)
            if problem is not None or endorser in seen:
                return problem or f"key {named[:12]} endorses itself"
            named = endorser

    def _endorsement_problem(self, key: TrustedKey, public: bytes, by: str) -> str | None:
        endorser = self.keys.get(by)
        if endorser is None:
            return f"key {key.id[:12]} is endorsed by {by[:12]}, which is not among the trusted keys"
        endorser_public, signature = decode_base64(endorser.public), decode_base64(key.endorsement or "")
        message = endorsement(public, by, key.created_at)
        if (
            endorser_public is None
            or signature is None
            or not is_valid_signature(endorser_public, message, signature)
        ):
            return f"the endorsement of key {key.id[:12]} is not a signature of key {by[:12]}"
        if endorser.revoked_from is not None and key.created_at >= endorser.revoked_from:
            return f"key {key.id[:12]} was endorsed by {by[:12]} after that key was revoked"
        return None


def _format_time(at: int) -> str:
    return f"{datetime.fromtimestamp(at / 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"
