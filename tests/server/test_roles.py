"""docs/roles.md is correct: every route is called without a key, with a wrong key, with every role, and with ids of another tenant."""

import subprocess
import sys
from typing import Any

import httpx
import pytest

from tenure.ids import receipt_text, run_int
from tenure.server.auth.roles import ALLOWED
from tenure.services.identity.principals import ROLES, new_key
from tests.server.route_walk import PAGE, body_for, routes, table
from tests.server.stage import ACME, Site, problem, site
from tests.server.webhook_senders import (
    REFERENCE,
    SECRET,
    SECRET_NAME,
    GitHub,
    make_hook,
    pull_request,
    register,
)

NOT_DOCUMENTED = {"GET /openapi.json", "GET /docs"}
"""Routes that serve the document itself."""

NOTHING = {
    "run_id": "run_2026-02-14_080000_abc123",
    "approval_id": "apr_nothing",
    "proposal_id": "apr_nothing",
    "receipt_id": "rcp_nothing",
    "lease_id": "nothing",
    "hook_id": "hook_nothing",
    "delivery_id": "nothing",
    "webhook_id": "sub_nothing",
    "client_id": "cli_nothing",
    "person_id": "per_nothing",
    "key_id": "nothing00000",
    "tenant_id": "nothing",
    "team_id": "T0NOTHING",
    "key": "nothing",
    "name": "nothing",
    "version": "999",
    "part": "0",
    "code": "FROZEN",
    "seq": "1",
    "upload": "nothing",
    "job": "nothing",
}

BODIES: dict[str, Any] = {
    "POST /runs/{run_id}/approve": {"decision": "approve"},
    "POST /approvals/{approval_id}/decision": {"decision": "approve"},
    "POST /proposals/{proposal_id}/decision": {"decision": "approve"},
    "POST /receipts/{receipt_id}/settle": {"outcome": "done"},
    "PATCH /runs/{run_id}": {"labels": {}},
    "POST /workflows/{name}/confirm": {"version": "1", "digest": "d"},
}
"""Bodies of routes that would refuse the smallest body before they look up the object."""

PERSONAL = {
    "PUT /me/slack",
    "DELETE /me/slack",
    "POST /policies/{version}/activate",
    "POST /policies/{version}/withdraw",
    "POST /freezes/thaw",
    *(route for route in ALLOWED if route.endswith("/confirm") and "/admin/" not in route),
}
"""Routes that only people may use, never a service."""

OWN = {"PUT /workflows/{name}", "PUT /schedules/{name}"}
"""Routes that create an object of the caller's tenant under a name that other tenants may use, too."""


async def send(
    who: httpx.AsyncClient, route: str, ids: dict[str, str], arguments: dict[str, Any]
) -> httpx.Response:
    """Send one request. Of a stream, only the head of the answer is read."""
    method, _, path = route.partition(" ")
    request = who.build_request(method, path.format(**ids), **arguments)
    answer = await who.send(request, stream=True)
    try:
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            await answer.aread()
    finally:
        await answer.aclose()
    return answer


def code_of(answer: httpx.Response) -> str | None:
    """The code of an error answer, or None."""
    return problem(answer) if answer.status_code >= 400 else None


class Walk:
    """All routes, and a request for each."""

    def __init__(self, s: Site, document: dict[str, Any]) -> None:
        self.site = s
        self.document = document
        self.table = table()

    def arguments(self, route: str) -> dict[str, Any]:
        """The httpx arguments for a request to a route."""
        return {"json": BODIES[route]} if route in BODIES else body_for(self.document, route)


async def start_walk(s: Site) -> Walk:
    operator = await s.caller(await s.operator_key())
    return Walk(s, (await operator.get("/openapi.json")).json())


def test_the_roles_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.roles_page", "--check"],
        cwd=PAGE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_has_every_route_and_no_other() -> None:
    listed, there = set(table()), routes()
    assert there - listed == set(), "routes that are missing from the table"
    assert listed - there == set(), "rows of the table without a route"
    assert all(listed), "a row with an empty route"


