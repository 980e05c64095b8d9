"""Approvals over HTTP: who decides, what they decide, and what a repeated or late answer means."""

import asyncio
from typing import Any

import httpx
import pytest

from tenure import ids
from tenure.clock import us
from tenure.kernel.commands import ReviseApproval
from tenure.kernel.identity_rows import ClientRow
from tests.server.manual_worker import claim, complete, complete_next_step, fail_next_step
from tests.server.stage import Site, problem, site

DIGEST = "ab" * 32
YES, NO = {"decision": "approve"}, {"decision": "reject"}


def gate(name: str = "ok", **approval: Any) -> dict[str, Any]:
    return {"name": name, "kind": "approval", "approval": {"action": f"do {name}", **approval}}


async def start(s: Site, *plan: Any, actor: str = "person:rita", profile: str = "approval-runs") -> str:
    steps = [{"name": one} if isinstance(one, str) else one for one in plan]
    return await s.engine.scoped(tenant="acme", actor=actor).create("release", steps, profile=profile)


async def shown_statuses(viewer: httpx.AsyncClient, run: str) -> tuple[str, list[str]]:
    """The shown statuses of the run and of its steps."""
    shown = (await viewer.get(f"/runs/{run}/status")).json()["shown"]
    return shown, [step["shown"] for step in (await viewer.get(f"/runs/{run}/steps")).json()["items"]]


@pytest.mark.clause("APR-01", "APR-02", "APR-03", "APR-05", "APR-12")
async def test_a_gate_waits_for_a_person_and_no_worker_passes_it(url: str) -> None:
    async with site(url) as s:
        viewer, ada = await s.as_("viewer"), await s.person("ada")
        run = await start(s, "build", gate(), "deploy", gate("last"))
        assert await shown_statuses(viewer, run) == ("PENDING", ["PENDING"] * 4)
        nothing = await ada.post(f"/runs/{run}/approve", json=YES)
        assert (nothing.status_code, nothing.json()) == (200, {"advanced": False})
        lease = await claim(s, run)
        assert lease is not None
        assert await shown_statuses(viewer, run) == ("RUNNING", ["RUNNING", *["PENDING"] * 3])
        nothing = await ada.post(f"/runs/{run}/approve", json=YES)
        assert nothing.json() == {"advanced": False}, "an approval advances gates only"
        await complete(s, lease)
        assert await shown_statuses(viewer, run) == (
            "WAITING_APPROVAL",
            ["SUCCEEDED", "WAITING_APPROVAL", "PENDING", "PENDING"],
        )
        assert await claim(s) is None, "a worker cannot claim a gate"

        answer = await ada.post(f"/runs/{run}/approve", json={**YES, "reason": "looks good"})
        assert answer.status_code == 200
        assert (answer.json()["advanced"], answer.json()["status"]) == (True, "approved")
        assert (await shown_statuses(viewer, run))[1][:3] == ["SUCCEEDED", "SUCCEEDED", "PENDING"]
        attempts = (await viewer.get(f"/runs/{run}/steps/build/attempts")).json()["items"]
        assert [(one["n"], one["state"], one["worker"]) for one in attempts] == [(1, "succeeded", "bob")]
        await complete_next_step(s, run)
        answer = await ada.post(f"/runs/{run}/approve", json=YES)
        assert answer.json()["advanced"] is True
        assert await shown_statuses(viewer, run) == ("SUCCEEDED", ["SUCCEEDED"] * 4)

        other = await start(s, gate(), "deploy")
        await ada.post(f"/runs/{other}/approve", json=YES)
        await fail_next_step(s, other, "BROKEN")
        assert (await shown_statuses(viewer, other))[0] == "FAILED"


