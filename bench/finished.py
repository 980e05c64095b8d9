"""Fills a database with finished runs, by copying one real run many times in SQL.

The copies have ids and times one second apart in the past, like the runs of a busy year, so that indexes grow as they
do in use. Their histories are the bytes of the original, so the doctor would refuse them.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.places import Database
from tenure.kernel.run_rows import ROWS

CHUNK = 20_000
"""Runs per commit."""
TABLES = ("run", "run_spec", "step", "attempt", "checkpoint", "payload", "event")
_TIMES = ("created_at", "event_at", "admitted_at", "started_at", "finished_at")
_NUMBERS = {
    "sqlite": "(with recursive g (n) as (select ?2 union all select n - 1 from g where n > ?3) select n from g)",
    "postgres": "(select n from generate_series($2::bigint, $3::bigint, -1) as s (n))",
}
_FIRST = {"sqlite": "?1", "postgres": "$1::bigint"}


async def fill(database: Database, run_id: int, count: int, on_progress: Callable[[int], None]) -> None:
    """Copy a finished run `count` times. `on_progress` is called with the number of copies so far."""
    (run,) = await database.store.read("get_run", run_id)
    assert run.finished_at is not None, "only a finished run is copied"
    for highest in range(count, 0, -CHUNK):  # ages count down, so that ids are written in order
        lowest = max(1, highest - CHUNK + 1)
        await database.execute(
            [(_copy(table, database.store.name), (run_id, highest, lowest)) for table in TABLES]
        )
        on_progress(count - lowest + 1)
    await database.tidy()


def _copy(table: str, dialect: str) -> str:
    """The statement that copies a run's rows of one table: n seconds older, with another random part of the id."""
    key = "id" if table == "run" else "run_id"
    values = {column: f"t.{column}" for column in ROWS[table].__struct_fields__}
    values[key] = f"((((t.{key} >> 31) - g.n) << 31) | ((g.n * 1540483477) & 2147483647))"
    if table == "run":
        values |= {column: f"t.{column} - g.n * 1000000" for column in _TIMES}
    return (
        f"insert into {{schema}}.{table} ({', '.join(values)}) select {', '.join(values.values())}"
        f" from {_NUMBERS[dialect]} as g cross join {{schema}}.{table} as t"
        f" where t.{key} = {_FIRST[dialect]} order by g.n desc"
    )
