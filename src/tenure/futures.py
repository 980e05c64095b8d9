"""Futures whose failure may have no reader, and work in threads that is never abandoned halfway.

asyncio reports "exception was never retrieved" if a future fails and nobody awaits it any more. Here that is normal: for example, a
message of a lost lease is refused with LEASE_STALE after its worker has stopped the step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def fail_future(future: asyncio.Future[Any], error: BaseException) -> None:
    """Set an exception on a future that is not done. Nobody has to retrieve it."""
    if not future.done():
        future.set_exception(error)
        future.exception()


async def wait_uninterrupted(work: asyncio.Future[T]) -> T:
    """Wait until the work is done, even if this task is cancelled meanwhile. The cancellation is raised afterwards."""
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
    """Call a function in a thread. A cancelled caller continues only when the call has ended, so nobody else uses its resources."""
    return await wait_uninterrupted(asyncio.get_running_loop().run_in_executor(None, call))


def ignore_outcome(work: asyncio.Future[Any]) -> None:
    """For `add_done_callback`: mark the exception as retrieved."""
    if not work.cancelled():
        work.exception()
