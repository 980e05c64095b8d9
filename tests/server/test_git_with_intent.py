"""Git With Intent from outside: the run document and the idempotency documents, as the system fills them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import tenure
from tenure.clock import us
from tenure.govern.connectors.github import GitHubConnector
from tenure.govern.connectors.http_service import HttpService
from tenure.outbound.address_rules import AllowedNetworks
from tenure.outbound.urls import OutboundRoute
from tenure.sdk import StepFunction, Workflow
from tenure.testing.doubles import Double, DoubleReply, DoubleRequest, GitHubDouble
from tests.server.stage import Site, site
from tests.server.test_profile_documents import list_document_fields
from tests.server.test_schedules import NIGHTLY
from tests.server.webhook_senders import SECRET, SECRET_NAME, GitHub, Sender, Slack, make_hook, pull_request
from tests.server.workflows import patient, register

GWI = {"profile": "git-with-intent"}
REPO, NUMBER = "octo/widgets", 7
ISSUE = {"repo": REPO, "number": NUMBER}
TOKEN = "nobody-has-this"
POLICY = """
version: 1
rules:
  - {name: labels, connector: github, operation: [label.add, label.remove, assignee.add, assignee.remove], allow: true}
  - {name: words, connector: github, operation: comment.create, approval: {tier: low, within: 1h}}
"""
RULE: dict[str, Any] = {"when": "event != 'push'", "workflow": "careful", "profile": "git-with-intent"}
POLLS_MAX = 3_000


async def _plan(text: str) -> str:
    return text.upper()


plan: Callable[..., Any] = StepFunction(_plan, name="plan")


async def _careful(hold: bool = False) -> str:
    await plan("look")
    await tenure.act("github.label.add", target=ISSUE, fields={"labels": ["urgent", "bug"]})
    await tenure.act("github.assignee.add", target=ISSUE, fields={"assignees": ["eve"]})
    if hold:
        await tenure.wait("go on", within="2h", source="github")
    return "done"


async def _speak() -> Any:
    await tenure.act("github.comment.create", target=ISSUE, fields={"body": "hello"})
    return await tenure.wait("ci.green", within="1h", source="github")


async def _break() -> str:
    found = await plan("first")
    if not BROKEN.clear_once():
        raise ValueError("not yet")
    return str(found)


class _Switch:
    def __init__(self) -> None:
        self.fixed = False

    def clear_once(self) -> bool:
        return self.fixed


BROKEN = _Switch()
careful = Workflow(_careful, name="careful", compensate=True, profile="git-with-intent")
speak = Workflow(_speak, name="speak", profile="git-with-intent")
broken = Workflow(_break, name="broken", profile="git-with-intent")


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)


@pytest.fixture
def github() -> Iterator[GitHubDouble]:
    with GitHubDouble(token=TOKEN) as double:
        double.issue(REPO, NUMBER, labels=("bug",), assignees=("ada",))
        yield double


@asynccontextmanager
async def working(url: str, github: GitHubDouble, **settings: Any) -> AsyncIterator[Site]:
    """A server, a worker, and GitHub."""
    way = OutboundRoute(
        hosts=(github.url.removeprefix("http://"),), reach=AllowedNetworks(networks=("127.0.0.1",))
    )
    link = HttpService(base_url=github.url, way=way, tokens={"acme": "env:GITHUB_TOKEN"})
    async with site(url, connectors=[GitHubConnector("github", link)], policy=POLICY, **settings) as s:
        engine = s.engine.scoped(tenant="acme")
        await register(engine, careful, speak, broken)
        async with s.engine.worker(careful, speak, broken):
            yield s


async def start(caller: httpx.AsyncClient, workflow: str, **body: Any) -> str:
    made = await caller.post("/runs", json={"workflow": workflow, "input": {}, **body})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


async def document(caller: httpx.AsyncClient, run: str, **more: Any) -> dict[str, Any]:
    answer = await caller.get(f"/runs/{run}", params={**GWI, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def until(
    caller: httpx.AsyncClient, run: str, is_there: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The run's document, when it is as expected."""
    found: dict[str, Any] = {}
    for _ in range(POLLS_MAX):
        found = await document(caller, run)
        if is_there(found):
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"the document stays as it is: {found}")


