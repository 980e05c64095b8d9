"""The query plans of PostgreSQL: which index, in which order, and at what cost.

The store's connections use generic plans, which do not depend on the arguments. So these tests use
EXPLAIN EXECUTE on tables of a few thousand rows, with and without statistics.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tenure.store import idempotency, log_lines, port, schedules, workers, workflows
from tenure.store.port import Save
from tenure.store.postgres import PostgresStore
from tenure.store.postgres.connection import LANE_SETTINGS, READER_SETTINGS
from tenure.store.postgres.statements import SQL, compose_save, pack_save
from tests.conformance.samples import a_checkpoint, a_payload, a_ready_step, a_run, an_attempt, an_event

RUNS = 4000
BEGIN = 1_767_225_600_000_000

FILL = """
    insert into run select i, 't' || i % 5, 'w' || i % 3, 'wf' || i % 7, 'c', 'p',
        case when i % 3 = 0 then 'repo' || i % 20 end, case when i % 100 = 1 then 'k' || i % 500 end, i % 2 = 0, false,
        null, i, null, case when i % 20 > 1 then 'succeeded' else 'running' end, 3, '', 0, true,
        case when i % 20 <> 1 then i end, null, case when i % 20 > 1 then i + 1 end, case when i % 20 > 1 then 1 end,
        case when i % 20 > 1 then 'done' end, false, null, null, null, null, null, null,
        case when i % 40 > 1 and i % 20 > 1 then 1 end, case when i % 20 < 2 then i end,
        3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, null, null, 0, 0
        from generate_series(1, 4000) i;
    insert into run_spec select i, 't' || i % 5, 'api', case when i % 2 = 0 then 'key' || i end, '', 'api', null, 'u', 0,
        'queue', null, false, null, null, null, null, 0, null, 1, '', '', '', null, null, '', false, ''
        from generate_series(1, 4000) i;
    insert into step select r, x, 's' || x, 'work', '', 'q' || r % 2, 't' || r % 5, 'w' || r % 3, 'wf' || r % 7, r % 4,
        true, '', 3, null, 1, '', null, null, 1,
        case when r % 20 > 1 then 'succeeded' when x > 0 then 'pending' when r % 20 = 1 then 'ready' else 'running' end,
        0, 1, 1, r % 20 = 1 and x = 0, 5, null, null, '', false, 0, case when r % 20 > 1 then 5 end,
        case when r % 20 > 1 then 'done' end, null, null, null, null, case when r % 20 = 0 and x = 0 then r end, null,
        null, ''
        from generate_series(1, 4000) r, generate_series(0, 2) x;
    insert into attempt select r, 0, 1, 't' || r % 5, 'wf' || r % 7, 'o', 1, null, null::bigint,
        case when r % 20 = 0 then 'running' else 'succeeded' end, case when r % 20 = 0 then 'active' else 'completed' end,
        r, r, 3, '', '', '', case when r % 20 > 0 then 5 end, null, null from generate_series(1, 4000) r where r % 20 <> 1;
    insert into checkpoint select r, 0, 'c' || x, x, 'done', 1, 1, true, true, '', 5, 1, null, null, null, null
        from generate_series(1, 4000) r, generate_series(0, 1) x;
    insert into wait select r, 1, 0, 'event', 'n', 'l', false, false, 5, null,
        case when r % 20 = 0 then 'open' else 'closed' end, null, null, null, case when r % 20 = 0 then r end
        from generate_series(1, 4000) r;
    insert into approval select r, 1, 't' || r % 5, '', 1, 'u', '', 1, r, null, null,
        case when r % 20 = 0 then 'requested' else 'canceled' end, '', null, null, null, '', null, null
        from generate_series(1, 4000) r;
    insert into inbox select r, 1, 'n', 'e', 's', null, 5, case when r % 20 > 0 then 1 end, '' from generate_series(1, 4000) r;
    insert into child select r, r + 9000, 0, 'cancel', 1, case when r % 20 = 0 then 'open' else 'done' end, null
        from generate_series(1, 4000) r;
    insert into payload select r, x, '', '' from generate_series(1, 4000) r, generate_series(1, 2) x;
    insert into event select r, x, 'k', 1, 'a', 'i', 'c', '', '' from generate_series(1, 4000) r, generate_series(1, 3) x;
    insert into outbox select r, 1, 0, 't', null, '', r from generate_series(1, 4000) r;
    insert into stale_message select r, 0, 1, 'x', 1, 'o', 1 from generate_series(1, 4000) r;
    insert into idempotency select 't' || i % 5, 'api', 'n' || i, null,
        case when i % 10 = 0 then 'processing' else 'completed' end, '', null, null, 1, 1, i, null, 1, null
        from generate_series(1, 4000) i;
    insert into cap select 't' || i, '', 1, null, null, null from generate_series(1, 4000) i;
    insert into verdict select r, x, 't' || r % 5, 0, 'l', 'c', 'o', '', 1, 'allow', '[]', r, '', 0, '', null, null, null, '', '', null
        from generate_series(1, 4000) r, generate_series(5, 6) x;
    insert into receipt select r, x, 't' || r % 5, 0, 'l' || x, 1, 'c', 'o', 'low', 'k' || r || '/' || x, '', 'none', true, 5,
        null, 1, r, r, null, null, null, null, case when r % 20 = 0 then 'unknown' else 'succeeded' end,
        case when r % 20 > 0 then r end, null, null, null, null, null, null, null, null, null
        from generate_series(1, 4000) r, generate_series(7, 8) x;
    insert into run_spend select r, 5, 2 from generate_series(1, 4000) r;
    insert into cost_line select r, x, 't' || r % 5, 'w', r / 40, 'p', 'm' || x, 'USD', 1, 2, 3, 4
        from generate_series(1, 4000) r, generate_series(1, 2) x;
    insert into governance select 't' || i, 1, null, null, '{}', '{}', 1, 1 from generate_series(1, 4000) i;
    insert into person select 't' || i % 5, 'p' || i, 'n', '[]', '[]', null, null, null, 1, null, null, 1, '', ''
        from generate_series(1, 4000) i;
