"""Runs that are started with `POST /agents/run`."""

import pytest

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
