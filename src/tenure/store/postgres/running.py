"""How a named query is asked, and how a save becomes one statement.

Laws:
1. A save is one statement with a CTE per table it writes; texts are composed once per set of parts.
2. Rows travel as one array of the table's wire type (see the end of the first migration). A save of one run with
   one row per table sends their values by themselves: that halves what the server does before it begins.
3. Locks are taken in an order everybody keeps: runs by id, leases by key, idempotency keys by key. The rows
   are sorted here, and the plan (link.py) keeps their order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import starmap
from operator import attrgetter
from typing import Any, get_type_hints

import msgspec
from msgspec import structs

from tenure.futures import run_in_thread
from tenure.kernel.feed import encoded
from tenure.kernel.model import ROWS, Row, Run, RunSpec
from tenure.kernel.rows import LIGHT
from tenure.kernel.service import RemoteLease
from tenure.store import families, port
from tenure.store.postgres.link import Link

NOW = "((date_part('epoch', clock_timestamp()) * 1000000)::bigint + $1::bigint)"
"""The store's clock in microseconds; $1 is its shift. (A double holds these exactly until the year 2255;
extract() would make a numeric, ten times as slow.)"""

TABLES = (*(table for table in ROWS if table not in ("run", "cap")), "remote_lease")
"""Tables a save may have rows of, in the order they are written."""
BENEATH = (
    *(table for table in ROWS if table not in ("run", "outbox", "cap", "idempotency")),
    "log_line",
    "remote_lease",
    "artifact",
)
"""Tables whose rows go with their run. What it owes others does not: that is still to be delivered."""

ROWS_IN_A_STATEMENT_MAX = 1_000
"""Of a save that is long: the driver encodes a statement's rows in the event loop's thread."""
ROWS_MADE_ON_LOOP_MAX = 1_000
"""Rows of an answer that are made in the event loop's thread; more are in another one."""

_BY_ROW = frozenset(port.IN_TRANSACTION) - {"now", "key_queue", "live_keys", "rates"}
_COLUMNS = re.compile(r"\{(?:(\w+)\.)?(\w+)\}")
_KNOWN = {**ROWS, **families.ROWS}
_ANSWERS = {**port.QUERIES, **families.READS, **families.WRITES}
_FIRST_CHANGING = Run.__struct_fields__.index("status")
_tuple: Callable[[msgspec.Struct], tuple[Any, ...]] = msgspec.structs.astuple
_light: Callable[[Run], tuple[Any, ...]] = attrgetter(*LIGHT)
_CHANGED = frozenset({"run", "light_run"})
"""The ways in which runs that change are written."""


def _filled(text: str) -> str:
    """Fill in the columns and the clock; what a save's fragments need besides is filled in by `compose`."""

    def fill(found: re.Match[str]) -> str:
        alias, word = found.groups()
        if word not in _KNOWN:
            return found[0]
        prefix = f"{alias}." if alias else ""
        return ", ".join(f"{prefix}{column}" for column in _KNOWN[word].__struct_fields__)

    return _COLUMNS.sub(fill, text).replace("{now}", NOW)


_TEXTS = families.texts("tenure.store.postgres")
SQL = {name: _filled(text) for name, text in _TEXTS.items()}


async def ask(
    link: Link, name: str, rows: Sequence[tuple[Any, ...]], scalars: tuple[Any, ...], shift_us: int
) -> list[Any]:
    """The answer to a named query."""
    if name == "now":
        scalars = (shift_us,)
    elif not rows and name in _BY_ROW:
        return []  # asked about nothing
    statement = await link.statement(SQL[name])
    found = await statement.fetch(*zip(*rows, strict=True), *scalars)
    make: Callable[[], list[Any]] = partial(list, starmap(_ANSWERS[name], found))
    return make() if len(found) <= ROWS_MADE_ON_LOOP_MAX else await run_in_thread(make)


# ------------------------------------------------------------------------------------------------ save


def _part(query: str) -> str:
    """A part's text. Runs that change lightly are written by `save_run` with fewer columns."""
    if query != "save_light_run":
        return SQL[query]
    head, _, rest = SQL["save_run"].partition(" set\n")
    assigned = ", ".join(f"{name} = n.{name}" for name in LIGHT if f"{name} = n.{name}," in rest)
    return (
        f"{head} set {assigned}\nfrom unnest({{rows}}::run_light_in[]) n\nwhere {rest.partition('where ')[2]}"
    )


