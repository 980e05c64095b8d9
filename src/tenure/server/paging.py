"""Lists, a page at a time, newest first.

Laws:
1. A list is `{items, next_cursor}`; `limit` is 1 to 200, 50 unless said. No cursor means that there is no more.
2. A cursor is bound to its tenant, its list and its filters: with others it is CURSOR_INVALID. It tells nothing of
   other tenants, so it needs no secret.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from litestar.params import QueryParameter

from tenure.errors import TenureError

T = TypeVar("T")

Limit = Annotated[int, QueryParameter(ge=1, le=200, description="How many at most.")]
Cursor = Annotated[
    str | None, QueryParameter(max_length=400, description="`next_cursor` of the page before.")
]
LIMIT_DEFAULT = 50


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list."""

    items: list[T]
    next_cursor: str | None = None


def _bound(tenant: str, listed: str, filters: Any) -> str:
    return sha256(msgspec.json.encode([tenant, listed, filters], order="sorted")).hexdigest()[:16]


def cursor_of(tenant: str, listed: str, filters: Any, place: list[Any]) -> str:
    """Where the next page begins."""
    body = msgspec.json.encode([_bound(tenant, listed, filters), *place])
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def place_of(cursor: str, tenant: str, listed: str, filters: Any) -> list[Any]:
    """Where a page begins, by its cursor."""
    try:
        body = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        found = msgspec.json.decode(body, type=list[Any])
    except (ValueError, msgspec.DecodeError, RecursionError):
        found = []
    if not found or found[0] != _bound(tenant, listed, filters):
        raise TenureError("CURSOR_INVALID")
    return found[1:]