async def test_an_approval_shows_its_content(url: str) -> None:
    async with site(url) as s:
        viewer, ada = await s.as_("viewer"), await s.person("ada")
        run = await start(s, gate(people=2, tier="high", digest=DIGEST, within_seconds=600))
        (asked,) = (await viewer.get("/approvals")).json()["items"]
        assert asked["id"].startswith("apr_")
        assert (asked["run_id"], asked["step"], asked["action"], asked["kind"]) == (
            run,
            "ok",
            "do ok",
            "approval",
        )
        assert (asked["people"], asked["tier"], asked["digest"], asked["revision"]) == (2, "high", DIGEST, 1)
        assert (await viewer.get(f"/approvals/{asked['id']}")).json() == asked
        path = f"/approvals/{asked['id']}/decision"
        first = (await ada.post(path, json={**YES, "digest": DIGEST})).json()
        assert (first["advanced"], first["status"], first["votes"], first["people"]) == (
            False,
            "requested",
            1,
            2,
        )
        again = (
            await (await s.caller(await s.key("approver", person="ada"))).post(
                path, json={**YES, "digest": DIGEST}
            )
        ).json()
        assert (again["again"], again["votes"]) == (True, 1), "a person counts once, with any of their keys"
        bob = await s.person("bob")
        second = (await bob.post(path, json={**YES, "digest": DIGEST, "reason": "fine"})).json()
        assert (second["advanced"], second["status"]) == (True, "approved")
        decided = (await viewer.get(f"/approvals/{asked['id']}")).json()
        assert (decided["status"], decided["decided_by"], decided["reason"]) == (
            "approved",
            "person:bob",
            "fine",
        )
        assert decided["votes"] == ["person:ada", "person:bob"]
        assert (await viewer.get("/approvals")).json()["items"] == []
        assert (await viewer.get("/approvals", params={"run": run})).json()["items"] == [decided]
        none = await viewer.get("/approvals", params={"run": run, "status": "requested"})
        assert none.json()["items"] == []


async def test_only_a_person_other_than_the_requester_decides(url: str) -> None:
    async with site(url) as s:
        run = await start(s, gate())
        path, body = f"/runs/{run}/approve", YES
        service = await s.as_("approver", "operator")
        answer = await service.post(path, json=body)
        assert (answer.status_code, problem(answer)) == (403, "APPROVER_NOT_ELIGIBLE")
        reader = await s.person("paul", "viewer")
        answer = await reader.post(path, json=body)
        assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")
        rita = await s.person("rita", "approver", "operator")
        for decision in (YES, NO):
            answer = await rita.post(path, json=decision)
            assert (answer.status_code, problem(answer)) == (403, "APPROVER_IS_REQUESTER")
        (asked,) = (await rita.get("/approvals")).json()["items"]
        assert (asked["status"], asked["votes"]) == ("requested", [])
        answer = await service.post(f"/approvals/{asked['id']}/decision", json=body)
        assert (answer.status_code, problem(answer)) == (403, "APPROVER_NOT_ELIGIBLE")


async def test_the_owner_of_a_client_cannot_approve_its_requests(url: str) -> None:
    async with site(url) as s:
        await s.key("operator", person="rita")
        await s.identity.put(ClientRow("acme", "cli_bot", "bot", '["operator"]', "rita", 1), None)
        run = await start(s, gate(), actor="client:cli_bot")
        rita, ada = await s.caller(await s.key("approver", person="rita")), await s.person("ada")
        answer = await rita.post(f"/runs/{run}/approve", json=YES)
        assert (answer.status_code, problem(answer)) == (403, "APPROVER_IS_REQUESTER")
        assert (await ada.post(f"/runs/{run}/approve", json=YES)).json()["advanced"] is True


