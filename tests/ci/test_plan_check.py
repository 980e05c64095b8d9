"""The answer of a planner that a commit has taken over."""

from typing import Any

import msgspec
import pytest

from tenure.ci.job import CiJob, JobArtifact, JobFailureRule, JobLimits, JobReuse, JobService
from tenure.ci.plan_check import check_planned_change
from tenure.ci.planner import PlannedChange
from tenure.errors import TenureError
from tenure.kernel.commands import ReuseSpec
from tests.ci.plans import plan, request
from tests.ci.test_planner import BOUNDED

CONFIG = "jobs: {test: {run: x, labels: [linux], network: [pypi.org], secrets: [REVIEW]}}"
PULL: dict[str, Any] = {"event": "pull_request", "ref": "refs/pull/7/head", "pull_request": 7, "fork": True}
CHANGE = request(CONFIG, ["x"], settings=BOUNDED, **PULL).change
HEAD = "a" * 40


def honest() -> PlannedChange:
    return plan(CONFIG, ["x"], settings=BOUNDED, **PULL)


def with_step(**fields: Any) -> PlannedChange:
    planned = honest()
    return msgspec.structs.replace(planned, steps=(msgspec.structs.replace(planned.steps[0], **fields),))


def with_job(**fields: Any) -> PlannedChange:
    job = msgspec.json.decode(honest().steps[0].input or b"", type=CiJob)
    return with_step(input=msgspec.json.encode(msgspec.structs.replace(job, **fields)))


def test_an_honest_answer_passes() -> None:
    check_planned_change(CHANGE, HEAD, honest())


JOB = msgspec.json.decode(honest().steps[0].input or b"", type=CiJob)
TAKEN_OVER = {
    "trust": with_job(trusted=True),
    "a secret of another ref": with_job(secrets=("DEPLOY",)),
    "an unknown secret": with_job(secrets=("OTHER",)),
    "another repository": with_job(
        checkout=msgspec.structs.replace(JOB.checkout, url="https://example.com/other.git")
    ),
    "another commit": with_job(checkout=msgspec.structs.replace(JOB.checkout, commit="b" * 40)),
    "a trusted scope": with_job(scope="trusted:shop"),
    "a trusted result": with_job(reuse=JobReuse(digest="1", scope="trusted:shop")),
    "a step that stores a trusted result": with_step(reuse=ReuseSpec(scope="trusted:shop", digest="1" * 64)),
    "a step that finds results of others": with_step(
        reuse=ReuseSpec(scope="pull:shop:7", digest="1" * 64, also=("pull:shop:8",))
    ),
    "a lease without end": with_step(lease_seconds=1e9),
    "a host": with_job(network=("evil.com",)),
    "a label": msgspec.structs.replace(with_job(labels=("gpu",))),
    "a service": with_job(services=(JobService(name="x", run="x"),)),
    "more memory": with_job(limits=JobLimits(memory_bytes=1 << 40)),
    "a long retention": with_job(artifacts=(JobArtifact(name="x", paths=("x",), retention_seconds=10**9),)),
    "other failure rules": with_job(failure_rules=(JobFailureRule(code="NETWORK"),)),
    "another queue": with_step(queue="ci+gpu|tool:ci.job"),
    "another tool": with_step(tool="deploy"),
    "another kind": with_step(kind="approval"),
    "no input": with_step(input=None),
    "a template": with_step(template=b"{}"),
    "no timeout": with_step(timeout_seconds=None),
    "a long timeout": with_step(timeout_seconds=10_000.0),
    "many retries": with_step(retries=100),
    "no job": with_step(input=b'{"a": 1}'),
    "another head": msgspec.structs.replace(honest(), head="b" * 40),
    "many jobs": msgspec.structs.replace(honest(), steps=honest().steps * 5),
}


@pytest.mark.parametrize("case", TAKEN_OVER)
def test_a_planner_that_was_taken_over_gains_nothing(case: str) -> None:
    with pytest.raises(TenureError, match="the planner's answer is refused") as failed:
        check_planned_change(CHANGE, HEAD, TAKEN_OVER[case])
    assert failed.value.code == "PLAN_FAILED"
