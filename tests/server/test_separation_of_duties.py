"""An approval takes two people: every entry point, every confirmation, and identities that count as one person.
See docs/separation-of-duties.md."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tenure import ids
from tenure.client import Client
from tenure.clock import us
from tenure.limits import INVOLVED_PEOPLE_MAX
from tenure.server.auth.roles import ALLOWED
from tenure.services.identity.principals import OPERATOR
from tests.server.stage import ACME, Site, problem, site
from tests.server.test_slack_hooks import link
from tests.server.webhook_senders import (
    SECRET,
    SECRET_NAME,
    GitHub,
    Slack,
    make_hook,
    pull_request,
    register_app,
)

DOCS = Path(__file__).parents[2] / "docs" / "separation-of-duties.md"
GATE: dict[str, Any] = {"id": "ok", "approval": {"title": "Deploy"}}
DEPLOY: dict[str, Any] = {"name": "deploy", "version": "1", "steps": [GATE]}
LATER: dict[str, Any] = {
    "name": "later",
    "version": "1",
    "steps": [{"id": "w", "wait": {"event": "go"}}, GATE],
}
BUILD: dict[str, Any] = {
    "name": "build",
    "version": "1",
    "steps": [{"id": "b", "run": "true", "required": False, "needs": []}, {**GATE, "needs": []}],
}
SCHEDULE = {"workflow": "deploy", "cron": "30 2 * * *"}
ALL = ("operator", "approver", "admin", "viewer", "runner")
YES = {"decision": "approve"}


class People(NamedTuple):
    """Ada tries to start and approve. Bob and Carol are other people. A service with every role and no owner does the rest."""

    s: Site
    ada: httpx.AsyncClient
    bob: httpx.AsyncClient
    carol: httpx.AsyncClient
    service: httpx.AsyncClient


async def people(s: Site) -> People:
    ada, bob, carol = [await s.person(name, *ALL) for name in ("ada", "bob", "carol")]
    service = await s.as_(*ALL)
    for document in (DEPLOY, LATER, BUILD):
        assert (await service.put(f"/workflows/{document['name']}", json=document)).status_code == 201
    return People(s, ada, bob, carol, service)


async def send(who: httpx.AsyncClient, method: str, path: str, **body: Any) -> Any:
    answer = await who.request(method, path, json=body or None)
    assert answer.is_success, (path, answer.text)
    return answer.json() if answer.content else None


async def start_run(who: httpx.AsyncClient, workflow: str = "deploy") -> str:
    return str((await send(who, "POST", "/runs", workflow=workflow))["id"])


async def try_to_approve(who: httpx.AsyncClient, run: str) -> str:
    """The status of the approval after this person approves, or the code of the refusal."""
    answer = await who.post(f"/runs/{run}/approve", json=YES)
    return str(answer.json().get("status")) if answer.is_success else problem(answer)


def github(p: People, hook_id: str) -> GitHub:
    return GitHub(p.s, hook_id)


async def create_hook(who: httpx.AsyncClient, *rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"kind": "github", "name": "h", "secrets": [f"env:{SECRET_NAME}"], "rules": list(rules), **more}
    made: dict[str, Any] = await send(who, "POST", "/hooks", **body)
    return made


async def update_hook(who: httpx.AsyncClient, hook: dict[str, Any], *rules: dict[str, Any]) -> dict[str, Any]:
    body = {"name": "h", "secrets": hook["secrets"], "rules": list(rules), "revision": hook["revision"]}
    made: dict[str, Any] = await send(who, "PUT", f"/hooks/{hook['id']}", **body)
    return made


async def deliver(p: People, hook: dict[str, Any], number: int = 1) -> str:
    answer = await github(p, hook["id"]).deliver("pull_request", pull_request(number))
    return str(answer.json()["run_id"])


TO_DEPLOY = {"workflow": "deploy"}

# ------------------------------------------------------------------------------------------------ entry points


class EntryPoint(NamedTuple):
    """Ada does one thing to another person's run. `after_confirmation` makes another run after Bob has confirmed her edit."""

    routes: str
    run: Callable[[People], Awaitable[str]]
    after_confirmation: Callable[[People], Awaitable[str]] | None = None


ENTRY_POINTS: dict[str, EntryPoint] = {}


def entry_point(
    *routes: str,
) -> Callable[[Callable[[People], Awaitable[str]]], Callable[[People], Awaitable[str]]]:
    """Registers what Ada does. `confirmed` registers what follows Bob's confirmation."""

    def register(act: Callable[[People], Awaitable[str]]) -> Callable[[People], Awaitable[str]]:
        ENTRY_POINTS[act.__name__] = EntryPoint(" ".join(routes), act)
        return act

    return register


def confirmed(of: str) -> Callable[[Callable[[People], Awaitable[str]]], Callable[[People], Awaitable[str]]]:
    def register(act: Callable[[People], Awaitable[str]]) -> Callable[[People], Awaitable[str]]:
        ENTRY_POINTS[of] = ENTRY_POINTS[of]._replace(after_confirmation=act)
        return act

    return register


@entry_point("POST /runs")
async def starts(p: People) -> str:
    return await start_run(p.ada)


@entry_point("POST /runs/batch")
async def starts_many(p: People) -> str:
    made = await send(p.ada, "POST", "/runs/batch", items=[{"workflow": "deploy"}])
    return str(made["results"][0]["run"]["id"])


@entry_point("POST /agents/run")
async def starts_an_agent(p: People) -> str:
    return str((await send(p.ada, "POST", "/agents/run", workflow="deploy"))["id"])


@entry_point("POST /clients")
async def creates_a_client_of_bob(p: People) -> str:
    await send(p.ada, "POST", "/clients", id="c1", name="C", roles=["operator"], owner="bob")
    key = (await send(p.service, "POST", "/keys", client="c1"))["key"]
    return await start_run(await p.s.caller(key))


