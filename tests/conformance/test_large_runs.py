"""Runs with many waits, events, children and steps: the cost of a decision does not grow with their number.

A decision that needs n rows must request all of them at once. If it requested them one by one, it would be made n times
over n rows. So these tests count how often a decision is made again: each time raises one `NotLoaded`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tenure.kernel import commands as c
from tenure.kernel.snapshot import NotLoaded
from tests.conformance.world import Place, World

MANY = 60
ROUNDS_MAX = 8


@contextmanager
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail if decisions are made again more than a few times."""
    asked: list[tuple[Any, ...]] = []

    def count(self: NotLoaded, *keys: Any) -> None:
        self.keys = keys
        asked.append(keys)

    with monkeypatch.context() as patch:
        patch.setattr(NotLoaded, "__init__", count)
        yield
    assert len(asked) <= ROUNDS_MAX, asked


async def test_a_suspension_loads_all_of_its_waits_in_one_query(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(place) as w:
        lease = await w.begin()
        numbers = [
            (await w.wait(lease, f"w{i}", event=c.WaitSpec(event=f"e{i}"))).no or 0 for i in range(MANY)
        ]
        await w.crash()
        with few_rounds(monkeypatch):
            assert (await w.suspend(lease, *numbers)).state == "suspended"
        await w.crash()
        with few_rounds(monkeypatch):
            await w.deliver(lease.run_id, "e7")
        assert [wait.name for wait in await w.waits(lease.run_id) if wait.state == "settled"] == ["e7"]


async def test_an_event_goes_to_the_oldest_wait_of_its_name(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        first, second = [
            (await w.wait(lease, label, event=c.WaitSpec(event="news"))).no for label in ("a", "b")
        ]
        await w.crash()
        await w.checkpoint(lease, "x", closes=second)
        await w.deliver(lease.run_id, "news", "e-1")
        states = {wait.no: wait.state for wait in await w.waits(lease.run_id)}
        assert states == {first: "settled", second: "closed"}


async def test_early_events_are_taken_in_their_order(
    place: Place,
) -> None:
    async with World(place) as w:
        lease = await w.begin()
        for number in range(3):
            await w.deliver(lease.run_id, "news", f"e-{number}", payload=b"%d" % number)
        await w.crash()
        assert (await w.deliver(lease.run_id, "news", "e-2", payload=b"2"))["again"], (
            "the event is found without loading the others"
        )
        taken = [(await w.wait(lease, f"w{i}", event=c.WaitSpec(event="news"))).result_ref for i in range(3)]
        assert [await w.body(lease.run_id, ref) for ref in taken] == [b"0", b"1", b"2"]


async def test_adding_steps_to_a_large_run_takes_few_queries(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(place) as w:
        plan = [c.StepSpec(name=f"s{i}", needs=()) for i in range(MANY)]
        run = await w.create(profile="delta-ci", plan=plan)
        await w.crash()
        more = [c.StepSpec(name=f"t{i}", needs=(f"s{i}", f"t{i - 1}") if i else ()) for i in range(MANY)]
        with few_rounds(monkeypatch):
            await w.add(run, *more)
        assert len(await w.steps(run)) == 2 * MANY
        async with w.refuses("PLAN_INVALID"):
            await w.add(run, c.StepSpec(name="u", needs=()), c.StepSpec(name="s3", needs=()))
