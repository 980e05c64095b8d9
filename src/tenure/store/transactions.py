"""Transactions on rows that belong to no run.

Laws:
1. Each operation is one transaction of its own, with the store's time. None writes a run's rows.
2. If a row is no longer in the state that an operation expects, the operation writes nothing and returns that outcome.
3. After a commit of unknown fate the caller gets STORE_UNAVAILABLE and may repeat the operation: a repeated registration
   changes nothing, schedules name the revision they expect, and a log line may be written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from tenure.errors import TenureError
from tenure.limits import NAME_CHARS_MAX
from tenure.store.port import (
    AmbiguousCommit,
    DataRejected,
    Query,
    QueryReader,
    Store,
    Transaction,
    WriteConflict,
)

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R", bound="Repository")

SIDE_LANE = -1
"""The commit lane of these transactions: they and commands never wait for each other."""
TRIES_MAX = 8


async def run_transaction(store: Store, work: Callable[[], Transaction[T]]) -> T:
    """Run a transaction. If it loses a race for a number or a lock, it is tried again."""
    for last in (*[False] * (TRIES_MAX - 1), True):
        try:
            return await store.transact(work, lane=SIDE_LANE)
        except (WriteConflict, DataRejected) as refused:
            if last:
                code = "STORE_BUSY" if isinstance(refused, WriteConflict) else "INVALID_INPUT"
                raise TenureError(code, f"the database refused the write: {refused}") from refused
        except AmbiguousCommit as lost:
            raise TenureError(
                "STORE_UNAVAILABLE", f"it is not known whether the commit happened: {lost}"
            ) from lost
    raise AssertionError("the last try answers or raises")


async def write_rows(store: Store, name: str, *values: Any, timed: bool = False) -> list[Any]:
    """Run one statement; the rows that it wrote. `timed`: its last parameter is the store's time."""

    def work() -> Transaction[list[Any]]:
        now = ((yield Query("now"))[0].now_us,) if timed else ()
        rows: list[Any] = yield Query(name, scalars=(*values, *now))
        return rows

    return await run_transaction(store, work)


async def read_rows(store: QueryReader, _row: type[T], name: str, *scalars: Any) -> list[T]:
    """The rows that a query answers, with their type."""
    return await store.read(name, *scalars)


async def read_first(store: QueryReader, row: type[T], name: str, *scalars: Any) -> T | None:
    """The first row that a query answers, or None."""
    return next(iter(await read_rows(store, row, name, *scalars)), None)


class Repository:
    """Operations on the rows of one subject."""

    def __init__(self, store: Store) -> None:
        self._store = store


def timed_transaction(
    work: Callable[Concatenate[R, int, P], Transaction[T]],
) -> Callable[Concatenate[R, P], Coroutine[Any, Any, T]]:
    """Make a repository's method a transaction of its own. The method gets the store's time before its arguments."""

    @wraps(work)
    async def run(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def timed() -> Transaction[T]:
            now: int = (yield Query("now"))[0].now_us
            return (yield from work(self, now, *args, **kwargs))

        return await run_transaction(self._store, timed)

    return run


def check_name(what: str, name: str) -> None:
    """Refuse a name that cannot be printed, is empty or too long (INVALID_INPUT)."""
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise TenureError(
            "INVALID_INPUT",
            f"{what} must be printable and have 1 to {NAME_CHARS_MAX} characters, unlike {name[:60]!r}",
        )
