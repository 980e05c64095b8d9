"""Payloads and lease ids in the runner protocol.

Laws:
1. A payload is sent as the JSON value it is. One that is not JSON is sent as `{"$tenure.text": …}` or, if it is not text either, as
   `{"$tenure.base64": …}`; an artifact as its reference `{"$tenure.artifact": …}`. A field that is left out means no payload; `null` is
   the payload null.
2. Times are RFC 3339 in UTC with microseconds, so that nothing is lost.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from tenure import ids
from tenure.errors import TenureError
from tenure.limits import INTEGER_MAX

TEXT, BASE64 = "$tenure.text", "$tenure.base64"
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def encode_payload(body: bytes | None) -> Any:
    if body is None:
        return UNSET
    try:
        _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    else:
        return Raw(body)
    try:
        return {TEXT: body.decode()}
    except UnicodeDecodeError:
        return {BASE64: b64encode(body).decode()}


def decode_payload(value: Any) -> bytes | None:
    if value is UNSET:
        return None
    if isinstance(value, dict) and len(value) == 1:
        if isinstance(text := value.get(TEXT), str):
            return text.encode(errors="replace")
        if isinstance(text := value.get(BASE64), str):
            try:
                return b64decode(text, validate=True)
            except ValueError as wrong:
                raise TenureError("INVALID_INPUT", f"{BASE64} is not base64: {wrong}") from wrong
    return _encode(value)


def format_lease_id(run_id: int, idx: int, n: int) -> str:
    return f"{ids.run_text(run_id)}.{idx}.{n}"


def parse_lease_id(text: str) -> tuple[int, int, int]:
    """Run, index of the step, attempt. Anything that is not a lease id is refused like an unknown lease."""
    run, _, rest = text.partition(".")
    idx, _, n = rest.partition(".")
    if not (idx.isascii() and idx.isdigit() and n.isascii() and n.isdigit() and len(rest) < 22):
        raise TenureError("UNAUTHENTICATED")
    try:
        run_id = ids.run_int(run)
    except TenureError as wrong:
        raise TenureError("UNAUTHENTICATED") from wrong
    if max(int(idx), int(n)) > INTEGER_MAX:
        raise TenureError("UNAUTHENTICATED")
    return run_id, int(idx), int(n)
