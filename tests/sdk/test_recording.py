"""Strands of one body that wait for the same answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tenure.kernel.decide.leases import Reply
from tenure.sdk.past import Past
from tenure.sdk.recording import Recording


async def turns() -> None:
    """Let everything go on that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_strand_that_is_canceled_gives_up_for_itself_alone() -> None:
    line: Any = SimpleNamespace(lease=SimpleNamespace(run_id=1))
    recording = Recording(line, cast("Past", None), 10)
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
    recording._pending += [first, second]
    canceled = asyncio.ensure_future(recording.barrier())
    await turns()
    first.set_result(Reply())
    await turns()
    other = asyncio.ensure_future(recording.barrier())
    await turns()
    canceled.cancel()
    await turns()
    assert canceled.cancelled()
    assert not other.done(), "it went on before what was recorded was durable"
    later = asyncio.ensure_future(recording.barrier())
    await turns()
    assert not later.done(), "the answer is still waited for"
    second.set_result(Reply())
    await asyncio.gather(other, later)