def has_status(*statuses: str) -> Callable[[dict[str, Any]], bool]:
    return lambda found: found["status"] in statuses


# ----------------------------------------------------------------------------------------- compensations


@pytest.mark.clause("GWI-05", "GWI-26")
async def test_a_cancelled_run_logs_how_each_action_was_undone(url: str, github: GitHubDouble) -> None:
    async with working(url, github) as s:
        operator = await s.as_("operator", "viewer")
        run = await start(operator, "careful", input={"hold": True}, metadata={"compensationLog": ["forged"]})
        held = await until(operator, run, has_status("waiting_external"))
        assert "compensationLog" not in held, "nothing was undone yet"
        receipts = (await operator.get(f"/runs/{run}/receipts")).json()["items"]
        assert (await operator.post(f"/runs/{run}/cancel", json={"reason": "WRONG_PR"})).status_code < 300
        ended = await until(
            operator,
            run,
            lambda found: [entry["outcome"] for entry in found.get("compensationLog", ())] == ["undone"] * 2,
        )
        assert (ended["status"], ended["cancellation"]["reason"]) == ("cancelled", "WRONG_PR")
        log = ended["compensationLog"]
        assert [entry["action"] for entry in log] == ["github.assignee.add", "github.label.add"]
        assert [entry["compensatedBy"] for entry in log] == ["github.assignee.remove", "github.label.remove"]
        assert [entry["receipt"] for entry in log] == [receipt["id"] for receipt in reversed(receipts)]
        for entry in log:
            reversal = (await operator.get(f"/receipts/{entry['compensationReceipt']}")).json()
            assert (reversal["reverses"], reversal["run_id"]) == (entry["receipt"], entry["undoRun"])
            assert (reversal["settled_at"], reversal["state"]) == (entry["at"], "succeeded")
            assert entry["requestedBy"] == ended["trigger"]["userId"]
        issue = github.issues[REPO, NUMBER]
        assert (issue["labels"], issue["assignees"]) == (["bug"], ["ada"])

        idle = await start(operator, "speak", metadata={"compensationLog": ["forged"]})
        await until(operator, idle, has_status("awaiting_approval"))
        await operator.post(f"/runs/{idle}/cancel", json={})
        ended = await until(operator, idle, has_status("cancelled"))
        assert ended["compensationLog"] == [], "it did nothing, and the caller cannot write the log"


@pytest.mark.clause("GWI-26")
async def test_an_undo_that_meets_a_conflict_is_logged_with_its_reason(
    url: str, github: GitHubDouble
) -> None:
    async with working(url, github) as s:
        operator = await s.as_("operator", "viewer")
        run = await start(operator, "careful")
        await until(operator, run, has_status("completed"))
        github.labels(REPO, NUMBER).remove("urgent")  # somebody else was faster
        assert (await operator.post(f"/runs/{run}/undo", json={})).status_code == 201
        found = await until(operator, run, lambda found: len(found.get("compensationLog", ())) == 2)
        found = await until(
            operator, run, lambda found: found["compensationLog"][-1]["outcome"] not in ("undoing", "failed")
        )
        first, second = found["compensationLog"]
        assert (first["outcome"], first["action"]) == ("undone", "github.assignee.add")
        assert (second["outcome"], second["action"]) == ("conflict", "github.label.add")
        assert "urgent" in second["note"]
        assert "compensationReceipt" not in second


# --------------------------------------------------------------------------------------------- deliveries


