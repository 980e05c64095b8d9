"""Cursors: where the next page of a list begins, as a text for callers.

Law: a cursor is bound to its tenant, its list and its filters; with others it is CURSOR_INVALID. It reveals nothing about other
tenants, so it needs no secret. HTTP and Python use the same cursors.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Any

import msgspec

from tenure.errors import TenureError


def _digest(tenant: str, listed: str, filters: Any) -> str:
    return sha256(msgspec.json.encode([tenant, listed, filters], order="sorted")).hexdigest()[:16]


def encode_cursor(tenant: str, listed: str, filters: Any, place: list[Any]) -> str:
    body = msgspec.json.encode([_digest(tenant, listed, filters), *place])
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def decode_cursor(cursor: str, tenant: str, listed: str, filters: Any) -> list[Any]:
    """The position that a cursor encodes, or CURSOR_INVALID."""
    try:
        body = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        found = msgspec.json.decode(body, type=list[Any])
    except (ValueError, msgspec.DecodeError, RecursionError):
        found = []
    if not found or found[0] != _digest(tenant, listed, filters):
        raise TenureError("CURSOR_INVALID")
    return found[1:]