async def test_the_openapi_document_has_every_route_and_no_other(url: str) -> None:
    async with site(url) as s:
        walk = await start_walk(s)
        documented = {
            f"{method.upper()} {path}"
            for path, item in walk.document["paths"].items()
            for method in item
            if method in ("get", "post", "put", "patch", "delete")
        }
        assert documented | NOT_DOCUMENTED == routes() | NOT_DOCUMENTED


@pytest.mark.guard_seconds(180)
async def test_every_route_admits_exactly_the_roles_of_the_table(url: str) -> None:
    async with site(url, behind_proxy=True) as s:  # not on loopback, so that `here` needs a credential
        walk = await start_walk(s)
        callers: dict[str, httpx.AsyncClient] = {
            "no key": await s.caller(),
            "a wrong key": await s.caller(new_key().text),
            **{role: await s.person(role, role) for role in ROLES},
            **{f"a service: {role}": await s.as_(role) for role in ROLES},
            "installation": await s.caller(await s.operator_key()),
        }
        wrong = []
        for route, allowed in walk.table.items():
            for name, caller in callers.items():
                answer = await send(caller, route, NOTHING, walk.arguments(route))
                code, role = code_of(answer), name.removeprefix("a service: ")
                if "anyone" in allowed:
                    fits = code != "FORBIDDEN"
                elif name in ("no key", "a wrong key") or "lease" in allowed:
                    fits = (answer.status_code, code) == (401, "UNAUTHENTICATED")
                elif route in PERSONAL and role != name:
                    fits = (answer.status_code, code) == (403, "FORBIDDEN")
                elif role in allowed or "here" in allowed:
                    fits = code not in ("FORBIDDEN", "UNAUTHENTICATED")
                else:
                    fits = (answer.status_code, code) == (403, "FORBIDDEN")
                if not fits or answer.status_code >= 500:
                    wrong.append(f"{route} for {name}: {answer.status_code} {code}")
        assert wrong == []


async def create_one_of_each(s: Site, tenant: str) -> dict[str, str]:
    """Create one object of each kind in a tenant. Returns the values for paths."""
    admin, runner = await s.as_("admin", tenant=tenant), await s.as_("runner", tenant=tenant)
    plan: list[dict[str, Any]] = [
        {"name": "build", "tool": "build"},
        {"name": "ok", "kind": "approval", "approval": {"action": "do it"}, "needs": []},
    ]
    run = await s.engine.scoped(tenant=tenant, actor="person:rita").create("release", plan)
    [asked] = await s.engine.scoped(tenant=tenant).approvals.list(run)
    lease = (
        await _create(runner, "/runner/claim", claim_id="c", capabilities=["default|tool:build"], max=1)
    )["leases"][0]
    client = await _create(admin, "/clients", name="c", roles=["viewer"])
    person = await _create(admin, "/people", name="p", roles=["viewer"])
    key = await _create(admin, "/keys", client=client["id"])
    webhook = await _create(
        admin, "/webhooks", url="https://example.com/in", secret=REFERENCE.replace("acme", tenant)
    )
    await register(s, "greeting", tenant)
    await _create(admin, "/schedules", name="greeting", workflow="greeting", cron="0 3 * * *")
    rule = "{name: r, connector: http, operation: post, allow: true}"
    policy = await _create(admin, "/policies", text=f"version: 1\nrules: [{rule}]\n")
    hook = await make_hook(s, tenant=tenant)
    await GitHub(s, hook["id"]).deliver("pull_request", pull_request())
    [delivery] = (await admin.get(f"/hooks/{hook['id']}/deliveries")).json()["items"]
    return {
        "tenant_id": tenant, "run_id": run, "key": "build", "approval_id": asked.id, "proposal_id": asked.id,
        "receipt_id": receipt_text(run_int(run), 1), "lease_id": lease["id"], "token": lease["token"], "client_id": client["id"], "person_id": person["id"],
        "key_id": key["id"], "webhook_id": webhook["id"], "hook_id": hook["id"], "delivery_id": delivery["id"],
        "name": "greeting", "version": str(policy["version"]), "part": "0",
        "seq": "1", "upload": "nothing", "job": "nothing",
    }  # fmt: skip


