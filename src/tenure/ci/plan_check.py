"""Checks the answer of the planner's process.

Law: the planner parses what nobody trusts, so its answer is not trusted either. Whatever a pipeline has made of the planner, a plan gets nothing that the
change and the settings do not allow: no other repository or commit, no trust, no secret, label, host or limit beyond the bounds.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tenure.ci.bounds import covers_host
from tenure.ci.change import Change
from tenure.ci.job import JOB_TOOL, CiJob, JobLimits, queue_for
from tenure.ci.planner import PlannedChange, choose_reuse
from tenure.errors import TenureError
from tenure.kernel import capability as cap
from tenure.kernel.commands import StepSpec


def check_planned_change(change: Change, head: str, planned: PlannedChange) -> None:
    """PLAN_FAILED if a plan is not one that the settings allow for this change."""
    bounds = change.repository.allow
    if planned.head != head:
        raise _refuse("it is for another commit")
    if len(planned.steps) > bounds.jobs:
        raise _refuse(f"it has {len(planned.steps)} jobs; the settings allow {bounds.jobs}")
    for step in planned.steps:
        for problem in _find_step_problems(change, head, step):
            raise _refuse(f"job {step.name[:100]!r}: {problem}")


def _refuse(problem: str) -> TenureError:
    return TenureError("PLAN_FAILED", f"the planner's answer is refused: {problem}")


def _find_step_problems(change: Change, head: str, step: StepSpec) -> Iterator[str]:
    bounds = change.repository.allow
    plain = (step.approval, step.wait, step.template, step.condition) == (None, None, None, None)
    if step.kind != "work" or step.tool != JOB_TOOL or not plain or step.skipped or step.input is None:
        yield "it is not a CI job"
        return
    try:
        job = msgspec.json.decode(step.input, type=CiJob)
    except msgspec.DecodeError as fault:
        yield f"it is not a CI job: {fault}"
        return
    if step.queue != cap.capability(queue_for(job.labels), cap.tool(JOB_TOOL)):
        yield "its queue is not that of its labels"
    if (step.timeout_seconds or 0.0) > bounds.timeout_seconds or step.timeout_seconds is None:
        yield "its timeout is longer than the settings allow"
    if (step.retries or 0) > bounds.retries:
        yield "it has more retries than the settings allow"
    if step.lease_seconds is not None or step.idempotency_key:
        yield "it has a lease or a key of its own"
    if step.reuse != choose_reuse(job):
        yield "its results are not for the scope of the change"
    yield from _find_job_problems(change, head, job)


def _find_job_problems(change: Change, head: str, job: CiJob) -> Iterator[str]:
    settings, bounds = change.repository, change.repository.allow
    checkout = job.checkout
    if (checkout.repository, checkout.url, checkout.commit, checkout.ref) != (
        settings.name,
        settings.url,
        head,
        change.ref,
    ):
        yield "it checks out something else"
    if job.trusted != (change.trusted or change.approved):
        yield "its trust is not that of the change"
    if job.scope != change.scope or (job.reuse is not None and job.reuse.scope != change.scope):
        yield "its scope is not that of the change"
    for label in job.labels:
        if label not in bounds.labels and "*" not in bounds.labels:
            yield f"label {label!r} is not allowed"
    for host in job.network:
        if not any(covers_host(allowed, host) for allowed in bounds.network):
            yield f"host {host!r} is not allowed"
    for secret in job.secrets:
        if "*" not in bounds.secrets and not settings.grants_secret(
            secret, change.branch, change.event == "pull_request"
        ):
            yield f"secret {secret!r} is not for this ref"
    if (job.caches and not bounds.caches) or (job.services and not bounds.services):
        yield "the settings allow no caches or no services"
    if any(
        getattr(job.limits, field) > getattr(bounds.limits, field) for field in JobLimits.__struct_fields__
    ):
        yield "its limits are above those of the settings"
    if any((one.retention_seconds or 0) > bounds.retention_seconds for one in job.artifacts):
        yield "an artifact is kept for longer than the settings allow"
    if job.failure_rules != settings.failure_rules:
        yield "its failure rules are not those of the settings"
