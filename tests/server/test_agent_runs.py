"""Runs that are started with `POST /agents/run`."""

import asyncio
from pathlib import Path

import pytest

import tenure
from tenure import Cap
from tenure.engine import Engine
from tenure.kernel import commands as c
from tenure.kernel.lease_types import Lease
from tests.server.stage import ACME, problem, site
from tests.server.workflows import echo, patient, register


@pytest.mark.clause("AGR-11")
async def test_an_agent_run_is_requested_immediately_and_waits_for_a_free_slot(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        await s.engine.put_caps([Cap(ACME, "", max_concurrency=1)])
        operator, engine = await s.as_("operator"), s.engine.scoped(tenant=ACME)
        first = await operator.post("/agents/run", json={"workflow": "patient"})
        assert first.status_code == 201, first.text
        assert (first.json()["status"], first.json()["profile"]) == ("requested", "agent-runs")
        assert first.headers["location"] == f"/runs/{first.json()['id']}"
        leases = await s.engine.orchestrator.claim("somebody", queues=patient.serves)
        assert len(leases) == 1, "the first run takes the only slot"
        second = await operator.post("/agents/run", json={"workflow": "echo", "input": {"word": "hi"}})
        assert second.json()["status"] == "requested"
        run = second.json()["id"]
        assert (await engine.get(run)).shown == "queued"
        async with s.engine.worker(echo):
            assert (await engine.get(run)).shown == "queued", "no slot is free"
            await engine.cancel(first.json()["id"])
            await _acknowledge_cancel(s.engine, leases[0])
            assert await engine.result(run, wait=30) == "HI"
        assert (await engine.get(run)).shown == "completed"


async def _acknowledge_cancel(engine: Engine, lease: Lease) -> None:
    await engine.orchestrator.send(
        c.AckCancel(
            run_id=lease.run_id, tenant=ACME, idx=lease.idx, n=lease.n, seq=1, context=engine.scope.context()
        )
    )


async def test_an_agent_run_has_its_profile_and_its_key(url: str) -> None:
    async with site(url) as s:
        await register(s.engine)
        operator = await s.as_("operator")
        body = {"workflow": "echo", "input": {"word": "a"}, "profile": "delta-ci"}
        answer = await operator.post("/agents/run", json=body)
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        del body["profile"]
        first = await operator.post("/agents/run", json=body, headers={"X-Request-ID": "k"})
        again = await operator.post("/agents/run", json=body, headers={"X-Request-ID": "k"})
        assert (first.status_code, again.content) == (201, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        answer = await operator.post("/runs", json=body, headers={"X-Request-ID": "k"})
        assert (answer.status_code, problem(answer)) == (422, "IDEMPOTENCY_KEY_REUSED")


# ---- The status of an agent run is status.json.

FIELDS = [
    "run_id", "agent_slug", "status", "trigger", "started_at", "finished_at", "current_step", "steps_total", "steps_completed",
    "proposals_created", "error",
]  # fmt: skip
PLANNED = """
name: planned
version: "1"
steps:
  - {id: collect, uses: collect}
  - {id: execute-agent, uses: execute, needs: [collect]}
  - {id: finalize, uses: finish, needs: [execute-agent]}
"""


@tenure.workflow(name="stuck", timeout=0.2)
async def stuck() -> None:
    """Wait for an event that never comes."""
    await tenure.wait("never")


@pytest.mark.clause("AGR-15", "AGR-16")
async def test_the_status_of_an_agent_run_is_its_document_without_a_profile(url: str) -> None:
    async with site(url) as s:
        await register(s.engine, echo)
        operator = await s.as_("operator")
        put = await operator.put(
            "/workflows/planned", content=PLANNED, headers={"Content-Type": "application/yaml"}
        )
        assert put.status_code in (200, 201), put.text
        started = await operator.post("/agents/run", json={"workflow": "planned"})
        run = started.json()["id"]
        seen = []
        for _ in range(3):
            body = (await operator.get(f"/runs/{run}/status")).json()
            assert list(body) == FIELDS
            seen.append((body["status"], body["current_step"], body["steps_total"], body["steps_completed"]))
            [lease] = await s.engine.orchestrator.claim(
                "bob", queues=[f"default|tool:{tool}" for tool in ("collect", "execute", "finish")]
            )
            await s.engine.orchestrator.send(
                c.Complete(run_id=lease.run_id, tenant=ACME, idx=lease.idx, n=lease.n, seq=1)
            )
        assert seen == [
            ("queued", "collect", 3, 0), ("running", "execute-agent", 3, 1), ("running", "finalize", 3, 2),
        ]  # fmt: skip
        answer = await operator.get(f"/runs/{run}/status")
        assert (answer.json()["status"], answer.json()["steps_total"]) == ("completed", 3)
        tag = {"If-None-Match": answer.headers["etag"]}
        assert (await operator.get(f"/runs/{run}/status", headers=tag)).status_code == 304
        plain = (await operator.get(f"/runs/{run}/status", params={"profile": "tenure"})).json()
        assert (plain["id"], plain["status"]) == (run, "succeeded")
        # Code does not say how many steps it will have: not before, and not by counting those that are done.
        coded = await operator.post("/agents/run", json={"workflow": "echo", "input": {"word": "a"}})
        async with s.engine.worker(echo):
            await s.engine.scoped(tenant=ACME).result(coded.json()["id"], wait=30)
        body = (await operator.get(f"/runs/{coded.json()['id']}/status")).json()
        assert (body["status"], body["steps_total"], body["steps_completed"]) == ("completed", None, 1)
        # A run of another profile is shown as before.
        other = await operator.post("/runs", json={"workflow": "planned"})
        assert other.json()["profile"] == "tenure", "declared workflows have the profile tenure"
        assert (await operator.get(f"/runs/{other.json()['id']}/status")).json()["status"] == "queued"


@pytest.mark.clause("AGR-10", "AGR-18")
async def test_a_run_that_exceeds_its_time_has_the_code_agent_timeout(url: str) -> None:
    async with site(url) as s:
        await register(s.engine, stuck)
        operator = await s.as_("operator")
        started = await operator.post("/agents/run", json={"workflow": "stuck"})
        assert started.status_code == 201, started.text
        run = started.json()["id"]
        async with s.engine.worker(stuck):
            answer = await operator.get(f"/runs/{run}/result", params={"wait": 30})
        assert (answer.status_code, problem(answer)) == (504, "AGENT_TIMEOUT")
        body = (await operator.get(f"/runs/{run}/status")).json()
        assert (body["status"], body["error"]) == ("failed", "AGENT_TIMEOUT: execution exceeded 0.2s limit")


async def test_with_a_publisher_the_status_is_what_was_published(tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    async with site(f"sqlite:{tmp_path / 'site.db'}", publish=str(documents)) as s:
        await register(s.engine, patient)
        operator = await s.as_("operator")
        run = (await operator.post("/agents/run", json={"workflow": "patient"})).json()["id"]
        published = documents / ACME / "runs" / run / "status.json"
        while not published.exists() or b'"queued"' not in published.read_bytes():  # noqa: ASYNC110 - another task writes it
            await asyncio.sleep(0.02)
        answer = await operator.get(f"/runs/{run}/status")
        assert answer.content == published.read_bytes()
        publisher = s.engine.publisher
        assert publisher is not None
        await publisher.__aexit__()
        publisher._fence = 0
        late = (await operator.post("/agents/run", json={"workflow": "patient"})).json()["id"]
        missing = await operator.get(f"/runs/{late}/status")
        assert (missing.status_code, problem(missing)) == (404, "NOT_PUBLISHED")
        assert missing.headers["retry-after"] == "1"
        assert (await operator.get(f"/runs/{late}/status", params={"profile": "tenure"})).status_code == 200
