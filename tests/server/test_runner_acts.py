"""Acts of runners: a runner requests an act over HTTP; the server checks the policy, holds the secrets and makes the call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.plain_runner import Job, NotDone, PlainRunner
from tenure.declared import load_workflow
from tenure.engine import Engine
from tenure.govern.connectors.settings import parse_connectors
from tenure.ids import run_int
from tenure.testing.doubles import ServiceDouble
from tests.govern.act_service import ALLOW, ASK, DENY, order
from tests.server.stage import Site, problem, site
from tests.server.test_remote_worker import remote_worker
from tests.server.test_runner_leases import claim, say
from tests.worker.helpers import until

CAPABILITIES = ["default|tool:build"]
POST: dict[str, Any] = {"action": "http.post", "target": {"url": "/effects"}, "fields": {"json": {"n": 1}}}
TOKEN = "hush-hush-1234567890"
FILE = """
connectors:
  http: {{base_url: "{url}", allow_private: [127.0.0.0/8], repeats: native_key, token: env:SERVICE_TOKEN}}
"""


@asynccontextmanager
async def governed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str = ALLOW
) -> AsyncIterator[tuple[Site, ServiceDouble]]:
    """A server whose runners may act on a service double."""
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))
    with ServiceDouble(token=TOKEN) as service:
        monkeypatch.setenv("SERVICE_TOKEN", TOKEN)
        connectors = parse_connectors(FILE.format(url=service.url)).values()
        async with site(url, connectors=connectors, policy=policy) as s:
            yield s, service


def acme(s: Site) -> Engine:
    return s.engine.scoped(tenant="acme")


async def start(s: Site) -> str:
    return await acme(s).create("ci", [{"name": "build", "tool": "build"}])


async def claim_step(s: Site) -> tuple[httpx.AsyncClient, dict[str, Any], str, dict[str, str]]:
    """Claim a step as a runner. Returns the caller, the lease, the path for acts, and its headers."""
    await start(s)
    caller = await s.as_("runner")
    (lease,) = await claim(caller, ack=True)
    return caller, lease, f"/runner/leases/{lease['id']}/act", {"Authorization": f"Bearer {lease['token']}"}


async def test_a_standard_library_runner_acts_after_people_approved(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with governed(url, tmp_path, monkeypatch, ASK) as (s, service):
        run = await start(s)
        runner = PlainRunner(s.address, await s.key("runner"), CAPABILITIES)

        def work(job: Job) -> Any:
            done = job.act("post", **POST, why="it was asked for")
            assert [one["state"] for one in job.state()["acts"]] == ["succeeded"]
            return done["json"]["no"]

        job = await asyncio.to_thread(runner.run_one, work)
        assert job is not None
        assert job.outcome == "suspended"
        assert service.effects == []
        ann = await s.person("ann")
        (asked,) = (await ann.get(f"/approvals?run={run}")).json()["items"]
        body = {"decision": "approve", "digest": asked["digest"], "revision": asked["revision"]}
        answer = await ann.post(f"/approvals/{asked['id']}/decision", json=body)
        assert answer.status_code == 200, answer.text
        job = await asyncio.to_thread(runner.run_one, work)
        assert job is not None
        assert job.outcome == "succeeded"
        assert (await acme(s).get(run)).output == 1
        assert len(service.effects) == 1
        assert service.effects[0].key == f"{run}:build:post"


async def test_a_repeated_label_is_the_same_act_even_while_it_is_running(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with governed(url, tmp_path, monkeypatch) as (s, service):
        caller, _, path, headers = await claim_step(s)
        service.hold()
        asking = [
            asyncio.ensure_future(caller.post(path, json={"label": "p", **POST}, headers=headers))
            for _ in range(3)
        ]
        await until(lambda: service.held == 1, "the call")
        asking.pop().cancel()  # the first caller may be gone
        service.release()
        answers = [(await one).json() for one in asking]
        assert [one["state"] for one in answers] == ["done", "done"]
        assert answers[0]["result"] == answers[1]["result"]
        assert len(service.writes) == 1
        other = await caller.post(
            path, json={"label": "p", **POST, "fields": {"json": {"n": 2}}}, headers=headers
        )
        assert other.json()["state"] == "misfit"


async def test_a_call_that_another_server_is_making_is_not_repeated(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if a repeat is safe: a refusal of one call would count for both."""
    async with governed(url, tmp_path, monkeypatch) as (one, service):
        connectors = parse_connectors(FILE.format(url=service.url)).values()
        async with site(url, connectors=connectors) as two:
            await start(one)
            key = await one.key("runner")
            first, second = await one.caller(key), await two.caller(key)
            (lease,) = await claim(first, ack=True)
            path, headers = f"/runner/leases/{lease['id']}/act", {"Authorization": f"Bearer {lease['token']}"}
            ask = {"label": "p", **POST}
            service.hold()
            asking = asyncio.ensure_future(first.post(path, json=ask, headers=headers))
            await until(lambda: service.held == 1, "the call")
            answer = (await second.post(path, json=ask, headers=headers)).json()
            assert (answer["state"], answer["code"]) == ("failed", "ACTION_BUSY")
            service.release()
            assert (await asking).json()["state"] == "done"
            assert (await second.post(path, json=ask, headers=headers)).json()["state"] == "done"
            assert len(service.writes) == 1


