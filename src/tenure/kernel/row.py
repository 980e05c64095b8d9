"""What all rows have in common."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Row(msgspec.Struct, gc=False):
    """A row of a table; `table` names it and `key` its primary key."""

    table: ClassVar[str]
    key: ClassVar[tuple[str, ...]]
    unlogged: ClassVar[frozenset[str]] = frozenset()
    """Columns that are not history."""
    fixed: ClassVar[int] = 0
    """How many of the first columns never change."""
