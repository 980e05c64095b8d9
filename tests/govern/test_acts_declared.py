"""Steps of workflow files that act: `uses: connector.operation`."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.declared import load_workflow
from tenure.errors import TenureError
from tenure.sdk import Registry
from tenure.sdk.definitions import Tool
from tenure.testing.doubles import ServiceDouble
from tests.govern.act_service import ASK, lab_of, receipts, settle, verdicts

NOTIFY = """
name: notify
profile: governed-runtime
inputs:
  n: {type: integer}
steps:
  - id: post
    uses: http.post
    idempotency_key: post:${{ run.id }}
    with:
      target: {url: /effects}
      fields: {json: {n: "${{ inputs.n }}"}}
      why: somebody asked
    retry: {max: 2, backoff: [1s], jitter: 0}
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The database of a lab: its own SQLite file (None) or the URL of PostgreSQL."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("migrated_dsn"))


@pytest.mark.clause("GOV-16")
async def test_a_declared_step_acts_after_its_approval(url: str | None) -> None:
    with ServiceDouble() as service:
        async with lab_of(service, Registry(), url=url, policy=ASK) as lab:
            run = await lab.submit(load_workflow(NOTIFY), {"n": 5})
            assert await run.reaches("waiting_approval") == "waiting_approval"
            (asked,) = await lab.engine.approvals.list(run.id)
            assert asked.question["why"] == "somebody asked"
            await lab.approve(run, digest=asked.digest)
            assert (await run.result())["json"]["no"] == 1
            assert [(effect.key, effect.body) for effect in service.effects] == [(f"post:{run.id}", {"n": 5})]
            history = [
                edge.after for event in await run.history() for edge in event.edges if edge.machine == "step"
            ]
            seen = [
                state for state in history if state in ("ready", "running", "waiting_approval", "succeeded")
            ]
            assert seen == ["ready", "running", "waiting_approval", "ready", "running", "succeeded"]


async def test_a_retryable_failure_is_a_failed_try_of_the_step() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, Registry()) as lab:
            service.trouble(status=429)
            run = await lab.submit(load_workflow(NOTIFY), {"n": 5})
            assert (await run.result())["json"]["no"] == 1
            assert [row.state for row in await receipts(lab, run)] == ["failed", "succeeded"]
            attempts = await lab.engine.store.read("attempts_of", lab.number(run))
            assert [row.state for row in attempts] == ["failed", "succeeded"]


async def test_the_step_fails_after_its_own_retries() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, Registry()) as lab:
            for _ in range(5):
                service.trouble(status=429)
            run = await lab.submit(load_workflow(NOTIFY), {"n": 5})
            with pytest.raises(TenureError, match="CONNECTOR_RATE_LIMITED"):
                await run.result()
            assert len(service.writes) == 3


async def test_a_long_rate_limit_uses_up_no_tries() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, Registry()) as lab:
            service.trouble(status=429, headers={"Retry-After": "3600"})
            run = await lab.submit(load_workflow(NOTIFY), {"n": 5})
            await lab.jump("59m")
            assert len(service.writes) == 1
            assert (await run.result())["json"]["no"] == 1
            assert len(service.writes) == 2


async def test_a_permanent_refusal_fails_the_step() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, Registry()) as lab:
            service.trouble(status=400)
            run = await lab.submit(load_workflow(NOTIFY), {"n": 5})
            with pytest.raises(TenureError, match="CONNECTOR_REJECTED"):
                await run.result()
            assert len(service.writes) == 1


async def test_a_person_settles_a_lost_answer_that_cannot_be_looked_up() -> None:
    with ServiceDouble("neither") as service:
        async with lab_of(service, Registry()) as lab:
            service.trouble(drop="after")
            run = await lab.submit(load_workflow(NOTIFY), {"n": 5})
            await lab.settle()
            await lab.jump("1h")
            await settle(lab, run, "done", result=b'{"json": {"no": 1}}')
            assert (await run.result())["json"]["no"] == 1
            assert len(service.effects) == 1


async def test_a_tool_takes_precedence_over_an_operation_of_the_same_name() -> None:
    def post(target: dict[str, Any], fields: dict[str, Any], why: str) -> str:
        return f"{why}: {fields['json']['n']}"

    with ServiceDouble() as service:
        mine = Registry()
        mine.add(Tool(post, name="http.post"))
        async with lab_of(service, mine) as lab:
            run = await lab.submit(load_workflow(NOTIFY), {"n": 5})
            assert await run.result() == "somebody asked: 5"
            assert service.requests == []
            assert await verdicts(lab, run) == []


async def test_invalid_fields_are_refused_before_the_run_starts() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, Registry()) as lab:
            for wrong, message in (
                ("target: {url: /effects, port: 1}", "steps[0].with.target.port"),
                ("targets: {url: /effects}", "steps[0].with.targets"),
                ("target: {}", "steps[0].with.target.url"),
            ):
                file = load_workflow(NOTIFY.replace("target: {url: /effects}", wrong))
                with pytest.raises(TenureError) as refused:
                    await lab.submit(file, {"n": 5})
                assert refused.value.code == "WORKFLOW_INVALID"
                assert message in str(refused.value.details)


async def test_invalid_fields_found_at_run_time_fail_the_step() -> None:
    with ServiceDouble() as service:
        async with lab_of(service, Registry()) as lab:
            file = load_workflow(NOTIFY.replace("{url: /effects}", '{url: "${{ inputs.n }}"}'))
            run = await lab.submit(file, {"n": 5})
            with pytest.raises(TenureError, match="INVALID_INPUT"):
                await run.result()
            assert service.requests == []