async def test_a_denial_ends_the_step_and_tells_the_runner(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with governed(url, tmp_path, monkeypatch, DENY) as (s, service):
        run = await start(s)
        runner = PlainRunner(s.address, await s.key("runner"), CAPABILITIES)
        errors: list[Any] = []

        def work(job: Job) -> None:
            try:
                job.act("post", **POST)
            except NotDone as refused:
                errors.extend(refused.args)
                raise

        await asyncio.to_thread(runner.run_one, work)
        assert errors == ["refused", "POLICY_DENIED"]
        assert (await acme(s).get(run)).reason == "POLICY_DENIED"
        assert service.requests == []


async def test_only_the_holder_of_a_live_lease_can_act(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with governed(url, tmp_path, monkeypatch) as (s, service):
        caller, lease, path, headers = await claim_step(s)
        assert (await caller.post(path, json={"label": "p", **POST})).status_code == 401, (
            "a runner's key is not a lease token"
        )
        await say(s, lease, "release", 1)
        late = await caller.post(path, json={"label": "p", **POST}, headers=headers)
        assert problem(late) == "LEASE_STALE"
        assert service.requests == []


async def test_secrets_do_not_leave_the_server(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I53: only the service gets the token."""
    async with governed(url, tmp_path, monkeypatch) as (s, service):
        run = await start(s)
        (lease,) = await claim(await s.as_("runner"), ack=True)
        caller = await s.as_("runner")
        headers = {"Authorization": f"Bearer {lease['token']}"}
        answer = await caller.post(
            f"/runner/leases/{lease['id']}/act", json={"label": "p", **POST}, headers=headers
        )
        state = await caller.get(f"/runner/leases/{lease['id']}", headers=headers)
        assert service.requests[0].headers["authorization"] == f"Bearer {TOKEN}"
        assert answer.json()["state"] == "done"
        assert TOKEN not in answer.text + state.text
        for row in await s.engine.store.read("payloads_of", run_int(run)):
            assert TOKEN.encode() not in row.body


async def test_workers_of_the_sdk_act_over_http_in_code_and_in_files(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = load_workflow(
        """
        name: notify
        steps:
          - id: post
            uses: http.post
            with: {target: {url: /effects}, fields: {json: {n: 5}}}
        """
    )
    async with governed(url, tmp_path, monkeypatch) as (s, service), remote_worker(s, order):
        run = await acme(s).start(order, 7)
        assert await run.result(wait=30) == [1, 700]
        filed = await acme(s).submit(declared)
        assert (await filed.result(wait=30))["json"] == {"no": 2, "key": f"{filed.id}/post"}
        assert [effect.body for effect in service.effects] == [{"n": 70}, {"n": 5}]


async def test_runners_cannot_claim_undo_runs(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server would trust what the runner reports about receipts."""
    async with governed(url, tmp_path, monkeypatch) as (s, _):
        caller = await s.as_("runner")
        for queue in ("default", "other"):
            body = {"claim_id": "c", "capabilities": [f"{queue}|flow:tenure.undo@1"], "max": 1}
            answer = await caller.post("/runner/claim", json=body)
            assert answer.json()["error"]["code"] == "INVALID_INPUT", answer.text
