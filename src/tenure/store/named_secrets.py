"""Whether hooks and webhooks name their secrets, and do not hold them: the part of I53 that a database shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tenure.secrets import is_reference

PAGE_ROWS = 500
_NEWEST = (2**62, "")


class Reader(Protocol):
    """The part of a store that is needed here."""

    async def read(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """Ask one named query."""
        ...


async def bare_secrets(store: Reader) -> list[tuple[str, str]]:
    """What has something else than references where secrets are named: (tenant, hook or webhook)."""
    found: list[tuple[str, str]] = []
    for chain in await store.read("admin_chains"):  # making either is a line of its tenant's chain
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
