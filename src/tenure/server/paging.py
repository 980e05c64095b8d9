"""Lists, a page at a time, newest first.

Laws:
1. A list is `{items, next_cursor}`; `limit` is 1 to 200, 50 unless said. No cursor means that there is no more.
2. A cursor is bound to its tenant, its list and its filters: with others it is CURSOR_INVALID. It tells nothing of
   other tenants, so it needs no secret.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

import msgspec
from litestar.params import QueryParameter

from tenure.orchestrator.cursors import cursor_of, place_of

__all__ = ["LIMIT_DEFAULT", "Cursor", "Limit", "Page", "cursor_of", "place_of"]

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
