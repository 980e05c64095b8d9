"""A database full of finished runs, made by copying one real run many times over in SQL.

The copies have ids and times one second apart in the past, as runs of a busy year would, so indexes grow as they
would. Their histories are the original's bytes: large enough, and not for the doctor's eyes.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.checking import load
from bench.places import Database
from tenure.kernel.run_rows import ROWS

CHUNK = 20_000
"""Runs copied by one commit."""
TABLES = ("run", "run_spec", "step", "attempt", "checkpoint", "payload", "event")
_TIMES = ("created_at", "event_at", "admitted_at", "started_at", "finished_at")
_NUMBERS = {
    "sqlite": "(with recursive g (n) as (select ?2 union all select n - 1 from g where n > ?3) select n from g)",
    "postgres": "(select n from generate_series($2::bigint, $3::bigint, -1) as s (n))",
}
_FIRST = {"sqlite": "?1", "postgres": "$1::bigint"}


async def fill(database: Database, run_id: int, count: int, tell: Callable[[int], None]) -> None:
    """Copy a finished run so many times; `tell` hears how many there are."""
    bundle = await load(database.store, run_id)
    assert bundle.run.finished_at is not None, "only a finished run is copied"
    dialect = database.store.name
    made = 0
    while made < count:
        chunk = min(CHUNK, count - made)
        # Counted down, so that ids are written in order.
        bounds = (run_id, count - made, count - made - chunk + 1)
        await database.execute([(_copy(table, dialect), bounds) for table in TABLES])
        made += chunk
        tell(made)
    await database.tidy()


def _copy(table: str, dialect: str) -> str:
    """The statement that copies a run's rows of one table: n seconds older, with another random part."""
    columns = ROWS[table].__struct_fields__
    key = "id" if table == "run" else "run_id"
    values = []
    for column in columns:
        value = f"t.{column}"
        if column == key:
            value = f"((((t.{key} >> 31) - g.n) << 31) | ((g.n * 1540483477) & 2147483647))"
        elif table == "run" and column in _TIMES:
            value = f"t.{column} - g.n * 1000000"
        values.append(value)
    return (
        f"insert into {{schema}}.{table} ({', '.join(columns)}) select {', '.join(values)}"
        f" from {_NUMBERS[dialect]} as g cross join {{schema}}.{table} as t"
        f" where t.{key} = {_FIRST[dialect]} order by g.n desc"
    )
