"""Ed25519 and its files, by `cryptography`: the one place that uses it.

`signing` imports it where a key is used: most processes sign nothing, and the library is slow to load.
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


def made() -> tuple[bytes, bytes]:
    """A new key: its file, and its public half."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem, key.public_key().public_bytes_raw()


def private_from_pem(pem: bytes) -> Ed25519PrivateKey | None:
    """The key of a file; None: it has none of this scheme, or none without a passphrase."""
    try:
        loaded = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # whose messages might say something of the key
        return None
    return loaded if isinstance(loaded, Ed25519PrivateKey) else None


def private_from_raw(raw: bytes) -> Ed25519PrivateKey | None:
    """The key of its 32 bytes."""
    try:
        return Ed25519PrivateKey.from_private_bytes(raw)
    except ValueError:
        return None


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether a signature is this key's over these bytes."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_pem(public: bytes) -> str:
    """A public key as other programs read it."""
    key = Ed25519PublicKey.from_public_bytes(public)
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def public_from_pem(pem: bytes) -> bytes | None:
    """The 32 bytes of a public key in a file; None: it has none of this scheme."""
    try:
        loaded = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return loaded.public_bytes_raw() if isinstance(loaded, Ed25519PublicKey) else None
