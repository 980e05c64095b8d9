"""Resume, rerun, pause and park (rules 25 and 29), on both stores."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import tenure
from tenure import ids
from tenure.engine import ApprovalSpec, BackoffSpec, StepSpec, WaitSpec
from tenure.errors import TenureError
from tenure.kernel import reruns
from tenure.kernel.commands import BODY_STEP, Park
from tenure.sdk.definitions import Tool
from tenure.shapes.runs import RunTrigger
from tests.engine.stage import Stage, head, stage

PLAN = [
    StepSpec(name="fetch", idempotency_key="own-key"),
    StepSpec(name="build", backoff=BackoffSpec((1.0, 2.0)), retries=1, timeout_seconds=50, lease_seconds=20),
    StepSpec(name="lint", needs=("fetch",), required=False, queue="small", input=b'{"strict":true}'),
    StepSpec(name="ok", kind="approval", needs=("build", "lint"), approval=ApprovalSpec("deploy", people=2)),
    StepSpec(name="calm", kind="wait", wait=WaitSpec("quiet", within_seconds=60)),
    StepSpec(name="deploy"),
]


async def refused(code: str, call: Any) -> TenureError:
    with pytest.raises(TenureError) as caught:
        await call
    assert caught.value.code == code
    return caught.value


async def rows(engine: Stage, run_id: str) -> reruns.FinishedRun:
    return await engine.runs._finished(await engine.scope.reader.row(ids.run_int(run_id)))


# ---------------------------------------------------------------------------------------------- resume


async def test_a_resumed_run_does_the_rest_of_a_declared_plan(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create(
            "release", PLAN, input={"ref": "main"}, profile="delta-ci", labels={"a": "b"}
        )
        await engine.complete(await engine.claim(), b'"sources"')
        await engine.fail(await engine.claim(), "COMPILER_CRASHED", retryable=False)
        assert (await engine.get(run)).status == "failed"

        next_run = await engine.runs.resume(run)
        view = await engine.get(next_run)
        assert (view.resumed_from, view.resume_count, view.attempt_no, view.rerun_of) == (run, 1, 1, None)
        assert (view.input, view.labels, view.profile) == ({"ref": "main"}, {"a": "b"}, "delta-ci")
        steps = {s.name: s for s in await engine.runs.steps(next_run)}
        assert list(steps) == ["build", "lint", "ok", "calm", "deploy"]
        assert steps["build"].needs == ()
        assert steps["lint"].needs == ()
        assert set(steps["ok"].needs) == {"build", "lint"}
        assert (steps["build"].attempts_max, steps["lint"].required) == (2, False)
        lease = await engine.claim()
        assert lease.name == "build"
        assert lease.idempotency_key == f"{run}/build", "its key identifies an effect that already happened"

        await engine.cancel(next_run)
        await refused("RUN_INVALID_TRANSITION", engine.runs.resume(next_run))
        await engine.complete(lease)
        third = await engine.runs.resume(next_run)
        assert (await engine.get(third)).resumed_from == next_run
        assert (await engine.get(third)).resume_count == 2


async def test_an_approved_gate_is_not_asked_again(url: str) -> None:
    async with stage(url) as engine:
        gate = StepSpec(name="ok", kind="approval")
        run = await engine.create("w", [gate, StepSpec(name="deploy", retries=0)])
        await engine.approve(run, approver="ada")
        await engine.fail(await engine.claim(), "BROKEN")
        next_run = await engine.runs.resume(run)
        await engine.complete(await engine.claim())
        assert await engine.names(next_run) == {"deploy": "succeeded"}
        await refused("RUN_TERMINAL_STATE", engine.runs.resume(next_run))


async def test_a_resumed_body_gets_its_resumable_checkpoints_with_their_outputs(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [BODY_STEP])
        lease = await engine.claim()
        await engine.checkpoint(
            lease, "fetch", 1, output=b'{"n": 1}', arguments=b"digest", meta='{"tokens": 5}'
        )
        await engine.checkpoint(lease, "clock", 2, output=b"1", resumable=False)
        await engine.checkpoint(lease, "build", 3, output=None)
        await engine.checkpoint(lease, "broken", 4, state="failed", error="OOPS")
        await engine.fail(lease, "OOPS")
        assert (await engine.get(run)).status == "failed"

        next_run = await engine.runs.resume(run)
        reused = await engine.runs.steps(next_run)
        assert [(s.name, s.kind, s.state, s.output) for s in reused] == [
            ("fetch", "checkpoint", "succeeded", {"n": 1}),
            ("build", "checkpoint", "succeeded", None),
        ]
        (row, _) = (await rows(engine, next_run)).checkpoints[::-1]
        assert (row.arguments, row.meta) == (b"digest", '{"tokens": 5}')
        lease = await engine.claim()
        assert lease.recorded
        await refused("CHECKPOINT_CONFLICT", engine.checkpoint(lease, "fetch", 1))
        await engine.checkpoint(lease, "clock", 2, output=b"2")
        await engine.complete(lease, b'"done"')
        assert await engine.result(next_run) == "done"
        done = await engine.get(next_run)
        assert (done.steps_done, done.steps_total) == (3, 3), (
            "the total is never below the number of finished steps"
        )
        (line, _) = await engine.runs.list()
        assert (line.id, line.steps_done, line.steps_total) == (next_run, 3, 3)


async def test_resuming_ends_a_wait_for_an_event_or_a_time_but_never_an_approval(url: str) -> None:
    async with stage(url) as engine:
        for wait in (WaitSpec("never"), WaitSpec(within_seconds=86_400)):
            run = await engine.create("w", [StepSpec(name="x", kind="wait", wait=wait)])
            assert await engine.runs.resume(run) == run
            assert (await engine.get(run)).status == "succeeded"
        asked = await engine.create("w", [StepSpec(name="ok", kind="approval")])
        error = await refused("RUN_INVALID_TRANSITION", engine.runs.resume(asked))
        assert "only a decision ends that wait" in error.message
        working = await engine.create("w", [StepSpec(name="build")])
        error = await refused("RUN_INVALID_TRANSITION", engine.runs.resume(working))
        assert "waits for no event and no time" in error.message
        assert (await engine.get(asked)).status == "waiting_approval"


# ----------------------------------------------------------------------------------------------- rerun


@pytest.mark.clause("DCI-17")
async def test_a_rerun_starts_from_the_beginning_and_is_linked(url: str) -> None:
    async with stage(url) as engine:
        push = RunTrigger(type="webhook", ref="refs/heads/main@abc123", repo="acme/app")
        run = await engine.create("release", PLAN, input=1, key="k", timeout=500, trigger=push)
        await refused("RUN_INVALID_TRANSITION", engine.runs.rerun(run))
        await engine.complete(await engine.claim())
        await engine.cancel(run)
        second = await engine.runs.rerun(run)
        view = await engine.get(second)
        assert (view.rerun_of, view.attempt_no, view.resumed_from, view.resume_count) == (run, 2, None, 0)
        assert set((await engine.names(second)).values()) == {"ready", "pending"}
        old, new = await rows(engine, run), await rows(engine, second)
        bodies = {p.ref: p.body for p in new.payloads}
        assert reruns.rebuild_plan(new, new.steps, bodies, keep_keys=False) == reruns.rebuild_plan(
            old, old.steps, {p.ref: p.body for p in old.payloads}, keep_keys=False
        )
        assert new.steps[0].idempotency_key == "own-key"
        assert new.steps[1].idempotency_key == f"{second}/build"
        assert new.run.timeout_us == 500_000_000
        assert new.spec.idempotency_key is None
        assert (new.spec.trigger_type, new.spec.trigger_ref, new.run.repo) == ("webhook", push.ref, push.repo)

        await engine.complete(await engine.claim())
        await engine.cancel(second)
        resumed = await engine.runs.resume(second)
        assert (await engine.get(resumed)).attempt_no == 2
        await engine.cancel(resumed)
        third = await engine.runs.rerun(resumed)
        assert (await engine.get(third)).rerun_of == resumed
        assert (await engine.get(third)).attempt_no == 3
        assert list(await engine.names(third)) == [step.name for step in PLAN], (
            "the whole plan, not only the remaining steps"
        )


async def test_a_rerun_keeps_the_order_of_a_strict_profile(url: str) -> None:
    async with stage(url) as engine:
        plan = [StepSpec(name="a"), StepSpec(name="b"), StepSpec(name="c")]
        run = await engine.create("w", plan, profile="approval-runs")
        await engine.complete(await engine.claim())
        await engine.cancel(run)
        rerun, resumed = await engine.runs.rerun(run), await engine.runs.resume(run)
        assert [s.needs for s in await engine.runs.steps(rerun)] == [(), ("a",), ("b",)]
        assert [s.needs for s in await engine.runs.steps(resumed)] == [(), ("b",)]


def test_a_run_without_a_plan_is_planned_again_by_a_rerun() -> None:
    with pytest.raises(TenureError, match="start a new run"):
        reruns._body({}, 3, "the run's input")
    assert reruns._body({3: b"x"}, 3, "it") == b"x"


# ------------------------------------------------------------------------------------- pause and park


async def test_a_paused_run_gets_no_lease_and_its_deadline_keeps_running(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [StepSpec(name="a"), StepSpec(name="b")], timeout=100)
        lease = await engine.claim()
        await engine.runs.pause(run)
        await engine.runs.pause(run)
        assert (await engine.runs.explain(run)).reason == "paused"
        await engine.complete(lease)
        assert (await engine.get(run)).paused
        assert await engine.nothing_to_claim()
        await engine.runs.unpause(run)
        await engine.runs.unpause(run)
        lease = await engine.claim()
        assert lease.name == "b"
        await engine.runs.pause(run)
        await engine.later(101)
        assert (await engine.get(run)).status == "timed_out"
        await refused("RUN_TIMED_OUT", engine.result(run))
        await refused("RUN_TERMINAL_STATE", engine.runs.pause(run))


async def test_a_lease_and_a_deadline_may_end_in_the_same_sweep(url: str) -> None:
    """The deadline's tick sees the step that the lease's tick changed in the same batch."""
    async with stage(url) as engine:
        run = await engine.create("w", [StepSpec(name="a"), StepSpec(name="b")], timeout=100)
        await engine.claim()
        await engine.later(101)
        assert [e.kind for e in await engine.runs.events(run)] == [
            "create",
            "claim",
            "lease_expired",
            "time_out",
        ]
        assert await engine.names(run) == {"a": "canceled", "b": "canceled"}


async def test_a_run_that_matches_no_worker_is_parked_without_an_attempt(url: str) -> None:
    async def compile_it() -> str:
        return tenure.current().step

    async with stage(url) as engine:
        # The caller sent the step to workers that do not have its tool. This is no failure of the step.
        queue = "default|tool:other"
        run = await engine.create("w", [StepSpec(name="build", tool="compile", queue=queue)])
        async with engine.worker(Tool(compile_it, "other"), name="small"):
            while (view := await engine.get(run)).parked is None:
                assert not view.finished
                await asyncio.sleep(0.002)
        why = await engine.runs.explain(run)
        assert why.reason == "parked"
        assert "step 'build' uses the tool 'compile', which this worker does not have" in why.text
        assert await engine.nothing_to_claim()
        (step,) = await engine.store.read("steps_of", ids.run_int(run))
        assert (step.state, step.charged, step.attempt) == ("ready", 0, 1)

        async with engine.worker(Tool(compile_it, "compile"), Tool(compile_it, "other")):
            await refused("COMMAND_DEADLINE", engine.result(run, wait=0.1))
            await engine.runs.unpause(run)
            assert await engine.result(run, wait=10) == "build"


async def test_parking_follows_the_rules_of_lease_messages(url: str) -> None:
    async with stage(url) as engine:
        run = await engine.create("w", [StepSpec(name="build")])
        lease = await engine.claim()
        await engine.later(timedelta(seconds=31).total_seconds())
        await refused("LEASE_STALE", engine.orchestrator.send(Park(**head(lease, 1), why="too late")))
        assert (await engine.get(run)).parked is None
