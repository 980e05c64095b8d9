"""A workflow file's whole way: loaded, submitted, claimed by what it needs, resolved, executed, and done."""

from pathlib import Path
from typing import Any

import msgspec

from tenure.declared import load_file, needed_steps, resolve
from tenure.declared.commands import run_command
from tenure.kernel.decide.leases import Lease
from tests.embedded.stage import Stage, stage

RELEASE = load_file(Path(__file__).parent / "release.yaml")


async def take(engine: Stage, queue: str) -> Lease:
    """The one step that waits for a worker of this kind."""
    await engine.settle()
    (lease,) = await engine.orchestrator.claim("bob", queues=(queue,), limit=10)
    return lease


async def submitted(engine: Stage, inputs: dict[str, Any]) -> str:
    bound = RELEASE.bind(inputs)
    return await engine.create(
        RELEASE.name,
        RELEASE.plan(bound),
        input=bound,
        profile=RELEASE.profile,
        timeout=RELEASE.timeout_seconds,
        actor="cy",
    )


async def test_a_workflow_file_is_carried_through_to_its_end(tmp_path: Path) -> None:
    async with stage(f"sqlite:{tmp_path / 'runs.db'}") as engine:
        run = await submitted(engine, {"ref": "v2"})
        build = await take(engine, "default|run")
        assert build.input is not None
        work = resolve(build.input, {})
        assert work.argv == ("make", "image")
        echo = msgspec.structs.replace(work, argv=("sh", "-c", "echo img:$REF"))
        result = await run_command(echo)
        await engine.complete(build, msgspec.json.encode(result.output()))

        label = await take(engine, "default|tool:github.label")
        assert label.input is not None
        assert needed_steps(label.input) == {"build"}
        scope = {"inputs": {"ref": "v2"}, "steps": {"build": {"output": result.output()}}, "run": {"id": run}}
        resolved = resolve(label.input, scope)
        assert resolved.arguments["image"] == "img:v2"
        assert resolved.idempotency_key == f"label:{run}:v2"
        await engine.complete(label)

        (asked,) = await engine.approvals(run)
        assert (asked.tier, asked.people) == ("high", 2)
        await engine.approve(run, approver="ada")
        await engine.approve(run, approver="bea")
        await engine.deliver(run, "deploy.healthy", event_id="e1")
        await engine.later(600)
        child = await take(engine, "default|tool:workflow:other-name")
        await engine.complete(child)
        assert (await engine.get(run)).status == "succeeded"
        assert [step.name for step in await engine.steps(run)] == [step.id for step in RELEASE.steps]


async def test_a_step_whose_condition_is_false_succeeds_without_work(tmp_path: Path) -> None:
    async with stage(f"sqlite:{tmp_path / 'runs.db'}") as engine:
        run = await submitted(engine, {"dry": True})
        await engine.complete(await take(engine, "default|run"))
        label = await take(engine, "default|tool:github.label")
        assert label.input is not None
        assert resolve(label.input, {}).skipped
        await engine.complete(label)
        assert (await engine.names(run))["label"] == "succeeded"


async def test_a_gate_whose_condition_is_false_lets_the_run_go_on(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(
        "name: w\ninputs: {ask: {type: boolean}}\nsteps:\n"
        "  - {id: gate, approval: {title: Deploy?}, if: inputs.ask}\n"
        "  - {id: news, wait: {event: e}, if: inputs.ask}\n"
        "  - {id: deploy, uses: t}\n"
    )
    declared = load_file(file)
    async with stage(f"sqlite:{tmp_path / 'runs.db'}") as engine:
        asking = await engine.create("w", declared.plan({"ask": True}))
        assert len(await engine.approvals(asking)) == 1
        run = await engine.create("w", declared.plan({"ask": False}))
        await engine.later(1)
        await engine.later(1)
        deploy = await take(engine, "default|tool:t")
        await engine.complete(deploy)
        assert await engine.names(run) == {"gate": "succeeded", "news": "succeeded", "deploy": "succeeded"}
        assert (await engine.get(asking)).status == "waiting_approval"
