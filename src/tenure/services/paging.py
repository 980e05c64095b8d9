"""Lists in pages, newest first.

Law: a cursor comes from a caller, so it is checked before it reaches the database. A cursor of another tenant, list or filter, or with
other values, is CURSOR_INVALID.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec

from tenure.errors import TenureError
from tenure.limits import INTEGER_MAX, MOMENT_US_MAX
from tenure.reads.cursors import decode_cursor, encode_cursor
from tenure.shapes.pages import Page

R = TypeVar("R")
V = TypeVar("V")
Place = tuple[Any, ...]

ROWS_MAX = 1_000
"""The length of a list that is not read in pages."""
Moment = Annotated[int, msgspec.Meta(ge=0, le=MOMENT_US_MAX)]
Number = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]
Id = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\x00]*$")]
CreationPlace = tuple[Moment, Id]
NEWEST_CREATED = (MOMENT_US_MAX, "")


def decode_place(cursor: str | None, of: tuple[str, str, Any], form: Any, first: Place) -> Any:
    """The place in a cursor, as `form`; without a cursor, `first`."""
    if cursor is None:
        return first
    try:
        return msgspec.convert(decode_cursor(cursor, *of), form)
    except msgspec.ValidationError:
        raise TenureError("CURSOR_INVALID") from None


async def read_page(
    of: tuple[str, str, Any],
    form: Any,
    first: Place,
    read: Callable[[Place, int], Awaitable[list[R]]],
    place: Callable[[R], list[Any]],
    show: Callable[[R], V],
    *,
    limit: int,
    cursor: str | None,
) -> Page[V]:
    """A page of a list. `read(place, count)` returns the rows after a place, and `place(row)` returns the place of a row.

    The cursor is bound to `of`: tenant, list and filters. `form` is the type of a place, and `first` is the first place.
    """
    rows = await read(decode_place(cursor, of, form, first), limit + 1)
    shown = rows[:limit]
    more = encode_cursor(*of, place(shown[-1])) if len(rows) > limit else None
    return Page(items=[show(row) for row in shown], next_cursor=more)


def created_place(row: Any) -> list[Any]:
    return [row.created_at, row.id]
