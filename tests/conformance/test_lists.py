"""Pages of lists on every store: nothing is lost or repeated, and each page is read from its index."""

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import apsw
import pytest

from tenure.store import approvals as approval_queries
from tenure.store import run_lists
from tenure.store.port import Save, Store
from tenure.store.postgres.connection import READER_SETTINGS
from tenure.store.postgres.statements import SQL as POSTGRES
from tenure.store.sqlite.migrator import MIGRATIONS, apply_migrations
from tenure.store.sqlite.statements import SQL as SQLITE
from tests.conformance.samples import a_run, a_spec, a_wait, an_approval
from tests.conformance.stores import KINDS, open_store, save, tables
from tests.conformance.test_postgres_query_plans import connected, filled, nodes, pages, plan

OpenStore = Callable[[], AbstractAsyncContextManager[Store]]
FOREVER = 1 << 62


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens stores of one kind. All stores of a test share one database."""
    dsn = request.getfixturevalue("migrated_dsn") if request.param == "postgres" else ""
    return partial(open_store, request.param, tmp_path, dsn)


@pytest.mark.clause("GWI-21")
async def test_pages_of_runs_with_equal_times_lose_and_repeat_nothing(opened: OpenStore) -> None:
    """Twelve runs with three different timestamps, in pages of five."""
    runs = [a_run(100 + n, created_at=1000 + n // 4, repo="app" if n % 2 else None) for n in range(12)]
    others = a_run(200, tenant="beta", created_at=1001)
    async with opened() as store:
        specs = [a_spec(run.id, tenant=run.tenant) for run in (*runs, others)]
        await save(store, Save(new_runs=[*runs, others], new_specs=specs))
        for name, key, fits in (
            ("runs_page", (), runs),
            ("runs_page_by_status", (runs[0].status,), runs),
            ("runs_page_by_repo", ("app",), [run for run in runs if run.repo]),
        ):
            found: list[int] = []
            place = (FOREVER, 0)
            while page := await store.read(name, "acme", *key, *place, 5):
                found += [run.id for run in page]
                place = (page[-1].created_at, page[-1].id)
            assert found == [run.id for run in reversed(fits)], name
        assert await store.read("runs_page", "acme", 1001, 0, 99) == runs[3::-1], (
            "a page ends before its timestamp, exclusive"
        )
        glances = await store.read("run_glances", rows=[(100,), (200,), (999,)])
        assert {(glance.id, glance.tenant, glance.paused) for glance in glances} == {
            (100, "acme", False),
            (200, "beta", False),
        }


async def test_open_approvals_are_listed_newest_first_by_kind(opened: OpenStore) -> None:
    run = a_run(100)
    asked = [
        a_wait(100, n, kind="proposal" if n == 2 else "approval", name=f"act {n}", label=f"l{n}")
        for n in range(1, 6)
    ]
    approvals = [an_approval(100, n, requested_at=50 if n < 4 else 60) for n in range(1, 6)]
    async with opened() as store:
        rows = tables([*asked, *approvals])
        await save(store, Save(new_runs=[run], new_specs=[a_spec(100)], rows=rows))
        found, place = [], (FOREVER, 0, 0)
        while page := await store.read("approvals_page", "acme", "approval", *place, 2):
            found += [(one.no, one.action, one.label, one.workflow) for one in page]
            place = (page[-1].requested_at, page[-1].run_id, page[-1].no)
        assert found == [(n, f"act {n}", f"l{n}", run.workflow) for n in (5, 4, 3, 1)]
        assert [one.no for one in await store.read("approval_details_of", 100)] == [1, 2, 3, 4, 5]
        assert [one.kind for one in await store.read("approval_detail", 100, 2)] == ["proposal"]
        assert await store.read("open_approval_counts", "acme") == [
            approval_queries.OpenApprovalCount("approval", 4, 50),
            approval_queries.OpenApprovalCount("proposal", 1, 50),
        ]
        assert await store.read("open_approval_counts", "beta") == []


ARGUMENTS = {
    "runs_page": "'t3', 3000, 5, 20",
    "runs_page_by_status": "'t0', 'running', 3000, 5, 20",
    "runs_page_by_repo": "'t3', 'repo3', 3000, 5, 20",
    "run_glances": "'{100,200,300}'",
    "approvals_page": "'t0', 'event', 3000, 5, 1, 20",
    "approval_details_of": "20",
    "approval_detail": "20, 1",
    "open_approval_counts": "'t0'",
}


@pytest.mark.parametrize("analyze", [True, False])
async def test_postgres_reads_pages_from_indexes(postgres_dsn: str, analyze: bool) -> None:
    async with filled(postgres_dsn, analyze=analyze), connected(postgres_dsn, READER_SETTINGS) as reader:
        for name in run_lists.READS.keys() | approval_queries.READS.keys():
            found = await plan(reader, POSTGRES[name], ARGUMENTS[name])
            assert "Seq Scan" not in {node["Node Type"] for node in nodes(found)}, name
            # Without statistics, a few hundred rows are sorted; open approvals are looked up one by one.
            few = 60 if analyze and name.startswith("runs_page") else 1_500
            assert pages(found) < few, f"{name} reads {pages(found)} pages"


def test_sqlite_reads_pages_from_indexes_in_order() -> None:
    connection = apsw.Connection(":memory:")
    apply_migrations(connection, MIGRATIONS, 0)
    for name in run_lists.READS.keys() | approval_queries.READS.keys():
        values = (None,) * max(int(n) for n in re.findall(r"\?(\d+)", SQLITE[name]))
        steps = [row[3] for row in connection.execute(f"explain query plan {SQLITE[name]}", values)]
        assert all(step.startswith("SEARCH") or "TEMP B-TREE FOR" in step for step in steps), (name, steps)
        if name.startswith("runs_page"):
            assert len(steps) == 1, (name, steps)
