"""Reads the status of many runs in one query.

Laws:
1. A caller that asks while a query is under way is answered by a later query: an answer reflects every commit that was
   acknowledged before the question.
2. One query is under way at a time, and no caller holds a connection while it waits. So under load one query answers many
   callers.
3. Another tenant's run looks like a run that does not exist.
"""

from __future__ import annotations

import asyncio

from tenure import ids
from tenure.errors import TenureError
from tenure.futures import fail_future
from tenure.store.port import Store
from tenure.store.run_lists import RunGlance

RUNS_PER_QUERY_MAX = 500


class StatusBatcher:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: list[tuple[int, asyncio.Future[RunGlance | None]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def at(self, run_id: int, tenant: str) -> RunGlance:
        """The status of a run, or RUN_NOT_FOUND."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RunGlance | None] = loop.create_future()
        self._asked.append((run_id, future))
        if self._asking is None:
            self._asking = loop.create_task(self._ask())
        glance = await future
        if glance is None or glance.tenant != tenant:
            raise TenureError("RUN_NOT_FOUND", f"there is no run {ids.run_text(run_id)!r}")
        return glance

    async def _ask(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked[:RUNS_PER_QUERY_MAX], self._asked[RUNS_PER_QUERY_MAX:]
                await self._answer(asked)
        finally:
            self._asking = None

    async def _answer(self, asked: list[tuple[int, asyncio.Future[RunGlance | None]]]) -> None:
        try:
            rows: list[RunGlance] = await self._store.read(
                "run_glances", rows=sorted({(run_id,) for run_id, _ in asked})
            )
        except Exception as fault:
            for _, future in asked:
                fail_future(future, _copy_error(fault))
            return
        found = {row.id: row for row in rows}
        for run_id, future in asked:
            if not future.done():
                future.set_result(found.get(run_id))


def _copy_error(fault: Exception) -> Exception:
    """An exception of its own for each caller: its traceback grows as it is raised."""
    if isinstance(fault, TenureError):
        return TenureError(fault.code, fault.message, fault.details, **fault.data)
    return TenureError("INTERNAL_ERROR", repr(fault))
