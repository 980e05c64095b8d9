"""Values in Firestore's typed JSON, and the ids of documents.

Laws:
1. Every value that a run can have is representable. What Firestore has no form for (a list in a list, a reserved name, deep nesting)
   or what would make too many index entries is stored as `{"json": TEXT}`, and a text that is too long is marked as truncated.
2. Two names give two ids. An id holds no slash, and is neither reserved by Firestore nor longer than it allows.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import msgspec

DEPTH_MAX = 12
"""Below the 20 levels that Firestore allows, because a payload is itself inside a document."""
NODES_MAX = 500
"""Each field of a payload is an index entry; a document has at most 40,000."""
PAYLOAD_BYTES_MAX = 100_000
ID_BYTES_MAX = 1_400
FIELD_BYTES_MAX = 1_000
_INTEGER = range(-(1 << 63), 1 << 63)
_SAFE = "@+=~,$!*'()"


class _UnfitError(ValueError):
    """The value has no typed form within the limits."""


def encode_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a document. Its own fields are known to fit; payloads go through `encode_payload` first."""
    return {
        name: value if isinstance(value, EncodedValue) else encode_value(value)
        for name, value in values.items()
    }


class EncodedValue(dict[str, Any]):
    """A value that is encoded already."""


def encode_payload(value: Any) -> EncodedValue:
    """A user's value (law 1)."""
    try:
        body = msgspec.json.encode(value)
        if len(body) <= PAYLOAD_BYTES_MAX and _count(value) <= NODES_MAX:
            return EncodedValue(encode_value(value))
    except _UnfitError:
        pass
    text = msgspec.json.encode(value)[:PAYLOAD_BYTES_MAX].decode(errors="ignore")
    stored: dict[str, Any] = {"json": text}
    if len(text.encode()) < len(msgspec.json.encode(value)):
        stored["truncated"] = True
    return EncodedValue(encode_value(stored))


def encode_value(value: Any, depth: int = 0) -> dict[str, Any]:
    if depth > DEPTH_MAX:
        raise _UnfitError("nested too deeply")
    match value:
        case None:
            return {"nullValue": None}
        case bool():
            return {"booleanValue": value}
        case int() if value in _INTEGER:
            return {"integerValue": str(value)}
        case int() | float():
            number = float(value)
            return {"doubleValue": number if math.isfinite(number) else str(number)}
        case str():
            return {"stringValue": value}
        case datetime():
            return {"timestampValue": value.astimezone(UTC).isoformat().replace("+00:00", "Z")}
        case bytes():
            return {"bytesValue": base64.b64encode(value).decode()}
        case Mapping():
            return {"mapValue": {"fields": {_name(k): encode_value(v, depth + 1) for k, v in value.items()}}}
        case Iterable():
            return {"arrayValue": {"values": [_element(one, depth + 1) for one in value]}}
        case _:
            return {"stringValue": str(value)}


def _element(value: Any, depth: int) -> dict[str, Any]:
    if isinstance(value, list | tuple):
        raise _UnfitError("a list in a list")
    return encode_value(value, depth)


def _name(name: Any) -> str:
    text = str(name)
    if not text or len(text.encode()) > FIELD_BYTES_MAX or (text.startswith("__") and text.endswith("__")):
        raise _UnfitError("a name that Firestore does not allow")
    return text


def _count(value: Any) -> int:
    if isinstance(value, Mapping):
        return 1 + sum(_count(one) for one in value.values())
    if isinstance(value, list | tuple):
        return 1 + sum(_count(one) for one in value)
    return 1


def decode_value(value: Mapping[str, Any]) -> Any:
    """A typed value as a plain one, as far as the mirror writes it."""
    [(kind, held)] = value.items()
    match kind:
        case "integerValue":
            return int(held)
        case "mapValue":
            return {name: decode_value(one) for name, one in held.get("fields", {}).items()}
        case "arrayValue":
            return [decode_value(one) for one in held.get("values", ())]
        case "timestampValue":
            return datetime.fromisoformat(held)
        case "bytesValue":
            return base64.b64decode(held)
        case _:
            return held


def decode_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: decode_value(value) for name, value in fields.items()}


def document_id(*parts: str) -> str:
    """An id made of parts that others chose (law 2): each part is escaped, so that no part can contain the separator."""
    text = ":".join(quote(part, safe=_SAFE) for part in parts)
    if text in (".", "..") or (text.startswith("__") and text.endswith("__")):
        text = text.replace(".", "%2E").replace("_", "%5F")
    if len(text) <= ID_BYTES_MAX:
        return text
    return f"{text[:64]}:sha256:{sha256(text.encode()).hexdigest()}"
