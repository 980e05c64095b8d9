"""Lists, a page at a time, newest first.

Laws:
1. A list is `{items, next_cursor}`; `limit` is 1 to 200, 50 unless said. No cursor means that there is no more.
2. A cursor is bound to its tenant, its list and its filters: with others it is CURSOR_INVALID. It tells nothing of
   other tenants, so it needs no secret.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from litestar.params import QueryParameter

from tenure.errors import TenureError
from tenure.reads.cursors import decode_cursor, encode_cursor
from tenure.shapes.pages import Page

__all__ = ["LIMIT_DEFAULT", "Cursor", "Limit", "Page", "decode_cursor", "encode_cursor", "page_of_list"]

T = TypeVar("T")

Limit = Annotated[int, QueryParameter(ge=1, le=200, description="How many at most.")]
Cursor = Annotated[
    str | None, QueryParameter(max_length=400, description="`next_cursor` of the page before.")
]
LIMIT_DEFAULT = 50


def page_of_list(
    items: list[T], key: Callable[[T], Any], at: tuple[str, str, Any], cursor: str | None, limit: int
) -> Page[T]:
    """A page of a whole list; `at` is what its cursors are bound to: tenant, list and filters."""
    begin = 0
    if cursor is not None:
        place = decode_cursor(cursor, *at)
        if len(place) != 2 or not isinstance(place[0], int) or place[0] < 0:
            raise TenureError("CURSOR_INVALID")
        keys = [key(item) for item in items]
        begin = keys.index(place[1]) + 1 if place[1] in keys else place[0]
    page = items[begin : begin + limit]
    more = len(items) > begin + limit
    following = [begin + limit, key(page[-1])] if page and more else []
    return Page(items=page, next_cursor=encode_cursor(*at, following) if following else None)
