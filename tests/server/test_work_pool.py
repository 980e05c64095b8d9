"""The thread pool for heavy work: canceled work in the queue no longer counts."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tenure.errors import TenureError
from tenure.work_pool import WorkPool


async def test_canceled_work_no_longer_counts() -> None:
    pool = WorkPool(threads=1, waiting_max=2)
    begun, release = threading.Event(), threading.Event()

    def hold() -> str:
        begun.set()
        release.wait()
        return "done"

    holding = asyncio.ensure_future(pool.run(hold))
    try:
        await asyncio.to_thread(begun.wait)
        for _ in range(3):
            waiting = asyncio.ensure_future(pool.run(hold))
            await asyncio.sleep(0)
            assert pool.under_way == 2
            with pytest.raises(TenureError, match="SERVER_BUSY"):
                await pool.run(hold)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert pool.under_way == 1
    finally:
        release.set()  # a waiting thread would keep the process alive
    assert await holding == "done"
    assert await pool.run(str, 7) == "7"
    assert pool.under_way == 0
