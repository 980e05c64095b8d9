"""The query plans of SQLite: which index, and at what cost."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import apsw
import pytest
from msgspec.structs import astuple

from tenure.kernel.registry_rows import REGISTRY_ROWS
from tenure.kernel.run_rows import ROWS, Row
from tenure.store import port
from tenure.store.sqlite.migrator import MIGRATIONS, apply_migrations
from tenure.store.sqlite.statements import SQL
from tests.conformance.samples import a_ready_step, a_step
from tools.save_variants import INDEXED


@pytest.fixture
def connection() -> apsw.Connection:
    made = apsw.Connection(":memory:")
    apply_migrations(made, MIGRATIONS, 0)
    made.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return made


def arguments(statement: str) -> tuple[None, ...]:
    numbers = re.findall(r"\?(\d*)", statement)
    return (None,) * max((int(number or at) for at, number in enumerate(numbers, start=1)), default=0)


def plan(connection: apsw.Connection, statement: str) -> list[str]:
    return [row[3] for row in connection.execute(f"explain query plan {statement}", arguments(statement))]


LISTINGS = {
    "runs_page_by_status": ["SEARCH run USING INDEX run_by_status (tenant=? AND status=? AND created_at<?)"],
    "runs_page_by_repo": ["SEARCH run USING INDEX run_by_repo (tenant=? AND repo=? AND created_at<?)"],
    "runs_page": ["SEARCH run USING INDEX run_newest (tenant=? AND created_at<?)"],
    "runs_by_status": ["SEARCH run USING INDEX run_by_status (tenant=? AND status=? AND created_at<?)"],
    "approvals_open": ["SEARCH approval USING INDEX approval_open (tenant=?)"],
}
"""The list queries and their plans."""


@pytest.mark.clause("GWI-21")
@pytest.mark.parametrize("name", LISTINGS)
def test_a_list_query_reads_only_its_index_in_order(connection: apsw.Connection, name: str) -> None:
    assert plan(connection, SQL[name]) == LISTINGS[name]


@pytest.mark.clause("GWI-21")
def test_silent_leases_are_found_through_the_timers_of_their_steps(connection: apsw.Connection) -> None:
    """The plan reads the head of each timer index, and looks up the run of each timer."""
    looks = [line for line in plan(connection, SQL["due"]) if line.startswith(("SEARCH", "SCAN"))]
    assert [line for line in looks if "subquery" not in line] == [
        "SEARCH run USING INDEX run_wake (wake_at<?)",
        "SEARCH s USING INDEX step_wake (wake_at<?)",
        "SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH w USING COVERING INDEX wait_wake (wake_at<?)",
        "SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
    ]


@pytest.mark.clause("GWI-21")
def test_expiring_records_are_found_by_status_and_time_and_deleted_by_their_keys(
    connection: apsw.Connection,
) -> None:
    deleted, _, found = plan(connection, SQL["delete_expired_keys"])
    assert found == "SEARCH idempotency USING INDEX idempotency_expiry (status=? AND expires_at<?)"
    assert deleted.endswith("(tenant=? AND source=? AND name=?)")


WHOLE_TABLES = {"all_caps", "live_usage", "key_holders_twice", "orphan_rows", "lost_specs", "sizes"}
BOUNDED = {
    "oldest_pending": "USING COVERING INDEX step_claim",
    "leases_of_session": "USING INDEX attempt_live",
}
"""These queries may scan an index of claimable steps (up to a bound) or of live leases. Neither contains finished rows."""


@pytest.mark.parametrize("name", sorted({*SQL} - WHOLE_TABLES))
def test_no_query_scans_a_table_that_grows(connection: apsw.Connection, name: str) -> None:
    growing = {
        "run",
        "run_spec",
        "step",
        "attempt",
        "checkpoint",
        "wait",
        "approval",
        "inbox",
        "child",
        "payload",
    }
    growing |= {
        "event",
        "outbox",
        "stale_message",
        "idempotency",
        "cap",
        "verdict",
        "receipt",
        "run_spend",
        "cost_line",
        "governance",
        "person",
    }
    aliases = {alias: table for table, alias in re.findall(r"\b(?:from|join) (\w+) as (\w+)", SQL[name])}
    lines = plan(connection, SQL[name])
    if name in BOUNDED:
        lines = [line for line in lines if not line.endswith(BOUNDED[name])]
    scanned = [found[1] for line in lines if (found := re.match(r"SCAN (\w+)", line))]
    assert [table for table in scanned if aliases.get(table, table) in growing] == []


def _keys(connection: apsw.Connection, table: str) -> Iterator[list[str]]:
    """The columns of the table's primary key and of each index, without partial indexes."""
    columns = list(connection.execute(f"pragma table_info({table})"))
    yield [column[1] for column in sorted(columns, key=lambda column: column[5]) if column[5]]
    for index, text in connection.execute(
        "select name, coalesce(sql, '') from sqlite_schema where type = 'index' and tbl_name = ?", (table,)
    ):
        if not re.search(r"\bwhere\b", text) or re.search(r"where \w+ is not null$", text):
            yield [row[2] for row in connection.execute(f"pragma index_info({index})")]


_ONE_LOOK = {
    name: (found[1], found[2].partition(" order by ")[0])
    for name, statement in SQL.items()
    if (
        found := re.fullmatch(
            r"select (?:(?!\bselect\b).)* from (\w+)(?: indexed by \w+)? where ((?:(?!\b(?:select|union|join|or)\b).)*)",
            " ".join(statement.split()),
        )
    )
}
"""Queries that read one table once: the table and the condition."""
assert len(_ONE_LOOK) > 100, "the pattern does not recognise the queries any more"


