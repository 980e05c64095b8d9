"""One real object for each name in a path, and a valid body for each route, so that a test can reach the handler of every route.

    async with server_with_objects(url, document, folder) as objects:
        request = await objects.request_to("DELETE /people/{person_id}")
        request.path, request.headers, request.body

Laws:
1. An object that a request may use up (a lease, an approval, a key) is created for each request.
2. Call the routes in the order of `ordered_routes`: routes that close or delete something come last.
"""

import asyncio
import base64
import hmac
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from tenure.shapes.ci import CiTrigger
from tenure.store.vcs_reports import VcsReports
from tenure.store.workflows import save_workflow
from tenure.testing.doubles import ServiceDouble
from tests.govern.act_service import ALLOW, connector, order
from tests.server import job_files
from tests.server.route_walk import body_for, routes
from tests.server.stage import ACME, Site, site
from tests.server.test_evidence import sealed_run
from tests.server.test_proposals import proposing
from tests.server.test_roles import create_one_of_each
from tests.server.test_runner_leases import claim, say, start
from tests.server.webhook_senders import PR_RULE, REFERENCE, SECRET, Slack, make_hook, pull_request

ROLES = ("viewer", "operator", "approver", "admin", "runner")
OTHER = "globex"
"""The tenant that the installation's operator changes and closes."""
TEXT = "x" * 60_000
QUIET = ["approval.reminder"]
"""An event type that these tests never cause."""
MANY = {f"name-{i}": i for i in range(3_000)}
GATE = {"name": "ok", "kind": "approval", "approval": {"action": "do it"}}
POLICY = "version: 1\nrules:\n" + "".join(
    f"  - {{name: r{i}, connector: http, operation: post, allow: true}}\n" for i in range(100)
)
QUERIES = {
    "GET /ledger/proof": "?index=0",
    "GET /ledger/consistency": "?from=1&to=1",
}
"""Query strings that a route requires."""


JOB_FILES = tuple(
    f"/runner/leases/{{lease_id}}/{part}"
    for part in ("log-chunks", "uploads", "needs", "caches", "report", "test-history")
)
"""Paths about the files of CI jobs."""


def widest_workflow(steps: int = 950) -> str:
    """A workflow with nearly as many steps as the limit allows."""
    listed = [{"id": f"s{i}", "run": "true", "needs": []} for i in range(steps)]
    return json.dumps({"name": "wide", "version": "1", "steps": listed})


def ordered_routes() -> list[str]:
    """All routes: routes that read come first, routes that delete last."""
    kinds = ("GET", "PATCH", "POST", "PUT", "DELETE")
    return sorted(routes(), key=lambda route: (kinds.index(route.split()[0]), -route.count("/"), route))


def sender_of(route: str) -> str:
    """The kind of hook that a route receives deliveries for, or an empty text if it receives none."""
    kinds = ("github", "slack", "generic", "servicenow")
    return next((kind for kind in kinds if route.startswith(f"POST /hooks/{kind}/")), "")


class PreparedRequest(msgspec.Struct):
    """A request that is ready to be sent."""

    path: str
    headers: dict[str, str]
    body: bytes
    """Valid JSON, or nothing if the route takes no JSON body."""


