"""Nobody approves a run that they requested, directly or through a client, a schedule, a hook or another run."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.stage import Site, problem, site
from tests.server.test_slack_hooks import link
from tests.server.webhook_senders import SECRET, SECRET_NAME, GitHub, Slack, make_hook, pull_request

DOCUMENT: dict[str, Any] = {
    "name": "deploy",
    "version": "1",
    "steps": [{"id": "ok", "approval": {"title": "Deploy"}}],
}
BOTH = ("operator", "approver", "admin", "viewer")
SCHEDULE = {"workflow": "deploy", "cron": "30 2 * * *"}
YES = {"decision": "approve"}
pytestmark = pytest.mark.clause("APR-10")


async def people(s: Site) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
    """Ada and Bob with all roles, and a workflow with an approval."""
    ada, bob = await s.person("ada", *BOTH), await s.person("bob", *BOTH)
    await register_as_service(s, DOCUMENT)
    return ada, bob


async def register_as_service(s: Site, document: dict[str, Any]) -> None:
    """Register a workflow as a service, so that no approver is involved."""
    service = await s.as_("operator")
    assert (await service.put(f"/workflows/{document['name']}", json=document)).status_code == 201


async def check_refused(person: httpx.AsyncClient, run: str) -> None:
    """Check that the person cannot approve the run, as its requester."""
    answer = await person.post(f"/runs/{run}/approve", json=YES)
    assert (answer.status_code, problem(answer)) == (403, "APPROVER_IS_REQUESTER")


async def check_approved(person: httpx.AsyncClient, run: str) -> None:
    """Check that the person can approve the run."""
    answer = await person.post(f"/runs/{run}/approve", json=YES)
    assert (answer.status_code, answer.json()["status"]) == (200, "approved")


async def test_the_creator_of_a_client_cannot_approve_its_runs(url: str) -> None:
    async with site(url) as s:
        ada, bob = await people(s)
        made = await ada.post("/clients", json={"id": "ci", "name": "CI", "roles": ["operator", "admin"]})
        assert made.json()["owner"] == "ada"
        cleared = await ada.put("/clients/ci", json={"name": "CI", "roles": ["operator", "admin"]})
        assert cleared.json()["owner"] == "ada"
        client = await s.caller((await ada.post("/keys", json={"client": "ci"})).json()["key"])
        again = await client.post("/clients", json={"id": "ci2", "name": "CI", "roles": ["operator"]})
        assert again.json()["owner"] == "ada", "a client that a client creates has the same owner"
        run = (await client.post("/runs", json={"workflow": "deploy"})).json()["id"]
        await check_refused(ada, run)
        await check_approved(bob, run)


async def test_the_person_who_triggers_or_changes_a_schedule_requests_its_runs(url: str) -> None:
    async with site(url) as s:
        ada, bob = await people(s)
        assert (await ada.post("/schedules", json={**SCHEDULE, "name": "nightly"})).status_code == 201
        run = (await bob.post("/schedules/nightly/trigger")).json()["id"]
        await check_refused(bob, run)
        await check_refused(ada, run)  # she owns the schedule
        await check_approved(await s.person("carol"), run)
        changed = await bob.put("/schedules/nightly", json={**SCHEDULE, "revision": 1})
        assert changed.json()["owner"] == "person:bob"


async def test_people_create_hooks_and_schedules_only_in_their_own_name(url: str) -> None:
    async with site(url) as s:
        ada, _ = await people(s)
        hook = {"kind": "github", "name": "h", "secrets": [f"env:{SECRET_NAME}"]}
        for path, body in (("/schedules", {**SCHEDULE, "name": "n"}), ("/hooks", hook)):
            answer = await ada.post(path, json={**body, "owner": "bob"})
            assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")
            mine = await ada.post(path, json={**body, "owner": "ada"})
            assert mine.json()["owner"] == "person:ada", mine.text


async def test_the_person_who_reruns_a_run_is_its_requester(url: str) -> None:
    async with site(url) as s:
        ada, bob = await people(s)
        run = (await ada.post("/runs", json={"workflow": "deploy"})).json()["id"]
        await check_refused(ada, run)
        assert (await bob.post(f"/runs/{run}/cancel")).status_code == 202
        again = (await bob.post(f"/runs/{run}/rerun")).json()["id"]
        await check_refused(bob, again)
        await check_refused(ada, again)  # she requested the first run
        await check_approved(await s.person("carol"), again)


async def test_the_hooks_of_a_closed_tenant_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)
    async with site(url) as s:
        ada, _ = await people(s)
        hook = {"kind": "github", "name": "h", "secrets": [f"env:{SECRET_NAME}"]}
        made = (await ada.post("/hooks", json={**hook, "rules": [{"workflow": "deploy"}]})).json()
        github = GitHub(s, made["id"])
        assert (await github.deliver("push", pull_request(1))).status_code == 201
        operator = await s.caller(await s.operator_key())
        assert (await operator.delete("/admin/tenants/acme")).status_code == 204
        answer = await github.deliver("push", pull_request(2))
        assert (answer.status_code, problem(answer)) == (404, "HOOK_NOT_FOUND")
        assert len(await s.engine.scoped(tenant="acme").runs.list()) == 1


# ------------------------------------------------------------------------ all involved people


async def _created(s: Site, ada: httpx.AsyncClient) -> str:
    return str((await ada.post("/runs", json={"workflow": "deploy"})).json()["id"])


async def _by_a_client_of_hers(s: Site, ada: httpx.AsyncClient) -> str:
    await ada.post("/clients", json={"id": "ci", "name": "CI", "roles": ["operator"]})
    client = await s.caller((await ada.post("/keys", json={"client": "ci"})).json()["key"])
    return await _created(s, client)


async def _by_a_client_that_became_hers(s: Site, ada: httpx.AsyncClient) -> str:
    admin = await s.as_("admin")
    await admin.post("/clients", json={"id": "ci2", "name": "CI", "roles": ["operator"]})
    client = await s.caller((await admin.post("/keys", json={"client": "ci2"})).json()["key"])
    run = await _created(s, client)
    made = await admin.put("/clients/ci2", json={"name": "CI", "roles": ["operator"], "owner": "ada"})
    assert made.json()["owner"] == "ada"
    return run


async def _patched(s: Site, ada: httpx.AsyncClient) -> str:
    run = await _created(s, await s.as_("operator"))
    assert (await ada.patch(f"/runs/{run}", json={"labels": {"for": "ada"}})).status_code == 200
    return run


async def _reran(s: Site, ada: httpx.AsyncClient) -> str:
    run = await _created(s, await s.as_("operator"))
    assert (await ada.post(f"/runs/{run}/cancel")).status_code == 202
    return str((await ada.post(f"/runs/{run}/rerun")).json()["id"])


async def _resumed(s: Site, ada: httpx.AsyncClient) -> str:
    run = await _created(s, await s.as_("operator"))
    assert (await ada.post(f"/runs/{run}/cancel")).status_code == 202
    return str((await ada.post(f"/runs/{run}/resume")).json()["id"])


async def _ended_a_wait(s: Site, ada: httpx.AsyncClient) -> str:
    operator = await s.as_("operator")
    steps = [{"id": "w", "wait": {"event": "go"}}, *DOCUMENT["steps"]]
    assert (
        await operator.put("/workflows/later", json={**DOCUMENT, "name": "later", "steps": steps})
    ).is_success
    run = str((await operator.post("/runs", json={"workflow": "later"})).json()["id"])
    assert (await ada.post(f"/runs/{run}/resume")).status_code == 200
    return run


async def _rerun_of_her_run(s: Site, ada: httpx.AsyncClient) -> str:
    operator = await s.as_("operator")
    run = await _created(s, ada)
    assert (await operator.post(f"/runs/{run}/cancel")).status_code == 202
    return str((await operator.post(f"/runs/{run}/rerun")).json()["id"])


async def _by_a_schedule_of_hers(s: Site, ada: httpx.AsyncClient) -> str:
    assert (await ada.post("/schedules", json={**SCHEDULE, "name": "nightly"})).status_code == 201
    return str((await (await s.as_("operator")).post("/schedules/nightly/trigger")).json()["id"])


async def _hook(who: httpx.AsyncClient) -> str:
    hook = {
        "kind": "github",
        "name": "h",
        "secrets": [f"env:{SECRET_NAME}"],
        "rules": [{"workflow": "deploy"}],
    }
    return str((await who.post("/hooks", json=hook)).json()["id"])


async def _by_a_hook_of_hers(s: Site, ada: httpx.AsyncClient) -> str:
    answer = await GitHub(s, await _hook(ada)).deliver("pull_request", pull_request())
    return str(answer.json()["run_id"])


async def _github_with_her_login(s: Site) -> GitHub:
    admin = await s.as_("admin")
    hers = {"name": "Ada", "roles": list(BOTH), "github": "Ada-Codes"}
    assert (await admin.put("/people/ada", json=hers)).json()["github"] == "ada-codes"
    return GitHub(s, await _hook(admin))


async def _her_pull_request(s: Site, _ada: httpx.AsyncClient) -> str:
    payload = pull_request(sender={"login": "somebody-else"})
    payload["pull_request"]["user"] = {"login": "ada-codes"}
    return str((await (await _github_with_her_login(s)).deliver("pull_request", payload)).json()["run_id"])


async def _her_push(s: Site, _ada: httpx.AsyncClient) -> str:
    payload = {"ref": "refs/heads/main", "after": "c0ffee", "repository": {"full_name": "octo/w"}}
    payload["pusher"] = {"name": "ADA-codes"}
    return str((await (await _github_with_her_login(s)).deliver("push", payload)).json()["run_id"])


async def _her_commit(s: Site, _ada: httpx.AsyncClient) -> str:
    payload: dict[str, Any] = {
        "ref": "refs/heads/main",
        "after": "c0ffef",
        "repository": {"full_name": "octo/w"},
    }
    payload["pusher"] = {"name": "somebody-else"}
    payload["commits"] = [{"author": {"username": "Ada-Codes"}}, {"author": {"username": "somebody-else"}}]
    return str((await (await _github_with_her_login(s)).deliver("push", payload)).json()["run_id"])


ENTRY_POINTS = (
    _created, _by_a_client_of_hers, _by_a_client_that_became_hers, _patched, _reran, _resumed, _ended_a_wait,
    _rerun_of_her_run, _by_a_schedule_of_hers, _by_a_hook_of_hers, _her_pull_request, _her_push,
    _her_commit,
)  # fmt: skip


@pytest.mark.clause("GOV-20")
async def test_involved_people_cannot_approve_over_http_or_in_slack(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I43, for each entry point. (For the command line on a database: tests/cli/test_runs.py.)"""
    monkeypatch.setenv(SECRET_NAME, SECRET)
    async with site(url) as s:
        ada, bob = await people(s)
        slack = Slack(s, (await make_hook(s, "slack"))["id"])
        await link(slack, ada)
        for entry_point in ENTRY_POINTS:
            run = await entry_point(s, ada)
            asked = await s.engine.scoped(tenant="acme").approvals.list(run)
            [approval] = [one for one in asked if one.status == "requested"]
            value = f"{approval.id}:{approval.revision}:{approval.digest}"
            answer = await ada.post(f"/runs/{run}/approve", json=YES)
            assert (entry_point.__name__, problem(answer)) == (entry_point.__name__, "APPROVER_IS_REQUESTER")
            for button in ("tenure.approve", "tenure.reject"):
                reply = await slack.click(button, value)
                assert "APPROVER_IS_REQUESTER" in reply, (entry_point.__name__, reply)
            assert (await s.engine.scoped(tenant="acme").approvals.list(run))[-1].votes == ()
            await check_approved(bob, run)


