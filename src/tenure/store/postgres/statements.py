"""How a named query runs, and how a save becomes one statement.

Laws:
1. A save is one statement with a CTE for each table it writes. The CTEs are named queries of the .sql files, joined as they
   are; only their parameters are numbered here. In the files, `{run}` stands for the columns of a table, and `{now}` for the clock.
2. Rows travel as one array of the table's wire type (see the end of the first migration). A save of one run with
   one row per table sends their values as parameters: that halves what the server does before it begins.
3. Locks are always taken in the same order: runs by id, leases by key, idempotency keys by key. The rows
   are sorted here, and the plan (connection.py) keeps their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import starmap
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
from msgspec import structs

from tenure.futures import run_in_thread
from tenure.kernel.feed import encode_feed_lines
from tenure.kernel.run_rows import LIGHT_COLUMNS, ROWS, RunRow, RunSpecRow
from tenure.store import port, query_registry
from tenure.store.postgres.connection import STATEMENTS_MAX, PostgresConnection

NOW = "((date_part('epoch', clock_timestamp()) * 1000000)::bigint + $1::bigint)"
"""The store's clock in microseconds; $1 is its shift. (A double holds these exactly until the year 2255;
extract() would make a numeric, ten times as slow.)"""

TABLES = (*(table for table in ROWS if table not in ("run", "cap")), "remote_lease")
"""Tables a save may have rows of, in the order they are written."""
ROWS_IN_A_STATEMENT_MAX = 1_000
"""The limit in a long transaction: the driver encodes a statement's rows in the event loop's thread."""
ROWS_MADE_ON_LOOP_MAX = 1_000
"""Larger answers are built outside of the event loop's thread."""

_KNOWN = {**ROWS, **query_registry.ROWS}
_FIRST_CHANGING = RunRow.__struct_fields__.index("status")
_tuple: Callable[[msgspec.Struct], tuple[Any, ...]] = msgspec.structs.astuple
_light: Callable[[RunRow], tuple[Any, ...]] = attrgetter(*LIGHT_COLUMNS)
CHANGED_RUNS = ("run", "light_run")
"""The parts by which runs that change are written; a save has one of them."""
NEW_RUN_QUERIES = {"new_spec": "save_one_new_spec", "ok": "save_one_new_run"}
RUNS_WRITTEN = {
    (True, True): "save_ok_held_and_new",
    (True, False): "save_ok_held",
    (False, True): "save_ok_new",
    (False, False): "save_ok_none",
}
"""(runs that exist, new runs) -> the query of the runs whose rows are written."""


class _ColumnsOf:
    """The columns of each table behind an alias: `{n.step}` is n.run_id, n.idx, …"""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def __getattr__(self, table: str) -> str:
        return ", ".join(f"{self._alias}.{column}" for column in _KNOWN[table].__struct_fields__)


class _Words(dict[str, Any]):
    """The values of the words in braces; a word that is no table is an alias."""

    def __missing__(self, alias: str) -> _ColumnsOf:
        return _ColumnsOf(alias)


_WORDS = _Words({table: ", ".join(row.__struct_fields__) for table, row in _KNOWN.items()}, now=NOW)
SQL = {name: text.format_map(_WORDS) for name, text in query_registry.load_queries("postgres").items()}


async def run_query(
    connection: PostgresConnection,
    name: str,
    rows: Sequence[tuple[Any, ...]],
    scalars: tuple[Any, ...],
    shift_us: int,
) -> list[Any]:
    if name == "now":
        scalars = (shift_us,)
    elif not rows and name in port.BY_ROW:
        return []
    statement = await connection.statement(SQL[name])
    found = await statement.fetch(*zip(*rows, strict=True), *scalars)
    make: Callable[[], list[Any]] = partial(list, starmap(query_registry.ANSWERS[name], found))
    return make() if len(found) <= ROWS_MADE_ON_LOOP_MAX else await run_in_thread(make)


# ------------------------------------------------------------------------------------------------ save


SINGLE_RUN = "one"
FEED = "feed"
"""The part for the feed: one row for all runs of the commit."""


@lru_cache(STATEMENTS_MAX)
def compose_save(parts: frozenset[str]) -> str:
    """The statement that writes these parts: a named query each, as a CTE, in the order they are written.

    Its parameters: the clock's shift, the estimate, then those of each part. With `SINGLE_RUN` among the parts there is one
    run, and one row of each.
    """
    changed = next((part for part in CHANGED_RUNS if part in parts), None)
    beneath = [table for table in (*TABLES, FEED) if table in parts]
    done = "save_done"
    if SINGLE_RUN in parts:
        queries = {"ok": f"save_one_{changed}"} if changed else NEW_RUN_QUERIES
        queries = queries | {f"put_{table}": f"save_one_{table}" for table in beneath}
    else:
        queries = {"fine": "save_fine"}
        if "expected" in parts:
            queries["held"] = "save_expected"
        if changed:
            queries |= (
                {"changed": f"save_held_{changed}"} if "held" in queries else {"held": f"save_{changed}"}
            )
        if "new_run" in parts:
            queries |= {"new_spec": "save_new_spec", "new_run": "save_new_run"}
        queries["ok"] = RUNS_WRITTEN["held" in queries, "new_run" in queries]
        queries |= {f"put_{table}": f"save_{table}" for table in beneath}
        if "delivered" in parts:
            queries["put_delivered"] = "save_delivered"
        if "delete" in parts:
            done = "save_done_with_deletes"
            queries |= {"gone": "delete_run"} | {
                f"gone_{table}": f"delete_{table}" for table in query_registry.TABLES_BENEATH_RUN
            }
    ctes = ", ".join(f"{name} as materialized ({SQL[query]})" for name, query in queries.items())
    return _number_parameters(f"with {ctes} {SQL[done]}")


