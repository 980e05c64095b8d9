"""A workflow file from end to end: loaded, submitted, claimed, resolved, executed and finished."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure.artifacts import ArtifactStore, is_reference
from tenure.commands.process import decode_command, run_command
from tenure.declared import StepResolver, load_workflow, load_workflow_file, step_resolver
from tenure.errors import TenureError
from tenure.ids import run_int
from tenure.kernel.commands import Resolution
from tenure.kernel.lease_types import Lease
from tests.engine.stage import Stage, stage

RELEASE = load_workflow_file(Path(__file__).parent / "release.yaml")


async def take(engine: Stage, queue: str) -> Lease:
    """Claim the only step with this capability."""
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


async def test_a_workflow_file_runs_to_its_end(url: str) -> None:
    async with stage(url) as engine:
        run = await submitted(engine, {"ref": "v2"})
        build = await take(engine, "default|run")
        work = decode_command(build.input)
        assert work.argv == ("make", "image")
        echo = msgspec.structs.replace(work, argv=("sh", "-c", "echo img:$REF"))
        result = await run_command(echo)
        await engine.complete(build, msgspec.json.encode(result.output()))

        label = await take(engine, "default|tool:github.label")
        assert msgspec.json.decode(label.input or b"") == {
            "issue": 7,
            "image": "img:v2",
            "all": {"ref": "v2", "dry": False},
        }
        assert label.idempotency_key == f"label:{run}:v2"
        await engine.complete(label)

        (asked,) = await engine.approvals.list(run)
        assert (asked.tier, asked.people) == ("high", 2)
        await engine.approve(run, approver="ada")
        await engine.approve(run, approver="bea")
        await engine.signal(run, "deploy.healthy", event_id="e1")
        await engine.later(600)
        child = await take(engine, "default|tool:workflow:other-name")
        await engine.complete(child)
        assert (await engine.get(run)).status == "succeeded"
        assert [step.name for step in await engine.runs.steps(run)] == [step.id for step in RELEASE.steps]


async def test_a_step_with_a_false_condition_succeeds_without_a_lease(url: str) -> None:
    async with stage(url) as engine:
        run = await submitted(engine, {"dry": True})
        await engine.complete(await take(engine, "default|run"))
        await engine.settle()
        assert await engine.orchestrator.claim("bob", queues=("default|tool:github.label",), limit=10) == []
        assert (await engine.names(run))["label"] == "succeeded"
        (label,) = [step for step in await engine.runs.steps(run) if step.name == "label"]
        assert (label.skipped, label.reason, label.attempt, label.output) == (
            True,
            "CONDITION_FALSE",
            0,
            None,
        )
        assert label.condition == "inputs.dry == false"


async def test_a_gate_with_a_false_condition_is_passed(url: str) -> None:
    declared = load_workflow(
        "name: w\ninputs: {ask: {type: boolean}}\nsteps:\n"
        "  - {id: gate, approval: {title: Deploy?}, if: inputs.ask}\n"
        "  - {id: news, wait: {event: e}, if: inputs.ask}\n"
        "  - {id: deploy, uses: t}\n"
    )
    async with stage(url) as engine:
        asking = await engine.submit(declared, {"ask": True})
        assert len(await engine.approvals.list(asking.id)) == 1
        run = await engine.submit(declared, {"ask": False})
        deploy = await take(engine, "default|tool:t")
        await engine.complete(deploy)
        assert await engine.names(run.id) == {"gate": "succeeded", "news": "succeeded", "deploy": "succeeded"}
        assert (await engine.get(asking.id)).status == "waiting_approval"


CONDITIONAL = load_workflow("""name: chain
inputs: {n: {type: integer, default: 1}}
steps:
  - {id: first, uses: t}
  - {id: maybe, uses: t, if: steps.first.output.n > 1, with: {n: "${{ steps.first.output.n }}"}}
  - {id: behind, uses: t, if: steps.maybe.output != null}