class Objects:
    """See the laws above."""

    def __init__(self, s: Site, document: dict[str, Any], folder: Path) -> None:
        self.site = s
        self._document = document
        self._folder = folder
        self._job_requests: dict[str, PreparedRequest] = {}
        self._number = itertools.count(1)
        self._names: dict[str, str] = {}
        self._hooks: dict[str, str] = {}

    async def create_shared(self, service: ServiceDouble) -> None:
        """Create the objects that all requests share."""
        s = self.site
        await save_workflow(s.engine.store, ACME, "wide", "1", "declared", widest_workflow(), "d")
        self._sealed, _ = await sealed_run(s, self._folder)
        self._names = await create_one_of_each(s, ACME)
        self._world_token = self._names.pop("token")
        self._key = await s.key(*ROLES, person="ann")
        self._operator = await s.operator_key()
        self._runner = await s.as_("runner")
        self._admin = await s.as_("admin")
        self._ann = await s.caller(self._key)
        # The webhook has no receiver.
        quiet = {"url": "https://example.com/in", "secret": REFERENCE, "types": QUIET, "revision": 1}
        (await self._ann.put(f"/webhooks/{self._names['webhook_id']}", json=quiet)).raise_for_status()
        await s.tenant(OTHER)
        await s.key("admin", tenant=OTHER, person="gil")
        rule = {"workflow": "greeting", "input": {"all": "${{ body }}"}}
        self._hooks = {
            "github": (await make_hook(s, "github", {**PR_RULE, "workflow": "greeting"}))["id"],
            "slack": (await make_hook(s, "slack", rule))["id"],
            "generic": (await make_hook(s, "generic", rule))["id"],
            "servicenow": (await make_hook(s, "servicenow", rule, settings=SERVICENOW))["id"],
        }
        engine = s.engine.scoped(tenant=ACME, actor="person:olga")
        service.trouble(drop="after")
        async with engine.worker(order, proposing):
            proposed = await engine.submit(proposing, {"names": ["a"] * 8})
            await proposed.result(wait=60)
            await engine.start(order, 7)
            found = await self._unknown_receipts()
        self._receipt = found[0]["id"]
        self._proposals = [one["id"] for one in (await self._ann.get("/proposals/pending")).json()["items"]]
        self._planned = await self._plan_ci_run()
        lease = await self._lease()
        put = f"/runner/leases/{lease['id']}/artifacts/a.txt"
        (await self._ann.put(put, content=b"a" * 100_000, headers=_bearer(lease["token"]))).raise_for_status()
        self._uploaded = lease

    async def _plan_ci_run(self) -> str:
        """A CI run with a plan of many jobs, and a report to the VCS."""
        engine = self.site.engine.scoped(tenant=ACME, actor="person:olga")
        run = await engine.ci.trigger(CiTrigger(repository="shop", head="1" * 40))
        (lease,) = await claim(self._runner, "plan", max=1, ack=True, capabilities=["ci|tool:ci.plan"])
        reasons = ["x" * 100]
        jobs = [
            {"name": f"job-{i}", "included": False, "reasons": reasons, "needs": []} for i in range(1_000)
        ]
        plan = {"base": None, "head": "1" * 40, "jobs": jobs, "jobs_left_out": 0, "withheld_secrets": []}
        (await say(self.site, lease, "complete", 1, plan=[], output=plan)).raise_for_status()
        reports = VcsReports(engine.store)
        await reports.open([(one, "subject") for one in await reports.wanted(0, 10)])
        return run

    async def request_to(self, route: str) -> PreparedRequest:
        """A request to a route whose path names existing objects."""
        template = route.partition(" ")[2]
        if template.startswith(JOB_FILES):
            if route not in self._job_requests:
                self._job_requests[route] = await self._job_request(route)
            return self._job_requests[route]
        names, token = await self._path_names(route)
        body = body_for(self._document, route).get("json")
        text = b"" if body is None else json.dumps({**body, **self._valid_fields(route, names)}).encode()
        headers = _bearer(self._operator if template.startswith("/admin") else token or self._key)
        headers["Idempotency-Key"] = f"walk-{next(self._number)}"
        path = template.format(**names) + QUERIES.get(route, "")
        if route in ("DELETE /session", "POST /session"):
            headers["Origin"] = self.site.address
        return PreparedRequest(path, headers, text)

    async def _job_request(self, route: str) -> PreparedRequest:
        """A request about the files of a job that needs another one."""
        await job_files.start(self.site, job_files.step("build"), job_files.step("test", "build"))
        build = await job_files.lease(self.site)
        await build.upload("dist", b"x" * 100_000)
        await build.upload("cache", b"x" * 100_000, kind="cache")
        await build.say("complete")
        test, body = await job_files.lease(self.site), b"line\n" * 200_000
        names = {"lease_id": test.lease["id"], "seq": "1", "part": "1", "job": "build", "name": "dist"}
        names["upload"] = (await test.begin("dist")).json()["upload"]
        headers = _bearer(test.lease["token"])
        path = route.partition(" ")[2].format(**names)
        if route.startswith("PUT"):
            return PreparedRequest(path, {**headers, "Tenure-Digest": job_files.digest(body)}, body)
        if route.endswith("/complete"):
            await test.part(names["upload"], 1, body)
        texts: dict[str, dict[str, Any]] = {
            "uploads": {"kind": "artifact", "name": "dist", "nonce": "n" * 64},
            "complete": {
                "kind": "artifact", "name": "dist", "parts": 1, "size": len(body), "digest": job_files.digest(body),
            },
            "report": {"failed": 200, "failed_cases": [{"test": f"t.{i}", "message": "x" * 3_000} for i in range(200)]},
            "test-history": {"tests": [f"t.{i}" for i in range(1_000)]},
        }  # fmt: skip
        text = texts.get(path.rpartition("/")[2])
        query = "?key=cache" if path.endswith("/caches") else ""
        return PreparedRequest(path + query, headers, b"" if text is None else json.dumps(text).encode())

    async def _unknown_receipts(self) -> list[dict[str, Any]]:
        while True:
            found: list[dict[str, Any]] = (await self._ann.get("/receipts?state=unknown")).json()["items"]
            if found:
                return found
            await asyncio.sleep(0.01)

    async def _lease(self) -> dict[str, Any]:
        await start(self.site)
        (lease,) = await claim(self._runner, f"walk-{next(self._number)}", max=1, ack=True)
        return lease

    async def _path_names(self, route: str) -> tuple[dict[str, str], str]:
        """The values for a route's path, and the token of the lease if the route needs one."""
        names = {**self._names, "code": "FROZEN", "team_id": "T1", "receipt_id": self._receipt}
        template = route.partition(" ")[2]
        if template.startswith("/admin"):
            return {**names, "tenant_id": OTHER, "person_id": "gil", "team_id": "T2"}, ""
        if kind := sender_of(route):
            return {**names, "hook_id": self._hooks[kind]}, ""
        if template.startswith("/workflows/"):
            return {**names, "name": "wide"}, ""
        if "/artifacts" in template and route.startswith("GET"):
            one = self._uploaded
            return {**names, "run_id": one["run_id"], "lease_id": one["id"], "name": "a.txt"}, one["token"] if "lease" in template else ""  # fmt: skip
        if "{lease_id}" in template:
            lease = await self._lease()
            if template.endswith("/cancel-ack"):
                await self.site.engine.scoped(tenant=ACME).cancel(lease["run_id"])
            if template.endswith("/suspend"):
                opened = await say(self.site, lease, "wait", 1, label="w", event={"event": "go"})
                names["wait"] = str(opened.json()["wait"])
            return {**names, "lease_id": lease["id"], "name": "b.txt"}, lease["token"]
        if template.startswith(("/ci/runs/", "/reports/")):
            return {**names, "run_id": self._planned}, ""
        if "/evidence/" in template or route in ("GET /runs/{run_id}/result", "POST /runs/{run_id}/reported"):
            return {**names, "run_id": self._sealed, "part": "0"}, ""
        if route in ("POST /runs/{run_id}/rerun", "POST /runs/{run_id}/resume"):
            return {**names, "run_id": self._sealed}, ""
        if ("{run_id}" in template and route.startswith("POST")) or "{approval_id}" in template:
            engine = self.site.engine.scoped(tenant=ACME, actor="person:rita")
            run = await engine.create("release", [{"name": "build", "tool": "build"}, {**GATE, "needs": []}])
            [asked] = await engine.approvals.list(run)
            if template.endswith("/unpause"):
                await engine.runs.pause(run)
            if template.endswith("/withdraw"):
                (await self._ann.post(f"/approvals/{asked.id}/decision", json={"decision": "approve", "revision": asked.revision})).raise_for_status()  # fmt: skip
            return {**names, "run_id": run, "approval_id": asked.id}, ""
        if "{proposal_id}" in template:
            return {**names, "proposal_id": self._proposals[next(self._number) % len(self._proposals)]}, ""
        if template.startswith("/me/keys/"):
            made = await self.site.key(*ROLES, person="ann")
            return {**names, "key_id": made.split("_")[1]}, ""
        if route == "POST /enrolments":
            made_out = await self._admin.post(f"/people/{names['person_id']}/enrolment")
            return {**names, "code": made_out.json()["code"]}, ""
        if route == "PUT /me/slack":
            slack = Slack(self.site, self._hooks["slack"], user=f"U{next(self._number)}")
            text = (await slack.command("link")).json()["text"]
            return {
                **names,
                "code": next(word.rstrip(".") for word in text.split() if word.startswith("tns_")),
            }, ""
        return names, ""

    def _valid_fields(self, route: str, names: dict[str, str]) -> dict[str, Any]:
        """Fields of a valid body beyond the smallest one."""
        number = next(self._number)
        large: dict[str, Any] = {"text": TEXT}
        workflow = {"workflow": "greeting", "input": large}
        own: dict[str, dict[str, Any]] = {
            "POST /agents/run": workflow,
            "POST /runs": {**workflow, "metadata": MANY},
            "POST /runs/batch": {"items": [{"workflow": "greeting", "metadata": {"a": "x" * 1_500}}] * 20},
            "POST /enrolments": {"code": names["code"]},
            "PUT /me/slack": {"code": names["code"]},
            "POST /runner/leases/{lease_id}/suspend": {"seq": 2, "waits": [int(names.get("wait", 0))]},
            "POST /clients": {"id": f"client-{number}", "roles": list(ROLES)},
            "POST /people": {"id": f"person-{number}", "roles": list(ROLES)},
            "POST /admin/tenants": {"id": f"tenant-{number}"},
            "POST /admin/tenants/{tenant_id}/people": {"id": f"person-{number}", "roles": list(ROLES)},
            "POST /keys": {"client": names["client_id"]},
            "POST /schedules": {"name": f"nightly-{number}", "workflow": "greeting", "cron": "0 3 * * *", "input": large},
            "POST /runner/claim": {"claim_id": f"walk-{number}", "capabilities": ["default|tool:none"]},
        }  # fmt: skip
        return own.get(route) or VALID_FIELDS.get(route, {})