@pytest.mark.clause("GWI-27")
async def test_the_webhook_event_id_is_the_id_that_the_sender_gave(url: str, github: GitHubDouble) -> None:
    async with working(url, github) as s:
        viewer, admin = await s.as_("viewer"), await s.as_("admin")
        hook = (await make_hook(s, "github", RULE))["id"]
        sent = "12345678-1234-1234-1234-123456789012"
        answer = await GitHub(s, hook).deliver("pull_request", pull_request(NUMBER), delivery=sent)
        generic = Sender(s, (await make_hook(s, "generic", RULE))["id"])
        command = await Slack(s, (await make_hook(s, "slack", RULE))["id"]).command("go", trigger="13.37.abc")
        slack_run = command.json()["text"].split()[1]
        event = {"specversion": "1.0", "id": "evt 1", "source": "/ci", "type": "built", "data": {}}
        again = await admin.post(f"/hooks/{hook}/deliveries/{sent}/replay")
        for run, expected in (
            (answer.json()["run_id"], sent),
            (again.json()["run_id"], sent),
            (slack_run, "13.37.abc"),
            ((await generic.send({"type": "x"}, name="msg:1/x y")).json()["run_id"], "msg:1/x y"),
            (
                (await generic.send(event, headers={"Content-Type": "application/cloudevents+json"})).json()[
                    "run_id"
                ],
                "evt 1",
            ),
        ):
            found = await document(viewer, run)
            assert found["trigger"]["webhookEventId"] == expected
            assert found["trigger"]["source"] == "webhook"
            assert "a2aCorrelationId" not in found, "no correlation id came with the delivery"

        rule = {**RULE, "trigger": {"correlation_id": "${{ body.correlation }}"}}
        with_id = Sender(s, (await make_hook(s, "generic", rule))["id"])
        run = (await with_id.send({"type": "x", "correlation": "corr-9"})).json()["run_id"]
        assert (await document(viewer, run))["a2aCorrelationId"] == "corr-9"
        operator = await s.as_("operator")
        plain = await start(operator, "careful")
        correlated = await start(operator, "careful", trigger={"type": "api", "correlation_id": "corr-1"})
        assert "a2aCorrelationId" not in await document(viewer, plain)
        assert (await document(viewer, correlated))["a2aCorrelationId"] == "corr-1"


@pytest.mark.clause("GWI-28")
async def test_the_cached_response_of_every_source_is_shown(url: str, github: GitHubDouble) -> None:
    async with working(url, github) as s:
        operator, viewer = await s.as_("operator"), await s.as_("viewer")

        async def record_of(run: str) -> dict[str, Any]:
            key = (await document(viewer, run))["idempotencyKey"]
            found = await document(viewer, run, at=f"idempotency/{key}")
            assert (found["key"], found["runId"], found["status"]) == (key, run, "completed")
            assert found["expiresAt"] > found["createdAt"]
            return found

        asked = {"workflow": "careful", "input": {}}
        made = await operator.post("/runs", json=asked, headers={"Idempotency-Key": "one"})
        api = await record_of(made.json()["id"])
        assert (api["source"], api["response"]) == ("api", made.json())

        hook = GitHub(s, (await make_hook(s, "github", RULE))["id"])
        answer = await hook.deliver("pull_request", pull_request(NUMBER), delivery="d-1")
        delivered = await record_of(answer.json()["run_id"])
        assert (delivered["source"], delivered["key"]) == ("github_webhook", "github:d-1")
        assert delivered["response"] == answer.json()

        slack = Slack(s, (await make_hook(s, "slack", RULE))["id"])
        run = (await slack.command("go", trigger="1.2.x")).json()["text"].split()[1]
        typed = await record_of(run)
        assert (typed["source"], typed["key"]) == ("slack", "slack:T1:1.2.x")
        assert (typed["response"]["run_id"], typed["response"]["status"]) == (run, "done")

        schedule = {**NIGHTLY, "workflow": "careful", "input": {}}
        assert (await operator.post("/schedules", json=schedule)).status_code == 201
        due = (await operator.get("/schedules/nightly")).json()["next_at"]
        s.engine.store.shift_clock(us(86_400))
        scheduled: list[dict[str, Any]] = []
        for _ in range(POLLS_MAX):
            listed = (await viewer.get("/runs", params={**GWI, "limit": 100})).json()["items"]
            scheduled = [found for found in listed if found["trigger"]["source"] == "scheduled"]
            if scheduled:
                break
            await asyncio.sleep(0.01)
        slot = await record_of(scheduled[0]["id"])
        assert scheduled[0]["trigger"]["source"] == "scheduled"
        assert slot["source"] == "scheduler"
        assert slot["key"] == f"scheduler:nightly:{due}"
        assert (slot["response"]["id"], slot["response"]["workflow"]) == (scheduled[0]["id"], "careful")


# --------------------------------------------------------------------------------------------- documents