""")


async def test_a_run_of_skipped_steps_ends_without_a_worker(url: str) -> None:
    declared = load_workflow(
        "name: w\nsteps:\n  - {id: a, uses: t, if: 'run.id == \"no\"'}\n  - {id: b, uses: t, if: steps.a.output == 1}\n"
    )
    async with stage(url) as engine:
        run = await engine.submit(declared, {})
        await engine.settle()
        seen = await engine.get(run.id)
        assert (seen.status, seen.steps_skipped) == ("succeeded", 2)
        assert [(one.step, one.reason) for one in seen.skipped] == [
            ("a", "CONDITION_FALSE"),
            ("b", "CONDITION_FALSE"),
        ]


async def test_the_output_of_a_skipped_step_is_null(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.submit(CONDITIONAL, {})
        await engine.complete(await take(engine, "default|tool:t"), b'{"n": 1}')
        await engine.settle()
        assert (await engine.get(run.id)).status == "succeeded"
        again = await engine.submit(CONDITIONAL, {})
        await engine.complete(await take(engine, "default|tool:t"), b'{"n": 2}')
        maybe = await take(engine, "default|tool:t")
        assert (maybe.name, maybe.input) == ("maybe", b'{"n":2}')
        await engine.complete(maybe, b"7")
        behind = await take(engine, "default|tool:t")
        assert (behind.name, behind.input) == ("behind", b"{}")
        await engine.complete(behind)
        assert (await engine.get(again.id)).steps_skipped == 0


async def test_an_expression_without_a_value_fails_only_its_step(url: str) -> None:
    declared = load_workflow(
        "name: w\nsteps:\n  - {id: a, uses: t}\n  - {id: b, uses: t, with: {x: '${{ steps.a.output.gone }}'}}\n"
    )
    async with stage(url) as engine:
        run = await engine.submit(declared, {})
        await engine.complete(await take(engine, "default|tool:t"), b"{}")
        await engine.settle()
        (_, failed) = await engine.runs.steps(run.id)
        assert (failed.state, failed.reason, failed.attempt) == ("failed", "EXPRESSION_FAILED", 0)
        assert "steps.a.output has no 'gone'" in failed.error
        assert (await engine.get(run.id)).reason == "EXPRESSION_FAILED"


async def test_each_try_sees_its_own_number(url: str) -> None:
    declared = load_workflow(
        "name: w\nsteps:\n  - {id: a, uses: t, with: {n: '${{ run.attempt }}'}, retry: {max: 2, backoff: [1s]}}\n"
    )
    async with stage(url) as engine:
        run = await engine.submit(declared, {})
        first = await take(engine, "default|tool:t")
        assert first.input == b'{"n":1}'
        await engine.fail(first, "X", retryable=True)
        await engine.later(5)
        second = await take(engine, "default|tool:t")
        assert (second.n, second.input) == (2, b'{"n":2}')
        await engine.complete(second)
        assert (await engine.get(run.id)).status == "succeeded"


async def test_another_process_evaluates_the_templates_of_a_dead_one(url: str) -> None:
    """The commit that opens the step writes an outbox row for its input, so that any later sweep can resolve it."""
    declared = load_workflow("name: w\nsteps:\n  - {id: a, uses: t, with: {r: '${{ run.id }}'}}\n")
    async with stage(url) as engine:
        ours, engine.orchestrator.resolver = engine.orchestrator.resolver, None
        run = await engine.submit(declared, {})
        await engine.settle()
        assert (await engine.runs.explain(run.id)).reason == "input"
        assert (await engine.names(run.id)) == {"a": "pending"}
        engine.orchestrator.resolver = ours
        await engine.later(5)
        lease = await take(engine, "default|tool:t")
        assert lease.input == msgspec.json.encode({"r": run.id})
        await engine.complete(lease)


async def test_steps_with_permanently_refused_inputs_fail(url: str) -> None:
    """The outbox row of the inputs must not be dropped silently: the steps would wait until the run's deadline."""
    declared = load_workflow("name: w\nsteps:\n  - {id: a, uses: t, with: {r: '${{ run.id }}'}}\n")

    class Refusing:
        async def resolve(self, _run: int, _wanted: Any) -> tuple[Resolution, ...]:
            raise TenureError("INVALID_INPUT", "it is not what it should be" + "e" * 100_000)

    async with stage(url) as engine:
        engine.orchestrator.resolver = Refusing()
        run = await engine.submit(declared, {})
        await engine.later(5)
        [step] = await engine.runs.steps(run.id)
        assert (step.state, step.reason) == ("failed", "EXPRESSION_FAILED")
        assert str(step.error).startswith("INVALID_INPUT: it is not what it should be")
        assert (await engine.get(run.id)).status == "failed"
        assert await engine.store.read("outbox_of", run_int(run.id)) == []


async def test_templates_are_evaluated_for_a_few_runs_at_a_time(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way = most = 0

    async def counted(work: Any, *given: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(20):  # a long evaluation, so that others can start meanwhile
            await asyncio.sleep(0)
        under_way -= 1
        return work(*given)

    async with stage(url) as engine:
        resolver = StepResolver(engine.store, ArtifactStore(str(tmp_path / "artifacts")))
        monkeypatch.setattr(asyncio, "to_thread", counted)
        made = await asyncio.gather(*(resolver._in_thread(str, number) for number in range(6)))
        assert made == [str(number) for number in range(6)]
        assert most == step_resolver.AT_ONCE_MAX


async def test_a_step_receives_only_what_it_needs(url: str, tmp_path: Path) -> None:
    declared = load_workflow(
        "name: w\nsteps:\n  - {id: a, uses: t}\n  - {id: b, uses: t, with: {x: '${{ steps.a.output }}', y: '${{ steps.a.output }}'}}\n"
    )
    async with stage(url) as engine:
        engine.runtime.artifacts = ArtifactStore(str(tmp_path / "artifacts"))
        engine.orchestrator.resolver = StepResolver(engine.store, engine.artifacts)
        await engine.submit(declared, {})
        text = "x" * 200_000
        await engine.complete(await take(engine, "default|tool:t"), msgspec.json.encode(text))
        lease = await take(engine, "default|tool:t")
        assert lease.input is not None
        assert is_reference(lease.input)
        assert msgspec.json.decode(await engine.artifacts.get(lease.input)) == {"x": text, "y": text}
        await engine.complete(lease)


async def test_an_output_too_large_for_an_expression_fails_the_step_that_uses_it(
    url: str, tmp_path: Path
) -> None:
    """Evaluating an expression must not load a large upload into memory."""
    declared = load_workflow(
        "name: w\nsteps:\n  - {id: a, uses: t}\n  - {id: b, uses: t, with: {x: '${{ steps.a.output }}'}, needs: [a]}\n"
    )
    async with stage(url) as engine:
        engine.orchestrator.resolver = StepResolver(engine.store, ArtifactStore(str(tmp_path / "artifacts")))
        run = await engine.submit(declared, {})
        large = {"$tenure.artifact": f"sha256:{'0' * 64}", "size": 5_000_000, "run": run.id}
        await engine.complete(await take(engine, "default|tool:t"), msgspec.json.encode(large))
        await engine.settle()
        (_, looked) = await engine.runs.steps(run.id)
        assert (looked.state, looked.reason) == ("failed", "EXPRESSION_FAILED")
        assert "5000000 bytes" in looked.error
