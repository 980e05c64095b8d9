"""Stored payloads as values."""

from __future__ import annotations

from typing import Any

import msgspec


def decode_payload(body: bytes | None) -> Any:
    """A payload as the value it encodes: JSON where it is JSON, else text, else the bytes."""
    if body is None:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body
