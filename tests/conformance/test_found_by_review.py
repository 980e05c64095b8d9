"""Defects an adversarial review has found, each as the shortest story that shows it; on both stores."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.kernel import commands as c
from tenure.kernel.snapshot import Need
from tests.conformance.world import Place, World, step


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys each `Need` named: a decision is made anew for each of them."""
    seen: list[int] = []
    init = Need.__init__

    def counted(self: Need, *keys: Any) -> None:
        seen.append(len(keys))
        init(self, *keys)

    monkeypatch.setattr(Need, "__init__", counted)
    return seen


# --------------------------------------------------------------------------------------- many at once


async def test_many_dependents_are_asked_for_at_once(place: Place, needs: list[int]) -> None:
    async with World(place, orchestrators=2) as w:
        await w.create(plan=["root", *(step(f"s{i}", "root") for i in range(100))])
        lease = await w.through(1).claim()
        needs.clear()
        await w.through(1).complete(lease)
        assert 100 in needs
        assert len(needs) < 5


async def test_many_live_leases_are_asked_for_at_once(place: Place, needs: list[int]) -> None:
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


async def test_many_gates_are_closed_at_once(place: Place, needs: list[int]) -> None:
    gates = [c.StepSpec(name=f"g{i}", kind="approval", needs=()) for i in range(50)]
    async with World(place, orchestrators=2) as w:
        run = await w.create(plan=gates)
        needs.clear()
        assert (await w.through(1).cancel(run))["status"] == "canceled"
        assert 50 in needs
        assert len(needs) < 5
        assert {row.status for row in await w.approvals(run)} == {"canceled"}