"""

ARGUMENTS: dict[str, str] = {
    "now": "0",
    "lock_tenants": "'{t1,t2}'",
    "load_steps": "'{100,200}', '{0,1}'",
    "load_named_steps": "'{100,200}', '{s0,s1}'",
    "load_attempts": "'{100,200}', '{0,0}', '{1,1}'",
    "load_checkpoints": "'{100,200}', '{0,0}', '{c0,c1}'",
    "load_step_checkpoints": "'{100,200}', '{0,0}'",
    "load_waits": "'{100,200}', '{1,1}'",
    "load_event_waits": "'{100,200}', '{e,e}'",
    "load_unconfirmed": "'{t1,t2}'",
    "load_labeled_waits": "'{100,200}', '{0,0}', '{l,l}'",
    "load_approvals": "'{100,200}', '{1,1}'",
    "load_buffered": "'{100,200}', '{n,n}'",
    "load_inbox_ids": "'{100,200}', '{e,e}'",
    "load_children": "'{100,200}', '{9100,9200}'",
    "load_acts": "'{100,200}', '{0,0}', '{l7,l8}'",
    "load_receipts": "'{100,200}', '{7,8}'",
    "load_key_holders": "'{t0,t0}', '{k100/7,k200/8}'",
    "load_governance": "'{t1,t2}'",
    "load_people": "'{t0,t1}', '{p100,p101}'",
    "load_payloads": "'{100,200}', '{1,2}'",
    "load_event_hashes": "'{100,200}', '{1,2}'",
    "find_keys": "'{t0,t2}', '{api,api}', '{key100,key202}'",
    "caps": "'{t1}'",
    "claim_queues": "'{q0,q1}', 't1', 'w1', 20",
    "tenant_claim_queues": "'{q0,q1}', 't1', 'w1', 20",
    "usage": "'{t0,t1}'",
    "candidates": "'{q1,q1}', '{t1,t2}', '{w0,w1}', '{10,10}'",
    "candidates_behind": "'{q1,q1}', '{t1,t2}', '{w0,w1}', '{1,1}', '{0,0}', '{0,0}', '{0,0}', '{10,10}'",
    "key_queue": "'t1', 'k1', 9000",
    "live_keys": "'t1', 'k1', 5",
    "rates": "'t2', 3900",
    "beat": "'{100,200}', '{0,0}', '{1,1}', '{5,5}', '{9000,9000}', '{p,p}', 50",
    "due": "500, 20",
    "next_wake": "",
    "outbox_pending": "500, 10",
    "runs_by_status": "'t0', 'running', 9000, 20",
    "approvals_open": "'t0', 20",
    "run_ids_after": "500, 20",
    "events_after": "5, 1, 20",
    "payload": "5, 1",
    "resume_checkpoints": "5, 0",
    "resume_waits": "5, 0, 0, 20",
    "schedules_due": "500, 20",
    "schedules_of": "'t1', 'a', 20",
    "schedule_named": "'t1', 'a'",
    "workers_seen_since": "500",
    "worker_processes_at": "'boot', 'pid:[1]'",
    "leases_of_session": "7, ''",
    "workflows_of": "'t1', 'a', 20",
    "workflows_page": "'t1', '*', 'a', '1', 20",
    "workflow_named": "'t1', 'a'",
    "log_lines_of": "5, 1, 20",
    "reusable_steps": "'t1', '\\x00', 5",
}
"""The arguments of queries. All other queries take a list of ids, or one id."""

WHOLE_TABLES = {"all_caps", "live_usage", "key_holders_twice", "orphan_rows", "lost_specs", "sizes"}
"""Queries that read whole tables by design."""
QUERIES = port.QUERIES.keys() | {"resume_checkpoints", "resume_waits"}
QUERIES |= {name for module in (log_lines, schedules, workers, workflows) for name in module.READS}


def arguments(name: str) -> str:
    by_id = "'{100,200,300}'" if "any($1::bigint[])" in SQL[name] else "5" if "$1" in SQL[name] else ""
    return ARGUMENTS.get(name, by_id)


@asynccontextmanager
async def connected(dsn: str, settings: Mapping[str, str]) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn, server_settings={**settings, "search_path": "tenure"})
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def filled(dsn: str, *, analyze: bool = True) -> AsyncIterator[Any]:
    """A connection to tables with some thousands of rows."""
    await PostgresStore(dsn).migrate()
    async with connected(dsn, {}) as connection:
        await connection.execute(FILL)
        if analyze:
            await connection.execute("analyze")
        yield connection


Node = dict[str, Any]


async def plan(connection: Any, text: str, given: str, *, run: bool = True) -> Node:
    """The generic plan of a statement. The statement is executed and rolled back."""
    await connection.execute(f"prepare looked_at as {text}")
    transaction = connection.transaction()
    await transaction.start()
    how = "analyze, buffers, " if run else ""
    execute = f"explain ({how}costs off, format json) execute looked_at{f'({given})' if given else ''}"
    found: Node = json.loads(await connection.fetchval(execute))[0]["Plan"]
    await transaction.rollback()
    await connection.execute("deallocate looked_at")
    return found


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("Plans", ()):
        yield from nodes(child)


def scans(node: Node) -> set[str]:
    """The indexes that the plan reads, and the tables that it reads without an index."""
    through = {str(one["Index Name"]) for one in nodes(node) if "Index Name" in one}
    return through | {str(one["Relation Name"]) for one in nodes(node) if one["Node Type"] == "Seq Scan"}


def pages(node: Node) -> int:
    return int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"])


LISTINGS: dict[str, tuple[str, set[str]]] = {
    "runs_page_by_status": ("'t0', 'running', 9000, 0, 20", {"run_by_status"}),
    "runs_page_by_repo": ("'t3', 'repo3', 9000, 0, 20", {"run_by_repo"}),
    "runs_page": ("'t3', 9000, 0, 20", {"run_newest"}),
    "runs_by_status": ("'t0', 'running', 9000, 20", {"run_by_status"}),
    "approvals_open": ("'t0', 20", {"approval_open"}),
    # Expired leases are found among all due timers, with a look-up of each one's run.
    "due": ("500, 20", {"run_wake", "step_wake", "wait_wake", "run_pkey"}),
    # Each row is deleted by its primary key.
    "delete_expired_keys": ("'processing', 500, 20", {"idempotency_expiry", "idempotency_pkey"}),
}
"""The list queries: their arguments, and the indexes that they may read."""


@pytest.mark.clause("GWI-21")
@pytest.mark.parametrize("name", LISTINGS)
async def test_each_list_query_reads_its_index_and_only_the_requested_rows(
    postgres_dsn: str, name: str
) -> None:
    given, indexes = LISTINGS[name]
    settings = LANE_SETTINGS if name in idempotency.WRITES else READER_SETTINGS
    async with filled(postgres_dsn), connected(postgres_dsn, settings) as connection:
        found = await plan(connection, SQL[name], given)
        assert scans(found) == indexes
        assert found["Actual Rows"] > 0
        most = (
            60 if name.startswith(("runs", "approvals")) else 250
        )  # each of 20 rows is looked up in another table
        assert pages(found) < most
        sorted_ = sum(node["Plans"][0]["Actual Rows"] for node in nodes(found) if node["Node Type"] == "Sort")
        assert sorted_ <= (60 if name == "due" else 0), "the index has the order; `due` merges three lists"


@pytest.mark.parametrize("analyze", [True, False])
async def test_no_query_reads_a_whole_table_that_grows(postgres_dsn: str, analyze: bool) -> None:
    """Also before ANALYZE, because a cached plan is kept."""
    async with (
        filled(postgres_dsn, analyze=analyze),
        connected(postgres_dsn, READER_SETTINGS) as reader,
        connected(postgres_dsn, LANE_SETTINGS) as lane,
    ):
        for name in QUERIES - WHOLE_TABLES:
            connection = lane if name in port.IN_TRANSACTION else reader
            found = await plan(connection, SQL[name], arguments(name))
            assert "Seq Scan" not in {node["Node Type"] for node in nodes(found)}, name
            assert pages(found) < 250, f"{name} reads {pages(found)} pages"
            read = sum(
                node["Actual Rows"] * node["Actual Loops"] for node in nodes(found) if "Relation Name" in node
            )
            assert read <= 700, f"{name} reads {read} rows of {RUNS}"


async def test_a_heartbeat_finds_its_lease_by_key_with_any_statistics(postgres_dsn: str) -> None:
    """The plan must not scan all live leases, whose number grows with the load."""
    async with filled(postgres_dsn, analyze=False) as owner:
        for before in ("select", "analyze", "truncate attempt; analyze"):
            await owner.execute(before)
            async with connected(postgres_dsn, LANE_SETTINGS) as lane:
                found = await plan(lane, SQL["beat"], arguments("beat"))
            assert scans(found) == {"attempt_pkey"}, before
            assert pages(found) < 30, f"{pages(found)} pages for two heartbeats"
            by = [node["Index Cond"] for node in nodes(found) if "Index Cond" in node]
            assert by == ["((run_id = ANY (ARRAY[b.run_id])) AND (idx = b.idx) AND (n = b.n))"], before


async def test_listing_claim_queues_does_not_cost_more_in_a_long_queue(postgres_dsn: str) -> None:
    async with filled(postgres_dsn) as owner, connected(postgres_dsn, LANE_SETTINGS) as lane:
        before = pages(await plan(lane, SQL["claim_queues"], arguments("claim_queues")))
        await owner.execute("""
            insert into step select r, 9, 's9', 'work', '', 'q1', 't3', 'w0', 'wf', r % 4, true, '', 3, null, 1, '', null,
                null, 1, 'ready', 0, 0, 0, true, 5, null, null, '', false, 0, null, null, null, null, null, null, null,
                null, null, ''
                from generate_series(5000, 45000) r
        """)
        after = pages(await plan(lane, SQL["claim_queues"], arguments("claim_queues")))
        assert after <= before + 40
        best = await plan(lane, SQL["candidates"], "'{q1}', '{t3}', '{w0}', '{20}'")
        assert best["Actual Rows"] == 20
        assert pages(best) < 40


@pytest.mark.parametrize("analyze", [True, False])
async def test_closing_a_run_does_not_read_its_closed_steps(postgres_dsn: str, analyze: bool) -> None:
    """The first step is found by its key, the others in the index of open steps, with or without statistics."""
    async with filled(postgres_dsn, analyze=analyze) as owner, connected(postgres_dsn, LANE_SETTINGS) as lane:
        await owner.execute("""
            insert into step select 100, x, 's' || x, 'work', '', 'q1', 't3', 'w0', 'wf', 0, true, '', 3, null, 1, '', null,
                null, 1, 'succeeded', 0, 1, 1, false, 5, null, null, '', false, 0, 5, 'done', null, null, null, null, null,
                null, null, ''
                from generate_series(3, 6000) x
        """)
        if analyze:
            await owner.execute("analyze step")
        found = await plan(lane, SQL["load_open_steps"], "'{100,200}'")
        assert found["Actual Rows"] == 6
        assert {"step_pkey", "step_open"} == scans(found)
        assert pages(found) < 40


SAVES = {
    "a checkpoint": Save(
        expect=[(1, 3, 5), (2, 3, None)],
        runs=[a_run(1, version=4), a_run(2, version=4)],
        rows={
            "event": [an_event(1, 4)],
            "checkpoint": [a_checkpoint(1, 0, "new", 3)],
            "payload": [a_payload(1, 9)],
        },
    ),
    "a claim": Save(
        expect=[(1, 3, None), (2, 3, None)],
        runs=[a_run(2, version=4)],
        rows={"step": [a_ready_step(1, 0)], "attempt": [an_attempt(1, 0, 2)]},
        delivered=[(3, 1, 0)],
    ),
    "retention": Save(expect=[(1, 3, None)], delete_runs=[1]),
}


@pytest.mark.parametrize("what", SAVES)
@pytest.mark.parametrize("full", [True, False])
async def test_a_save_locks_its_runs_one_by_one_in_the_given_order(
    postgres_dsn: str, what: str, full: bool
) -> None:
    """Two saves that lock in the same order never deadlock. A plan made while the tables were empty must
    still be good when they are full."""
    parts, params = pack_save(SAVES[what], 0)
    async with filled(postgres_dsn) as owner:
        if not full:
            await owner.execute("truncate run, step, event, checkpoint, payload, outbox; analyze")
        async with connected(postgres_dsn, LANE_SETTINGS) as lane:
            given = ", ".join("null" for _ in params)
            found = await plan(lane, compose_save(parts), given, run=False)
        kinds = {node["Node Type"] for node in nodes(found)}
        assert not kinds & {"Seq Scan", "Hash Join", "Merge Join"}, kinds
        loops = [node for node in nodes(found) if node["Node Type"] == "Nested Loop"]
        assert loops or what == "retention"
        for node in loops:
            outer, inner = node["Plans"]
            assert outer["Node Type"] == "Function Scan", "the sent rows drive the loop"
            assert "Index Scan" in {node["Node Type"] for node in nodes(inner)}


def test_every_query_of_the_port_is_checked() -> None:
    assert port.QUERIES.keys() <= SQL.keys()
