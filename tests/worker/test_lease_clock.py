"""A lease counts from the moment of its request, by the clock since boot. No step starts after its lease (I57).

The tests move the clock, as if the process had been stopped while an answer waited in its socket."""

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

STOPPED_SECONDS = 100.0
"""Longer than any lease here."""


class JumpingClock:
    """A clock that can jump, as for a process that was stopped."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._real = clock.boot_seconds

    def __call__(self) -> float:
        return self._real() + self.seconds


@pytest.fixture
def boot_clock(monkeypatch: pytest.MonkeyPatch) -> JumpingClock:
    """The clock of the process under test."""
    made = JumpingClock()
    monkeypatch.setattr(clock, "boot_seconds", made)
    return made


@tenure.workflow(lease="30s")
async def single(folder: str) -> str:
    """One step."""
    await mark(folder, "begun")
    return "done"


def jump_during_a_claim(engine: Watched, boot_clock: JumpingClock, then: Any = None) -> list[Lease]:
    """Let the clock jump between a claim's commit and its answer. The result lists the leases of the answer."""
    claim = engine.orchestrator.claim
    found: list[Lease] = []

    async def claiming(*args: Any, **how: Any) -> list[Lease]:
        leases = await claim(*args, **how)
        if leases and not found:
            found.extend(leases)
            boot_clock.seconds += STOPPED_SECONDS
            if then is not None:
                await then(leases[0])
        return leases

    engine.orchestrator.claim = claiming  # type: ignore[method-assign]  # replaced for the test
    return found


async def test_a_claim_whose_answer_came_too_late_is_not_started(
    url: str, folder: str, boot_clock: JumpingClock
) -> None:
    async with watching(url) as engine, Watched(url, sweep=False) as other:

        async def taken_away(lease: Lease) -> None:
            context = engine.scope.context(cause="test")
            await engine.orchestrator.send(
                c.RevokeLease(context=context, run_id=lease.run_id, idx=lease.idx, n=lease.n)
            )

        claimed = jump_during_a_claim(other, boot_clock, taken_away)
        run = await engine.start(single, folder)
        async with other.worker(single, name="late") as late:
            await until(lambda: claimed, "the claim")
            await engine.see_end(run.id)
            await until(lambda: late.counts["lost"] == 1, "the late lease to be given up")
        assert notes(folder) == ["begun"]
        assert await engine.attempts(run.id) == ["stale", "succeeded"]


async def test_a_lease_that_may_have_expired_is_renewed_before_work_starts(
    url: str, folder: str, boot_clock: JumpingClock
) -> None:
    async with watching(url) as engine, Watched(url, sweep=False) as other:
        jump_during_a_claim(other, boot_clock)
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
            eager = await engine.start(single, folder)  # created with its lease
            await engine.see_end(eager.id)
        assert await engine.attempts(run.id) == await engine.attempts(eager.id) == ["succeeded"]


_CLOCKS: list[JumpingClock] = []
"""For workflows whose process is stopped in the middle."""


def _stop_once(folder: str) -> None:
    if "stopped" not in notes(folder):
        note(folder, "stopped")
        _CLOCKS[0].seconds += STOPPED_SECONDS


@tenure.workflow(lease="2s")
async def stopped_between_steps(folder: str) -> str:
    """Be stopped between two steps."""
    await mark(folder, "first")
    _stop_once(folder)
    await mark(folder, "last")
    return "done"


@tenure.workflow(lease="2s")
def plainly_stopped_between_steps(folder: str) -> str:
    """`stopped_between_steps` in threads."""
    mark_plainly(folder, "first")
    _stop_once(folder)
    mark_plainly(folder, "last")
    return "done"


@tenure.step(isolate="process")
def mark_apart(folder: str, name: str) -> None:
    """Write a note, in a process."""
    note(folder, name)


@pytest.mark.parametrize(
    "code", [stopped_between_steps, plainly_stopped_between_steps], ids=lambda code: code.name
)
async def test_a_step_is_not_started_after_the_lease(
    tmp_path: Path,
    folder: str,
    boot_clock: JumpingClock,
    code: Workflow[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _CLOCKS[:] = [boot_clock]
    monkeypatch.setattr(
        Heartbeater, "_handle_replies", lambda *_: None
    )  # a heartbeat would find that the lease is still valid
    url = f"sqlite:{tmp_path / 'runs.db'}"
    async with watching(url) as engine, engine.worker(code, name="only"):
        run = await engine.start(code, folder)
        await until(lambda: "stopped" in notes(folder), "the stop")
        await engine.see_end(run.id)
        first, second = await engine.leases(run.id)
        assert (first.state, second.state) == ("stale", "succeeded")
        assert notes(folder) == ["first", "stopped", "last"]


def test_a_lease_counts_from_the_moment_of_the_request(boot_clock: JumpingClock) -> None:
    heartbeater = Heartbeater(lambda: None, lambda *_: None)  # type: ignore[arg-type, return-value]  # never started
    asked_at = clock.boot_seconds()
    boot_clock.seconds += 7
    beat = Heartbeat(run_id=1, idx=0, n=1, seq=0, tenant="t")
    heartbeater.track(beat, 2.0, 30.0, asked_at=asked_at)
    assert heartbeater.held_until((1, 0, 1)) == asked_at + 30 - 1
    heartbeater.track(beat, 2.0, 30.0, asked_at=asked_at, ends_at=asked_at + 10)
    assert heartbeater.held_until((1, 0, 1)) == asked_at + 10


async def test_an_isolated_process_that_is_late_asks_again_and_may_be_refused(folder: str) -> None:
    answers = iter([0.0, clock.boot_seconds() + 60])
    await run_isolated(mark_apart, (folder, "in time"), {}, lambda: next(answers))
    assert next(answers, None) is None, "it asked only once"

    def over() -> float:
        raise LeaseLost("over")

    with pytest.raises(LeaseLost):
        await run_isolated(mark_apart, (folder, "too late"), {}, over)
    assert notes(folder) == ["in time"]


async def test_an_act_is_not_started_after_the_lease(
    tmp_path: Path, folder: str, boot_clock: JumpingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tenure.workflow(lease="2s", name="lease_clock_act")
    async def acting(folder: str) -> None:
        _stop_once(folder)
        await tenure.act("nobody.knows")

    _CLOCKS[:] = [boot_clock]
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
            assert acts[0] == 2, "the act was requested under a lease that may have ended"
            await engine.cancel(run.id)
