"""Branches of one execution that wait for the same replies."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tenure.kernel.commands import RecordCheckpoint
from tenure.kernel.lease_types import LeaseReply
from tenure.sdk.execution_waits import (
    CANCELED_BY_CODE,
    STAY_SECONDS_MAX,
    STAY_SECONDS_PER_ROW,
    ExecutionWaits,
)
from tenure.sdk.journal import ExecutionJournal
from tenure.sdk.replay_log import ReplayLog


async def turns() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_branch_that_is_canceled_does_not_cancel_the_others() -> None:
    port: Any = SimpleNamespace(lease=SimpleNamespace(run_id=1))
    journal = ExecutionJournal(port, cast("ReplayLog", None), 10)
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
    journal.pending += [first, second]
    canceled = asyncio.ensure_future(journal.barrier())
    await turns()
    first.set_result(LeaseReply())
    await turns()
    other = asyncio.ensure_future(journal.barrier())
    await turns()
    canceled.cancel()
    await turns()
    assert canceled.cancelled()
    assert not other.done(), "it continued before the records were durable"
    later = asyncio.ensure_future(journal.barrier())
    await turns()
    assert not later.done(), "the second reply has not arrived yet"
    second.set_result(LeaseReply())
    await asyncio.gather(other, later)


def make_journal(recorded: list[RecordCheckpoint]) -> ExecutionJournal:
    """A journal whose port collects the recorded checkpoints and never replies."""

    def record(message: RecordCheckpoint) -> asyncio.Future[LeaseReply]:
        recorded.append(message)
        return asyncio.get_running_loop().create_future()

    async def load_waits(_first: int, _last: int) -> list[Any]:
        return []

    port: Any = SimpleNamespace(
        lease=SimpleNamespace(run_id=1),
        costs=(),
        draining=False,
        timers=SimpleNamespace(quiet_seconds=1.0),
        stop=asyncio.Event(),
        next_address=lambda: {"run_id": 1, "idx": 0, "n": 1, "seq": 1},
        record=record,
        load_waits=load_waits,
    )
    known: Any = SimpleNamespace(checkpoints={}, waits={}, settled={})
    return ExecutionJournal(port, known, 10)


async def test_a_branch_that_cancels_an_opening_leaves_it_to_the_others() -> None:
    recorded: list[RecordCheckpoint] = []
    waits = ExecutionWaits(make_journal(recorded))
    opening: asyncio.Future[LeaseReply] = asyncio.get_running_loop().create_future()
    first, canceled, third = (asyncio.ensure_future(waits.opened(opening)) for _ in range(3))
    await turns()
    canceled.cancel()
    await turns()
    assert not canceled.done(), "it waits for the number of the wait that it cancels"
    assert not opening.done()
    opening.set_result(LeaseReply(no=7))
    assert [await first, await third] == [7, 7]
    await asyncio.wait((canceled,))
    assert canceled.cancelled()
    await turns()
    assert [(one.error, one.closes) for one in recorded] == [(CANCELED_BY_CODE, 7)]


async def test_a_long_run_stays_in_memory_before_it_suspends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rows, draining, stays in (
        (10, False, None),
        (1_000, False, 1_000 * STAY_SECONDS_PER_ROW),
        (1_000_000, False, STAY_SECONDS_MAX),
        (1_000, True, None),
    ):
        journal = make_journal([])
        journal.replay_log.checkpoints = range(rows)  # type: ignore[assignment]  # counted, never read
        journal.lease_port.draining = draining
        journal.waiters[1] = []
        waits = ExecutionWaits(journal)
        gone: list[str] = []
        monkeypatch.setattr(waits, "_suspend_or_give_back", lambda gone=gone: gone.append("let go"))
        began = journal.loop.time()
        waits.remove_branch()
        await turns()
        if stays is None:
            assert (gone, waits._quiet_timer) == (["let go"], None)
            continue
        assert waits._quiet_timer is not None
        assert gone == [] or waits._quiet_timer.when() <= journal.loop.time()
        assert began + stays <= waits._quiet_timer.when() <= journal.loop.time() + stays
        waits._quiet_timer.cancel()
