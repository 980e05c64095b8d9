"""Signatures of incoming requests: GitHub, Slack and Standard Webhooks; and the credentials of ServiceNow, which signs nothing.

Laws:
1. A signature is checked over the raw bytes, before anything is parsed.
2. All comparisons take constant time, and every secret is tried: during a rotation there are two.
3. Every defect (missing, malformed, wrong secret, wrong time) is SIGNATURE_INVALID with the same message.
4. The time of a signature may differ from the store's clock by `FRESH_SECONDS` in either direction.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256

from tenure.errors import TenureError

FRESH_SECONDS = 300
SIGNATURES_MAX = 10
"""In one `webhook-signature`. During a rotation a sender sends two."""
WHSEC = b"whsec_"
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_SECONDS = re.compile(r"[0-9]{1,12}")


def verify_github(headers: Mapping[str, str], body: bytes, secrets: Sequence[bytes]) -> None:
    """`X-Hub-Signature-256: sha256=HEX` over the body."""
    scheme, _, given = headers.get("x-hub-signature-256", "").partition("=")
    _check(scheme == "sha256", [given], [_hex(secret, body) for secret in secrets])


def verify_slack(headers: Mapping[str, str], body: bytes, secrets: Sequence[bytes], now_us: int) -> None:
    """`X-Slack-Signature: v0=HEX` over `v0:TIME:BODY`."""
    at = headers.get("x-slack-request-timestamp", "")
    version, _, given = headers.get("x-slack-signature", "").partition("=")
    signed = b"v0:" + at.encode() + b":" + body
    _check(version == "v0" and _fresh(at, now_us), [given], [_hex(secret, signed) for secret in secrets])


def verify_standard(headers: Mapping[str, str], body: bytes, secrets: Sequence[bytes], now_us: int) -> None:
    """`webhook-signature: v1,BASE64 ...` over `ID.TIME.BODY`."""
    name, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    signed = name.encode() + b"." + at.encode() + b"." + body
    listed = headers.get("webhook-signature", "").split(" ")[:SIGNATURES_MAX]
    given = [text[3:] for text in listed if text.startswith("v1,")]
    fine = bool(name) and bool(given) and _fresh(at, now_us)
    _check(fine, given, [sign_standard(secret, signed) for secret in secrets])


def verify_credential(headers: Mapping[str, str], header: str | None, secrets: Sequence[bytes]) -> None:
    """The shared secret in `header`; without a header, `Authorization: Basic` with `user:password`."""
    given, fine = b"", False
    if header is not None:
        given = headers.get(header, "").encode()
        fine = bool(given)
    else:
        scheme, _, encoded = headers.get("authorization", "").partition(" ")
        with suppress(ValueError):  # binascii.Error, or not ASCII
            given = base64.b64decode(encoded.strip().encode("ascii"), validate=True)
            fine = scheme.lower() == "basic" and b":" in given
    # Digests have one length, so the comparison does not tell the length of the secret either.
    matches = [hmac.compare_digest(sha256(given).digest(), sha256(secret).digest()) for secret in secrets]
    if not (fine and any(matches)):
        raise TenureError("SIGNATURE_INVALID")


def sign_standard(secret: bytes, signed: bytes) -> str:
    """The signature in base64. The secret is `whsec_` and base64, or raw bytes."""
    return base64.b64encode(hmac.digest(standard_key(secret), signed, sha256)).decode()


def standard_key(secret: bytes) -> bytes:
    if not secret.startswith(WHSEC):
        return secret
    try:
        key = base64.b64decode(secret[len(WHSEC) :], validate=True)
    except binascii.Error:
        key = b""
    if not key:  # anybody could sign with an empty key
        raise TenureError("SECRET_UNAVAILABLE", "a secret that begins with whsec_ must continue in base64")
    return key


def _hex(secret: bytes, signed: bytes) -> str:
    return hmac.digest(secret, signed, sha256).hex()


def _fresh(at: str, now_us: int) -> bool:
    return _SECONDS.fullmatch(at) is not None and abs(int(at) - now_us / 1e6) <= FRESH_SECONDS


def _check(fine: bool, given: Iterable[str], right: Sequence[str]) -> None:
    sent = [(text.lower() if _HEX.fullmatch(text) else text).encode() for text in given]
    # A list, not a generator: all signatures are compared (law 2).
    matches = [hmac.compare_digest(one, other.encode()) for one in sent for other in right]
    if not (fine and any(matches)):
        raise TenureError("SIGNATURE_INVALID")