VALID_FIELDS: dict[str, dict[str, Any]] = {
    "PATCH /runs/{run_id}": {"metadata": MANY},
    "POST /approvals/{approval_id}/decision": {"decision": "approve", "revision": 1, "reason": "x" * 500},
    "POST /proposals/{proposal_id}/decision": {"decision": "approve"},
    "POST /runs/{run_id}/approve": {"decision": "approve", "revision": 1},
    "POST /receipts/{receipt_id}/settle": {"outcome": "done", "result": {"text": TEXT}},
    "POST /policies": {"text": POLICY},
    "POST /policies/shadow": {"text": POLICY},
    "POST /hooks": {"kind": "generic", "secrets": [REFERENCE], "rules": [{"workflow": "greeting"}] * 50},
    "PUT /hooks/{hook_id}": {"secrets": [REFERENCE], "rules": [{"workflow": "greeting"}] * 50, "revision": 1},
    "POST /webhooks": {"url": "https://example.com/in", "secret": REFERENCE, "types": QUIET},
    "PUT /webhooks/{webhook_id}": {"url": "https://example.com/in", "secret": REFERENCE, "types": QUIET, "revision": 2},
    "PUT /schedules/{name}": {"workflow": "greeting", "cron": "0 4 * * *", "input": {"text": TEXT}, "revision": 1},
    "PUT /admin/tenants/{tenant_id}/slack-apps/{team_id}": {"secrets": [REFERENCE.replace(ACME, OTHER)]},
    "PUT /workflows/{name}": json.loads(widest_workflow()),
    "POST /workflows/{name}/confirm": {"version": "1", "digest": "d"},
    "PUT /clients/{client_id}": {"roles": list(ROLES)},
    "PUT /people/{person_id}": {"roles": list(ROLES)},
    "POST /runner/register": {"worker": "w", "capabilities": [f"default|tool:t{i}" for i in range(100)]},
    "POST /runner/workflows": {"workflows": []},
    "POST /runner/leases/{lease_id}/act": {"action": "http.put", "label": "a", "target": {"url": "/effects"}, "fields": {"json": {"text": TEXT}}},
    "POST /runner/leases/{lease_id}/checkpoint": {"output": "x" * 500, "meta": {"text": "x" * 3_000}},
    "POST /runner/leases/{lease_id}/complete": {"output": {"text": TEXT}},
    "POST /runner/leases/{lease_id}/fail": {"message": "x" * 3_000},
    "POST /runner/leases/{lease_id}/log": {"lines": [{"text": "x" * 3_000}] * 100},
    "POST /runner/leases/{lease_id}/propose": {"proposal": {"action": "merge"}, "question": {"text": TEXT}},
    "POST /runner/leases/{lease_id}/start": {"child": {"workflow": "greeting", "input": {"text": TEXT}}},
    "POST /runner/leases/{lease_id}/wait": {"event": {"event": "go", "within_seconds": 60}},
    "POST /runs/cancel": {"filter": {"workflow": "none"}},
    "POST /ci/runs": {"repository": "shop", "head": "1" * 40},
}  # fmt: skip
"""By route: fields of a valid body, including large ones."""


