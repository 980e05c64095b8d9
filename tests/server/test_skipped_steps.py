"""I61: a step whose condition is false is never leased, and every view shows that it was skipped and why."""

import json
from pathlib import Path

import httpx
import pytest

from tenure import Client, ids
from tests.server.stage import Site, problem, site
from tests.server.test_event_stream import listening
from tests.server.test_runner_leases import say

FILE = """name: release
version: "1"
profile: agent-runs
inputs: {dry: {type: boolean, default: true}}
steps:
  - {id: build, uses: build, with: {what: "${{ inputs.dry ? 'some' : 'all' }}"}}
  - {id: label, uses: label, if: steps.build.output.n > 1, with: {n: "${{ steps.build.output.n }}"}}
  - {id: gate, approval: {title: "Ship it?"}, if: inputs.dry == false}
  - {id: ship, uses: ship, if: steps.label.output != null}
"""
WHY = "steps.build.output.n > 1"
EVERYTHING = [f"default|tool:{tool}" for tool in ("build", "label", "ship")]


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for artifacts."""
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))


async def claim_all(runner: httpx.AsyncClient, claim_id: str) -> list[dict[str, object]]:
    asked = {"claim_id": claim_id, "capabilities": EVERYTHING, "max": 10, "ack": True}
    found: list[dict[str, object]] = (await runner.post("/runner/claim", json=asked)).json()["leases"]
    return found


async def run_with_skipped_steps(s: Site) -> str:
    """A run with one step that a runner without the SDK completed, and three skipped steps."""
    operator = await s.as_("operator")
    put = await operator.put("/workflows/release", content=FILE, headers={"Content-Type": "application/yaml"})
    assert put.status_code in (200, 201), put.text
    run: str = (await operator.post("/runs", json={"workflow": "release"})).json()["id"]
    runner = await s.as_("runner")
    (build,) = await claim_all(runner, "c1")
    assert (build["step"], build["input"]) == ("build", {"what": "some"})
    assert (await say(s, build, "complete", 1, output={"n": 1})).status_code == 200
    await s.engine.settle()
    assert await claim_all(runner, "c2") == []
    return run


async def test_every_view_shows_that_a_step_was_skipped_and_why(url: str) -> None:
    async with site(url) as s:
        viewer = await s.as_("operator")
        async with listening(viewer) as listener:
            run = await run_with_skipped_steps(s)
            frames = [await listener.frame() for _ in range(6)]
        skipped = [frame["skipped"] for frame in frames if "skipped" in frame]
        named = [one for some in skipped for one in some]
        assert named == [{"name": name, "reason": "CONDITION_FALSE"} for name in ("label", "gate", "ship")]

        seen = (await viewer.get(f"/runs/{run}")).json()
        assert (seen["status"], seen["steps_skipped"]) == ("succeeded", 3)
        assert seen["skipped"][0] == {"step": "label", "reason": "CONDITION_FALSE", "condition": WHY}
        assert (await viewer.get("/runs")).json()["items"][0]["steps_skipped"] == 3
        plain = (await viewer.get(f"/runs/{run}/status", params={"profile": "tenure"})).json()
        assert plain["steps_skipped"] == 3
        document = (await viewer.get(f"/runs/{run}/status")).json()
        assert (document["status"], document["steps_completed"], document["steps_total"]) == (
            "completed", document["steps_total"], document["steps_completed"],
        )  # fmt: skip

        steps = {step["name"]: step for step in (await viewer.get(f"/runs/{run}/steps")).json()["items"]}
        assert [name for name, step in steps.items() if step["skipped"]] == ["label", "gate", "ship"]
        label = steps["label"]
        assert (label["reason"], label["condition"], label["attempt"], label["output"]) == (
            "CONDITION_FALSE", WHY, 0, None,
        )  # fmt: skip
        intents = (await viewer.get(f"/runs/{run}/steps", params={"profile": "git-with-intent"})).json()[
            "items"
        ]
        assert intents[1]["skipReason"] == f"CONDITION_FALSE: {WHY}"
        assert (await viewer.get(f"/runs/{run}/steps/label/attempts")).json()["items"] == []

        events = (await viewer.get(f"/runs/{run}/events")).json()["items"]
        notes = [note for event in events for note in event["notes"]]
        assert f"label: skipped (CONDITION_FALSE: {WHY})" in notes
        context = [one for event in events for one in event["context"].get("skipped", ())]
        assert [one["name"] for one in context] == ["label", "gate", "ship"]
        attempts = await s.engine.store.read("attempts_of", ids.run_int(run))
        assert {row.idx for row in attempts} == {0}

        async with Client(s.address, key=await s.key("operator")) as client:
            assert [step.name for step in await client.runs.steps(run) if step.skipped] == [
                "label",
                "gate",
                "ship",
            ]
            assert (await client.get(run)).skipped[0].condition == WHY

        (part,) = await s.engine.runtime.sealing.missing(ids.run_int(run))
        proven = {step["name"]: step for step in json.loads(part.built.files["steps.json"])}
        assert (proven["label"]["reason"], proven["label"]["condition"]) == ("CONDITION_FALSE", WHY)


async def test_a_runner_may_not_start_commands(url: str) -> None:
    """Commands come from workflow files only. The plan of a child has none, even if its input looks like one."""
    async with site(url) as s:
        operator = await s.as_("operator")
        await operator.put("/workflows/release", content=FILE, headers={"Content-Type": "application/yaml"})
        await operator.post("/runs", json={"workflow": "release"})
        (build,) = await claim_all(await s.as_("runner"), "c1")
        step = {"name": "evil", "tool": "run", "queue": "default|run", "input": {"argv": ["id"]}}
        child = {"workflow": "x", "plan": [step]}
        answer = await say(s, build, "start", 1, label="c", child=child)
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        assert (await say(s, build, "release", 2)).status_code == 200