def _number_parameters(text: str) -> str:
    """Replace the question marks of a statement by $3, $4, …; $1 and $2 are the clock's shift and the estimate."""
    first, *rest = text.split("?")
    return first + "".join(f"${number}{piece}" for number, piece in enumerate(rest, start=3))


_RECORDS_RUN = ROWS["idempotency"].__struct_fields__.index("run_id")


def _pack_one(save: port.Save, shift_us: int) -> tuple[frozenset[str], list[Any]] | None:
    """The parts and parameters of a save of one run with one row per table; None for any other save."""
    if save.delivered or save.delete_runs or len(save.expect) + len(save.new_runs) != 1:
        return None
    params: list[Any] = [shift_us, save.estimate_us]
    if save.new_runs:
        if len(save.new_specs) != 1 or save.runs:
            return None
        parts = [SINGLE_RUN, "new_spec", "new_run"]
        params += _tuple(save.new_specs[0])
        params += _tuple(save.new_runs[0])
        run_id = save.new_runs[0].id
    else:
        if len(save.runs) != 1 or save.new_specs:
            return None
        run_id = save.runs[0].id
        if save.expect[0][0] != run_id:
            return None
        part, changes = _changes(save)
        parts = [SINGLE_RUN, part]
        params += changes[0]
    for table, given in _tables(save):
        place = _RECORDS_RUN if table == "idempotency" else 0
        if len(given) != 1 or given[0][place] != run_id:
            return None
        parts.append(table)
        params += given[0]
    if save.feed:
        if len(save.feed) != 1 or save.feed[0][0] != run_id:
            return None
        parts.append(FEED)
        params += (run_id, encode_feed_lines(save.feed[0][1]))
    return frozenset(parts), params


def pack_save(save: port.Save, shift_us: int) -> tuple[frozenset[str], list[Any]]:
    """The parts of a save and the parameters of its statement."""
    if (one := _pack_one(save, shift_us)) is not None:
        return one
    parts: list[str] = []
    params: list[Any] = [shift_us, save.estimate_us]

    def add(part: str, *values: Any) -> None:
        parts.append(part)
        params.extend(values)

    part, changes = _changes(save)
    if len(changes) < len(save.expect):
        add(
            "expected",
            [(one, version, save.heads.get(one), until) for one, version, until in sorted(save.expect)],
        )
    if changes:
        add(part, changes)
    if save.new_specs:
        add("new_spec", list(map(_tuple, sorted(save.new_specs, key=_spec_key))))
        add("new_run", list(map(_tuple, save.new_runs)))
    for table, given in _tables(save):
        if table == "attempt":
            given.sort(key=itemgetter(slice(3)))
        add(table, given)
    if save.feed:
        add(FEED, [(run_id, encode_feed_lines(lines)) for run_id, lines in save.feed])
    asked = [run_id for run_id, _, _ in save.expect] if save.delivered or save.delete_runs else []
    if save.delivered:
        add("delivered", save.delivered, asked)
    if save.delete_runs:
        add("delete", save.delete_runs, asked)
    return frozenset(parts), params


def split_save(save: port.Save) -> tuple[port.Save, Callable[[set[int]], Iterator[port.Save]]]:
    """Split a save of many rows into several saves of one transaction: the first writes the runs; the others write the rows of
    the runs that it has written."""
    if sum(map(len, save.rows.values())) <= ROWS_IN_A_STATEMENT_MAX:
        return save, lambda _: iter(())

    def rest(ids: set[int]) -> Iterator[port.Save]:
        runs = [run for run in (*save.runs, *save.new_runs) if run.id in ids]
        expect: list[tuple[int, int, int | None]] = [(run.id, run.version, None) for run in runs]
        for table, rows in save.rows.items():
            for at in range(0, len(rows), ROWS_IN_A_STATEMENT_MAX):
                yield port.Save(expect=expect, rows={table: rows[at : at + ROWS_IN_A_STATEMENT_MAX]})

    return structs.replace(save, rows={}), rest


def _tables(save: port.Save) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """The rows beneath the runs, in the order they are written: (part, rows)."""
    rows = save.rows
    for table in TABLES if rows else ():
        if given := rows.get(table):
            yield table, list(map(_tuple, given))


def _changes(save: port.Save) -> tuple[str, list[tuple[Any, ...]]]:
    """The part that writes the changed runs, and their rows with the expected version and head, in the order of the locks."""
    if not save.runs:
        return "run", []
    heads = save.heads
    expected = {one: (one, version, heads.get(one), until) for one, version, until in save.expect}
    for run_id in save.delete_runs:
        expected.pop(run_id, None)  # one statement cannot change and delete a row
    runs = sorted((run for run in save.runs if run.id in expected), key=attrgetter("id"))
    if any(run.concurrency_key is not None for run in runs):
        # A key passes from one run to another in one commit: first the old holder releases it.
        runs.sort(key=lambda run: run.finished_at is None)
    # All runs or none: two statements would not keep the order of the locks.
    if len(save.light) == len(runs):
        return "light_run", [expected[run.id] + _light(run) for run in runs]
    return "run", [expected[run.id] + _tuple(run)[_FIRST_CHANGING:] for run in runs]


def _spec_key(spec: RunSpecRow) -> tuple[str, str, str]:
    return (spec.tenant, spec.source, spec.idempotency_key or "")
