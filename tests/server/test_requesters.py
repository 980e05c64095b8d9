"""Nobody approves what they have asked for, whichever way they asked: by a client, a schedule, a hook or another run."""

from __future__ import annotations

import httpx
import pytest

from tests.server.senders import SECRET, SECRET_NAME, GitHub, pull_request
from tests.server.stage import Site, problem, site

DOCUMENT = {"name": "deploy", "version": "1", "steps": [{"id": "ok", "approval": {"title": "Deploy"}}]}
BOTH = ("operator", "approver", "admin", "viewer")
SCHEDULE = {"workflow": "deploy", "cron": "30 2 * * *"}
YES = {"decision": "approve"}
pytestmark = pytest.mark.clause("APR-10")


async def people(s: Site) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
    """Ada and Bob may do everything, each for themselves; and there is something to approve."""
    ada, bob = await s.person("ada", *BOTH), await s.person("bob", *BOTH)
    assert (await ada.put("/workflows/deploy", json=DOCUMENT)).status_code == 201
    return ada, bob


async def refused(person: httpx.AsyncClient, run: str) -> None:
    """This person has asked for the run."""
    answer = await person.post(f"/runs/{run}/approve", json=YES)
    assert (answer.status_code, problem(answer)) == (403, "APPROVER_IS_REQUESTER")


async def approved(person: httpx.AsyncClient, run: str) -> None:
    """This person has not."""
    answer = await person.post(f"/runs/{run}/approve", json=YES)
    assert (answer.status_code, answer.json()["status"]) == (200, "approved")


async def test_whoever_makes_a_client_answers_for_it(url: str) -> None:
    async with site(url) as s:
        ada, bob = await people(s)
        made = await ada.post("/clients", json={"id": "ci", "name": "CI", "roles": ["operator", "admin"]})
        assert made.json()["owner"] == "ada"
        cleared = await ada.put("/clients/ci", json={"name": "CI", "roles": ["operator", "admin"]})
        assert cleared.json()["owner"] == "ada"
        client = await s.caller((await ada.post("/keys", json={"client": "ci"})).json()["key"])
        again = await client.post("/clients", json={"id": "ci2", "name": "CI", "roles": ["operator"]})
        assert again.json()["owner"] == "ada", "nor does a client of a client belong to nobody"
        run = (await client.post("/runs", json={"workflow": "deploy"})).json()["id"]
        await refused(ada, run)
        await approved(bob, run)


async def test_whoever_triggers_or_changes_a_schedule_has_asked_for_its_runs(url: str) -> None:
    async with site(url) as s:
        ada, bob = await people(s)
        assert (await ada.post("/schedules", json={**SCHEDULE, "name": "nightly"})).status_code == 201
        run = (await bob.post("/schedules/nightly/trigger")).json()["id"]
        await refused(bob, run)
        await refused(ada, run)  # the schedule is hers
        await approved(await s.person("carol"), run)
        changed = await bob.put("/schedules/nightly", json={**SCHEDULE, "revision": 1})
        assert changed.json()["owner"] == "person:bob"


async def test_a_person_makes_hooks_and_schedules_in_their_own_name_only(url: str) -> None:
    async with site(url) as s:
        ada, _ = await people(s)
        hook = {"kind": "github", "name": "h", "secrets": [f"env:{SECRET_NAME}"]}
        for path, body in (("/schedules", {**SCHEDULE, "name": "n"}), ("/hooks", hook)):
            answer = await ada.post(path, json={**body, "owner": "bob"})
            assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")
            mine = await ada.post(path, json={**body, "owner": "ada"})
            assert mine.json()["owner"] == "person:ada", mine.text


async def test_whoever_reruns_a_run_has_asked_for_it(url: str) -> None:
    async with site(url) as s:
        ada, bob = await people(s)
        run = (await ada.post("/runs", json={"workflow": "deploy"})).json()["id"]
        await refused(ada, run)
        assert (await bob.post(f"/runs/{run}/cancel")).status_code == 202
        again = (await bob.post(f"/runs/{run}/rerun")).json()["id"]
        await refused(bob, again)
        await refused(ada, again)  # it is what she had asked for
        await approved(await s.person("carol"), again)


async def test_a_closed_tenants_hooks_are_nobodys(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert len(await s.engine.scoped(tenant="acme").runs()) == 1
