"""Keys that seal: by reference where they sign, by their public half where they are believed.

Laws:
1. A private key is named by configuration and read for the one signature: `file:PATH` (readable by its owner only, else it is
   refused), `env:NAME`, or `command:ARGV...`, a program that gets the bytes on stdin and answers their signature, so that the
   key never is in this process. No database, log, message or `repr` has anything of it.
2. A key's id is the SHA-256 of its 32 public bytes, in hex. The scheme is Ed25519 and nothing else.
3. A signature is checked with the public key before it leaves here.
4. A trust file says which keys to believe. One without an endorsement is believed because the file is; one that the key
   before it endorses is believed as far as that key is. A key that is revoked from a moment on has signed nothing after it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import shlex
import stat
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tenure.canonical import canonical
from tenure.errors import TenureError
from tenure.private_files import create_file, hide

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_VARIABLE = "TENURE_SIGNING_KEY"
"""The reference of the key that this process signs with."""
PUBLIC_VARIABLE = "TENURE_SIGNING_PUBLIC"
"""Beside a `command:`: its public key, as base64 or the path of a PEM file."""

KEY_BYTES_MAX = 64 * 1024
TRUST_BYTES_MAX = 16 * 1024 * 1024
KEYS_MAX = 10_000
COMMAND_SECONDS = 30.0
SIGNATURE_BYTES = 64
PUBLIC_BYTES = 32
TRUST_FORMAT = "tenure-trust-1"
ENDORSEMENT_FORMAT = "tenure-key-endorsement-1"


def key_id(public: bytes) -> str:
    """A key's id (law 2)."""
    return sha256(public).hexdigest()


def endorsement(public: bytes, by: str, at: int) -> bytes:
    """The bytes that the key before signs for a new one: canonical JSON."""
    said = {"format": ENDORSEMENT_FORMAT, "key": key_id(public), "public": b64(public), "by": by, "at": at}
    return canonical(said)


class Signer:
    """Signs with the key behind a reference; knows of it the public half only (law 1)."""

    def __init__(self, reference: str, public: bytes) -> None:
        self._reference = reference
        self.public = public
        self.id = key_id(public)

    @classmethod
    def open(cls, reference: str, public: str | None = None) -> Signer:
        """Find the key behind a reference. Blocks a moment; SIGNING_KEY_UNAVAILABLE where there is none that may be used.

        `public`, of a command: its public key, as base64 or the path of a PEM file.
        """
        kind, _, where = reference.partition(":")
        if kind == "command":
            if not _argv(where):
                raise _unavailable("`command:` names no program")
            if public is None:
                raise _unavailable(
                    f"the public key of a signer command stands beside it: set {PUBLIC_VARIABLE}"
                )
            return cls(reference, read_public(public))
        found = _private(reference).public_key().public_bytes_raw()
        if public is not None and read_public(public) != found:
            raise _unavailable(f"the public key in {PUBLIC_VARIABLE} is not that of {_shown(reference)}")
        return cls(reference, found)

    def __repr__(self) -> str:
        return f"Signer({self.id[:12]})"

    async def sign(self, message: bytes) -> bytes:
        """The 64 bytes of a signature."""
        return await asyncio.to_thread(self.sign_now, message)

    def sign_now(self, message: bytes) -> bytes:
        """The same, for those who may block: a command may take its time."""
        if self._reference.startswith("command:"):
            signature = _answered(_argv(self._reference.removeprefix("command:")), message)
        else:
            signature = _private(self._reference).sign(message)
        if not is_signed(self.public, message, signature):
            raise _unavailable(
                f"{_shown(self._reference)} does not sign as key {self.id[:12]}: it is another key by now, or the wrong public"
                " key stands beside it"
            )
        return signature


def configured(reference: str | None = None, public: str | None = None) -> Signer | None:
    """The key that this process signs with: the one given, else the environment's; None: nothing is signed here."""
    named = reference or os.environ.get(KEY_VARIABLE)
    if not named:
        return None
    return Signer.open(named, public or os.environ.get(PUBLIC_VARIABLE) or None)


def make_key(file: Path) -> Signer:
    """Make a key and write it to a new file that only its owner can read."""
    from tenure.govern import ed25519

    pem, public = ed25519.made()
    try:
        with create_file(file) as opened:
            opened.write(pem)
    except FileExistsError:
        raise TenureError("ALREADY_EXISTS", f"{file} is there already; a key is never overwritten") from None
    except OSError as fault:
        raise _unavailable(f"{file} cannot be written: {fault.strerror}") from None
    return Signer(f"file:{file}", public)


# ------------------------------------------------------------------------------------------------ believing


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether a signature is this key's over these bytes."""
    from tenure.govern import ed25519

    return ed25519.is_signed(public, message, signature)


