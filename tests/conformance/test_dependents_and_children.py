"""Regressions found by adversarial review, each with a minimal run."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.kernel import commands as c
from tenure.kernel.snapshot import NotLoaded
from tenure.limits import PAYLOAD_BYTES_MAX
from tests.conformance.world import Place, World, step


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of keys of each `NotLoaded`. The decision is made again after each one."""
    seen: list[int] = []
    init = NotLoaded.__init__

    def counted(self: NotLoaded, *keys: Any) -> None:
        seen.append(len(keys))
        init(self, *keys)

    monkeypatch.setattr(NotLoaded, "__init__", counted)
    return seen


# --------------------------------------------------------------------------------------- many at once


async def test_many_dependents_are_loaded_in_one_query(place: Place, needs: list[int]) -> None:
    async with World(place, orchestrators=2) as w:
        await w.create(plan=["root", *(step(f"s{i}", "root") for i in range(100))])
        lease = await w.through(1).claim()
        needs.clear()
        await w.through(1).complete(lease)
        assert max(needs) > 50  # all steps except those that the claim has loaded
        assert len(needs) < 5


async def test_many_live_leases_are_loaded_in_one_query(place: Place, needs: list[int]) -> None:
    async with World(place, orchestrators=2) as w:
        run = await w.create(plan=[step(f"s{i}") for i in range(50)])
        leases = await w.through(1).claims(limit=50)
        needs.clear()
        await w.cancel(run)
        assert 50 in needs
        assert len(needs) < 5
        for lease in leases:
            await w.cancel_ack(lease)
        assert await w.status(run) == "canceled"


async def test_many_gates_are_closed_in_one_decision(place: Place, needs: list[int]) -> None:
    gates = [c.StepSpec(name=f"g{i}", kind="approval", needs=()) for i in range(50)]
    async with World(place, orchestrators=2) as w:
        run = await w.create(plan=gates)
        needs.clear()
        assert (await w.through(1).cancel(run))["status"] == "canceled"
        assert 50 in needs
        assert len(needs) < 5
        assert {row.status for row in await w.approvals(run)} == {"canceled"}


# -------------------------------------------------------------------------------------------- children


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("PROFILE_NOT_FOUND", {"profile": "nope"}),
        ("PLAN_INVALID", {"plan": ()}),
        ("PAYLOAD_TOO_LARGE", {"input": b"x" * (PAYLOAD_BYTES_MAX + 1)}),
        ("PAYLOAD_TOO_LARGE", {"plan": (step("s", input=b"x" * (PAYLOAD_BYTES_MAX + 1)),)}),
        ("INVALID_INPUT", {"workflow": ""}),
    ],
)
async def test_an_invalid_child_is_refused_immediately(place: Place, code: str, how: dict[str, Any]) -> None:
    """The child is created later, when a refusal could no longer reach the caller."""
    async with World(place) as w:
        lease = await w.begin()
        child = c.StartChild(**{"run_id": w.orchestrator.new_id("default"), "workflow": "part", **how})
        async with w.refuses(code):
            await w.wait(lease, "child", child=child)
        await w.complete(lease)


async def test_a_child_has_its_own_id(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        child = c.StartChild(run_id=w.orchestrator.new_id("default"), workflow="part", on_close="leave")
        first = await w.wait(lease, "one", child=child)
        await w.settle()
        for taken in (child.run_id, lease.run_id):
            async with w.refuses("INVALID_INPUT"):
                await w.wait(lease, "two", child=c.StartChild(run_id=taken, workflow="part"))
        assert await w.wait(lease, "one", child=child) == first
        await w.complete(lease)


async def test_a_child_that_was_never_created_fails_the_wait_of_its_parent(place: Place) -> None:
    async with World(place) as w:
        other = await w.create(plan=[step("x", queue="other")])
        lease = await w.begin()
        opened = await w.wait(lease, "child", child=c.StartChild(run_id=other, workflow="part"))
        assert opened.no is not None
        await w.suspend(lease, opened.no)
        await w.settle()
        await w.tell(c.FinishChild, lease.run_id, child_id=other, outcome="failed")
        assert [(row.state, row.outcome) for row in await w.waits(lease.run_id)] == [
            ("settled", "child_failed")
        ]
        await w.complete(await w.claim())
        assert await w.status(lease.run_id) == "succeeded"
