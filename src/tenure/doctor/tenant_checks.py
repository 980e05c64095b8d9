"""Checks the rows of tenants that belong to no run: admin chains are recomputed (I51), and secrets of hooks and webhooks must be references (I53)."""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.kernel.identity_rows import AdminEventRow
from tenure.secrets import is_reference
from tenure.store.identity import next_admin_event
from tenure.store.port import QueryReader

PAGE_ROWS = 500
_NEWEST = (2**62, "")


async def find_broken_chains(store: QueryReader) -> list[tuple[str, int]]:
    """(tenant, line) of each admin chain that does not recompute, because the database was changed by hand."""
    found: list[tuple[str, int]] = []
    for chain in await store.read("admin_chains"):
        found += await find_broken_chain(store, chain.tenant)
    return found


async def find_broken_chain(store: QueryReader, tenant: str) -> list[tuple[str, int]]:
    """The first line of a tenant's admin chain that does not recompute, if there is one."""
    before: AdminEventRow | None = None
    while lines := await store.read("admin_events_after", tenant, before.seq if before else 0, PAGE_ROWS):
        for line in lines:
            if line != next_admin_event(before, tenant, line.kind, line.at, line.actor, line.body):
                return [(tenant, line.seq)]
            before = line
    return []


async def find_inline_secrets(store: QueryReader) -> list[tuple[str, str]]:
    """Hooks and webhooks whose secret is not a reference: (tenant, which)."""
    found: list[tuple[str, str]] = []
    for chain in await store.read("admin_chains"):  # creating a hook or webhook writes to its tenant's chain
        for query, what in (("hooks_of", "hook"), ("subscriptions_of", "webhook")):
            before = _NEWEST
            while rows := await store.read(query, chain.tenant, *before, PAGE_ROWS):
                found += [(chain.tenant, f"{what} {row.id}") for row in rows if not _has_references(row)]
                before = (rows[-1].created_at, rows[-1].id)
    return found


def _has_references(row: Any) -> bool:
    if row.table == "subscription":
        return is_reference(row.secret)
    try:
        return all(map(is_reference, msgspec.json.decode(row.secrets, type=list[str])))
    except msgspec.DecodeError:
        return False
