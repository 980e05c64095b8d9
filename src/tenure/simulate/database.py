"""A fresh database in memory for every seed, and calls that need no loop."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

import apsw

from tenure.clock import ManualClock
from tenure.store.sqlite import SqliteStore

T = TypeVar("T")


def run_sync(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as an inline store's do not."""
    try:
        call.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("an inline store does not wait")


@cache
def _template() -> bytes:
    """A migrated, empty database, as a file's bytes; its first moment is long ago."""
    connection = apsw.Connection(":memory:")
    store = SqliteStore(":memory:", inline=True, connection=connection, clock=ManualClock(0))
    run_sync(store.migrate())
    return bytes(connection.serialize("main"))


def new_database() -> apsw.Connection:
    """A new database in memory."""
    connection = apsw.Connection(":memory:", statementcachesize=256)
    connection.deserialize("main", _template())
    return connection
