"""Strands of one body that wait for the same answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tenure.kernel.commands import RecordCheckpoint
from tenure.kernel.decide.leases import Reply
from tenure.sdk.past import Past
from tenure.sdk.recording import Recording
from tenure.sdk.waiting import STAY_SECONDS_MAX, STAY_SECONDS_PER_ROW, STOPPED, Waiting


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


def waiting_body(said: list[RecordCheckpoint]) -> Waiting:
    """A body whose line notes what it records, and answers nothing."""

    def record(message: RecordCheckpoint) -> asyncio.Future[Reply]:
        said.append(message)
        return asyncio.get_running_loop().create_future()

    async def waited(_first: int, _last: int) -> list[Any]:
        return []

    line: Any = SimpleNamespace(
        lease=SimpleNamespace(run_id=1),
        costs=(),
        draining=False,
        quiet_seconds=1.0,
        stop=asyncio.Event(),
        head=lambda: {"run_id": 1, "idx": 0, "n": 1, "seq": 1},
        record=record,
        waited=waited,
    )
    known: Any = SimpleNamespace(checkpoints={}, waits={}, settled={})
    return Waiting(line, known, 10)


async def test_a_strand_that_gives_up_what_is_being_opened_leaves_it_to_the_others() -> None:
    said: list[RecordCheckpoint] = []
    body = waiting_body(said)
    opening: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    first, canceled, third = (asyncio.ensure_future(body.opened(opening)) for _ in range(3))
    await turns()
    canceled.cancel()
    await turns()
    assert not canceled.done(), "held until it is known what it gives up"
    assert not opening.done()
    opening.set_result(Reply(no=7))
    assert [await first, await third] == [7, 7]
    await asyncio.wait((canceled,))
    assert canceled.cancelled()
    await turns()
    assert [(one.error, one.closes) for one in said] == [(STOPPED, 7)]


async def test_a_run_that_has_recorded_much_stays_a_while_before_it_suspends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rows, draining, stays in (
        (10, False, None),
        (1_000, False, 1_000 * STAY_SECONDS_PER_ROW),
        (1_000_000, False, STAY_SECONDS_MAX),
        (1_000, True, None),
    ):
        body = waiting_body([])
        body.past.checkpoints = range(rows)  # type: ignore[assignment]  # counted, never read
        body.line.draining = draining
        body._waiting = {1: []}
        gone: list[str] = []
        monkeypatch.setattr(body, "_let_go", lambda gone=gone: gone.append("let go"))
        began = body._loop.time()
        body.strand_ends()
        await turns()
        if stays is None:
            assert (gone, body._quiet) == (["let go"], None)
            continue
        assert body._quiet is not None
        assert gone == [] or body._quiet.when() <= body._loop.time()
        assert began + stays <= body._quiet.when() <= body._loop.time() + stays
        body._quiet.cancel()
