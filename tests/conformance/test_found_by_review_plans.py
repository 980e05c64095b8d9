"""Stories an adversarial review told of plans, admission, keys and fairness; each was a defect once."""

from __future__ import annotations

from tenure.kernel import commands as c
from tests.conformance.world import Place, World, gate


async def test_whoever_asks_for_a_run_does_not_approve_in_its_child(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(by="u_alice")
        kid = w.orchestrator.new_id()
        await w.wait(lease, "kid", child=c.StartChild(run_id=kid, workflow="child", plan=(gate(),)))
        await w.settle()
        assert (await w.spec(kid)).requester == "u_alice"
        async with w.refuses("APPROVER_IS_REQUESTER"):
            await w.approve(kid, by="u_alice")
        await w.approve(kid, by="u_bob")
        assert await w.status(kid) == "succeeded"


async def test_whoever_asks_for_a_run_again_is_its_requester(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(by="u_bob", plan=["a"])
        await w.cancel(run)
        assert (await w.spec(await w.rerun(run))).requester == "u_alice"
        assert (await w.spec(await w.resume(run))).requester == "u_alice"