def read_public(text: str) -> bytes:
    """A public key from base64 of its 32 bytes, from PEM, or from a file with either."""
    body = text.strip()
    if not body.startswith("-----") and len(body) != 44:  # base64 of 32 bytes
        try:
            body = Path(text).read_bytes()[:KEY_BYTES_MAX].decode().strip()
        except (OSError, ValueError):
            raise TenureError("INVALID_INPUT", f"there is no public key at {text[:200]!r}") from None
    if body.startswith("-----BEGIN PUBLIC KEY"):
        from tenure.govern import ed25519

        public = ed25519.public_from_pem(body.encode())
    else:
        public = unb64(body)
    if public is None or len(public) != PUBLIC_BYTES:
        raise TenureError(
            "INVALID_INPUT", "a public key is a PEM file of an Ed25519 key, or base64 of its 32 bytes"
        )
    return public


def public_pem(public: bytes) -> str:
    """A public key as other programs read it."""
    from tenure.govern import ed25519

    return ed25519.public_pem(public)


class TrustedKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key in a trust file."""

    id: str
    public: str
    """Base64 of its 32 bytes."""
    created_at: int = 0
    """In microseconds, as all times here. An endorsement is for this moment."""
    endorsed_by: str | None = None
    endorsement: str | None = None
    """Base64 of the signature of the key before over `endorsement(...)`."""
    revoked_from: int | None = None


class TrustFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a trust file has."""

    format: str
    keys: list[TrustedKey]


class Trust:
    """Which keys are believed, and until when (law 4)."""

    def __init__(self, keys: Iterable[TrustedKey], roots: Iterable[str] | None = None) -> None:
        """`roots`: the ids that are believed by themselves; None: all that nobody endorses."""
        self.keys = {key.id: key for key in keys}
        self._roots = None if roots is None else frozenset(roots)
        self._problems: dict[str, str | None] = {}

    @classmethod
    def load(cls, file: str | Path, roots: Iterable[bytes] | None = None) -> Trust:
        """Read a trust file. With public keys as `roots`, its keys are believed only as far as those vouch for them."""
        try:
            with Path(file).open("rb") as opened:
                body = opened.read(TRUST_BYTES_MAX + 1)
        except OSError as fault:
            raise TenureError("INVALID_INPUT", f"{file} cannot be read: {fault.strerror}") from None
        if len(body) > TRUST_BYTES_MAX:
            raise TenureError("INVALID_INPUT", f"{file} is too large for a trust file")
        return cls.parse(body, roots)

    @classmethod
    def parse(cls, body: bytes, roots: Iterable[bytes] | None = None) -> Trust:
        """The same, of its bytes."""
        try:
            read = msgspec.json.decode(body, type=TrustFile)
        except (msgspec.DecodeError, UnicodeDecodeError) as fault:
            raise TenureError("INVALID_INPUT", f"this is no trust file: {fault}") from None
        ids = [key.id for key in read.keys]
        if read.format != TRUST_FORMAT or len(ids) > KEYS_MAX or len(set(ids)) != len(ids):
            raise TenureError(
                "INVALID_INPUT", f"a trust file has the format {TRUST_FORMAT!r}, and each key in it once"
            )
        return cls(read.keys, None if roots is None else map(key_id, roots))

    @classmethod
    def of_public(cls, *public: bytes) -> Trust:
        """Believe these keys, for good."""
        return cls(TrustedKey(id=key_id(one), public=b64(one)) for one in public)

    @classmethod
    def given(cls, key: str | None, file: str | Path | None) -> Trust | None:
        """What a command line names: a public key, a trust file, or that file as far as the key vouches for it."""
        roots = None if key is None else [read_public(key)]
        if file is not None:
            return cls.load(file, roots)
        return None if roots is None else cls.of_public(*roots)

    def dump(self) -> bytes:
        """The trust file, as bytes."""
        return msgspec.json.format(msgspec.json.encode(self.file())) + b"\n"

    def file(self) -> TrustFile:
        """The trust file: the oldest key first."""
        found = sorted(self.keys.values(), key=lambda key: (key.created_at, key.id))
        return TrustFile(format=TRUST_FORMAT, keys=found)

    def public(self, named: str) -> bytes | None:
        """A key's public half, if it is believed."""
        return None if self.key_problem(named) is not None else unb64(self.keys[named].public)

    def key_problem(self, named: str, at: int | None = None) -> str | None:
        """Why a key (for something signed `at` a moment) is not believed; None: it is."""
        if named not in self._problems:
            self._problems[named] = self._unbelieved(named)
        problem = self._problems[named]
        if problem is not None or at is None:
            return problem
        revoked = self.keys[named].revoked_from
        if revoked is not None and at >= revoked:
            return f"key {named[:12]} is revoked from {_time(revoked)} on, and this was signed at {_time(at)}"
        return None

    def problem(self, named: str, message: bytes, signature: bytes, at: int | None) -> str | None:
        """Why a signature is not believed; None: it is. (`at` None: when is not known, and a revoked key is not believed.)"""
        problem = self.key_problem(named, at)
        if problem is not None:
            return problem
        key = self.keys[named]
        if at is None and key.revoked_from is not None:
            return f"key {named[:12]} is revoked, and when this was signed is not known"
        public = unb64(key.public)
        assert public is not None
        if not is_signed(public, message, signature):
            return f"the signature is not key {named[:12]}'s over these bytes"
        return None

    def verify(self, named: str, message: bytes, signature: bytes, at: int | None) -> None:
        """SEAL_UNTRUSTED, with the reason, unless a believed key made this signature."""
        problem = self.problem(named, message, signature, at)
        if problem is not None:
            raise TenureError("SEAL_UNTRUSTED", problem)

    def _unbelieved(self, named: str) -> str | None:
        """Follow the endorsements up to a key that is believed by itself."""
        seen: set[str] = set()
        while True:
            key = self.keys.get(named)
            if key is None:
                return f"key {named[:12]} is not among the trusted keys"
            public = unb64(key.public)
            if public is None or key_id(public) != named:
                return f"key {named[:12]} has an id that is not the SHA-256 of its public key"
            if self._roots is not None and named in self._roots:
                return None
            before = key.endorsed_by
            if before is None:
                return None if self._roots is None else f"nobody who is trusted vouches for key {named[:12]}"
            seen.add(named)
            problem = self._endorsement_problem(key, public, before)
            if problem is not None or before in seen:
                return problem or f"key {named[:12]} vouches for itself"
            named = before

    def _endorsement_problem(self, key: TrustedKey, public: bytes, before: str) -> str | None:
        voucher = self.keys.get(before)
        if voucher is None:
            return f"key {key.id[:12]} is endorsed by {before[:12]}, which is not among the trusted keys"
        by, signature = unb64(voucher.public), unb64(key.endorsement or "")
        said = endorsement(public, before, key.created_at)
        if by is None or signature is None or not is_signed(by, said, signature):
            return f"key {key.id[:12]} is not endorsed by {before[:12]}: the signature is not its"
        if voucher.revoked_from is not None and key.created_at >= voucher.revoked_from:
            return f"key {key.id[:12]} was endorsed by {before[:12]} after that was revoked"
        return None


