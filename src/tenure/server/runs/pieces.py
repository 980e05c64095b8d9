"""Lists that are read whole and answered a page at a time: the parts of one run.

Law: parts of a run come in the order in which they began, unlike other lists: they are read from the beginning. A page goes
on behind the last item of the one before, also when something has come between meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tenure.errors import TenureError
from tenure.server.paging import Page, cursor_of, place_of

T = TypeVar("T")


def piece(
    items: list[T], key: Callable[[T], Any], at: tuple[str, str, Any], cursor: str | None, limit: int
) -> Page[T]:
    """A page of a whole list; `at` is what its cursors are bound to: tenant, list and filters."""
    begin = 0
    if cursor is not None:
        place = place_of(cursor, *at)
        if len(place) != 2 or not isinstance(place[0], int) or place[0] < 0:
            raise TenureError("CURSOR_INVALID")
        keys = [key(item) for item in items]
        begin = keys.index(place[1]) + 1 if place[1] in keys else place[0]
    page = items[begin : begin + limit]
    more = len(items) > begin + limit
    following = [begin + limit, key(page[-1])] if page and more else []
    return Page(items=page, next_cursor=cursor_of(*at, following) if following else None)