@pytest.mark.clause("GWI-20")
async def test_the_document_of_a_hooks_run_is_filled_by_the_system(url: str, github: GitHubDouble) -> None:
    async with working(url, github) as s:
        viewer = await s.as_("viewer")
        hook = GitHub(s, (await make_hook(s, "github", {**RULE, "workflow": "broken"}))["id"])
        BROKEN.fixed = False
        run = (await hook.deliver("pull_request", pull_request(NUMBER), delivery="d-9")).json()["run_id"]
        ended = await until(viewer, run, has_status("failed"))
        assert (ended["repoId"], ended["prId"]) == (REPO, str(NUMBER))
        assert ended["prUrl"] == f"https://github.test/{REPO}/pull/{NUMBER}"
        assert (ended["id"], ended["schemaVersion"], ended["tenantId"]) == (run, 1, "acme")
        assert (ended["type"], ended["idempotencyKey"]) == ("broken", "github:d-9")
        assert ended["error"].startswith("WORKFLOW_FAILED: ValueError: not yet")
        assert {"createdAt", "updatedAt", "completedAt", "durationMs", "lastHeartbeatAt"} <= set(ended)
        assert not {"resumedFrom", "resumeCount", "result", "cancellation"} & set(ended)
        assert set(ended) <= set(list_document_fields())

        [step] = (await viewer.get(f"/runs/{run}/steps", params=GWI)).json()["items"]
        assert await document(viewer, run, at=f"steps/{step['id']}") == step
        [point] = (await viewer.get(f"/runs/{run}/checkpoints", params=GWI)).json()["items"]
        assert (point["stepId"], point["status"], point["output"]) == ("plan", "completed", "FIRST")
        assert await document(viewer, run, at="checkpoints/plan") == point
        record = await document(viewer, run, at="idempotency/github:d-9")
        assert (record["source"], record["runId"], record["attempts"]) == ("github_webhook", run, 1)

        operator = await s.as_("operator")
        for source in ("ui", "cli", "api"):
            other = await start(operator, "careful", trigger={"type": source})
            assert (await document(viewer, other))["trigger"]["source"] == source

        BROKEN.fixed = True
        resumed = await operator.post(f"/runs/{run}/resume", json={})
        assert resumed.status_code == 201, resumed.text
        done = await until(viewer, resumed.json()["id"], has_status("completed"))
        assert (done["result"], done["resumedFrom"], done["resumeCount"]) == ("FIRST", run, 1)


@pytest.mark.clause("GWI-03")
async def test_every_transition_shows_its_context(url: str, github: GitHubDouble) -> None:
    """User, policy, approval, webhook and system; and a timeout, in a second run."""
    async with working(url, github) as s:
        operator = await s.as_("operator", "viewer")
        run = await start(operator, "speak")
        await until(operator, run, has_status("awaiting_approval"))
        ada = await s.person("ada")
        [question] = (await ada.get("/approvals")).json()["items"]
        decision = {"decision": "approve", "digest": question["digest"], "reason": "well said"}
        answer = await ada.post(f"/approvals/{question['id']}/decision", json=decision)
        assert answer.status_code == 200, answer.text
        await until(operator, run, has_status("waiting_external"))
        rule = {"when": "event == 'push'", "signal": "ci.green", "run": "body.run", "data": "${{ body.run }}"}
        hook = GitHub(s, (await make_hook(s, "github", rule))["id"])
        assert (await hook.deliver("push", {"run": run}, delivery="d-3")).json()["status"] == "done"
        await until(operator, run, has_status("completed"))

        events = (await operator.get(f"/runs/{run}/events")).json()["items"]
        assert [event["at"] for event in events] == sorted(event["at"] for event in events)
        assert all(event["actor"] and event["cause"] for event in events)
        by_kind = {event["kind"]: event for event in events}
        person = (await document(operator, run))["trigger"]["userId"]
        created, asked, decided, came = (
            by_kind[kind] for kind in ("create", "propose_act", "decide_approval", "deliver_event")
        )
        assert (created["initiator"], created["actor"]) == ("user", person)
        assert asked["initiator"] == "policy"
        [approval] = asked["context"]["approval"]
        assert approval["action"] == "github.comment.create"
        assert approval["requested_by"] == person
        assert (decided["initiator"], decided["actor"]) == ("approval", "person:ada")
        [approval] = decided["context"]["approval"]
        assert approval["action"] == "github.comment.create"
        assert (approval["decision"], approval["decided_by"], approval["requested_by"]) == (
            "approved",
            "person:ada",
            person,
        )
        assert approval["decided_at"] > 0
        shown = (await ada.get(f"/approvals/{question['id']}")).json()
        assert "well said" in str(shown), "the reason is stored beside the history, so that it can be erased"
        waits = [event["context"]["external"][0] for event in events if "external" in event["context"]]
        opened, delivered = waits
        assert (opened["event_type"], opened["source"], opened["timeout_ms"]) == (
            "ci.green",
            "github",
            3_600_000,
        )
        assert opened["expected_at"] > 0
        assert (came["initiator"], delivered["event_id"], delivered["source"]) == (
            "webhook",
            "github:d-3",
            "github",
        )
        assert "system" in {event["initiator"] for event in events}

        late = await start(operator, "careful", input={"hold": True})
        await until(operator, late, has_status("waiting_external"))
        s.engine.store.shift_clock(us(7_300))
        await until(operator, late, has_status("completed", "failed"))
        events = (await operator.get(f"/runs/{late}/events")).json()["items"]
        [over] = [event for event in events if event["kind"] == "wait_over"]
        assert (over["initiator"], over["actor"]) == ("timeout", "system:sweeper")


