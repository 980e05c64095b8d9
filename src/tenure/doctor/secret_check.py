"""Checks that hooks and webhooks hold references to secrets, not secrets: the part of I53 that a database shows."""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.secrets import is_reference
from tenure.store.port import QueryReader

PAGE_ROWS = 500
_NEWEST = (2**62, "")


async def find_inline_secrets(store: QueryReader) -> list[tuple[str, str]]:
    """Hooks and webhooks whose secret is not a reference: (tenant, which)."""
    found: list[tuple[str, str]] = []
    for chain in await store.read("admin_chains"):  # creating either writes a line to its tenant's chain
        for query, what in (("hooks_of", "hook"), ("subscriptions_of", "webhook")):
            before = _NEWEST
            while rows := await store.read(query, chain.tenant, *before, PAGE_ROWS):
                found += [(chain.tenant, f"{what} {row.id}") for row in rows if not _are_references(row)]
                before = (rows[-1].created_at, rows[-1].id)
    return found


def _are_references(row: Any) -> bool:
    if row.table == "subscription":
        return is_reference(row.secret)
    try:
        named = msgspec.json.decode(row.secrets, type=list[str])
    except msgspec.DecodeError:
        return False
    return all(is_reference(each) for each in named)
