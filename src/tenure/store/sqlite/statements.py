"""A SQLite transaction: how its queries run and its rows are written.

Laws:
1. Nothing here begins, commits or waits: the store does.
2. A run whose version was read under this transaction's lock is not read again.
3. Time is the host's clock, never below the last committed time, and it never goes back in a transaction. The
   newest event has the last committed time; only a commit without an event, or with an earlier one, writes the time
   by itself (`meta`). That saves a page and two statements in every other commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import starmap
from operator import attrgetter
from typing import Any, get_type_hints

import apsw
import msgspec
from msgspec.json import encode

from tenure.kernel.feed import FeedLine, encode_feed_lines
from tenure.kernel.run_rows import LIGHT_COLUMNS, ROWS, RunRow
from tenure.store import port, query_registry

SQL = query_registry.load_queries("sqlite")
_NOW, _TIME = SQL["now"], SQL["save_time"]
_EXPECTED, _RUN = SQL["save_expected"], SQL["save_run"]
_NEW_SPEC, _NEW_RUN = SQL["save_new_spec"], SQL["save_new_run"]
_FEED = SQL["save_feed"]
_DELETE_RUN, _DELIVERED = SQL["delete_run"], SQL["save_delivered"]
_SAVE = {table: SQL[f"save_{table}"] for table in (*ROWS, "remote_lease") if table != "run"}
_BENEATH = [SQL[f"delete_{table}"] for table in query_registry.TABLES_BENEATH_RUN]
_UNINDEXED = {table: SQL[f"update_{table}_unindexed"] for table in ("run", "step", "attempt")}
_UPDATE = {table: SQL[f"update_{table}"] for table in _UNINDEXED}
_INSERT = {table: SQL[f"insert_{table}"] for table in ("step", "attempt")}
_LIGHT_RUN = SQL["update_run_light"]
_LOCKS = frozenset({"lock_runs", "lock_free_runs", "lock_free_heads"})
_CLAIM_QUEUES = frozenset({"claim_queues", "tenant_claim_queues"})

_tuple: Callable[[msgspec.Struct], tuple[Any, ...]] = msgspec.structs.astuple
_light: Callable[[RunRow], tuple[Any, ...]] = attrgetter("id", *LIGHT_COLUMNS)


_LIKELY_UNINDEXED: dict[str, Callable[[Any], bool]] = {
    "step": lambda step: step.recorded and step.finished_at is None,
    "attempt": lambda attempt: attempt.seq > 0 and attempt.ended_at is None,
}
"""Rows to write without the indexed columns first: an open step with checkpoints has most likely just recorded one, and a live
lease that has sent a message has most likely just sent one. A miss costs a look-up. See save_variants.sql."""
_ROW_EXISTS: dict[str, Callable[[Any], bool]] = {
    "step": lambda _: True,
    "attempt": lambda attempt: attempt.seq > 0 or attempt.ended_at is not None,
}
"""Rows that most likely exist, if their run is not new: a lease that has sent a message, or ended, was granted before. A miss
costs a look-up."""

_Make = Callable[[Iterable[tuple[Any, ...]]], list[Any]]


@cache
def _maker(answer: type[msgspec.Struct]) -> _Make:
    """A function that builds structs from rows. SQLite has no booleans; in JSON they must not become 0 and 1."""
    flags = [name for name, hint in get_type_hints(answer).items() if hint is bool]
    if not flags:
        return lambda rows: list(starmap(answer, rows))

    def make(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
        made = list(starmap(answer, rows))
        for name in flags:
            for one in made:
                setattr(one, name, getattr(one, name) == 1)
        return made

    return make


class _Makers(dict[str, _Make]):
    """Query -> the function that builds its answer, made on first use: to read the type hints of all answers takes longer than
    most commands of the CLI."""

    def __missing__(self, name: str) -> _Make:
        make = self[name] = _maker(query_registry.ANSWERS[name])
        return make


ROW_MAKERS = _Makers()


def run_query(
    cursor: apsw.Cursor, name: str, rows: Sequence[tuple[Any, ...]], scalars: tuple[Any, ...]
) -> list[Any]:
    """Run a named query: once per row, or once with the scalars alone."""
    make = ROW_MAKERS[name]
    if not rows:
        return [] if name in port.BY_ROW else make(cursor.execute(SQL[name], scalars))
    if name in _LOCKS:
        rows = sorted(rows)
    if scalars:
        rows = [(*row, *scalars) for row in rows]
    found = make(cursor.executemany(SQL[name], rows))
    if name in _CLAIM_QUEUES and len(rows) > 1:
        queues = sorted({(queue.tenant, queue.workspace) for queue in found})
        return list(starmap(port.ClaimQueue, queues[: scalars[-1]]))
    return found


class SqliteTransaction:
    __slots__ = (
        "_changes",
        "_cursor",
        "_event_at",
        "_made",
        "_seen",
        "_time",
        "floor_us",
        "now_us",
        "unfollowed",
    )

    def __init__(
        self, cursor: apsw.Cursor, time: Callable[[], int], floor_us: int | None, *, unfollowed: bool
    ) -> None:
        self._cursor = cursor
        self._time = time
        self._seen: dict[int, int] = {}
        self._made: set[int] = set()
        """Runs that this transaction has created."""
        self._changes = cursor.connection.total_changes()
        self._event_at = -1
        """The time of the newest event that this transaction has written."""
        self.floor_us: int = cursor.execute(_NOW, (0,)).get if floor_us is None else floor_us
        """The last committed time. The caller knows it, unless another process has committed since."""
        self.now_us = self.floor_us
        """The time when it was last read."""
        self.unfollowed = unfollowed
        """Whether the feed is known not to be open."""

    def now(self) -> int:
        """The time, read again."""
        now = self._time()
        if now > self.now_us:
            self.now_us = now
        return self.now_us

    def answer(self, request: port.StoreRequest) -> Any:
        if type(request) is port.Save:
            return self.save(request)
        assert isinstance(request, port.Query)
        if request.name == "now":
            return [port.StoreTime(self.now())]
        if request.name == "open_feed":
            self.unfollowed = False
        found = run_query(self._cursor, request.name, request.rows, request.scalars)
        if request.name in _LOCKS:
            self._seen.update([(run.id, run.version) for run in found])
        return found

    def save(self, save: port.Save, now: int | None = None) -> port.Saved:
        """Write the rows of a save whose runs are at the expected version. `now`: the time, if it was just read."""
        if now is None:
            now = self.now()
        if save.estimate_us is not None and abs(now - save.estimate_us) > port.ESTIMATE_ERROR_US_MAX:
            return port.Saved(set(), now)
        ids = self._save_runs(save, now)
        if save.new_specs:
            ids |= self._insert_new(save)
        for table, rows in save.rows.items():
            if ours := [row for row in rows if row.run_id in ids]:  # type: ignore[attr-defined]  # every table but cap has it
                self._write(table, ours)
        if not self.unfollowed and save.feed:
            self._append_to_feed(
                [line for run_id, lines in save.feed if run_id in ids for line in lines], now
            )
        if save.delivered:
            left_out = encode([run_id for run_id, _, _ in save.expect if run_id not in ids]).decode()
            self._cursor.executemany(_DELIVERED, [(*key, left_out) for key in save.delivered])
        if save.delete_runs:
            ids |= self._delete_runs(save, ids)
        return port.Saved(ids, now)

    def _append_to_feed(self, lines: list[FeedLine], now: int) -> None:
        if lines:
            self._cursor.execute(_FEED, (now, encode_feed_lines(lines)))
            self.unfollowed = not self._cursor.connection.changes()

    def finish(self) -> int:
        """Call this before the commit: how many rows were written (0: no commit is needed). Writes the time, unless an event
        has it."""
        changes = self._cursor.connection.total_changes() - self._changes
        if changes:
            if self._event_at < self.floor_us or self._event_at < 0:
                self._cursor.execute(_TIME, (self.now(),))
            if self._event_at > self.now_us:
                self.now_us = self._event_at  # the estimate may be ahead
        return changes

    def _save_runs(self, save: port.Save, now: int) -> set[int]:
        """Update the runs that are at the expected version. The ids of all such runs, also of those that do not change."""
        heads = save.heads
        expect = {
            run_id: (version, heads.get(run_id))
            for run_id, version, valid_until in save.expect
            if valid_until is None or now < valid_until
        }
        ids: set[int] = set()
        slow: list[RunRow] = []
        seen = self._seen
        quick, whole = _UNINDEXED["run"], _UPDATE["run"]
        execute, changes = self._cursor.execute, self._cursor.connection.changes
        for run in save.runs:
            if (expected := expect.get(run.id)) is not None:
                if run.id in save.light:
                    execute(_LIGHT_RUN, (*_light(run), *expected))
                else:  # a finished run has most likely just finished: its index entries change
                    execute(quick if run.finished_at is None else whole, (*_tuple(run), *expected))
                if changes():
                    ids.add(run.id)
                    seen[run.id] = run.version
                else:
                    slow.append(run)
        if len(ids) < len(expect):
            ids |= self._as_expected([(id_, *expected) for id_, expected in expect.items() if id_ not in ids])
        if slow:
            slow = [run for run in slow if run.id in ids]
            # A key passes from one run to another in one commit: first the old holder releases it.
            slow.sort(key=lambda run: run.finished_at is None)
            self._cursor.executemany(_RUN, map(_tuple, slow))
            seen.update([(run.id, run.version) for run in slow])
        return ids

    def _as_expected(self, expect: list[tuple[int, int, bytes | None]]) -> set[int]:
        seen = self._seen
        ids = {run_id for run_id, version, _ in expect if seen.get(run_id) == version}
        unseen = [one for one in expect if one[0] not in seen]
        if unseen:
            ids.update([row[0] for row in self._cursor.executemany(_EXPECTED, unseen)])
        return ids

    def _insert_new(self, save: port.Save) -> set[int]:
        execute, changes = self._cursor.execute, self._cursor.connection.changes
        made: set[int] = set()
        for spec in save.new_specs:
            execute(_NEW_SPEC, _tuple(spec))
            if changes():
                made.add(spec.run_id)
        before = self._cursor.connection.total_changes()
        runs = [run for run in save.new_runs if run.id in made]
        self._cursor.executemany(_NEW_RUN, map(_tuple, runs))
        if self._cursor.connection.total_changes() - before != len(made):
            raise port.DataRejected("a save has a new run_spec without its new run")
        self._seen.update([(run.id, run.version) for run in runs])
        self._made |= made
        return made

    def _write(self, table: str, rows: list[Any]) -> None:
        if table in _ROW_EXISTS:
            rows = self._write_known(table, rows)
        if table == "attempt" and len(rows) > 1:
            # A step may lose a lease and get the next in one commit: the ended attempts first.
            rows.sort(key=lambda attempt: attempt.ended_at is None)
        elif table == "event":
            self._event_at = rows[-1].at
        if rows:
            self._cursor.executemany(_SAVE[table], map(_tuple, rows))

    def _write_known(self, table: str, rows: list[Any]) -> list[Any]:
        """Write the rows that are certainly new, and those that most likely exist, by their own statements. Returns the others."""
        quick, whole, likely, there = (
            _UNINDEXED[table],
            _UPDATE[table],
            _LIKELY_UNINDEXED[table],
            _ROW_EXISTS[table],
        )
        execute, changes = self._cursor.execute, self._cursor.connection.changes
        made = self._made
        rest = []
        new = []
        for row in rows:
            if row.run_id in made:
                new.append(row)
                continue
            if there(row):
                execute(quick if likely(row) else whole, _tuple(row))
                if changes():
                    continue
            rest.append(row)
        if new:
            self._cursor.executemany(_INSERT[table], map(_tuple, new))
        return rest

    def _delete_runs(self, save: port.Save, ids: set[int]) -> set[int]:
        refused = {run_id for run_id, _, _ in save.expect} - ids
        asked = [(run_id,) for run_id in save.delete_runs if run_id not in refused]
        gone = list(self._cursor.executemany(_DELETE_RUN, asked))
        for statement in _BENEATH:
            self._cursor.executemany(statement, gone)
        return {row[0] for row in gone}
