"""Failures of futures and tasks that nobody may be left to ask for, and work in threads that is never left half-done.

asyncio reports "exception was never retrieved" when a future fails and whoever asked has gone away: a message of a lease
that was lost is refused with LEASE_STALE after its worker has stopped the step. That is a normal end, not a defect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def fail_future(future: asyncio.Future[Any], error: BaseException) -> None:
    """Answer a future with an error, unless it is answered. Whoever awaits it gets the error; nobody has to."""
    if not future.done():
        future.set_exception(error)
        future.exception()


async def wait_uninterrupted(work: asyncio.Future[T]) -> T:
    """Wait for what cannot be interrupted, also when cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        ignore_outcome(work)
        raise cancelled
    return work.result()


async def run_in_thread(call: Callable[[], T]) -> T:
    """Carry out a call in a thread. Whoever is cancelled goes on when it has ended: nobody else uses what it uses."""
    return await wait_uninterrupted(asyncio.get_running_loop().run_in_executor(None, call))


def ignore_outcome(work: asyncio.Future[Any]) -> None:
    """For `add_done_callback`: nobody has to ask how this work ended."""
    if not work.cancelled():
        work.exception()