@confirmed("creates_a_client_of_bob")
async def client_confirmed(p: People) -> str:
    made = await send(p.carol, "POST", "/clients/c1/confirm", revision=1)
    assert (made["confirmed"], made["unconfirmed"]) == (["person:ada"], [])
    return await start_run(await p.s.caller((await send(p.service, "POST", "/keys", client="c1"))["key"]))


@entry_point("PUT /clients/{client_id}")
async def changes_a_client(p: People) -> str:
    await send(p.service, "POST", "/clients", id="c2", name="C", roles=["viewer"])
    await send(p.ada, "PUT", "/clients/c2", name="C", roles=["operator"], owner="bob")
    return await start_run(await p.s.caller((await send(p.service, "POST", "/keys", client="c2"))["key"]))


@entry_point("POST /keys")
async def makes_a_key(p: People) -> str:
    await send(p.service, "POST", "/clients", id="c3", name="C", roles=["operator"], owner="bob")
    made = await send(p.ada, "POST", "/keys", client="c3")
    assert made["unconfirmed"] == ["person:ada"]
    return await start_run(await p.s.caller(made["key"]))


@entry_point("POST /keys/{key_id}/rotate")
async def rotates_a_key(p: People) -> str:
    await send(p.service, "POST", "/clients", id="c4", name="C", roles=["operator"], owner="bob")
    first = await send(p.service, "POST", "/keys", client="c4")
    p.s.__dict__["rotated"] = made = await send(p.ada, "POST", f"/keys/{first['id']}/rotate")
    return await start_run(await p.s.caller(made["key"]))


@confirmed("rotates_a_key")
async def key_confirmed(p: People) -> str:
    made = p.s.__dict__["rotated"]
    told = await send(p.carol, "POST", f"/keys/{made['id']}/confirm")
    assert "person:ada" in told["confirmed"]
    assert told["unconfirmed"] == []
    return await start_run(await p.s.caller(made["key"]))


async def canceled(p: People) -> str:
    run = await start_run(p.service)
    await send(p.service, "POST", f"/runs/{run}/cancel")
    return run


@entry_point("POST /runs/{run_id}/rerun")
async def reruns(p: People) -> str:
    return str((await send(p.ada, "POST", f"/runs/{await canceled(p)}/rerun"))["id"])


@entry_point("POST /runs/{run_id}/resume")
async def resumes(p: People) -> str:
    return str((await send(p.ada, "POST", f"/runs/{await canceled(p)}/resume"))["id"])


@entry_point("POST /runs/{run_id}/resume")
async def ends_a_wait(p: People) -> str:
    run = await start_run(p.service, "later")
    await send(p.ada, "POST", f"/runs/{run}/resume")
    return run


@entry_point("POST /hooks")
async def makes_a_hook(p: People) -> str:
    return await deliver(p, await create_hook(p.ada, TO_DEPLOY))


@entry_point("PUT /hooks/{hook_id}")
async def edits_a_colleagues_hook(p: People) -> str:
    hook = await update_hook(p.ada, await create_hook(p.bob), TO_DEPLOY)
    p.s.__dict__["edited"] = hook
    assert (hook["owner"], hook["unconfirmed"]) == ("person:bob", ["person:bob", "person:ada"])
    return await deliver(p, hook)


@confirmed("edits_a_colleagues_hook")
async def hook_confirmed(p: People) -> str:
    hook = p.s.__dict__["edited"]
    stale = await p.carol.post(f"/hooks/{hook['id']}/confirm", json={"revision": 1})
    assert problem(stale) == "CHANGED_MEANWHILE"
    hook = await send(p.bob, "POST", f"/hooks/{hook['id']}/confirm", revision=hook["revision"])
    assert hook["unconfirmed"] == ["person:bob"], "nobody confirms their own edit"
    assert hook["confirmed"] == ["person:ada"]
    return await deliver(p, hook, 2)


@entry_point("POST /hooks/{hook_id}/deliveries/{delivery_id}/replay")
async def replays_a_delivery(p: People) -> str:
    hook = await create_hook(p.service, TO_DEPLOY)
    await deliver(p, hook)
    [told] = (await send(p.ada, "GET", f"/hooks/{hook['id']}/deliveries"))["items"]
    return str((await send(p.ada, "POST", f"/hooks/{hook['id']}/deliveries/{told['id']}/replay"))["run_id"])


@entry_point("POST /hooks/github/{hook_id}")
async def opens_a_pull_request(p: People) -> str:
    await p.s.engine.scoped(tenant=ACME, caller=OPERATOR).people.update(
        "ada", name="Ada", roles=ALL, github="ada-codes"
    )
    hook = await create_hook(p.service, TO_DEPLOY)
    told = pull_request(4, sender={"login": "ada-codes"})
    return str((await github(p, hook["id"]).deliver("pull_request", told)).json()["run_id"])


async def type_command(slack: Slack) -> str:
    """Type a command; returns the run that it starts."""
    return str((await slack.command("deploy")).json()["text"]).splitlines()[0].rpartition(" ")[2]


@entry_point("POST /hooks/slack/{hook_id}/commands")
async def types_a_command(p: People) -> str:
    slack = Slack(p.s, (await make_hook(p.s, "slack", TO_DEPLOY))["id"], user="U_ada")
    await link(slack, p.ada)
    return await type_command(slack)


@entry_point("POST /schedules")
async def makes_a_schedule(p: People) -> str:
    await send(p.ada, "POST", "/schedules", name="s1", **SCHEDULE)
    return str((await send(p.service, "POST", "/schedules/s1/trigger"))["id"])


