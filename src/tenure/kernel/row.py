"""What all rows have in common. A row's fields are its table's columns, in order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar, TypeVar

import msgspec

R = TypeVar("R", bound="Row")


class Row(msgspec.Struct, gc=False):
    table: ClassVar[str]
    key: ClassVar[tuple[str, ...]]
    """The columns of the primary key."""
    unlogged: ClassVar[frozenset[str]]
    """The columns that are not history; the key is among them."""
    fixed: ClassVar[int]
    """How many of the first columns never change."""


class RunPartRow(Row):
    """A row that belongs to a run."""

    run_id: int


class NumberedRow(RunPartRow):
    """A row that has a number within its run."""

    no: int


def table(
    name: str, *, key: tuple[str, ...], unlogged: Collection[str] = (), fixed: int = 0
) -> Callable[[type[R]], type[R]]:
    """Declare the table that a row class mirrors."""

    def declare(row: type[R]) -> type[R]:
        row.table = name
        row.key = key
        row.fixed = fixed
        row.unlogged = frozenset((*key, *unlogged))
        return row

    return declare