@cache
def compose(parts: frozenset[str]) -> str:
    """The statement that writes these parts. Its parameters: the clock's shift, the estimate, then those of
    each part in the order they are written. With `ONE` among them there is one run, and one row of each part."""
    if ONE in parts:
        return _compose_one(parts - {ONE})
    numbers = iter(range(3, 100))
    gate = "(n.id in (select id from expected)) is true" if "expected" in parts else "true"
    ctes: list[str] = []

    def add(name: str, query: str) -> None:
        text = _part(query).replace("{gate}", gate)
        for word in ("{rows}", "{asked}"):
            if word in text:
                text = text.replace(word, f"${next(numbers)}")
        ctes.append(f"{name} as ({text})")

    ctes.append(f"fine as materialized ({SQL['save_fine']})")
    for part in ("expected", *_CHANGED, "new_spec", "new_run"):
        if part in parts:
            add("changed" if part in _CHANGED else part, f"save_{part}")
    held = "expected" if "expected" in parts else "changed" if parts & _CHANGED else None
    sources = [source for source in (held, "new_run" if "new_run" in parts else None) if source]
    union = " union all ".join(f"select id from {source}" for source in sources)
    ctes.append(f"ok as materialized ({union or 'select null::bigint as id where false'})")
    for table in (*TABLES, FEED, "delivered"):
        if table in parts:
            add(f"put_{table}", f"save_{table}")
    written = "ok"
    if "delete" in parts:
        add("gone", "delete_run")
        ctes += [f"gone_{table} as ({SQL[f'delete_{table}']})" for table in BENEATH]
        written = "(select id from ok union all select id from gone) w"
    return f"with {', '.join(ctes)} {SQL['save_done'].replace('{written}', written)}"


ONE = "one"
FEED = "feed"
"""What the commit tells: one row for all its runs."""
_NEW_ROWS = re.compile(r"unnest\(\{rows\}::(\w+)_in\[\]\) n\b")
_IS_WRITTEN = re.compile(r"\(n\.(?:run_)?id in \(select (?:run_)?id from (\w+)\)\) is true")
_TYPES = {int: "bigint", str: "text", bytes: "bytea", bool: "boolean"}


def _types(row: type[msgspec.Struct]) -> dict[str, str]:
    """Column -> what its value is sent as; a narrower column takes it over or refuses it."""
    hints = get_type_hints(row)
    return {
        name: _TYPES[getattr(hints[name], "__args__", (hints[name],))[0]] for name in row.__struct_fields__
    }


_SENT: dict[str, type[Row]] = {**ROWS, RemoteLease.table: RemoteLease}
_WIRE = {table: _types(row) for table, row in _SENT.items()}
_EXPECTED = {"id": "bigint", "expected": "bigint", "expected_head": "bytea", "valid_until": "bigint"}
_WIRE["run_change"] = _EXPECTED | dict(list(_WIRE["run"].items())[_FIRST_CHANGING:])
_WIRE[FEED] = {"run_id": "bigint", "body": "bytea"}
_WIRE["run_light"] = _EXPECTED | {name: _WIRE["run"][name] for name in LIGHT}


def _compose_one(parts: frozenset[str]) -> str:
    """The same statement for one run and one row per part. Nothing is looked up in lists of one."""
    number = 2
    source = "changed" if parts & _CHANGED else "new_run"

    def values(found: re.Match[str]) -> str:
        nonlocal number
        columns = _WIRE[found[1]]
        sent = ", ".join(f"${number + n}::{type_}" for n, type_ in enumerate(columns.values(), start=1))
        number += len(columns)
        return f"(values ({sent})) n ({', '.join(columns)})"

    def cte(name: str, query: str) -> str:
        text = _NEW_ROWS.sub(values, _part(query))
        text = _IS_WRITTEN.sub(lambda found: f"exists (select from {found[1]})", text)
        text = text.replace("any (array[n.id])", "n.id").replace("any (array[n.run_id])", "n.run_id")
        text = text.replace("(select yes from fine)", f"({fine})").replace(" and {gate}", "")
        return f"{name} as ({text.replace('select from ok', f'select from {source}')})"

    fine = SQL["save_fine"].removeprefix("select ").removesuffix(" as yes")
    ctes = [cte("changed", f"save_{part}") for part in parts & _CHANGED]
    ctes += [cte(part, f"save_{part}") for part in ("new_spec", "new_run") if part in parts]
    ctes += [cte(f"put_{table}", f"save_{table}") for table in (*TABLES, FEED) if table in parts]
    return f"with {', '.join(ctes)} {SQL['save_done'].replace('{written}', source)}"


