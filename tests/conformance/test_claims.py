"""A claim skips locked runs and steps that it may not take.

SQLite has one writer and no row locks, so the tests about locks run on PostgreSQL only.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest

from tenure.kernel import commands as c
from tenure.kernel.run_rows import Cap
from tenure.orchestrator import claims
from tenure.store.port import Query
from tests.conformance.world import Place, World, step


@contextlib.asynccontextmanager
async def locked(dsn: str, *runs: int) -> AsyncIterator[None]:
    """Lock these runs in a transaction of another connection."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("select from tenure.run where id = any($1) for update", list(runs))
            yield
    finally:
        await connection.close()


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 200])
async def test_a_claim_fetches_more_candidates_if_its_choices_are_locked(
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


async def test_a_locked_claim_queue_yields_to_another_queue(postgres_dsn: str) -> None:
    async with World(Place("postgres", postgres_dsn)) as w:
        held = await w.create(tenant="a", plan=["a"])
        free = await w.create(tenant="b", plan=["a"])
        async with locked(postgres_dsn, held):
            assert (await w.claim()).run_id == free
        assert (await w.claim()).run_id == held


# --------------------------------------------------------------------------------- workflows at their caps


@pytest.fixture
def window_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the windows small, and record how many steps each query for candidates requests."""
    asked: list[int] = []

    def counting(name: str, rows: Sequence[tuple[Any, ...]] = (), scalars: tuple[Any, ...] = ()) -> Query:
        if name.startswith("candidates"):
            asked.extend(row[-1] for row in rows)
        return Query(name, rows, scalars)

    monkeypatch.setattr(claims, "PAST_FULL_WINDOW", 8)
    monkeypatch.setattr(claims, "PAST_FULL_WINDOWS_MAX", 2)
    monkeypatch.setattr(claims, "Query", counting)
    return asked


FULL = [Cap("acme", "wf:full", max_concurrency=1)]


async def test_a_claim_searches_past_a_full_workflow_up_to_a_limit(
    place: Place, window_sizes: list[int]
) -> None:
    async with World(place, caps=FULL) as w:
        full = await w.create(workflow="full", plan=[step(f"s{n}") for n in range(300)])
        first = await w.claim()
        assert first.run_id == full
        free = [await w.create(workflow="free", plan=["a"], priority=-n) for n in range(3)]
        window_sizes.clear()
        found: list[int] = []
        calls = 0
        while len(found) < 3:
            leases = await w.claims(limit=2)
            found += [lease.run_id for lease in leases]
            calls += 1
            assert sum(window_sizes) <= 5 * 3 * 8, "five tries of three windows of eight steps"
            assert calls < 10
            window_sizes.clear()
        assert found == free
        assert calls > 2
        for _ in range(10):
            assert await w.claims() == [], "the search wraps around and finds nothing"
        await w.complete(first)
        assert (await w.claim()).run_id == full, (
            "the head of the queue is found immediately once the cap has room"
        )


async def test_work_at_the_head_of_a_queue_is_found_immediately(
    place: Place, window_sizes: list[int]
) -> None:
    async with World(place, caps=FULL) as w:
        await w.create(workflow="full", plan=[step(f"s{n}") for n in range(40)])
        await w.claim()
        assert await w.claims() == []
        urgent = await w.create(workflow="free", plan=["a"], priority=5)
        window_sizes.clear()
        assert (await w.claim()).run_id == urgent
        assert window_sizes == [8]


async def test_a_claim_does_not_confuse_a_run_with_a_deleted_run_of_the_same_id(place: Place) -> None:
    """One process caches a run that others finish and delete. Then a child gets the same id."""
    async with World(place, orchestrators=2) as w:
        here, there = w.through(0), w.through(1)
        run = await here.create(plan=["old"])
        await there.complete(await there.claim())
        await there.tell(c.SealRun, run)
        await there.later(10).tell(c.DeleteRun, run)
        parent = await there.begin(tenant="beta")
        plan = (c.StepSpec(name="new"),)
        child = c.StartChild(run_id=run, workflow="flow", code_version="1", profile="tenure", plan=plan)
        await there.wait(parent, "child", child=child)
        await w.settle()
        assert (await w.run(run)).version == 1, "the new run has the version that the cached run had"
        lease = await here.claim()
        assert (lease.run_id, lease.tenant, lease.name) == (run, "beta", "new")