async def test_a_vote_stops_counting_when_its_voter_becomes_involved(url: str) -> None:
    document = {**DOCUMENT, "name": "two", "steps": [{"id": "ok", "approval": {"title": "D", "people": 2}}]}
    async with site(url) as s:
        ada, bob = await people(s)
        await register_as_service(s, document)
        run = (await (await s.as_("operator")).post("/runs", json={"workflow": "two"})).json()["id"]
        assert (await ada.post(f"/runs/{run}/approve", json=YES)).json()["status"] == "requested"
        assert (await ada.patch(f"/runs/{run}", json={"labels": {"x": "y"}})).status_code == 200
        answer = (await bob.post(f"/runs/{run}/approve", json=YES)).json()
        assert (answer["status"], answer["votes"]) == ("requested", 1)
        await check_approved(await s.person("carol"), run)


async def test_people_cannot_unmap_their_own_pull_requests(url: str) -> None:
    async with site(url) as s:
        ada, bob = await people(s)
        hers = {"name": "Ada", "roles": list(BOTH), "github": "ada-codes"}
        answer = await ada.put("/people/ada", json=hers)
        assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")
        assert (await bob.put("/people/ada", json=hers)).status_code == 200
        answer = await bob.post("/people", json={"name": "Eve", "roles": ["viewer"], "github": "ADA-codes"})
        assert (answer.status_code, problem(answer)) == (409, "ALREADY_EXISTS")
        assert problem(
            await bob.post("/people", json={"name": "E", "roles": ["viewer"], "github": "a b"})
        ) == ("INVALID_INPUT")


@pytest.mark.clause("GOV-20")
async def test_only_members_of_the_group_decide(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)
    document = {
        **DOCUMENT,
        "name": "ours",
        "steps": [{"id": "ok", "approval": {"title": "D", "group": "release"}}],
    }
    async with site(url) as s:
        ada, bob = await people(s)
        rita = await s.person("rita", groups=["release", "docs"])
        await register_as_service(s, document)
        run = (await ada.post("/runs", json={"workflow": "ours"})).json()["id"]
        [approval] = (await bob.get("/approvals")).json()["items"]
        assert approval["group"] == "release"
        slack = Slack(s, (await make_hook(s, "slack"))["id"])
        await link(slack, bob)
        for decision in ("approve", "reject"):
            answer = await bob.post(f"/runs/{run}/approve", json={"decision": decision})
            assert (answer.status_code, problem(answer)) == (403, "APPROVER_NOT_IN_GROUP")
            assert "APPROVER_NOT_IN_GROUP" in await slack.click(f"tenure.{decision}", f"{approval['id']}:1:")
        await check_approved(rita, run)
