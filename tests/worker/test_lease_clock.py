"""A lease counts from the moment at which it was asked for, by the clock since boot: no step begins after its lease (I57).

The clock is driven: it is as if the process had stood still while an answer lay in its socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import clock
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.commands import Heartbeat
from tenure.kernel.lease_types import Lease
from tenure.sdk import Workflow
from tenure.sdk.exits import LeaseLost
from tenure.worker.heartbeat import Heartbeater
from tenure.worker.isolation import run_isolated
from tests.worker.flows import mark, mark_plainly, note, notes
from tests.worker.helpers import Watched, until, watching

STILL_SECONDS = 100.0
"""Longer than any lease here."""


class Standstill:
    """Lets the clock jump, as a process sees it that was stopped."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._real = clock.boot_seconds

    def __call__(self) -> float:
        return self._real() + self.seconds


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> Standstill:
    """The driven clock."""
    made = Standstill()
    monkeypatch.setattr(clock, "boot_seconds", made)
    return made


@tenure.workflow(lease="30s")
async def single(folder: str) -> str:
    """One step."""
    await mark(folder, "begun")
    return "done"


def standing_still_in_a_claim(engine: Watched, still: Standstill, then: Any = None) -> list[Lease]:
    """Let the clock jump between a claim's commit and its answer; the leases it was answered with."""
    claim = engine.orchestrator.claim
    found: list[Lease] = []

    async def claiming(*args: Any, **how: Any) -> list[Lease]:
        leases = await claim(*args, **how)
        if leases and not found:
            found.extend(leases)
            still.seconds += STILL_SECONDS
            if then is not None:
                await then(leases[0])
        return leases

    engine.orchestrator.claim = claiming  # type: ignore[method-assign]  # as a test may
    return found


async def test_a_claim_whose_answer_came_too_late_is_not_started(
    url: str, folder: str, still: Standstill
) -> None:
    async with watching(url) as engine, Watched(url, sweep=False) as other:

        async def taken_away(lease: Lease) -> None:
            context = engine.scope.context(cause="test")
            await engine.orchestrator.send(
                c.RevokeLease(context=context, run_id=lease.run_id, idx=lease.idx, n=lease.n)
            )

        claimed = standing_still_in_a_claim(other, still, taken_away)
        run = await engine.start(single, folder)
        async with other.worker(single, name="late") as late:
            await until(lambda: claimed, "the claim")
            await engine.see_end(run.id)
            await until(lambda: late.counts["lost"] == 1, "the late lease to be given up")
        assert notes(folder) == ["begun"]
        assert await engine.attempts(run.id) == ["stale", "succeeded"]


async def test_a_lease_that_may_have_expired_is_renewed_before_work_starts(
    url: str, folder: str, still: Standstill
) -> None:
    async with watching(url) as engine, Watched(url, sweep=False) as other:
        standing_still_in_a_claim(other, still)
        run = await engine.start(single, folder)
        async with other.worker(single):
            await engine.see_end(run.id)
        assert notes(folder) == ["begun"]
        assert await engine.attempts(run.id) == ["succeeded"]


async def test_a_claim_that_was_answered_immediately_is_started_without_a_check(
    url: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(url) as engine:

        async def asked(lease: Lease) -> bool:
            raise AssertionError(f"asked about {lease}")

        monkeypatch.setattr(engine.work_source, "renew", asked)
        run = await engine.start(single, folder)  # claimed
        async with engine.worker(single):
            await engine.see_end(run.id)
            eager = await engine.start(single, folder)  # made with its lease
            await engine.see_end(eager.id)
        assert await engine.attempts(run.id) == await engine.attempts(eager.id) == ["succeeded"]


_STILL: list[Standstill] = []
"""For workflows whose process stands still in the middle."""


def _stand_still(folder: str) -> None:
    if "still" not in notes(folder):
        note(folder, "still")
        _STILL[0].seconds += STILL_SECONDS


@tenure.workflow(lease="2s")
async def standing_still(folder: str) -> str:
    """Stand still between two steps."""
    await mark(folder, "first")
    _stand_still(folder)
    await mark(folder, "last")
    return "done"


@tenure.workflow(lease="2s")
def standing_still_plainly(folder: str) -> str:
    """The same in threads."""
    mark_plainly(folder, "first")
    _stand_still(folder)
    mark_plainly(folder, "last")
    return "done"


@tenure.step(isolate="process")
def mark_apart(folder: str, name: str) -> None:
    """Leave a note, in a process."""
    note(folder, name)


@pytest.mark.parametrize("code", [standing_still, standing_still_plainly], ids=lambda code: code.name)
async def test_a_step_is_not_started_after_the_lease(
    tmp_path: Path,
    folder: str,
    still: Standstill,
    code: Workflow[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _STILL[:] = [still]
    monkeypatch.setattr(
        Heartbeater, "_handle_replies", lambda *_: None
    )  # a heartbeat would find that it stands after all
    url = f"sqlite:{tmp_path / 'runs.db'}"
    async with watching(url) as engine, engine.worker(code, name="only"):
        run = await engine.start(code, folder)
        await until(lambda: "still" in notes(folder), "the standstill")
        await engine.see_end(run.id)
        first, second = await engine.leases(run.id)
        assert (first.state, second.state) == ("stale", "succeeded")
        assert notes(folder) == ["first", "still", "last"]


def test_a_lease_counts_from_the_moment_of_asking(still: Standstill) -> None:
    heartbeater = Heartbeater(lambda: None, lambda *_: None)  # type: ignore[arg-type, return-value]  # it is never started
    asked_at = clock.boot_seconds()
    still.seconds += 7
    beat = Heartbeat(run_id=1, idx=0, n=1, seq=0, tenant="t")
    heartbeater.track(beat, 2.0, 30.0, asked_at=asked_at)
    assert heartbeater.held_until((1, 0, 1)) == asked_at + 30 - 1
    heartbeater.track(beat, 2.0, 30.0, asked_at=asked_at, ends_at=asked_at + 10)
    assert heartbeater.held_until((1, 0, 1)) == asked_at + 10


async def test_an_isolated_process_that_is_late_asks_again_and_may_be_refused(folder: str) -> None:
    answers = iter([0.0, clock.boot_seconds() + 60])
    await run_isolated(mark_apart, (folder, "in time"), {}, lambda: next(answers))
    assert next(answers, None) is None, "it did not ask twice"

    def over() -> float:
        raise LeaseLost("over")

    with pytest.raises(LeaseLost):
        await run_isolated(mark_apart, (folder, "too late"), {}, over)
    assert notes(folder) == ["in time"]


async def test_an_act_is_not_started_after_the_lease(
    tmp_path: Path, folder: str, still: Standstill, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tenure.workflow(lease="2s", name="lease_clock_act")
    async def acting(folder: str) -> None:
        _stand_still(folder)
        await tenure.act("nobody.knows")

    _STILL[:] = [still]
    async with watching(f"sqlite:{tmp_path / 'runs.db'}") as engine:
        acts = []

        async def act(lease: Lease, *_: Any) -> None:
            acts.append(lease.n)
            raise TenureError("RUN_CANCELING", "enough")

        monkeypatch.setattr(engine.work_source, "act", act)
        monkeypatch.setattr(Heartbeater, "_handle_replies", lambda *_: None)
        async with engine.worker(acting):
            run = await engine.start(acting, folder)
            await until(lambda: acts, "the act of the next try")
            assert acts[0] == 2, "it was asked for under a lease that may have ended"
            await engine.cancel(run.id)