@entry_point("PUT /schedules/{name}")
async def changes_a_schedule_before_bob_does(p: People) -> str:
    await send(p.service, "POST", "/schedules", name="s2", **SCHEDULE)
    await send(p.ada, "PUT", "/schedules/s2", revision=1, **SCHEDULE)
    made = await send(p.bob, "PUT", "/schedules/s2", revision=2, **SCHEDULE)
    assert made["owner"] == "person:bob"
    return str((await send(p.service, "POST", "/schedules/s2/trigger"))["id"])


@confirmed("changes_a_schedule_before_bob_does")
async def schedule_confirmed(p: People) -> str:
    made = await send(p.carol, "POST", "/schedules/s2/confirm", revision=3)
    assert {"person:ada", "person:bob"} < set(made["confirmed"])
    assert made["unconfirmed"] == []
    again = await send(p.carol, "POST", "/schedules/s2/confirm", revision=3)
    assert again["confirmed"] == [], "nothing is left to confirm"
    return str((await send(p.service, "POST", "/schedules/s2/trigger"))["id"])


@entry_point("POST /schedules/{name}/unpause")
async def unpauses_a_schedule(p: People) -> str:
    await send(p.service, "POST", "/schedules", name="s3", paused=True, **SCHEDULE)
    await send(p.ada, "POST", "/schedules/s3/unpause")
    return str((await send(p.service, "POST", "/schedules/s3/trigger"))["id"])


@entry_point("POST /schedules/{name}/trigger")
async def triggers_a_schedule(p: People) -> str:
    await send(p.service, "POST", "/schedules", name="s4", **SCHEDULE)
    return str((await send(p.ada, "POST", "/schedules/s4/trigger"))["id"])


@entry_point("PUT /workflows/{name}")
async def registers_a_workflow(p: People) -> str:
    made = await send(p.ada, "PUT", "/workflows/hers", **{**DEPLOY, "name": "hers"})
    assert (made["registered_by"], made["unconfirmed"]) == ("person:ada", ["person:ada"])
    return await start_run(p.service, "hers")


@confirmed("registers_a_workflow")
async def workflow_confirmed(p: People) -> str:
    [shown] = (await send(p.bob, "GET", "/workflows/hers"))["items"]
    stale = await p.bob.post("/workflows/hers/confirm", json={"version": "1", "digest": "0" * 64})
    assert problem(stale) == "CHANGED_MEANWHILE"
    made = await send(p.bob, "POST", "/workflows/hers/confirm", version="1", digest=shown["digest"])
    assert (made["confirmed"], made["unconfirmed"]) == (["person:ada"], [])
    return await start_run(p.service, "hers")


@entry_point("PUT /workflows/{name}", "POST /schedules")
async def registers_the_workflow_of_a_schedule(p: People) -> str:
    await send(p.ada, "PUT", "/workflows/taken", **{**DEPLOY, "name": "taken"})
    await send(p.service, "POST", "/schedules", name="s5", **{**SCHEDULE, "workflow": "taken"})
    return str((await send(p.service, "POST", "/schedules/s5/trigger"))["id"])


@entry_point("POST /runner/workflows")
async def registers_as_a_runner_with_her_own_key(p: People) -> str:
    entry = {"name": "ran", "version": "1", "kind": "declared", "definition": {**DEPLOY, "name": "ran"}}
    await send(p.ada, "POST", "/runner/workflows", workflows=[entry])
    return await start_run(p.service, "ran")


@entry_point("POST /runs/{run_id}/signals/{name}")
async def signals(p: People) -> str:
    run = await start_run(p.service, "later")
    await send(p.ada, "POST", f"/runs/{run}/signals/go", data={"amount": 1})
    return run


@entry_point("POST /runs/{run_id}/signals/{name}")
async def signals_before_the_run_waits(p: People) -> str:
    now: int = (await p.s.engine.store.read("now"))[0].now_us
    later = datetime.fromtimestamp(now / 1e6 + 3600, UTC).isoformat()
    run = str((await send(p.service, "POST", "/runs", workflow="later", not_before=later))["id"])
    await send(p.ada, "POST", f"/runs/{run}/signals/go")
    p.s.engine.store.shift_clock(us(3601))
    await p.s.engine.settle()
    return run


@entry_point("POST /hooks/{hook_id}/deliveries/{delivery_id}/replay")
async def replays_a_delivery_that_signals(p: People) -> str:
    run = await start_run(p.service, "later")
    rule = {"signal": "go", "run": "body.run"}
    hook = await create_hook(p.service)
    await github(p, hook["id"]).deliver("push", {"run": run}, delivery="d")
    await update_hook(p.service, hook, rule)
    await send(p.ada, "POST", f"/hooks/{hook['id']}/deliveries/d/replay")
    return run


@entry_point("PATCH /runs/{run_id}")
async def changes_labels(p: People) -> str:
    run = await start_run(p.service)
    await send(p.ada, "PATCH", f"/runs/{run}", labels={"for": "ada"})
    return run


@entry_point("POST /runs/{run_id}/steps/{key}/cancel")
async def cancels_a_step(p: People) -> str:
    run = await start_run(p.service, "build")
    await send(p.ada, "POST", f"/runs/{run}/steps/b/cancel")
    return run


@entry_point("POST /runs/{run_id}/cancel")
async def cancels_a_run_that_is_rerun(p: People) -> str:
    run = await start_run(p.service)
    await send(p.ada, "POST", f"/runs/{run}/cancel")
    return str((await send(p.service, "POST", f"/runs/{run}/rerun"))["id"])


