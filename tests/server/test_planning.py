"""Planning over HTTP: a workflow file names the planner, a runner without the SDK plans, and no view shows its step."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tenure.declared import load_workflow
from tests.server.stage import Site, problem, site
from tests.server.test_runner_leases import say

FILE = """name: ci
version: "1"
profile: delta-ci
inputs: {commit: {type: string}}
planner: {uses: ci.plan, timeout: 60s, retry: {max: 1, backoff: [0s]}}
"""
PLAN = [
    {"name": "lint", "tool": "ci.job", "needs": [], "input": {"do": "lint"}},
    {"name": "test", "tool": "ci.job", "needs": ["lint"], "required": False},
    {"name": "deploy", "needs": ["test"], "condition": "branch == 'main'", "skipped": True},
]


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for artifacts."""
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))


async def start(s: Site, caller: httpx.AsyncClient) -> str:
    """Register the workflow file, and start a run of it."""
    operator = await s.as_("operator")
    put = await operator.put("/workflows/ci", content=FILE, headers={"Content-Type": "application/yaml"})
    assert put.status_code in (200, 201), put.text
    created = await caller.post("/runs", json={"workflow": "ci", "input": {"commit": "ab12"}})
    assert created.status_code == 201, created.text
    assert (created.json()["status"], created.json()["shown"]) == ("planning", "PLANNING")
    run: str = created.json()["id"]
    return run


async def claim(s: Site, what: str, claim_id: str, **how: Any) -> list[dict[str, Any]]:
    runner = await s.as_("runner")
    asked = {"claim_id": claim_id, "capabilities": [f"default|tool:{what}"], "max": 10, "ack": True, **how}
    answer = await runner.post("/runner/claim", json=asked)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["leases"]
    return found


async def test_a_runner_plans_a_run_that_a_caller_started(url: str) -> None:
    async with site(url) as s:
        caller = await s.as_("operator")
        run = await start(s, caller)
        why = (await caller.get(f"/runs/{run}/why")).json()
        assert why["reason"] == "planning"
        assert "'default|tool:ci.plan'" in why["text"]
        (lease,) = await claim(s, "ci.plan", "c1", worker="planner-1")
        assert (lease["kind"], lease["tool"], lease["input"]) == ("plan", "ci.plan", {"commit": "ab12"})
        assert "planner-1 plans it" in (await caller.get(f"/runs/{run}/why")).json()["text"]
        assert (await caller.get(f"/runs/{run}/steps")).json()["items"] == []
        seen = (await caller.get(f"/runs/{run}")).json()
        assert (seen["steps_total"], seen["steps_done"], seen["started_at"]) == (0, 0, None)

        forbidden = await say(s, lease, "checkpoint", 1, name="part")
        assert (forbidden.status_code, problem(forbidden)) == (409, "RUN_INVALID_TRANSITION")
        commands = [{"name": "rm", "queue": "default|run", "input": {"argv": ["rm", "-rf", "/"]}}]
        refused = await say(s, lease, "complete", 2, plan=commands)
        assert (refused.status_code, problem(refused)) == (422, "INVALID_INPUT")
        answer = await say(s, lease, "complete", 3, plan=PLAN)
        assert (answer.status_code, answer.json()["state"]) == (200, "ok")
        assert (await say(s, lease, "complete", 3, plan=PLAN)).json() == answer.json()

        steps = (await caller.get(f"/runs/{run}/steps")).json()["items"]
        assert [(step["name"], step["needs"], step["required"]) for step in steps] == [
            ("lint", [], True),
            ("test", ["lint"], False),
            ("deploy", ["test"], True),
        ]
        (lint,) = await claim(s, "ci.job", "c2")
        assert (lint["step"], lint["input"], lint["id"]) == ("lint", {"do": "lint"}, f"{run}.0.1")
        await say(s, lint, "complete", 1, output=1)
        (test,) = await claim(s, "ci.job", "c3")
        await say(s, test, "complete", 1)
        await s.engine.settle()
        seen = (await caller.get(f"/runs/{run}")).json()
        assert (seen["status"], seen["steps_total"], seen["steps_done"]) == ("succeeded", 3, 3)
        assert seen["skipped"] == [
            {"step": "deploy", "reason": "CONDITION_FALSE", "condition": "branch == 'main'"}
        ]
        edges = [
            edge
            for event in (await caller.get(f"/runs/{run}/events")).json()["items"]
            for edge in event["edges"]
            if edge["step"] == "$plan"
        ]
        assert edges[-1]["after"] == "completed", "the history has every step of planning"


async def test_an_invalid_plan_fails_the_run_with_its_problem(url: str) -> None:
    async with site(url) as s:
        caller = await s.as_("operator")
        run = await start(s, caller)
        (lease,) = await claim(s, "ci.plan", "c1")
        answer = await say(s, lease, "complete", 1, plan=[{"name": "a", "needs": ["b"]}])
        assert (answer.json()["state"], answer.json()["outcome"]) == ("refused", "PLAN_INVALID")
        seen = (await caller.get(f"/runs/{run}")).json()
        assert (seen["status"], seen["reason"]) == ("failed", "PLAN_FAILED")
        assert seen["error"] == "PLAN_INVALID: no step named 'b'"
        document = (await caller.get(f"/runs/{run}/status", params={"profile": "agent-runs"})).json()
        assert (document["steps_total"], document["current_step"]) == (None, None)
        rerun = await caller.post(f"/runs/{run}/rerun", json={})
        assert rerun.json()["status"] == "planning"


async def test_a_planner_is_retried_as_its_file_says(url: str) -> None:
    async with site(url) as s:
        caller = await s.as_("operator")
        run = await start(s, caller)
        for attempt in (1, 2):
            (lease,) = await claim(s, "ci.plan", f"c{attempt}")
            assert lease["attempt"] == attempt
            await say(s, lease, "fail", 1, code="NETWORK_DOWN", message="no route")
        seen = (await caller.get(f"/runs/{run}")).json()
        assert (seen["reason"], seen["error"]) == ("PLAN_FAILED", "NETWORK_DOWN: no route")


def test_the_digest_of_a_file_without_a_planner_is_that_of_before() -> None:
    plain = "name: x\nprofile: agent-runs\nsteps:\n  - {id: a, uses: a}\n"
    assert load_workflow(plain).digest.startswith("63614dc1964a")


async def test_a_long_plan_arrives_in_a_batch(url: str) -> None:
    async with site(url) as s:
        caller = await s.as_("operator")
        run = await start(s, caller)
        (lease,) = await claim(s, "ci.plan", "c1")
        plan = [{"name": f"job-{i}", "tool": "ci.job", "needs": []} for i in range(300)]
        address = {"type": "complete", "lease": lease["id"], "token": lease["token"], "seq": 1}
        runner = await s.as_("runner")
        answer = await runner.post("/runner/messages", json={"messages": [{**address, "plan": plan}]})
        assert answer.json()["answers"][0]["state"] == "ok", answer.text
        assert (await caller.get(f"/runs/{run}")).json()["steps_total"] == 300
        commands = {**address, "seq": 2, "plan": [{"name": "rm", "queue": "default|run"}]}
        refused = (await runner.post("/runner/messages", json={"messages": [commands]})).json()["answers"][0]
        assert refused["error"]["code"] == "INVALID_INPUT"
