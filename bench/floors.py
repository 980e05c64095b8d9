"""The floor: what the bare database does, without Tenure.

Laws:
1. A step of the floor updates one row and inserts one row, as wide as those of a run and an event. Its values are made
   before the clock starts, so that only the driver and the database are measured.
2. A batch is a commit of a hundred rows on one connection, as durable as Tenure's commits.
3. A bare commit inserts one row. Latency is compared with seven of them, the commits of a five-step run.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg

from tenure.store.sqlite.connection import PRAGMAS

COMMITS_PER_RUN = 7
"""Create, five checkpoints, complete."""
RUNS = 2000
"""The number of rows that the batches update in turn."""
BODY_BYTES = 300

Update = tuple[int, str, int, bytes, int]
"""(run, status, sequence, head, time)"""
Insert = tuple[int, int, str, int, bytes, bytes]
"""(run, sequence, kind, time, body, hash)"""

_COLUMNS = """
    id {int} primary key, tenant text not null, workspace text not null, workflow text not null,
    code_version text not null, profile text not null, created_at {int} not null, status text not null,
    seq {int} not null, head {bytes} not null, event_at {int} not null, started_at {int}, finished_at {int},
    deadline_at {int}, a {int} not null, b {int} not null, c {int} not null, d {int} not null, e {int} not null,
    f {int} not null, g {int} not null, h {int} not null
"""
_EVENT_COLUMNS = """
    run_id {int} not null, seq {int} not null, kind text not null, at {int} not null, body {bytes} not null,
    hash {bytes} not null, primary key (run_id, seq)
"""


def _new_runs() -> Iterator[tuple[Any, ...]]:
    for i in range(RUNS):
        yield (
            i, "tenant-1", "default", "bench", "1", "agent-runs", 1_700_000_000_000_000 + i, "running", 0, b"\0" * 32,
            1_700_000_000_000_000, 1_700_000_000_000_000, None, 1_700_000_600_000_000, 1, 1, 0, 1, 0, 0, 0, 0,
        )  # fmt: skip


def _batches(count: int, rows: int) -> list[tuple[list[Update], list[Insert]]]:
    """The rows of all batches."""
    made = []
    body = os.urandom(BODY_BYTES // 2).hex().encode()
    sequence = dict.fromkeys(range(RUNS), 0)
    at = 1_700_000_000_000_000
    run = 0
    for _ in range(count):
        updates: list[Update] = []
        inserts: list[Insert] = []
        for _ in range(rows):
            run = (run + 1) % RUNS
            sequence[run] += 1
            at += 1
            head = hashlib.sha256(b"%d %d" % (run, sequence[run])).digest()
            updates.append((run, "running", sequence[run], head, at))
            inserts.append((run, sequence[run], "checkpoint", at, body, head))
        updates.sort()
        made.append((updates, inserts))
    return made


class SqliteFloor:
    """apsw with the settings of the store's connections: WAL, synchronous=FULL."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: apsw.Connection | None = None
        self._seq = 0

    async def open(self) -> None:
        connection = self._connection = apsw.Connection(str(self._path))
        connection.pragma("journal_mode", "wal")
        for pragma, value in PRAGMAS:
            connection.pragma(pragma, value)
        types = {"int": "integer", "bytes": "blob"}
        connection.execute(f"create table floor_run ({_COLUMNS.format(**types)}) strict")
        connection.execute(f"create table floor_event ({_EVENT_COLUMNS.format(**types)}) strict")
        connection.execute("begin")
        connection.executemany(f"insert into floor_run values ({', '.join('?' * 22)})", _new_runs())
        connection.execute("commit")

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def batches(self, count: int, rows: int) -> float:
        """Steps a second."""
        assert self._connection is not None
        cursor = self._connection.cursor()
        cursor.execute("delete from floor_event")
        batches = _batches(count, rows)
        update = "update floor_run set status = ?2, seq = ?3, head = ?4, event_at = ?5 where id = ?1"
        insert = "insert into floor_event values (?, ?, ?, ?, ?, ?)"
        started = time.perf_counter()
        for updates, inserts in batches:
            cursor.execute("begin immediate")
            cursor.executemany(update, updates)
            cursor.executemany(insert, inserts)
            cursor.execute("commit")
        return count * rows / (time.perf_counter() - started)

    async def commits(self, groups: int) -> list[float]:
        """The seconds of seven bare single-row commits, for each of `groups` groups."""
        assert self._connection is not None
        cursor = self._connection.cursor()
        rows = _single_rows(groups, self._seq)
        self._seq += groups * COMMITS_PER_RUN
        seconds = []
        for group in rows:
            started = time.perf_counter()
            for row in group:
                cursor.execute("insert into floor_event values (?, ?, ?, ?, ?, ?)", row)
            seconds.append(time.perf_counter() - started)
        return seconds


class PostgresFloor:
    """asyncpg with prepared statements on one connection."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: Any = None
        self._seq = 0

    async def open(self) -> None:
        """Make the tables. Run rows leave room on their pages, as Tenure's do."""
        connection = self._connection = await asyncpg.connect(self._dsn)
        types = {"int": "bigint", "bytes": "bytea"}
        await connection.execute("drop table if exists floor_run, floor_event")
        await connection.execute(
            f"create table floor_run ({_COLUMNS.format(**types)}) with (fillfactor = 70)"
        )
        await connection.execute(f"create table floor_event ({_EVENT_COLUMNS.format(**types)})")
        await connection.copy_records_to_table("floor_run", records=_new_runs())
        await connection.execute("vacuum analyze floor_run")

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.execute("drop table if exists floor_run, floor_event")
            await self._connection.close()

    async def batches(self, count: int, rows: int) -> float:
        """Steps a second."""
        connection = self._connection
        await connection.execute("truncate floor_event")
        update = await connection.prepare("""
            update floor_run r set status = u.status, seq = u.seq, head = u.head, event_at = u.at
            from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bytea[], $5::bigint[]) u (id, status, seq, head, at)
            where r.id = u.id""")
        insert = await connection.prepare("""
            insert into floor_event (run_id, seq, kind, at, body, hash)
            select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bytea[], $6::bytea[])""")
        columns = [
            (list(zip(*updates, strict=True)), list(zip(*inserts, strict=True)))
            for updates, inserts in _batches(count, rows)
        ]
        started = time.perf_counter()
        for updated, inserted in columns:
            async with connection.transaction():
                await update.fetch(*updated)
                await insert.fetch(*inserted)
        return count * rows / (time.perf_counter() - started)

    async def commits(self, groups: int) -> list[float]:
        """The seconds of seven bare single-row commits, for each of `groups` groups."""
        insert = await self._connection.prepare("insert into floor_event values ($1, $2, $3, $4, $5, $6)")
        rows = _single_rows(groups, self._seq)
        self._seq += groups * COMMITS_PER_RUN
        seconds = []
        for group in rows:
            started = time.perf_counter()
            for row in group:
                await insert.fetch(*row)
            seconds.append(time.perf_counter() - started)
        return seconds


def _single_rows(groups: int, after: int) -> list[list[Insert]]:
    body = os.urandom(BODY_BYTES // 2).hex().encode()
    head = hashlib.sha256(body).digest()
    first = after + 1
    return [
        [
            (-1, first + group * COMMITS_PER_RUN + i, "checkpoint", 1_700_000_000_000_000, body, head)
            for i in range(COMMITS_PER_RUN)
        ]
        for group in range(groups)
    ]