@entry_point("POST /runs/cancel")
async def cancels_runs_of_which_one_is_rerun(p: People) -> str:
    run = await start_run(p.service)
    await send(p.service, "PATCH", f"/runs/{run}", labels={"cancel": "these"})
    fitting = {"label": "cancel=these"}
    token = (await send(p.ada, "POST", "/runs/cancel", filter=fitting))["token"]
    await send(p.ada, "POST", "/runs/cancel", filter=fitting, token=token)
    return str((await send(p.service, "POST", f"/runs/{run}/rerun"))["id"])


@entry_point("POST /runs/{run_id}/revoke")
async def revokes_a_lease(p: People) -> str:
    run = await start_run(p.service, "build")
    lease = await send(p.service, "POST", "/runner/claim", claim_id=run, capabilities=["default|run"], max=1)
    assert len(lease["leases"]) == 1, lease
    await send(p.ada, "POST", f"/runs/{run}/revoke")
    return run


async def run_and_claim(p: People, tool: str) -> tuple[str, dict[str, Any]]:
    """Start a run with an approval and a step for this tool. Returns the run and a claim of that step."""
    step = {"id": "b", "uses": tool, "required": False, "needs": []}
    await send(
        p.service, "PUT", f"/workflows/{tool}", name=tool, version="1", steps=[step, BUILD["steps"][1]]
    )
    run = await start_run(p.service, tool)
    return run, {"claim_id": run, "capabilities": [f"default|tool:{tool}"], "max": 1}


@entry_point("POST /runner/claim")
async def works_on_a_step_with_her_own_key(p: People) -> str:
    run, claim = await run_and_claim(p, "saw")
    [lease] = (await send(p.ada, "POST", "/runner/claim", **claim))["leases"]
    [again] = (await send(p.ada, "POST", "/runner/claim", **claim))["leases"]
    assert lease["token"] == again["token"]
    return run


@entry_point("POST /runner/messages")
async def works_on_a_step_in_a_batch_with_her_own_key(p: People) -> str:
    run, claim = await run_and_claim(p, "plane")
    answer = await send(p.ada, "POST", "/runner/messages", messages=[], claim=claim)
    assert len(answer["leases"]) == 1, answer
    return run


@entry_point("POST /people", "POST /people/{person_id}/enrolment", "POST /enrolments")
async def creates_a_person_who_starts_a_run(p: People) -> str:
    await send(p.ada, "POST", "/people", id="x1", name="X", roles=["operator", "approver"])
    code = (await send(p.ada, "POST", "/people/x1/enrolment"))["code"]
    made = await send(await p.s.caller(), "POST", "/enrolments", code=code)
    assert made["unconfirmed"] == ["person:ada"]
    return await start_run(await p.s.caller(made["key"]["key"]))


@confirmed("creates_a_person_who_starts_a_run")
async def person_confirmed(p: People) -> str:
    shown = await send(p.bob, "GET", "/people/x1")
    await send(p.bob, "POST", "/people/x1/confirm", revision=shown["revision"])
    code = (await send(p.service, "POST", "/people/x1/enrolment"))["code"]
    made = await send(await p.s.caller(), "POST", "/enrolments", code=code)
    return await start_run(await p.s.caller(made["key"]["key"]))


@entry_point("PUT /people/{person_id}")
async def promotes_a_person_who_starts_a_run(p: People) -> str:
    dora = await p.s.person("dora", "operator")
    await send(p.ada, "PUT", "/people/dora", name="D", roles=["operator", "viewer"])
    return await start_run(dora)


TESTED_ELSEWHERE = {
    "POST /runs/{run_id}/undo": "the same code as a rerun",
    "POST /ci/runs": "the same code as a rerun",
    "POST /receipts/{receipt_id}/settle": "tests/kernel/test_separation_of_duties.py",
    "POST /freezes": "tests/govern/test_policy_acts.py",
    "POST /hooks/generic/{hook_id}": "the same code as GitHub's hooks",
    "POST /hooks/servicenow/{hook_id}": "the same code as GitHub's hooks",
}
"""Entry points that are tested elsewhere."""


