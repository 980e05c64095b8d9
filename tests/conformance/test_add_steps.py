"""Steps that are added twice because the first answer was lost exist once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tenure.kernel import commands as c
from tests.conformance.world import Place, World, gate, step

ADDED: tuple[c.StepSpec, ...] = (
    step("b", "a", input=b"for b", retries=1, timeout_seconds=50, queue="default", tool="tool"),
    step("c", "b", "a", backoff=c.BackoffSpec(seconds=(1.0, 2.0))),
    gate("ok", people=2, digest="00ff"),
    c.StepSpec(name="last"),
)


async def test_adding_the_same_steps_again_changes_nothing(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["a", step("open")], input=b"for all", profile="delta-ci")
        first = await w.add(run, *ADDED)
        assert first == {"steps": 6}
        before = await w.bundle(run)
        assert await w.add(run, *ADDED) == first
        await w.crash()
        assert await w.add(run, *ADDED) == first
        assert await w.bundle(run) == before
        await w.add(run, step("more"))
        before = await w.bundle(run)
        assert await w.add(run, *ADDED) == first, "later steps do not change the answer"
        assert await w.bundle(run) == before


async def test_two_additions_in_one_commit_are_distinguished(place: Place) -> None:
    """Regression: both additions had the same timestamp, so a repeat of one looked like a part of both."""
    async with World(place) as w:
        run = await w.create(plan=["a"], profile="delta-ci")
        added = await asyncio.gather(*(w.add(run, step(name, "a")) for name in "bcd"))
        assert added == [{"steps": 2}, {"steps": 3}, {"steps": 4}]
        before = await w.bundle(run)
        await w.crash()
        assert [await w.add(run, step(name, "a")) for name in "bcd"] == added
        async with w.refuses("PLAN_INVALID"):
            await w.add(run, step("b", "a"), step("c", "a"))  # b and c were added separately
        assert await w.bundle(run) == before


@pytest.mark.parametrize("done", [False, True])
async def test_a_step_with_other_needs_is_another_step(place: Place, done: bool) -> None:
    """Regression: only the last step's needs were compared, so fewer needs counted as a repeat."""
    async with World(place) as w:
        run = await w.create(plan=["a", step("b"), step("last")], profile="delta-ci")
        added = await w.add(run, step("more", "a", "b"), step("most", "more", "b"))
        if done:
            await w.work_off(run)
        for other in (
            [step("more", "a"), step("most", "more", "b")],
            [step("more", "a", "b"), step("most", "more")],
            [step("more", "a", "b", "last"), step("most", "more", "b")],
        ):
            async with w.refuses("RUN_TERMINAL_STATE" if done else "PLAN_INVALID"):
                await w.add(run, *other)
        assert await w.add(run, step("more", "b", "a"), step("most", "more", "b")) == added


@pytest.mark.parametrize("end", ["succeeded", "canceled"])
async def test_adding_the_same_steps_to_an_ended_run_gets_the_same_answer(place: Place, end: str) -> None:
    async with World(place) as w:
        run = await w.create(plan=["a"])
        assert await w.add(run, step("b", "a", input=b"x"), "c") == {"steps": 3}
        if end == "succeeded":
            await w.work_off(run)
        else:
            await w.cancel(run)
        assert await w.status(run) == end
        assert await w.add(run, step("b", "a", input=b"x"), "c") == {"steps": 3}
        async with w.refuses("RUN_TERMINAL_STATE"):
            await w.add(run, "d")


@pytest.mark.parametrize("done", [False, True])
async def test_a_strict_sequence_recognises_a_repeated_addition(place: Place, done: bool) -> None:
    async with World(place) as w:
        run = await w.create(profile="approval-runs", plan=["a", "b"])
        if done:
            await w.complete(await w.claim())
        assert await w.add(run, "c", "d") == {"steps": 4}
        assert await w.add(run, "c", "d") == {"steps": 4}
        async with w.refuses("PLAN_INVALID"):
            await w.add(run, "d")  # a part of an addition is not a repeat
        async with w.refuses("PLAN_INVALID"):
            await w.add(run, "d", "c")


DIFFERENT: list[tuple[int, dict[str, Any]]] = [
    (0, {"input": b"for another"}),
    (0, {"input": None}),
    (0, {"retries": 2}),
    (0, {"timeout_seconds": 51}),
    (0, {"timeout_seconds": float("nan")}),
    (0, {"queue": "other"}),
    (0, {"tool": ""}),
    (0, {"required": False}),
    (0, {"needs": ("open",)}),
    (0, {"idempotency_key": "k"}),
    (1, {"needs": ("a",)}),
    (1, {"input": b"new"}),
    (1, {"backoff": None}),
    (2, {"approval": c.ApprovalSpec(people=1, digest="00ff")}),
    (3, {"name": "later"}),
]


@pytest.mark.parametrize(("at", "change"), DIFFERENT, ids=str)
async def test_different_steps_with_the_same_names_are_refused(
    place: Place, at: int, change: dict[str, Any]
) -> None:
    async with World(place) as w:
        run = await w.create(plan=["a", step("open")], profile="delta-ci")
        await w.add(run, *ADDED)
        other = list(ADDED)
        other[at] = msgspec.structs.replace(other[at], **change)
        async with w.refuses("PLAN_INVALID"):
            await w.add(run, *other)
        async with w.refuses("PLAN_INVALID"):
            await w.add(run, *ADDED, step("one more"))
        async with w.refuses("PLAN_INVALID"):
            await w.add(run, c.StepSpec(name="last"))  # the original `last` followed the gate
        async with w.refuses("PLAN_INVALID"):
            await w.add(run, "a", step("open"))  # steps of the first plan were not added
