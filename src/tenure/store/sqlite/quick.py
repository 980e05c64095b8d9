"""The short forms of a write: for a row none of whose indexed columns has changed, and for a run that has changed
in its light columns only.

SQLite rewrites the entries of every index that has a column in an UPDATE's SET list, whether its value has
changed or not. Most commands change a run's counters, a step's progress and a lease's last message, none of
them indexed. So they first try the table's one write statement without the indexed columns, on the condition
that those are as they were; where it finds no row, the whole statement is used. That halves the cost of
such a row, and leaves the pages of the indexes alone.

Of a run that has only recorded a checkpoint even that is too much: the save says so (`Save.light`), and its few
columns are written by themselves.

Other rows that are there already are written by an UPDATE, and those of a new run by a bare INSERT: a table's write
statement does either, for twice the price of one. (apsw reads the whole text of a statement for each row, too.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tenure.kernel.model import ROWS, Attempt, Run, Step
from tenure.kernel.rows import LIGHT

INDEXED: dict[str, tuple[str, ...]] = {
    "run": ("status", "admitted_at", "finished_at", "sealed_at", "wake_at"),
    "step": ("claimable", "ready_at", "finished_at", "wake_at"),
    "attempt": ("lease",),
}
"""The changing columns that an index holds or looks at; a test compares them with the schema."""

_ASSIGNMENT = re.compile(r"\b(\w+) = (\w+\([^()]*\)|[\w.?]+)")
_NEW_VALUE = re.compile(r"\bexcluded\.(\w+)")


def quickly(table: str, statement: str) -> str:
    """The short form of a table's write statement. A run's last arguments are the version and the head it must have."""
    return _update(table, statement, INDEXED[table])


def updating(table: str, statement: str) -> str:
    """A table's write statement for a row that is there already. A run's last arguments are
    the version and the head it must have."""
    return _update(table, statement, ())


def _update(table: str, statement: str, indexed: tuple[str, ...]) -> str:
    row = ROWS[table]
    place = {name: f"?{n}" for n, name in enumerate(row.__struct_fields__, start=1)}
    assigned = [
        f"{name} = {_filled_in(value, place)}"
        for name, value in _assignments(table, statement)
        if name not in indexed
    ]
    where = [f"{name} = {place[name]}" for name in row.key] + [f"{name} is {place[name]}" for name in indexed]
    if table == "run":
        where.append(_expected(len(place)))
    return f"update {table} set {', '.join(assigned)} where {' and '.join(where)}"


def lightly(statement: str) -> str:
    """`save_run` for the light columns alone. Its arguments: the id, those columns, the version and the head it must have."""
    place = {name: f"?{n}" for n, name in enumerate(("id", *LIGHT), start=1)}
    changed = [name for name, _ in _assignments("run", statement) if name in place]
    assigned = ", ".join(f"{name} = {place[name]}" for name in changed)
    return f"update {Run.table} set {assigned} where id = ?1 and {_expected(len(place))}"


def _expected(last: int) -> str:
    """What a run must be to be written, behind so many arguments."""
    return f"version = ?{last + 1} and head = coalesce(?{last + 2}, head)"


def _assignments(table: str, statement: str) -> list[tuple[str, str]]:
    changes = statement.partition(" set\n")[2].partition("\nwhere")[0]
    found: list[tuple[str, str]] = _ASSIGNMENT.findall(changes)
    if ", ".join(f"{name} = {value}" for name, value in found) != " ".join(changes.split()):
        raise ValueError(f"save_{table}: its SET list is more than assignments of names, arguments and calls")
    return found


def _filled_in(value: str, place: dict[str, str]) -> str:
    return _NEW_VALUE.sub(lambda match: place[match[1]], value)


def inserting(table: str) -> str:
    """A table's write statement for a row that cannot be there yet."""
    return f"insert into {table} values ({', '.join('?' * len(ROWS[table].__struct_fields__))})"


def _step_goes_on(step: Step) -> bool:
    """A step that has recorded something and is not done has most likely just recorded something."""
    return step.recorded and step.finished_at is None


def _lease_goes_on(attempt: Attempt) -> bool:
    """A lease that has said something and has not ended has most likely just said something."""
    return attempt.seq > 0 and attempt.ended_at is None


def _is_no_claim(attempt: Attempt) -> bool:
    """A lease that has said something, or ended, was granted before."""
    return attempt.seq > 0 or attempt.ended_at is not None


LIKELY: dict[str, Callable[[Any], bool]] = {"step": _step_goes_on, "attempt": _lease_goes_on}
"""Which rows to try the short form on; a miss costs a look-up."""
THERE: dict[str, Callable[[Any], bool]] = {"step": lambda _: True, "attempt": _is_no_claim}
"""Which rows of a run that is not new are there already, most likely; a miss costs a look-up."""
