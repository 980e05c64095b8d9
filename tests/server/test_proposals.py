"""Proposals over HTTP: no run waits for them, the inbox counts them, and a person decides them, even after the run has ended."""

import pytest

import tenure
from tests.server.stage import problem, site


@tenure.workflow
async def proposing(names: list[str]) -> int:
    """Proposes renames and ends without waiting for an answer."""
    for name in names:
        await tenure.propose(f"Rename {name}", {"to": name.upper()})
    return len(names)


@pytest.mark.clause("AGR-13")
async def test_proposals_are_listed_counted_and_decided_after_their_run(url: str) -> None:
    async with site(url) as s:
        viewer, ada, bob = await s.as_("viewer"), await s.person("ada"), await s.person("bob")
        engine = s.engine.scoped(tenant="acme", actor="person:ada")
        async with engine.worker(proposing):
            run = await engine.submit(proposing, {"names": ["a", "b", "c"]})
            assert await run.result(wait=20) == 3
        stats = (await viewer.get("/inbox/stats")).json()
        assert (stats["pending_approvals"], stats["pending_proposals"]) == (0, 3)
        assert stats["oldest_approval_at"] is None
        assert stats["oldest_proposal_at"] is not None

        first = (await viewer.get("/proposals/pending", params={"limit": 2})).json()
        rest = (await viewer.get("/proposals/pending", params={"cursor": first["next_cursor"]})).json()
        pending = first["items"] + rest["items"]
        assert [one["action"] for one in pending] == ["Rename c", "Rename b", "Rename a"], "newest first"
        assert {one["run_id"] for one in pending} == {run.id}
        assert pending[0]["question"] == {"to": "C"}
        assert (await viewer.get("/approvals")).json()["items"] == [], (
            "a proposal is not listed as an approval"
        )
        both = (await viewer.get("/approvals", params={"kind": "any"})).json()["items"]
        assert both == pending

        listed = (await viewer.get(f"/runs/{run.id}/status", params={"profile": "agent-runs"})).json()
        assert listed["status"] == "completed"
        assert sorted(listed["proposals_created"]) == sorted(one["id"] for one in pending)

        c, b, a = (f"/proposals/{one['id']}/decision" for one in pending)
        yes = await ada.post(a, json={"decision": "accept", "reason": "please"})
        assert (yes.status_code, yes.json()["status"]) == (200, "approved"), (
            "the requester of the run may decide a proposal"
        )
        no = await bob.post(b, json={"decision": "reject"})
        assert (no.status_code, no.json()["status"]) == (200, "rejected")
        again = await bob.post(b, json={"decision": "reject"})
        assert (again.status_code, again.json()["again"]) == (200, True)
        for who, path, body in ((bob, a, "reject"), (ada, b, "approve")):
            late = await who.post(path, json={"decision": body})
            assert late.status_code == 409, "the proposal has been decided"
        client = await s.as_("approver")
        refused = await client.post(c, json={"decision": "accept"})
        assert (refused.status_code, problem(refused)) == (403, "APPROVER_NOT_ELIGIBLE")
        stats = (await viewer.get("/inbox/stats")).json()
        assert stats["pending_proposals"] == 1
        after = (await viewer.get("/approvals", params={"run": run.id, "kind": "any"})).json()["items"]
        assert [one["status"] for one in after] == ["approved", "rejected", "requested"]
        assert (await viewer.get(f"/runs/{run.id}/status")).json()["status"] == "succeeded"


async def test_another_tenants_proposal_looks_missing(url: str) -> None:
    async with site(url) as s:
        engine = s.engine.scoped(tenant="acme")
        async with engine.worker(proposing):
            run = await engine.submit(proposing, {"names": ["a"]})
            await run.result(wait=20)
        (mine,) = (await (await s.as_("viewer")).get("/proposals/pending")).json()["items"]
        zoe = await s.person("zoe", tenant="globex")
        theirs = await zoe.post(f"/proposals/{mine['id']}/decision", json={"decision": "accept"})
        assert (theirs.status_code, problem(theirs)) == (404, "APPROVAL_NOT_FOUND")
        assert (await zoe.get("/proposals/pending")).status_code == 200
        assert (await zoe.get("/inbox/stats")).json()["pending_proposals"] == 0
        approval = "apr" + mine["id"].removeprefix("prop")
        ada = await s.person("ada")
        answer = await ada.post(f"/approvals/{approval}/decision", json={"decision": "approve"})
        assert (answer.status_code, problem(answer)) == (404, "APPROVAL_NOT_FOUND"), (
            "a proposal cannot be decided as an approval"
        )
