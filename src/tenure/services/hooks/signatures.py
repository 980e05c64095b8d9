"""Signatures of what comes in: GitHub's, Slack's and those of Standard Webhooks.

Laws:
1. A signature is checked over the bytes as they came, before anything is parsed.
2. All compares take the same time wherever they differ, and every secret is tried: during a rotation there are two.
3. Whatever is wrong (none, malformed, another secret, another time) is SIGNATURE_INVALID with the same words.
4. The time of a signature is compared with the store's clock, either way.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from tenure.errors import TenureError

FRESH_SECONDS = 300
"""How far off a signature's time may be, either way."""
SIGNATURES_MAX = 10
"""In one `webhook-signature`: a sender that rotates sends two."""
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


def sign_standard(secret: bytes, signed: bytes) -> str:
    """The BASE64 of a signature; the secret is `whsec_` and base64, or raw bytes."""
    return base64.b64encode(hmac.digest(standard_key(secret), signed, sha256)).decode()


def standard_key(secret: bytes) -> bytes:
    """The key in a secret of Standard Webhooks."""
    if not secret.startswith(WHSEC):
        return secret
    try:
        key = base64.b64decode(secret[len(WHSEC) :], validate=True)
    except binascii.Error:
        key = b""
    if not key:  # anybody could sign with an empty one
        raise TenureError("SECRET_UNAVAILABLE", "a secret that begins with whsec_ goes on in base64")
    return key


def _hex(secret: bytes, signed: bytes) -> str:
    return hmac.digest(secret, signed, sha256).hex()


def _fresh(at: str, now_us: int) -> bool:
    return _SECONDS.fullmatch(at) is not None and abs(int(at) - now_us / 1e6) <= FRESH_SECONDS


def _check(fine: bool, given: Iterable[str], right: Sequence[str]) -> None:
    found = False
    for text in given:
        sent = text.lower() if _HEX.fullmatch(text) else text
        for one in right:
            found |= hmac.compare_digest(sent.encode(), one.encode())
    if not (fine and found):
        raise TenureError("SIGNATURE_INVALID")
