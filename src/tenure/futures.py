"""Failures of futures and tasks that nobody may be left to ask for.

asyncio reports "exception was never retrieved" when a future fails and whoever asked has gone away: a message of a lease
that was lost is refused with LEASE_STALE after its worker has stopped the step. That is a normal end, not a defect.
"""

from __future__ import annotations

import asyncio
from typing import Any


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Answer a future with an error, unless it is answered. Whoever awaits it gets the error; nobody has to."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def take_outcome(work: asyncio.Future[Any]) -> None:
    """For `add_done_callback`: nobody has to ask how this work ended."""
    if not work.cancelled():
        work.exception()