async def test_a_decision_applies_to_what_was_shown(url: str) -> None:
    async with site(url) as s:
        ada = await s.person("ada")
        run = await start(s, gate(digest=DIGEST))
        (asked,) = (await ada.get("/approvals")).json()["items"]
        path = f"/approvals/{asked['id']}/decision"
        for body, code, status in (
            (YES, "INVALID_INPUT", 422),
            ({**YES, "digest": "zz"}, "INVALID_INPUT", 422),
            ({**YES, "digest": "cd" * 32}, "APPROVAL_STALE", 409),
            ({**YES, "digest": DIGEST, "revision": 7}, "APPROVAL_STALE", 409),
            ({"decision": "perhaps"}, "INVALID_INPUT", 422),
            ({}, "INVALID_INPUT", 422),
            ({**YES, "digest": DIGEST, "wish": 1}, "INVALID_INPUT", 422),
        ):
            answer = await ada.post(path, json=body)
            assert (answer.status_code, problem(answer)) == (status, code), body
        number, no = ids.question_ints(asked["id"])
        revise = ReviseApproval(run_id=number, tenant="acme", no=no, digest="cd" * 32)
        await s.engine.orchestrator.send(revise)
        answer = await ada.post(path, json={**YES, "digest": DIGEST, "revision": 1})
        assert (answer.status_code, problem(answer)) == (409, "APPROVAL_STALE")
        answer = await ada.post(path, json={**YES, "digest": "cd" * 32, "revision": 2})
        assert answer.json()["advanced"] is True
        assert (await ada.get(f"/runs/{run}/status")).json()["status"] == "succeeded"


async def test_a_decision_names_its_gate_if_several_are_open(url: str) -> None:
    async with site(url) as s:
        ada = await s.person("ada")
        first, second = {**gate("a"), "needs": []}, {**gate("b"), "needs": []}
        run = await start(s, first, second, profile="tenure")
        answer = await ada.post(f"/runs/{run}/approve", json=YES)
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        named = [one["path"] for one in answer.json()["error"]["details"]]
        listed = (await ada.get("/approvals")).json()["items"]
        assert sorted(named) == sorted(one["id"] for one in listed)
        for one in named:
            assert (await ada.post(f"/approvals/{one}/decision", json=YES)).json()["advanced"] is True
        answer = await ada.post(f"/runs/{run}/approve", json=YES)
        assert (answer.status_code, problem(answer)) == (409, "RUN_TERMINAL_STATE")


async def test_repeated_and_concurrent_clicks_are_one_decision(url: str) -> None:
    """Failure 15: an approval replayed, double-clicked, or for an older revision."""
    async with site(url) as s:
        ada, bob = await s.person("ada"), await s.person("bob")
        run = await start(s, gate(), "deploy")
        (asked,) = (await ada.get("/approvals")).json()["items"]
        path = f"/approvals/{asked['id']}/decision"
        answers = await asyncio.gather(*(ada.post(path, json=YES) for _ in range(50)))
        assert {answer.status_code for answer in answers} == {200}
        assert [answer.json()["advanced"] for answer in answers].count(True) == 1
        events = (await ada.get(f"/runs/{run}/events")).json()["items"]
        assert sum(event["kind"] == "decide_approval" for event in events) == 1
        for who, body in ((ada, NO), (bob, YES), (bob, NO)):
            answer = await who.post(path, json=body)
            assert (answer.status_code, problem(answer)) == (409, "APPROVAL_DECIDED")
        assert (await ada.post(f"/runs/{run}/approve", json=YES)).json() == {"advanced": False}
        assert await claim(s, run) is not None, "the run continues"
        assert await claim(s) is None, "only once"


@pytest.mark.clause("GWI-24")
async def test_a_finished_run_refuses_every_decision(url: str) -> None:
    """Failure 14: approve on a finished run."""
    async with site(url) as s:
        ada = await s.person("ada")
        run = await start(s, gate(), "deploy")
        (asked,) = (await ada.get("/approvals")).json()["items"]
        await s.engine.scoped(tenant="acme").cancel(run)
        before = (await ada.get(f"/runs/{run}")).json()
        assert before["status"] == "canceled"
        for path in (f"/runs/{run}/approve", f"/approvals/{asked['id']}/decision"):
            for body in (YES, NO):
                answer = await ada.post(path, json=body)
                assert (answer.status_code, problem(answer)) == (409, "RUN_TERMINAL_STATE"), path
        assert (await ada.get(f"/runs/{run}")).json() == before


