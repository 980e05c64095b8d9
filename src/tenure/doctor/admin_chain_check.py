"""Recomputes the admin chains: I51."""

from __future__ import annotations

from tenure.kernel.identity_rows import AdminEventRow
from tenure.store.identity import next_admin_event
from tenure.store.port import QueryReader

CHAIN_PAGE_ROWS = 500


async def find_broken_chains(store: QueryReader) -> list[tuple[str, int]]:
    """(tenant, line) where admin chains do not recompute, because somebody has changed the database by hand."""
    found: list[tuple[str, int]] = []
    for chain in await store.read("admin_chains"):
        found += await find_broken_chain(store, chain.tenant)
    return found


async def find_broken_chain(store: QueryReader, tenant: str) -> list[tuple[str, int]]:
    """Recompute a tenant's chain from its first line on."""
    before: AdminEventRow | None = None
    while True:
        after = 0 if before is None else before.seq
        lines: list[AdminEventRow] = await store.read("admin_events_after", tenant, after, CHAIN_PAGE_ROWS)
        for line in lines:
            if line != next_admin_event(before, tenant, line.kind, line.at, line.actor, line.body):
                return [(tenant, line.seq)]
            before = line
        if not lines:
            return []