def ci_settings(folder: Path) -> Path:
    file = folder / "ci.yaml"
    file.write_text(
        "repositories: {shop: {url: https://example.com/shop.git, github: acme/shop, tenant: acme}}"
    )
    return file


SERVICENOW = {"secret_header": "x-secret", "event_id": ["header:x-event-id"]}


def delivery_headers(kind: str, number: int, body: bytes) -> dict[str, str]:
    """The headers that a hook's sender sends with a delivery."""
    secret, at, name = SECRET.encode(), str(int(time.time())), f"walk-{number}"
    standard = hmac.digest(secret, f"{name}.{at}.".encode() + body, "sha256")
    given: dict[str, dict[str, str]] = {
        "github": {
            "X-GitHub-Delivery": name,
            "X-GitHub-Event": "pull_request",
            "X-Hub-Signature-256": f"sha256={hmac.digest(secret, body, 'sha256').hex()}",
        },
        "slack": {
            "X-Slack-Request-Timestamp": at,
            "X-Slack-Signature": f"v0={hmac.digest(secret, f'v0:{at}:'.encode() + body, 'sha256').hex()}",
        },
        "generic": {
            "webhook-id": name,
            "webhook-timestamp": at,
            "webhook-signature": f"v1,{base64.b64encode(standard).decode()}",
        },
        "servicenow": {"x-secret": SECRET, "x-event-id": name},
    }
    return given[kind]