# ------------------------------------------------------------------------------------------ keys in process


class StuckStorage(Double):
    """Object storage that does not answer until the test ends."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def handle(self, request: DoubleRequest) -> DoubleReply:  # every request gets stuck
        self.over.wait(120)
        return DoubleReply(500)


@pytest.mark.clause("GWI-12", "GWI-15")
@pytest.mark.guard_seconds(120)
async def test_a_request_whose_server_is_killed_is_taken_over_when_its_lock_expires(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server is killed in the middle of a request. Another one answers 202, later takes the request over, and then repeats its answer."""
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))
    with StuckStorage() as storage:
        async with site(url) as s:
            operator = await s.as_("operator", "viewer")
            await register(s.engine, patient)
            run = await start(operator, "patient", timeout="30d")
            async with s.engine.worker(patient):
                await s.engine.scoped(tenant="acme").run(run).reaches("waiting_external", wait=30)

            async def send(caller: httpx.AsyncClient, text: str = "x") -> httpx.Response:
                return await caller.post(
                    f"/runs/{run}/signals/news",
                    json={"data": text * 300_000},  # large: it goes to the storage first
                    headers={"Idempotency-Key": "k"},
                )

            stuck = {
                "TENURE_ARTIFACTS": "s3://bucket",
                "AWS_ENDPOINT": storage.url,
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "k",
                "AWS_SECRET_ACCESS_KEY": "s",
                "AWS_REGION": "us-east-1",
            }
            server = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tenure.cli", "serve", "--port", "0", "--no-migrate", "--db", url),
                env={**os.environ, **stuck},
                cwd=tmp_path,
                stdout=asyncio.subprocess.PIPE,
            )
            assert server.stdout is not None
            try:
                address = json.loads(await server.stdout.readline())["address"]
                headers = {"Authorization": operator.headers["Authorization"]}
                async with httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as there:
                    asked = asyncio.create_task(send(there))
                    while not storage.requests:
                        assert not asked.done(), asked.result()
                        await asyncio.sleep(0.01)
                    answers = [await send(operator), await send(there), await send(operator, "y")]
                    server.kill()
                    with pytest.raises(httpx.HTTPError):
                        await asked
            finally:
                if server.returncode is None:
                    server.kill()
                await server.wait()
                storage.over.set()
            assert [answer.status_code for answer in answers] == [202, 202, 409]
            assert answers[0].json() == {"status": "processing", "run_id": run}
            assert answers[2].json()["error"]["code"] == "IDEMPOTENCY_CONFLICT"
            assert (await send(operator)).status_code == 202, "its lock is held"
            s.engine.store.shift_clock(us(301))
            done = await send(operator)
            assert (done.status_code, done.json()["taken"]) == (200, True)
            again = await send(operator)
            assert (again.content, again.headers["idempotency-replayed"]) == (done.content, "true")
            events = (await operator.get(f"/runs/{run}/events")).json()["items"]
            assert [event["kind"] for event in events].count("deliver_event") == 1
            s.engine.store.shift_clock(us(301 + 86_400))
            late = await send(operator)
            assert (late.status_code, late.json()["error"]["code"]) == (409, "IDEMPOTENCY_EXPIRED")