async def _create(who: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await who.post(path, json=body)
    assert answer.status_code < 300, answer.text
    return answer.json()


def comparable(answer: httpx.Response, ids: dict[str, str]) -> tuple[int, str]:
    """Status and text of an answer, without the request id and the requested ids."""
    text = "" if answer.is_stream_consumed is False else answer.text
    text = text.replace(answer.headers["x-request-id"], "REQUEST")
    for name in sorted(ids, key=lambda name: -len(ids[name])):
        text = text.replace(ids[name], "ID")
    return answer.status_code, text


@pytest.mark.clause("APR-11")
@pytest.mark.guard_seconds(180)
async def test_objects_of_another_tenant_look_missing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for tenant in ("acme", "globex"):
        monkeypatch.setenv(SECRET_NAME.replace("acme", tenant), SECRET)
    async with site(url) as s:
        walk, owner = await start_walk(s), await s.as_(*ROLES)
        theirs = await create_one_of_each(s, ACME)
        lines = await s.engine.store.read("admin_events_after", ACME, 0, 1000)
        before = await s.engine.scoped(tenant=ACME).get(theirs["run_id"])
        key = await s.key(*ROLES, tenant="globex", person="greta", groups=["release"])
        greta = await s.caller(key)
        wrong, walked = [], 0
        for route, allowed in walk.table.items():
            if "{" not in route or not allowed & set(ROLES) or route in OWN:
                continue
            walked += 1
            arguments = walk.arguments(route)
            of_theirs = comparable(await send(greta, route, theirs, arguments), theirs)
            of_nothing = comparable(await send(greta, route, NOTHING, arguments), NOTHING)
            if of_theirs != of_nothing or of_theirs[0] != 404:
                wrong.append(f"{route}: {of_theirs} instead of {of_nothing}")
        assert wrong == []
        assert walked > 50
        wrong = [
            f"{route} shows {name}"
            for route, allowed in walk.table.items()
            if route.startswith("GET ") and "{" not in route and allowed & set(ROLES)
            for text in [comparable(await send(greta, route, {}, {}), {})[1]]
            for name in theirs
            if len(theirs[name]) > 8 and theirs[name] in text
        ]
        assert wrong == [], "lists contain objects of the own tenant only"
        # The own tenant can read all objects.
        for path in (
            "/runs/{run_id}", "/runs/{run_id}/steps/{key}/attempts", "/approvals/{approval_id}", "/workflows/{name}",
            "/schedules/{name}", "/hooks/{hook_id}/deliveries/{delivery_id}", "/webhooks/{webhook_id}",
            "/clients/{client_id}", "/people/{person_id}", "/policies/{version}",
        ):  # fmt: skip
            assert (await owner.get(path.format(**theirs))).status_code == 200, path
        assert await s.engine.store.read("admin_events_after", ACME, 0, 1000) == lines
        assert await s.engine.scoped(tenant=ACME).get(theirs["run_id"]) == before


async def test_only_a_leases_own_token_is_accepted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for tenant in ("acme", "globex"):
        monkeypatch.setenv(SECRET_NAME.replace("acme", tenant), SECRET)
    async with site(url) as s:
        walk = await start_walk(s)
        theirs, ours = await create_one_of_each(s, ACME), await create_one_of_each(s, "globex")
        holder = await s.caller(ours["token"])
        wrong = []
        for route, allowed in walk.table.items():
            if "lease" in allowed:
                arguments = walk.arguments(route)
                of_theirs = comparable(await send(holder, route, theirs, arguments), theirs)
                of_nothing = comparable(await send(holder, route, NOTHING, arguments), NOTHING)
                if of_theirs != of_nothing or of_theirs[0] not in (401, 404):
                    wrong.append(f"{route}: {of_theirs} instead of {of_nothing}")
        assert wrong == []
        fits = await send(holder, "GET /runner/leases/{lease_id}", ours, {})
        assert fits.status_code == 200


async def test_on_loopback_the_servers_own_pages_need_no_key(url: str) -> None:
    async with site(url) as s:
        stranger = await s.caller()
        for route, allowed in table().items():
            if "here" in allowed:
                assert (await send(stranger, route, NOTHING, {})).status_code == 200, route
