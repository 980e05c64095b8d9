"""Signing: the private half of the installation's keys.

Laws:
1. Configuration names a private key, and each signature reads it again: `file:PATH` (refused unless only its owner can read it),
   `env:NAME`, or `command:ARGV...`. A command receives the bytes on stdin and prints their signature, so the key never enters
   this process. No database, log, message or `repr` contains a private key.
2. Every signature is verified with the public key before it is returned.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tenure.canonical import decode_base64
from tenure.errors import TenureError
from tenure.private_files import create_file, hide
from tenure.proof.signatures import KEY_BYTES_MAX, is_valid_signature, key_id, read_public
from tenure.proof.signed_notes import LedgerCheckpoint, build_checkpoint, checkpoint_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_VARIABLE = "TENURE_SIGNING_KEY"
"""The reference of the key that this process signs with."""
PUBLIC_VARIABLE = "TENURE_SIGNING_PUBLIC"
"""The public key of a `command:` reference, as base64 or as the path of a PEM file."""
COMMAND_SECONDS = 30.0
SIGNATURE_BYTES = 64


class Signer:
    """Signs with the key behind a reference, and holds only its public half (law 1)."""

    def __init__(self, reference: str, public: bytes) -> None:
        self._reference = reference
        self.public = public
        self.id = key_id(public)

    @classmethod
    def open(cls, reference: str, public: str | None = None) -> Signer:
        """Find the key behind a reference, or raise SIGNING_KEY_UNAVAILABLE. Blocks briefly.

        `public` is the public key of a `command:` reference, as base64 or as the path of a PEM file.
        """
        kind, _, location = reference.partition(":")
        if kind == "command":
            if not _split_command(location):
                raise _unavailable("`command:` names no program")
            if public is None:
                raise _unavailable(f"a signer command needs its public key: set {PUBLIC_VARIABLE}")
            return cls(reference, read_public(public))
        found = _load_private_key(reference).public_key().public_bytes_raw()
        if public is not None and read_public(public) != found:
            raise _unavailable(
                f"the public key in {PUBLIC_VARIABLE} does not belong to {_display_reference(reference)}"
            )
        return cls(reference, found)

    def __repr__(self) -> str:
        return f"Signer({self.id[:12]})"

    async def sign(self, message: bytes) -> bytes:
        return await asyncio.to_thread(self.sign_now, message)

    def sign_now(self, message: bytes) -> bytes:
        """Sign in the calling thread. A signer command may take up to COMMAND_SECONDS."""
        if self._reference.startswith("command:"):
            signature = _run_signer(_split_command(self._reference.removeprefix("command:")), message)
        else:
            signature = _load_private_key(self._reference).sign(message)
        if not is_valid_signature(self.public, message, signature):
            raise _unavailable(
                f"{_display_reference(self._reference)} does not sign as key {self.id[:12]}: the key was replaced, or"
                " the configured public key is wrong"
            )
        return signature


def configured_signer(reference: str | None = None, public: str | None = None) -> Signer | None:
    """The signer of this process, from the arguments or else from the environment. None: this process signs nothing."""
    named = reference or os.environ.get(KEY_VARIABLE)
    if not named:
        return None
    return Signer.open(named, public or os.environ.get(PUBLIC_VARIABLE) or None)


def make_key(file: Path) -> Signer:
    """Generate a key and write it to a new file that only its owner can read."""
    from tenure.proof import ed25519

    pem, public = ed25519.generate_key()
    try:
        with create_file(file) as opened:
            opened.write(pem)
    except FileExistsError:
        raise TenureError(
            "ALREADY_EXISTS", f"{file} exists already; a key file is never overwritten"
        ) from None
    except OSError as fault:
        raise _unavailable(f"{file} cannot be written: {fault.strerror}") from None
    return Signer(f"file:{file}", public)


async def sign_checkpoint(signer: Signer, origin: str, size: int, root: bytes, at: int) -> LedgerCheckpoint:
    text = checkpoint_text(origin, size, root, at)
    return build_checkpoint(text, origin, signer.public, await signer.sign(text.encode()))


def _load_private_key(reference: str) -> Ed25519PrivateKey:
    from tenure.proof import ed25519

    kind, _, location = reference.partition(":")
    if kind == "file" and location:
        body = _read_key_file(Path(location))
    elif kind == "env" and location:
        body = os.environb.get(location.encode(), b"")
        if not body:
            raise _unavailable(f"the environment variable {location} is not set")
    else:
        raise _unavailable("a signing key reference is `file:PATH`, `env:NAME` or `command:ARGV...`")
    if b"-----BEGIN" in body:
        loaded = ed25519.private_from_pem(body)
    else:
        loaded = ed25519.private_from_raw(decode_base64(body.decode("ascii", "replace").strip()) or b"")
    if loaded is None:
        raise _unavailable(
            f"{_display_reference(reference)} has no Ed25519 key: it must be PEM (PKCS#8, without a passphrase) or"
            " base64 of 32 bytes"
        )
    return loaded


def _read_key_file(file: Path) -> bytes:
    hide(file)
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise _unavailable(f"{file} is not a regular file")
            if found.st_mode & 0o077:
                raise _unavailable(
                    f"others can read {file} (mode {stat.S_IMODE(found.st_mode):04o}): run chmod 600 {file}"
                )
            return opened.read(KEY_BYTES_MAX)
    except OSError as fault:
        raise _unavailable(f"{file} cannot be read: {fault.strerror}") from None


def _split_command(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise _unavailable("the signer command has an unclosed quote") from None


def _run_signer(argv: list[str], message: bytes) -> bytes:
    """The signature that a signer command prints: 64 bytes, or base64 of them. The command does not inherit TENURE_*
    variables, which contain database addresses and secrets."""
    try:
        done = subprocess.run(  # an argv from the installation's own configuration, without a shell
            argv,
            input=message,
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=False,
            env={name: value for name, value in os.environ.items() if not name.startswith("TENURE_")},
        )
    except subprocess.TimeoutExpired:
        raise _unavailable(f"the signer command took longer than {COMMAND_SECONDS:.0f} seconds") from None
    except OSError as fault:
        raise _unavailable(f"the signer command cannot be started: {fault.strerror}") from None
    if done.returncode != 0:  # its output is not repeated: it may contain a secret
        raise _unavailable(f"the signer command ended with exit code {done.returncode}")
    signature: bytes | None = done.stdout
    if len(done.stdout) != SIGNATURE_BYTES:
        signature = decode_base64(done.stdout.decode("ascii", "replace").strip())
    if signature is None or len(signature) != SIGNATURE_BYTES:
        raise _unavailable("the signer command printed no signature: expected 64 bytes, or base64 of them")
    return signature


def _unavailable(message: str) -> TenureError:
    return TenureError("SIGNING_KEY_UNAVAILABLE", message)


def _display_reference(reference: str) -> str:
    """A reference for a message. Text that is not a known reference may be a key, so it is not repeated."""
    return reference if reference.startswith(("file:", "env:")) else "the signer command"
