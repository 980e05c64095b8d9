"""A claim looks past what others hold. SQLite has one writer and no locked runs, so these are PostgreSQL's."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tenure.kernel.model import Cap
from tests.conformance.world import Place, World, step


@contextlib.asynccontextmanager
async def locked(dsn: str, *runs: int) -> AsyncIterator[None]:
    """Somebody else's transaction holds these runs meanwhile."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("select from tenure.run where id = any($1) for update", list(runs))
            yield
    finally:
        await connection.close()


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 200])
async def test_a_claim_asks_for_more_where_what_it_chose_is_locked(
    postgres_dsn: str, steps: int, capped: bool
) -> None:
    caps = [Cap("acme", "", max_concurrency=5), Cap("acme", "wf:full", max_concurrency=0)] if capped else []
    async with World(Place("postgres", postgres_dsn), caps=caps) as w:
        held = [await w.create(plan=[step(f"s{n}") for n in range(steps)]) for _ in range(2)]
        free = await w.create(plan=["a"])
        async with locked(postgres_dsn, *held):
            assert (await w.claim()).run_id == free
            assert await w.claims() == []
        assert (await w.claim()).run_id == held[0]


async def test_a_locked_lane_makes_room_for_another_ones_work(postgres_dsn: str) -> None:
    async with World(Place("postgres", postgres_dsn)) as w:
        held = await w.create(tenant="a", plan=["a"])
        free = await w.create(tenant="b", plan=["a"])
        async with locked(postgres_dsn, held):
            assert (await w.claim()).run_id == free
        assert (await w.claim()).run_id == held
