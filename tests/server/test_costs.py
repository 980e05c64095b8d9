"""Costs over HTTP: costs of a run, sums, and costs that runners report."""

from __future__ import annotations

from typing import Any

import pytest

import tenure
from tenure.client import Client
from tenure.sdk import StepFunction, Workflow
from tests.server.stage import Site, problem, site
from tests.server.test_remote_worker import remote_worker
from tests.server.test_runner_leases import claim, say

SPENT = {"provider": "openai", "model": "large", "micros": 600_000, "tokens_in": 10}


async def _ask(money: str) -> None:
    tenure.report_cost("openai", "large", tokens_in=10, money=money)


ask: Any = StepFunction(_ask, name="ask")


async def _dear(amounts: list[str]) -> int:
    for money in amounts:
        await ask(money)
    return len(amounts)


dear = Workflow(_dear, name="dear", budget="1 USD")


async def start(s: Site, **how: Any) -> str:
    plan = [{"name": "build", "tool": "build"}, {"name": "test", "tool": "build"}]
    return await s.engine.scoped(tenant="acme").create("ci", plan, **how)


async def test_a_runner_reports_costs_once_and_its_run_ends_over_its_budget(url: str) -> None:
    async with site(url) as s:
        run = await start(s, budget="1 USD")
        runner, viewer = await s.as_("runner"), await s.as_("viewer")
        (lease,) = await claim(runner, ack=True)
        for _ in range(2):
            answer = await say(s, lease, "cost", 1, spent=[SPENT])
            assert answer.json()["state"] == "ok", answer.text
        assert (await viewer.get(f"/runs/{run}/costs")).json() == {
            "run_id": run,
            "spent": 600_000,
            "budget": 1_000_000,
            "currency": "USD",
            "text": "0.60 of 1.00 USD",
            "lines": [
                {
                    "provider": "openai", "model": "large", "calls": 1, "tokens_in": 10, "tokens_out": 0, "money": 0.6,
                    "currency": "USD", "micros": 600_000,
                }
            ],
        }  # fmt: skip
        wrong = await say(s, lease, "checkpoint", 2, name="half", spent=[SPENT | {"micros": -1}])
        assert (wrong.status_code, problem(wrong)) == (422, "INVALID_INPUT")
        answer = await say(s, lease, "checkpoint", 2, name="half", spent=[SPENT])
        assert (answer.json()["state"], answer.json()["outcome"]) == ("refused", "BUDGET_EXCEEDED")
        late = await say(s, lease, "complete", 3)
        assert problem(late) == "LEASE_STALE"
        assert await claim(runner, "c2") == [], "no further step can be claimed"
        ended = (await viewer.get(f"/runs/{run}")).json()
        assert (ended["status"], ended["reason"]) == ("failed", "BUDGET_EXCEEDED")


async def test_the_last_message_of_a_runner_reports_costs_too(url: str) -> None:
    async with site(url) as s:
        run = await start(s)
        runner, viewer = await s.as_("runner"), await s.as_("viewer")
        (lease,) = await claim(runner, ack=True)
        half = {"seq": 1, "name": "half", "spent": [SPENT]}
        assert (await say(s, lease, "complete", 2, last=half, spent=[SPENT])).status_code == 200
        (lease,) = await claim(runner, "c2", ack=True)
        assert (await say(s, lease, "fail", 1, retryable=False, spent=[SPENT])).status_code == 200
        costs = (await viewer.get(f"/runs/{run}/costs")).json()
        assert (costs["spent"], costs["budget"], costs["lines"][0]["calls"]) == (1_800_000, None, 3)


async def test_a_remote_worker_stops_at_the_budget(url: str) -> None:
    async with site(url) as s, remote_worker(s, dear):
        engine = s.engine.scoped(tenant="acme")
        run = await engine.start(dear, ["0.40", "0.70", "0.10"])
        with pytest.raises(tenure.TenureError) as refused:
            await run.result(wait=30)
        assert refused.value.code == "BUDGET_EXCEEDED"
        assert (await engine.costs.get(run.id)).text == "1.10 of 1.00 USD"
        assert len(await engine.runs.steps(run.id)) == 2


async def test_costs_are_summed_per_tenant(url: str) -> None:
    async with site(url) as s, s.engine.worker(dear):
        engine = s.engine.scoped(tenant="acme")
        run = await engine.start(dear, ["0.40", "0.20"])
        assert await run.result(wait=30) == 2
        viewer, theirs = await s.as_("viewer"), await s.as_("viewer", tenant="globex")
        found = (await viewer.get("/costs")).json()
        assert found["by"] == "workflow"
        assert found["items"] == [
            {
                "workflow": "dear", "currency": "USD", "runs": 1, "calls": 2, "tokens_in": 20, "tokens_out": 0,
                "micros": 600_000, "text": "0.60 USD",
            }
        ]  # fmt: skip
        today = (await viewer.get("/costs", params={"by": "day"})).json()["items"][0]["day"]
        until = {"by": "day", "since": "2020-01-01T00:00:00Z", "until": today}
        assert len((await viewer.get("/costs", params=until)).json()["items"]) == 1
        before = {"since": "2020-01-01", "until": "2020-02-01T12:00:00Z"}
        assert (await viewer.get("/costs", params=before)).json()["items"] == []
        assert (await theirs.get("/costs")).json()["items"] == []
        other = await theirs.get(f"/runs/{run.id}/costs")
        assert (other.status_code, problem(other)) == (404, "RUN_NOT_FOUND")
        for wrong in ({"by": "moon"}, {"since": "soon"}):
            assert problem(await viewer.get("/costs", params=wrong)) == "INVALID_INPUT"
        async with Client(s.address, await s.key("viewer")) as client:
            assert (await client.costs.get(run.id)).spent == 600_000
            (item,) = (await client.costs.report(by="model")).items
            assert (item.provider, item.model, item.text) == ("openai", "large", "0.60 USD")
