"""Payloads, times and ids of leases, as they travel between a runner and its server.

Laws:
1. A payload travels as the JSON value it is. One that is no JSON travels as `{"$tenure.text": …}` or, where it is no text
   either, as `{"$tenure.base64": …}`; one that lies among the artifacts as its reference `{"$tenure.artifact": …}`.
   A field that is left out is no payload at all; `null` is the payload null.
2. Times are RFC 3339 in UTC to the microsecond, so that nothing is lost on the way.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from tenure import ids
from tenure.errors import TenureError
from tenure.limits import INTEGER_MAX

TEXT, BASE64 = "$tenure.text", "$tenure.base64"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def shown(body: bytes | None) -> Any:
    """A payload as it travels; see law 1."""
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


def taken(value: Any) -> bytes | None:
    """A payload as it is kept."""
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


def moment(us: int) -> datetime:
    """A time as it travels."""
    return _EPOCH + us * _US


def maybe(us: int | None) -> datetime | None:
    """Likewise, if there is one."""
    return None if us is None else _EPOCH + us * _US


def micros(at: datetime) -> int:
    """A time as it is kept; one without a zone is UTC."""
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return (at - _EPOCH) // _US


def lease_text(run_id: int, idx: int, n: int) -> str:
    """The id of a lease: run, step and attempt."""
    return f"{ids.run_text(run_id)}.{idx}.{n}"


def lease_ints(text: str) -> tuple[int, int, int]:
    """What is behind it; anything that is not one is a lease nobody holds."""
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