_RECORDS_RUN = ROWS["idempotency"].__struct_fields__.index("run_id")


def _pack_one(save: port.Save, shift_us: int) -> tuple[frozenset[str], list[Any]] | None:
    """Likewise of a save of one run with one row per table; None where it is more than that."""
    if save.delivered or save.delete_runs or len(save.expect) + len(save.new_runs) != 1:
        return None
    params: list[Any] = [shift_us, save.estimate_us]
    if save.new_runs:
        if len(save.new_specs) != 1 or save.runs:
            return None
        parts = [ONE, "new_spec", "new_run"]
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
        parts = [ONE, part]
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
        params += (run_id, encoded(save.feed[0][1]))
    return frozenset(parts), params


def pack(save: port.Save, shift_us: int) -> tuple[frozenset[str], list[Any]]:
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
        add("new_spec", _new_specs(save.new_specs))
        add("new_run", list(map(_tuple, save.new_runs)))
    for table, given in _tables(save):
        if table == "attempt":
            given.sort(key=_attempt_key)
        add(table, given)
    if save.feed:
        add(FEED, [(run_id, encoded(lines)) for run_id, lines in save.feed])
    asked = [run_id for run_id, _, _ in save.expect] if save.delivered or save.delete_runs else []
    if save.delivered:
        add("delivered", save.delivered, asked)
    if save.delete_runs:
        add("delete", save.delete_runs, asked)
    return frozenset(parts), params


def divide(save: port.Save) -> tuple[port.Save, Callable[[set[int]], Iterator[port.Save]]]:
    """A save of many rows as several of one transaction: the first says which runs are written, and of these the others write
    what lies beneath them."""
    if sum(map(len, save.rows.values())) <= ROWS_IN_A_STATEMENT_MAX:
        return save, lambda _: iter(())

    def rest(ids: set[int]) -> Iterator[port.Save]:
        runs = [run for run in (*save.runs, *save.new_runs) if run.id in ids]
        expect: list[tuple[int, int, int | None]] = [(run.id, run.version, None) for run in runs]
        for table, rows in save.rows.items():
            for at in range(0, len(rows), ROWS_IN_A_STATEMENT_MAX):
                yield port.Save(expect=expect, rows={table: rows[at : at + ROWS_IN_A_STATEMENT_MAX]})

    return structs.replace(save, rows={}), rest


def _attempt_key(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[:3]


def _tables(save: port.Save) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """What is written beneath the runs, in order: (part, rows)."""
    rows = save.rows
    for table in TABLES if rows else ():
        if given := rows.get(table):
            yield table, list(map(_tuple, given))


def _changes(save: port.Save) -> tuple[str, list[tuple[Any, ...]]]:
    """The runs that change, with what is expected of them, in the order they are locked; and how they are written."""
    if not save.runs:
        return "run", []
    heads = save.heads
    expected = {one: (one, version, heads.get(one), until) for one, version, until in save.expect}
    for run_id in save.delete_runs:
        expected.pop(run_id, None)  # it goes; one statement cannot change and delete a row
    runs = sorted((run for run in save.runs if run.id in expected), key=_run_id)
    if any(run.concurrency_key is not None for run in runs):
        # A key is handed on in one commit: its old holder has to let go before the new one takes it.
        runs.sort(key=lambda run: run.finished_at is None)
    if len(save.light) == len(
        runs
    ):  # all of them or none: two statements would not keep the order of the locks
        return "light_run", [expected[run.id] + _light(run) for run in runs]
    return "run", [expected[run.id] + _tuple(run)[_FIRST_CHANGING:] for run in runs]


def _run_id(run: Run) -> int:
    return run.id


def _new_specs(specs: Iterable[RunSpec]) -> list[tuple[Any, ...]]:
    return list(map(_tuple, sorted(specs, key=_spec_key)))


def _spec_key(spec: RunSpec) -> tuple[str, str, str]:
    return (spec.tenant, spec.source, spec.idempotency_key or "")