@pytest.mark.parametrize("name", sorted(_ONE_LOOK))
def test_a_query_uses_every_column_by_which_an_index_could_find_its_rows(
    connection: apsw.Connection, name: str
) -> None:
    """Without a hint, SQLite prefers the primary key for its order, and reads all rows of the run."""
    table, condition = _ONE_LOOK[name]
    equal = set(re.findall(r"(?<![.\w])(\w+) = (?:\?|')", condition))
    best = max(
        len(list(takewhile(lambda column: column in equal, columns))) for columns in _keys(connection, table)
    )
    [line] = plan(connection, SQL[name])[:1]
    assert line.count("=?") >= best or "INTEGER PRIMARY KEY" in line, (line, SQL[name])


@pytest.mark.parametrize("table", INDEXED)
def test_an_unindexed_update_omits_exactly_the_indexed_columns(
    connection: apsw.Connection, table: str
) -> None:
    save = SQL[f"save_{table}"]
    changing = set(re.findall(r"\b(\w+) = ", save.partition(" set\n")[2].partition("\nwhere")[0]))
    known: set[str] = set()
    for index, text in connection.execute(
        "select name, coalesce(sql, '') from sqlite_schema where type = 'index' and tbl_name = ?", (table,)
    ):
        known |= {row[2] for row in connection.execute(f"pragma index_info({index})")}
        known |= set(re.findall(r"\w+", text.partition(" where ")[2]))
        known |= set(re.findall(r"\w+", text.partition("\nwhere ")[2]))
    assert set(INDEXED[table]) == known & changing

    def written(statement: str) -> int:
        program = connection.execute(f"explain {statement}", arguments(statement))
        return sum(row[1] in ("IdxInsert", "IdxDelete") for row in program)

    assert written(SQL[f"update_{table}_unindexed"]) == 0 < written(save)


def test_columns_match_the_fields_of_the_rows_in_order(connection: apsw.Connection) -> None:
    for table, row in {**ROWS, **REGISTRY_ROWS}.items():
        columns = list(connection.execute(f"pragma table_info({table})"))
        assert tuple(column[1] for column in columns) == row.__struct_fields__, table
        types = {
            name: hint for base in row.__mro__ for name, hint in vars(base).get("__annotations__", {}).items()
        }
        hints = {name: str(types[name]) for name in row.__struct_fields__}
        for _, name, kind, not_null, *_, key in columns:
            plain = {"str": "TEXT", "int": "INTEGER", "bool": "INTEGER", "bytes": "BLOB"}
            assert kind.upper() == plain[hints[name].removesuffix(" | None")], f"{table}.{name}"
            assert bool(not_null or key) == (not hints[name].endswith(" | None")), f"{table}.{name}"


# ------------------------------------------------------------------------------------------------- costs


class Count:
    steps = 0


@contextmanager
def counted(connection: apsw.Connection) -> Iterator[Count]:
    """Counts the instructions of SQLite's virtual machine, a cost that does not vary between machines."""
    count = Count()

    def one() -> bool:
        count.steps += 1
        return False

    connection.set_progress_handler(one, 1)
    yield count
    connection.set_progress_handler(None)


def cost(connection: apsw.Connection, name: str, *values: Any) -> int:
    with counted(connection) as count:
        connection.execute(SQL[name], values).fetchall()
    return count.steps


def put(connection: apsw.Connection, rows: list[Row]) -> None:
    connection.executemany(SQL[f"save_{rows[0].table}"], [astuple(row) for row in rows])


def test_listing_claim_queues_does_not_cost_more_in_a_long_queue(connection: apsw.Connection) -> None:
    put(connection, [a_ready_step(1, n, tenant=f"t{n}") for n in range(3)])
    before = cost(connection, "claim_queues", "q1", "", "", 10)
    put(connection, [a_ready_step(2, n, tenant=f"t{n % 3}") for n in range(3000)])
    assert cost(connection, "claim_queues", "q1", "", "", 10) == before


def test_reading_claim_candidates_costs_only_the_requested_rows(connection: apsw.Connection) -> None:
    put(connection, [a_ready_step(1, n) for n in range(10)])
    before = cost(connection, "candidates", "q1", "acme", "main", 10)
    put(connection, [a_ready_step(2, n, priority=n % 9) for n in range(3000)])
    assert cost(connection, "candidates", "q1", "acme", "main", 10) == before


def test_reading_later_claim_candidates_costs_only_the_requested_rows(connection: apsw.Connection) -> None:
    put(connection, [a_ready_step(1, n, priority=1) for n in range(20)])
    before = cost(connection, "candidates_behind", "q1", "acme", "main", 1, 1000, 1, 5, 10)
    put(connection, [a_ready_step(2, n, priority=1) for n in range(3000)])
    put(connection, [a_ready_step(0, n, priority=1) for n in range(3000)])
    assert cost(connection, "candidates_behind", "q1", "acme", "main", 1, 1000, 1, 5, 10) <= before * 1.1


def test_closing_a_run_does_not_read_its_closed_steps(connection: apsw.Connection) -> None:
    put(connection, [a_step(1, n) for n in range(3)])
    before = cost(connection, "load_open_steps", 1)
    closed = [a_step(1, n, state="succeeded", finished_at=2000, reason="done") for n in range(3, 3000)]
    put(connection, list(closed))
    assert cost(connection, "load_open_steps", 1) == before


def test_every_query_of_the_port_is_checked() -> None:
    assert port.QUERIES.keys() - SQL.keys() == set()