async def test_an_expired_approval_cannot_be_decided(url: str) -> None:
    async with site(url) as s:
        ada = await s.person("ada")
        first, second = {**gate("a", within_seconds=60), "needs": []}, {**gate("b"), "needs": []}
        run = await start(s, first, second, profile="tenure")
        asked = {one["step"]: one["id"] for one in (await ada.get("/approvals")).json()["items"]}
        s.engine.store.shift_clock(us(61))
        answer = await ada.post(f"/approvals/{asked['a']}/decision", json=YES)
        assert answer.status_code == 409
        assert problem(answer) in ("APPROVAL_EXPIRED", "RUN_TERMINAL_STATE"), (
            "the sweeper may have ended the run"
        )
        assert run


async def test_open_approvals_are_paged_newest_first(url: str) -> None:
    async with site(url) as s:
        viewer = await s.as_("viewer")
        runs = [await start(s, gate()) for _ in range(7)]
        found: list[str] = []
        params: dict[str, Any] = {"limit": 3}
        while True:
            page = (await viewer.get("/approvals", params=params)).json()
            found += [one["run_id"] for one in page["items"]]
            if page["next_cursor"] is None:
                break
            params["cursor"] = page["next_cursor"]
        assert sorted(found) == sorted(runs)
        assert len(found) == 7
        answer = await viewer.get("/approvals", params={"status": "approved"})
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        for odd in ("apr_x", "apr_2026-02-14_zzzzzzzzzz1", "prop_2026-02-14_00000000001", "%00", "..%2f"):
            answer = await viewer.get(f"/approvals/{odd}")
            assert (answer.status_code, problem(answer)) == (404, "APPROVAL_NOT_FOUND"), odd


@pytest.mark.clause("APR-14")
async def test_approve_without_a_body_approves_what_binds_no_action(url: str) -> None:
    async with site(url) as s:
        viewer, ada = await s.as_("viewer"), await s.person("ada")
        run = await start(s, gate(), gate("last"))
        answer = await ada.post(f"/runs/{run}/approve")
        assert (answer.status_code, answer.json()["status"]) == (200, "approved"), answer.text
        assert await shown_statuses(viewer, run) == ("WAITING_APPROVAL", ["SUCCEEDED", "WAITING_APPROVAL"])
        await ada.post(f"/runs/{run}/approve", content=b"", headers={"content-type": "application/json"})
        assert (await shown_statuses(viewer, run))[0] == "SUCCEEDED"
        again = await ada.post(f"/runs/{run}/approve")
        assert (again.status_code, problem(again)) == (409, "RUN_TERMINAL_STATE")


@pytest.mark.clause("APR-14")
async def test_approve_without_a_body_never_approves_an_action_that_was_not_shown(url: str) -> None:
    async with site(url) as s:
        viewer, ada = await s.as_("viewer"), await s.person("ada")
        run = await start(s, gate(digest=DIGEST), profile="governed-runtime")
        (asked,) = (await viewer.get("/approvals")).json()["items"]
        refused = await ada.post(f"/runs/{run}/approve")
        assert (refused.status_code, problem(refused)) == (422, "INVALID_INPUT")
        assert asked["id"] in refused.json()["error"]["message"]
        assert refused.json()["error"]["details"][0]["path"] == "digest"
        assert (await viewer.get(f"/approvals/{asked['id']}")).json()["status"] == "requested"
        sent = await ada.post(f"/runs/{run}/approve", json={**YES, "digest": DIGEST})
        assert sent.json()["status"] == "approved"

        several = await start(s, gate("a"), {**gate("b"), "needs": []}, profile="governed-runtime")
        refused = await ada.post(f"/runs/{several}/approve")
        assert (refused.status_code, problem(refused)) == (422, "INVALID_INPUT")
        open_now = (await viewer.get("/approvals")).json()["items"]
        assert {one["path"] for one in refused.json()["error"]["details"]} == {one["id"] for one in open_now}
        assert len(open_now) == 2, "nothing was decided"

        client = await s.as_("approver", "operator")
        nobody = await client.post(f"/runs/{several}/approve")
        assert (nobody.status_code, problem(nobody)) == (403, "APPROVER_NOT_ELIGIBLE")
