"""Ed25519 keys and their files.

Its callers import this module late: most processes sign nothing, and the library is slow to load.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

PRIVATE_BYTES = 32


def generate_key() -> tuple[bytes, bytes]:
    """A new key: the contents of its PEM file, and its public bytes."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem, key.public_key().public_bytes_raw()


def private_from_pem(pem: bytes) -> Ed25519PrivateKey | None:
    """The key in a PEM file, or None if it has no Ed25519 key or needs a passphrase."""
    try:
        loaded = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # their messages might reveal a part of the key
        return None
    return loaded if isinstance(loaded, Ed25519PrivateKey) else None


def private_from_raw(raw: bytes) -> Ed25519PrivateKey | None:
    return Ed25519PrivateKey.from_private_bytes(raw) if len(raw) == PRIVATE_BYTES else None


def is_valid_signature(public: bytes, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_pem(public: bytes) -> str:
    key = Ed25519PublicKey.from_public_bytes(public)
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def public_from_pem(pem: bytes) -> bytes | None:
    """The 32 public bytes in a PEM file, or None if it has no Ed25519 key."""
    try:
        loaded = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return loaded.public_bytes_raw() if isinstance(loaded, Ed25519PublicKey) else None
