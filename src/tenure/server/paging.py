"""Lists, one page at a time.

Laws:
1. A list is `{items, next_cursor}`. `limit` is 1 to 200, by default 50. Without a cursor there are no more items.
2. A cursor is bound to its tenant, its list and its filters: with others it is CURSOR_INVALID. It tells nothing about
   other tenants, so it needs no secret.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from litestar.params import QueryParameter

from tenure.limits import INTEGER_MAX
from tenure.reads.cursors import encode_cursor
from tenure.services.paging import decode_place
from tenure.shapes.pages import Page

T = TypeVar("T")

Limit = Annotated[int, QueryParameter(ge=1, le=200, description="How many at most.")]
Cursor = Annotated[
    str | None, QueryParameter(max_length=400, description="`next_cursor` of the page before.")
]
LIMIT_DEFAULT = 50


Int31 = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]
Int63 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
QuestionPlace = tuple[Int63, Int63, Int31]
"""Time, run and number of an approval or a receipt."""


def make_page(items: list[T], of: tuple[str, str, Any], last: list[Any] | None) -> Page[T]:
    """A page; `last` is the place of its last item if there are more."""
    return Page(items=items, next_cursor=encode_cursor(*of, last) if last else None)


def page_of_list(
    items: list[T], key: Callable[[T], Any], of: tuple[str, str, Any], cursor: str | None, limit: int
) -> Page[T]:
    """A page of a whole list; `of` is what its cursors are bound to: tenant, list and filters."""
    begin, last_key = decode_place(cursor, of, tuple[Int63, Any], (0, None))
    if cursor is not None:
        keys = [key(item) for item in items]
        begin = keys.index(last_key) + 1 if last_key in keys else begin
    page = items[begin : begin + limit]
    more = page and len(items) > begin + limit
    return make_page(page, of, [begin + limit, key(page[-1])] if more else None)
