"""Pages of tenants, clients, people and keys: by when they were made, newest first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from tenure.errors import TenureError
from tenure.limits import INTEGER_MAX, MOMENT_US_MAX
from tenure.server.call import Call
from tenure.server.identity.checks import is_id
from tenure.server.identity.views import AuditLine, audit_line
from tenure.server.paging import Page, cursor_of, place_of
from tenure.store.identity import Identity

V = TypeVar("V")
P = TypeVar("P")


def _place(
    request: Call, cursor: str, listed: str, filters: Any, form: type[P], fits: Callable[[P], bool]
) -> P:
    """Where a page begins; a cursor may be anybody's writing."""
    try:
        place = msgspec.convert(place_of(cursor, request.who.tenant, listed, filters), form)
    except msgspec.ValidationError:
        raise TenureError("CURSOR_INVALID") from None
    if not fits(place):
        raise TenureError("CURSOR_INVALID")
    return place


async def page_of(
    request: Call,
    query: str,
    view: Callable[[Any], V],
    limit: int,
    cursor: str | None,
    *,
    first: tuple[str, ...] = (),
    last: tuple[str, ...] = (),
) -> Page[V]:
    """A page of one of the `_before` queries: `first` and `last` go around where it begins and how long it is."""
    at, name = MOMENT_US_MAX, ""
    if cursor is not None:
        at, name = _place(
            request,
            cursor,
            query,
            last,
            tuple[int, str],
            lambda p: 0 <= p[0] <= MOMENT_US_MAX and is_id(p[1]),
        )
    rows = await request.service.identity.read(query, *first, at, name, limit + 1, *last)
    more = None
    if len(rows) > limit:
        place = [rows[limit - 1].created_at, rows[limit - 1].id]
        more = cursor_of(request.who.tenant, query, last, place)
    return Page(items=[view(row) for row in rows[:limit]], next_cursor=more)


async def audit_page(request: Call, tenant: str, limit: int, cursor: str | None) -> Page[AuditLine]:
    """A page of a tenant's chain, newest first."""
    identity: Identity = request.service.identity
    before = INTEGER_MAX
    if cursor is not None:
        [before] = _place(request, cursor, "audit", tenant, tuple[int], lambda p: 0 <= p[0] <= INTEGER_MAX)
    rows = await identity.read("admin_events_before", tenant, before, limit + 1)
    more = None
    if len(rows) > limit:
        more = cursor_of(request.who.tenant, "audit", tenant, [rows[limit - 1].seq])
    return Page(items=[audit_line(row) for row in rows[:limit]], next_cursor=more)