@pytest.mark.clause("GOV-20")
@pytest.mark.guard_seconds(300)
async def test_nobody_can_start_and_approve_through_any_entry_point(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I59: a person who uses one of these entry points cannot approve the run; another person can. After a second person has
    confirmed an edit, its author can approve later runs."""
    monkeypatch.setenv(SECRET_NAME, SECRET)
    async with site(url, key_cache_seconds=0.0) as s:
        p = await people(s)
        other = await p.s.person("olga", "approver")
        wrong = []
        for name, entry in ENTRY_POINTS.items():
            run = await entry.run(p)
            answers = [await try_to_approve(p.ada, run), await try_to_approve(other, run)]
            if entry.after_confirmation is not None:
                answers.append(await try_to_approve(p.ada, await entry.after_confirmation(p)))
            if answers != ["APPROVER_IS_REQUESTER", "approved", "approved"][: len(answers)]:
                wrong.append((name, answers))
        assert wrong == []


CLASSES: dict[str, str] = {
    "involved": "makes the caller involved in a run, now or later",
    "counts_as_one": "makes the caller count as one with another person",
    "confirms": "a second person confirms an edit",
    "decides": "only a second person may do this",
    "when": "changes when a run works, not what it does",
    "work": "runners do this with a service's key: recorded, but involves no person",
    "two_people": "already requires two people",
    "operator": "an audited emergency override of the installation's operator",
    "oneself": "concerns only the caller's own sessions and keys",
    "narrows": "only removes access, or notifies others",
}
BY_CLASS: dict[str, str] = {
    "decides": """POST /runs/{run_id}/approve|POST /approvals/{approval_id}/decision|POST /approvals/{approval_id}/withdraw
        |POST /proposals/{proposal_id}/decision|POST /hooks/slack/{hook_id}/actions""",
    "when": """POST /runs/{run_id}/pause|POST /runs/{run_id}/unpause
        |POST /runs/{run_id}/reported|POST /reports/{run_id}/retry|POST /schedules/{name}/pause|DELETE /schedules/{name}""",
    "two_people": "POST /policies|POST /policies/shadow|POST /policies/{version}/activate|POST /policies/{version}/withdraw|POST /freezes/thaw",
    "oneself": """POST /session|DELETE /session|POST /me/keys/{key_id}/rotate|DELETE /me/keys/{key_id}|PUT /me/slack
        |DELETE /me/slack""",
    "narrows": """DELETE /hooks/{hook_id}|POST /webhooks|PUT /webhooks/{webhook_id}|DELETE /webhooks/{webhook_id}
        |POST /webhooks/{webhook_id}/dead/retry|DELETE /clients/{client_id}|DELETE /people/{person_id}|DELETE /keys/{key_id}""",
}


def documented_entry_points() -> set[str]:
    """The routes in the table of entry points."""
    table = (
        DOCS.read_text(encoding="utf-8")
        .partition("## Who is involved")[2]
        .partition("These are not involved")[0]
    )
    return set(re.findall(r"(?:GET|POST|PUT|PATCH|DELETE) /[^`]+", table))


def test_every_route_that_changes_something_is_classified() -> None:
    """A new route must be classified here and in the docs: whether it makes its caller involved in a run."""
    ways = {route for one in ENTRY_POINTS.values() for route in re.findall(r"[A-Z]+ \S+", one.routes)}
    assert ways | TESTED_ELSEWHERE.keys() == documented_entry_points(), (
        "the table in the docs lists exactly the tested entry points"
    )
    known = set(ways) | TESTED_ELSEWHERE.keys()
    for text in BY_CLASS.values():
        known |= {route.strip() for route in text.split("|")}
    changing = {route for route in ALLOWED if not route.startswith("GET ")}
    known |= {route for route in changing if route.startswith(("POST /runner/", "PUT /runner/"))}
    known |= {route for route in changing if route.endswith("/confirm") or " /admin/" in route}
    assert changing - known == set(), "routes without a class"
    assert known - changing == set(), "classified routes that do not exist"
    assert set(BY_CLASS) <= set(CLASSES)


# ------------------------------------------------------------------------------------- identities that count as one person


async def enrol(p: People, who: httpx.AsyncClient, person: str) -> httpx.AsyncClient:
    """Enrol a person with a code that `who` created. `who` could have used the code as well."""
    code = (await send(who, "POST", f"/people/{person}/enrolment"))["code"]
    made = await send(await p.s.caller(), "POST", "/enrolments", code=code)
    return await p.s.caller(made["key"]["key"])


async def test_an_administrator_with_a_second_identity_counts_as_one_person(url: str) -> None:
    async with site(url, key_cache_seconds=0.0) as s:
        p = await people(s)
        new = {"name": "X", "roles": ["operator", "approver", "admin", "viewer"]}
        await send(p.ada, "POST", "/people", id="x", **new)
        x = await enrol(p, p.ada, "x")
        again = await enrol(p, p.ada, "carol")  # Carol's old keys end, and her session shows why
        assert (await send(again, "GET", "/session"))["unconfirmed"] == ["person:ada"]
        await send(x, "POST", "/people", id="y", **new)
        y = await enrol(p, x, "y")
        for one in (x, again, y):
            assert await try_to_approve(one, await start_run(p.ada)) == "APPROVER_IS_REQUESTER"
            assert await try_to_approve(p.ada, await start_run(one)) == "APPROVER_IS_REQUESTER"
        assert await try_to_approve(y, await start_run(again)) == "APPROVER_IS_REQUESTER", (
            "the rule is transitive"
        )
        two = {**DEPLOY, "name": "two", "steps": [{"id": "ok", "approval": {"title": "D", "people": 2}}]}
        await send(p.service, "PUT", "/workflows/two", **two)
        run = await start_run(p.service, "two")
        assert await try_to_approve(p.ada, run) == "requested"
        assert await try_to_approve(x, run) == "APPROVER_COUNTED", "one person counts once"
        # Policies and confirmations take two people, too.
        rule = "{name: r, connector: c, operation: o, allow: true}"
        made = await send(p.ada, "POST", "/policies", text=f"version: 1\nrules: [{rule}]\n")
        assert (await send(p.ada, "POST", f"/policies/{made['version']}/activate"))["state"] == "proposed"
        assert problem(await x.post(f"/policies/{made['version']}/activate")) == "SECOND_PERSON_NEEDED"
        for confirmer, person in (
            (p.ada, "x"),
            (x, "x"),
            (y, "x"),
            (x, "carol"),
            (again, "carol"),
            (p.ada, "y"),
        ):
            shown = await send(p.service, "GET", f"/people/{person}")
            answer = await confirmer.post(f"/people/{person}/confirm", json={"revision": shown["revision"]})
            assert (answer.status_code, problem(answer)) == (403, "SECOND_PERSON_NEEDED"), person
        assert problem(await p.service.post("/people/x/confirm", json={"revision": 1})) == "FORBIDDEN"
        # Bob is a second administrator. He confirms the revision that he has seen. While Y is unconfirmed, X and Ada count as one.
        shown = await send(p.bob, "GET", "/people/x")
        assert (
            problem(await p.bob.post("/people/x/confirm", json={"revision": shown["revision"] + 1}))
            == "CHANGED_MEANWHILE"
        )
        assert (await send(p.bob, "POST", "/people/x/confirm", revision=shown["revision"]))[
            "unconfirmed"
        ] == []
        assert await try_to_approve(x, await start_run(p.ada)) == "APPROVER_IS_REQUESTER"
        shown = await send(p.bob, "GET", "/people/y")
        await send(p.bob, "POST", "/people/y/confirm", revision=shown["revision"])
        assert await try_to_approve(x, await start_run(p.ada)) == "approved"
        assert (await send(x, "POST", f"/policies/{made['version']}/activate"))["state"] == "active"
        newest = (await send(p.bob, "GET", "/audit"))["items"]
        lines = {line["kind"]: line["about"] for line in reversed(newest)}
        assert lines["person.confirmed"] == {"person": "y", "of": ["person:x", "person:ada"], "left": []}
        assert lines["person.enrolled"]["unconfirmed"] == ["person:x", "person:ada"]


async def test_nobody_changes_their_own_roles_through_a_client_or_a_created_person(url: str) -> None:
    async with site(url, key_cache_seconds=0.0) as s:
        p = await people(s)
        eve = await s.person("eve", "admin")
        await send(eve, "POST", "/clients", id="mine", name="M", roles=["admin"])
        client = await s.caller((await send(eve, "POST", "/keys", client="mine"))["key"])
        await send(eve, "POST", "/clients", id="bobs", name="M", roles=["admin"], owner="bob")
        bobs = await s.caller((await send(eve, "POST", "/keys", client="bobs"))["key"])
        await send(eve, "POST", "/people", id="x", name="X", roles=["admin"])
        x = await enrol(p, eve, "x")
        more = {"name": "Eve", "roles": ["admin", "approver"]}
        for one in (eve, client, bobs, x):
            answer = await one.put("/people/eve", json=more)
            assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")
        made = await send(p.ada, "PUT", "/people/eve", **more)
        assert made["unconfirmed"] == ["person:ada"]
        renamed = await send(p.bob, "PUT", "/people/eve", **{**more, "name": "E"})
        assert renamed["unconfirmed"] == ["person:ada"], "a change of the name needs no confirmation"


async def test_two_administrators_confirm_each_others_changes_of_a_person(url: str) -> None:
    async with site(url, key_cache_seconds=0.0) as s:
        p = await people(s)
        await send(p.ada, "POST", "/people", id="x", name="X", roles=["viewer"])
        made = await send(p.bob, "PUT", "/people/x", name="X", roles=["approver"])
        assert made["unconfirmed"] == ["person:ada", "person:bob"]
        left = await send(p.bob, "POST", "/people/x/confirm", revision=made["revision"])
        assert (left["confirmed"], left["unconfirmed"]) == (["person:ada"], ["person:bob"])
        assert (await send(p.ada, "POST", "/people/x/confirm", revision=made["revision"]))[
            "unconfirmed"
        ] == []


async def test_the_operator_has_an_audited_emergency_override(url: str) -> None:
    async with site(url, key_cache_seconds=0.0) as s:
        p = await people(s)
        operator = await s.caller(await s.operator_key())
        await send(p.ada, "POST", "/people", id="x", name="X", roles=["operator", "approver"])
        x = await enrol(p, p.ada, "x")
        shown = await send(p.ada, "GET", "/people/x")
        made = await send(
            operator, "POST", "/admin/tenants/acme/people/x/confirm", revision=shown["revision"]
        )
        assert (made["confirmed"], made["unconfirmed"]) == (["person:ada"], [])
        assert await try_to_approve(x, await start_run(p.ada)) == "approved"
        invited = await send(
            operator, "POST", "/admin/tenants/acme/people", id="z", name="Z", roles=["admin"]
        )
        assert invited["person"]["unconfirmed"] == []
        lines = (await send(p.ada, "GET", "/audit"))["items"]
        glass = [(one["kind"], one["actor"]) for one in lines if one["about"].get("break_glass")]
        assert glass == [
            ("person.invited", "operator:operator"),
            ("person.created", "operator:operator"),
            ("person.confirmed", "operator:operator"),
        ]


async def test_programs_confirm_through_the_engine(url: str) -> None:
    async with site(url) as s:
        ada, key = await s.person("ada", *ALL), await s.key(*ALL, person="bob")
        await send(ada, "POST", "/clients", id="c", name="C", roles=["operator"])
        made = await send(ada, "POST", "/keys", client="c")
        document = await send(ada, "PUT", "/workflows/deploy", **DEPLOY)
        await send(ada, "POST", "/schedules", name="a/b", **SCHEDULE)
        await send(ada, "POST", "/people", id="x", name="X", roles=["viewer"])
        async with Client(s.address, key) as bob, Client(s.address, await s.operator_key()) as operator:
            told = [
                await bob.confirmations.confirm("client", "c", revision=1),
                await bob.confirmations.confirm("key", made["id"]),
                await bob.confirmations.confirm("workflow", "deploy", version="1", digest=document["digest"]),
                await bob.confirmations.confirm("schedule", "a/b", revision=1),
                await operator.confirmations.confirm_as_operator(ACME, "x", revision=1),
            ]
        assert [(one.kind, one.unconfirmed) for one in told] == [
            (kind, []) for kind in ("client", "key", "workflow", "schedule", "person")
        ]


# --------------------------------------------------------------------------------------------------- Slack


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret of the tenant's hooks and of its Slack app."""
    monkeypatch.setenv(SECRET_NAME, SECRET)


async def test_slack_decisions_need_an_app_registered_by_the_operator(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person who knows a hook's secret can forge clicks and links of a colleague. Neither counts."""
    monkeypatch.setenv(SECRET_NAME, SECRET)
    monkeypatch.setenv("TENURE_SECRET_acme_APP", "another secret")
    async with site(url) as s:
        p = await people(s)
        slack = Slack(s, (await make_hook(s, "slack"))["id"], user="U_bob")
        await link(slack, p.bob)
        run = await start_run(p.ada)
        [asked] = (await send(p.bob, "GET", "/approvals"))["items"]
        value = f"{asked['id']}:1:"
        await register_app(
            s, "T1", "env:TENURE_SECRET_acme_APP"
        )  # Ada knows the hook's secret, not the app's
        assert "SLACK_APP_NOT_REGISTERED" in await slack.click("tenure.approve", value)
        assert "SLACK_APP_NOT_REGISTERED" in (await slack.command("link")).json()["text"]
        await register_app(s, "T2")  # the right secret, for another team
        assert "SLACK_APP_NOT_REGISTERED" in await slack.click("tenure.approve", value)
        await s.engine.scoped(tenant="", caller=OPERATOR).tenants.remove_slack_app(ACME, "T1")
        assert "SLACK_APP_NOT_REGISTERED" in await slack.click("tenure.approve", value)
        assert (await send(p.bob, "GET", f"/runs/{run}"))["status"] == "waiting_approval"
        operator = await s.caller(await s.operator_key())
        wrong = await operator.put("/admin/tenants/acme/slack-apps/T1", json={"secrets": ["env:PATH"]})
        assert problem(wrong) == "INVALID_INPUT"
        await send(operator, "PUT", "/admin/tenants/acme/slack-apps/T1", secrets=[f"env:{SECRET_NAME}"])
        assert [one["team"] for one in await send(operator, "GET", "/admin/tenants/acme/slack-apps")] == [
            "T1",
            "T2",
        ]
        assert (await slack.click("tenure.approve", value)).endswith("is approved.")
        assert (await operator.delete("/admin/tenants/acme/slack-apps/T3")).status_code == 404
        assert (await operator.delete("/admin/tenants/acme/slack-apps/T2")).status_code == 204


async def test_unlinking_a_slack_account_does_not_hide_its_user(url: str, secret: None) -> None:
    async with site(url) as s:
        p = await people(s)
        slack = Slack(s, (await make_hook(s, "slack", TO_DEPLOY))["id"], user="U_ada")
        await link(slack, p.ada)
        assert (await p.ada.delete("/me/slack")).status_code == 204
        run = await type_command(slack)
        assert await try_to_approve(p.ada, run) == "APPROVER_IS_REQUESTER"
        await link(slack, p.ada)
        assert await try_to_approve(p.ada, run) == "APPROVER_IS_REQUESTER"
        assert await try_to_approve(p.bob, run) == "approved"
        await link(slack, p.carol)  # Carol takes over the account for later commands
        run = await type_command(slack)
        assert (
            await try_to_approve(p.carol, run) == await try_to_approve(p.ada, run) == "APPROVER_IS_REQUESTER"
        )
        assert await try_to_approve(p.bob, run) == "approved"


@pytest.mark.parametrize("user", ["U_who", "U_who person:bob"])
async def test_nobody_approves_a_run_started_by_an_unlinked_account(
    url: str, secret: None, user: str
) -> None:
    async with site(url) as s:
        p = await people(s)
        slack = Slack(s, (await make_hook(s, "slack", TO_DEPLOY))["id"], user=user)
        answer = (await slack.command("deploy", trigger="1.2.3")).json()["text"]
        run, hint = answer.splitlines()[0].rpartition(" ")[2], answer.splitlines()[1]
        assert "`/tenure link`" in hint
        for one in (p.ada, p.bob):
            assert await try_to_approve(one, run) == "ACCOUNT_NOT_LINKED"
        if " " not in user:
            await link(slack, p.ada)
            assert (
                await try_to_approve(p.bob, run) == "ACCOUNT_NOT_LINKED"
            )  # the account may have had another user before
        why = (await send(p.bob, "GET", f"/runs/{run}/why"))["text"]
        assert "Nobody can approve it" in why
        assert "`/tenure link`" in why
        answer = await p.bob.post(f"/runs/{run}/approve", json={"decision": "reject"})
        assert answer.json()["status"] == "rejected"


async def test_github_logins_are_remembered_and_a_hook_may_require_known_authors(
    url: str, secret: None
) -> None:
    async with site(url) as s:
        p = await people(s)
        known = s.engine.scoped(tenant=ACME, caller=OPERATOR).people
        for login in ("ada-codes", None):  # a removed login still counts as hers
            await known.update("ada", name="Ada", roles=ALL, github=login)
        loose = await create_hook(p.service, TO_DEPLOY)
        strict = await create_hook(p.service, TO_DEPLOY, settings={"known_authors_only": True})

        async def opened(hook: dict[str, Any], login: str) -> str:
            pushed = pull_request(
                4,
                sender={"login": login},
                pull_request={"number": 4, "user": {"login": login}, "head": {"sha": f"{login}{hook['id']}"}},
            )
            return str((await github(p, hook["id"]).deliver("pull_request", pushed)).json()["run_id"])

        for hook in (loose, strict):
            run = await opened(hook, "Ada-Codes")
            assert await try_to_approve(p.ada, run) == "APPROVER_IS_REQUESTER"
            assert await try_to_approve(p.bob, run) == "approved"
        assert await try_to_approve(p.bob, await opened(loose, "stranger")) == "approved"
        run = await opened(strict, "a stranger person:bob")
        assert await try_to_approve(p.bob, run) == "ACCOUNT_NOT_LINKED"
        assert (
            "person:bob"
            not in (await s.engine.scoped(tenant=ACME).scope.reader.spec(ids.run_int(run))).involved.split()
        )


async def test_a_persons_claim_is_recorded_once(url: str) -> None:
    """Not as a change of metadata, and not if the person is already involved or the run has too many involved people."""
    async with site(url) as s:
        p = await people(s)
        engine = s.engine.scoped(tenant=ACME)
        for tool, known in (("saw", 0), ("plane", INVOLVED_PEOPLE_MAX + 1)):
            run, claim = await run_and_claim(p, tool)
            for n in range(known):
                await engine.runs.update(run, labels={"n": str(n)}, actor=f"person:p{n}")
            for _ in range(2):
                assert len((await send(p.ada, "POST", "/runner/claim", **claim))["leases"]) == 1
            kinds = [event.kind for event in await engine.runs.events(run)]
            assert (kinds.count("metadata"), kinds.count("involve")) == (known, 0 if known else 1), tool
            assert await try_to_approve(p.ada, run) == (
                "TOO_MANY_BEHIND" if known else "APPROVER_IS_REQUESTER"
            )


# ------------------------------------------------------------------------------------------ no approver is left


async def test_too_many_involved_people_end_the_approval_not_the_run(url: str) -> None:
    async with site(url) as s:
        p = await people(s)
        run = await start_run(p.service)
        engine = s.engine.scoped(tenant=ACME)
        for n in range(INVOLVED_PEOPLE_MAX + 2):
            await engine.runs.update(run, labels={"n": str(n)}, actor=f"person:p{n}")
        assert (await send(p.bob, "GET", f"/runs/{run}"))["status"] == "waiting_approval"
        answer = await p.bob.post(f"/runs/{run}/approve", json=YES)
        assert (answer.status_code, problem(answer)) == (409, "TOO_MANY_BEHIND")
        why = (await send(p.bob, "GET", f"/runs/{run}/why"))["text"]
        assert "Nobody can approve it" in why, why
        assert problem(await p.ada.post("/runs/none/approve", json=YES)) != "INTERNAL_ERROR"
        answer = await p.bob.post(f"/runs/{run}/approve", json={"decision": "reject"})
        assert answer.json()["status"] == "rejected"


async def test_explain_reports_that_nobody_may_approve(url: str) -> None:
    async with site(url) as s:
        service = await s.as_(*ALL)
        ada, bob = await s.person("ada", *ALL), await s.person("bob", "approver", "viewer")
        await send(service, "PUT", "/workflows/deploy", **DEPLOY)
        run = await start_run(ada)
        assert "left" not in (await send(ada, "GET", f"/runs/{run}/why"))["text"]
        await send(ada, "DELETE", "/people/bob")
        text = (await send(ada, "GET", f"/runs/{run}/why"))["text"]
        assert "nobody is left who may approve" in text, text
        ours = {
            **DEPLOY,
            "name": "ours",
            "steps": [{"id": "ok", "approval": {"title": "D", "group": "release"}}],
        }
        await send(service, "PUT", "/workflows/ours", **ours)
        await s.person("cleo", "approver")
        two = {**DEPLOY, "name": "two", "steps": [{"id": "ok", "approval": {"title": "D", "people": 2}}]}
        await send(service, "PUT", "/workflows/two", **two)
        text = (await send(ada, "GET", f"/runs/{await start_run(ada, 'two')}/why"))["text"]
        assert "only one person is left who may approve" in text, text
        run = await start_run(ada, "ours")
        assert "of the group 'release'" in (await send(ada, "GET", f"/runs/{run}/why"))["text"]
        del bob


# -------------------------------------------------------------------------------------- stale and closed approvals


async def test_a_decision_names_an_open_approval(url: str) -> None:
    """A wrong digest or revision is stale, even if the approval is bound to no digest, and even in a repeat."""
    async with site(url) as s:
        p = await people(s)
        run = await start_run(p.service)
        [asked] = (await send(p.bob, "GET", f"/approvals?run={run}"))["items"]
        at = f"/approvals/{asked['id']}/decision"
        for wrong in ({"digest": "ab" * 32}, {"revision": 2}, {"digest": "00"}):
            for path in (at, f"/runs/{run}/approve"):
                for decision in ("approve", "reject"):
                    answer = await p.bob.post(path, json={"decision": decision, **wrong})
                    assert (answer.status_code, problem(answer)) == (409, "APPROVAL_STALE"), (path, wrong)
        assert (await send(p.bob, "POST", at, decision="approve", digest="", revision=1))[
            "status"
        ] == "approved"
        assert (await send(p.bob, "POST", at, decision="approve"))["again"] is True
        assert problem(await p.bob.post(at, json={**YES, "digest": "ab" * 32})) == "APPROVAL_STALE"
        assert problem(await p.carol.post(at, json=YES)) == "APPROVAL_DECIDED"
        assert problem(await p.bob.post(at, json={"decision": "reject"})) == "APPROVAL_DECIDED"


async def test_a_closed_approval_reports_how_it_ended(url: str) -> None:
    """A decided approval stays decided, even if its run has ended since."""
    async with site(url) as s:
        p = await people(s)
        engine = s.engine.scoped(tenant=ACME, actor="person:ada")
        gate = {"name": "gate", "kind": "approval", "approval": {"action": "do it", "within_seconds": 60.0}}
        ended: dict[str, str] = {}
        for how in ("approve", "reject", "expire", "cancel"):
            run = await engine.create("w", [gate])
            [asked] = [one for one in await engine.approvals.list(run) if one.status == "requested"]
            if how in ("approve", "reject"):
                await send(p.bob, "POST", f"/approvals/{asked.id}/decision", decision=how)
            elif how == "cancel":
                await engine.cancel(run)
            else:
                s.engine.store.shift_clock(61 * 10**6)
                await s.engine.settle()
            ended[how] = problem(await p.carol.post(f"/approvals/{asked.id}/decision", json=YES))
        assert ended == {
            "approve": "APPROVAL_DECIDED",
            "reject": "APPROVAL_DECIDED",
            "expire": "APPROVAL_EXPIRED",
            "cancel": "RUN_TERMINAL_STATE",
        }