def largest_delivery(route: str, room: int) -> tuple[bytes, str]:
    """The largest valid delivery to a hook, and its content type."""
    text = "x" * (room - 4_000)
    if route.endswith("/commands"):
        fields = {"team_id": "T1", "user_id": "U1", "command": "/tenure", "trigger_id": "1.2.x", "text": text}
        return urlencode(fields).encode(), "application/x-www-form-urlencoded"
    if route.endswith("/actions"):
        payload = {"type": "block_actions", "team": {"id": "T1"}, "user": {"id": "U1"}, "trigger_id": "1.3.x",
                   "actions": [{"action_id": "none", "value": text}]}  # fmt: skip
        return urlencode({"payload": json.dumps(payload)}).encode(), "application/x-www-form-urlencoded"
    return json.dumps(pull_request(7, text=text)).encode(), "application/json"


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def server_with_objects(url: str, document: dict[str, Any], folder: Path) -> AsyncIterator[Objects]:
    """A server with one object of each kind."""
    with ServiceDouble("neither") as service:
        async with site(
            url,
            connectors=[connector(service.url, service.mode)],
            policy=ALLOW,
            hook_answer_seconds=1,
            ci=ci_settings(folder),
        ) as s:
            made = Objects(s, document, folder)
            await made.create_shared(service)
            yield made
