"""Small transactions beside the runs.

Laws:
1. Each operation is one small transaction of its own, with the store's time; none touches a run's rows.
2. What was meant for one state of a row and finds another is a normal, named outcome, never half done.
3. After a commit of unknown fate the caller is told STORE_UNAVAILABLE and may repeat: registrations say the same
   twice, schedules name the revision they expect, and a log line may then be there twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tenure.errors import TenureError
from tenure.limits import NAME_CHARS_MAX
from tenure.store.port import AmbiguousCommit, DataRejected, Query, Store, Transaction, WriteConflict

T = TypeVar("T")

SIDE_LANE = -1
"""A connection of its own, so that these transactions and commands never wait for each other."""
TRIES_MAX = 8


async def run_transaction(store: Store, work: Callable[[], Transaction[T]]) -> T:
    """Run a transaction; one that lost a race for a number or a lock is tried again."""
    for last in (*[False] * (TRIES_MAX - 1), True):
        try:
            return await store.transact(work, lane=SIDE_LANE)
        except (WriteConflict, DataRejected) as refused:
            if last:
                code = "STORE_BUSY" if isinstance(refused, WriteConflict) else "INVALID_INPUT"
                raise TenureError(code, f"the database refused it: {refused}") from refused
        except AmbiguousCommit as lost:
            raise TenureError("STORE_UNAVAILABLE", f"whether it was written is not known: {lost}") from lost
    raise AssertionError("the last try answers or raises")


async def write_row(store: Store, name: str, *values: Any, timed: bool = True) -> Any:
    """Run one statement; the row that it wrote, or None. `timed`: its last parameter is the store's time."""

    def work() -> Transaction[Any]:
        now = ((yield Query("now"))[0].now_us,) if timed else ()
        rows = yield Query(name, scalars=(*values, *now))
        return rows[0] if rows else None

    return await run_transaction(store, work)


def check_name(what: str, name: str) -> None:
    """Refuse a name that cannot be printed, is empty or too long (INVALID_INPUT)."""
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise TenureError(
            "INVALID_INPUT",
            f"{what} must be printable and have 1 to {NAME_CHARS_MAX} characters, unlike {name[:60]!r}",
        )