# ------------------------------------------------------------------------------------------------ reading keys


def _private(reference: str) -> Ed25519PrivateKey:
    from tenure.govern import ed25519

    kind, _, where = reference.partition(":")
    if kind == "file" and where:
        body = _read_private(Path(where))
    elif kind == "env" and where:
        body = os.environb.get(where.encode(), b"")
        if not body:
            raise _unavailable(f"the variable {where} is not set here")
    else:
        raise _unavailable("a signing key is named by `file:PATH`, `env:NAME` or `command:ARGV...`")
    if b"-----BEGIN" in body:
        loaded = ed25519.private_from_pem(body)
    else:
        loaded = ed25519.private_from_raw(unb64(body.decode("ascii", "replace").strip()) or b"")
    if loaded is None:
        raise _unavailable(
            f"{_shown(reference)} has no Ed25519 key: PEM (PKCS#8, without a passphrase), or base64 of its 32 bytes"
        )
    return loaded


def _read_private(file: Path) -> bytes:
    hide(file)
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise _unavailable(f"{file} is no file")
            if found.st_mode & 0o077:
                raise _unavailable(
                    f"others can read {file}: its mode is {stat.S_IMODE(found.st_mode):04o}; make it 0600: chmod 600 {file}"
                )
            return opened.read(KEY_BYTES_MAX)
    except OSError as fault:
        raise _unavailable(f"{file} cannot be read: {fault.strerror}") from None


def _argv(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise _unavailable("the signer command has a quote that is not closed") from None


def _answered(argv: list[str], message: bytes) -> bytes:
    """What a signer command says: 64 bytes, or base64 of them. It does not get what is ours: our variables have addresses of
    databases, and secrets."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    try:
        done = subprocess.run(  # an argv of the installation's own configuration, without a shell
            argv, input=message, capture_output=True, timeout=COMMAND_SECONDS, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise _unavailable(f"the signer command took longer than {COMMAND_SECONDS:.0f} seconds") from None
    except OSError as fault:
        raise _unavailable(f"the signer command cannot be started: {fault.strerror}") from None
    if done.returncode != 0:  # what it printed may be anything, also what it should not have
        raise _unavailable(f"the signer command ended with {done.returncode}")
    if len(done.stdout) == SIGNATURE_BYTES:
        return done.stdout
    signature = unb64(done.stdout.decode("ascii", "replace").strip())
    if signature is None or len(signature) != SIGNATURE_BYTES:
        raise _unavailable("the signer command answered no signature: 64 bytes, or base64 of them")
    return signature


def _unavailable(message: str) -> TenureError:
    return TenureError("SIGNING_KEY_UNAVAILABLE", message)


def _shown(reference: str) -> str:
    """A reference as it may be said: what does not begin like one may be a key."""
    kind = reference.partition(":")[0]
    return reference if kind in ("file", "env") else "the signer command"


def _time(at: int) -> str:
    return f"{datetime.fromtimestamp(at / 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def b64(body: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(body).decode()


def unb64(text: str) -> bytes | None:
    """The bytes of a text; None where it is none, or not the one text that `b64` writes of them: the last letter before the padding
    has bits that stand for nothing, and those are zero."""
    try:
        body = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return body if b64(body) == text else None
