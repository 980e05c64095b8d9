"""The approval of secrets for a pull request.

Laws:
1. Nobody decides about trust inside the planner: this runs after its answer was checked (`plan_check`).
2. Jobs that name a secret wait for one approval, and get their secrets only behind it. All other jobs run at once.
3. The approval is bound to everything that is shown, the head commit and the digest of the pipeline among it. Another commit is another run, with a question of its own.
4. Who wrote the pull request is involved in its run, so that their own approval does not count.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from tenure.canonical import canonical
from tenure.ci.change import Change
from tenure.ci.job import CiJob
from tenure.ci.planner import PlannedChange
from tenure.errors import TenureError
from tenure.kernel.commands import ApprovalSpec, StepSpec

GATE = "secrets"
"""The name of the approval step. A job of this name is renamed by nobody: it is refused."""
WITHIN_SECONDS = 7 * 86_400.0


def add_secrets_gate(change: Change, planned: PlannedChange) -> PlannedChange:
    """A plan whose jobs with secrets wait for an approval, if the change needs one."""
    if change.event != "pull_request" or change.approved:
        return planned
    jobs = {step.name: msgspec.json.decode(step.input or b"", type=CiJob) for step in planned.steps}
    named = sorted({secret for job in jobs.values() for secret in job.secrets})
    if not named:
        return planned
    if GATE in jobs:
        raise TenureError(
            "PLAN_FAILED", f"a job must not be named {GATE!r}: the approval of secrets has this name"
        )
    steps = [_make_gate(change, planned, named)]
    for step in planned.steps:
        job = jobs[step.name]
        if job.secrets:
            approved = msgspec.json.encode(msgspec.structs.replace(job, trusted=True))
            step = msgspec.structs.replace(step, needs=(*(step.needs or ()), GATE), input=approved)
        steps.append(step)
    withheld = tuple(name for name in planned.withheld if name not in named)
    return msgspec.structs.replace(planned, steps=tuple(steps), withheld=withheld)


def _make_gate(change: Change, planned: PlannedChange, secrets: list[str]) -> StepSpec:
    question = {
        "title": f"Give secrets to pull request {change.pull_request} of {change.repository.name}",
        "author": change.author,
        "fork": change.fork,
        "head": planned.head,
        "pipeline": planned.config_digest,
        "secrets": secrets,
    }
    return StepSpec(
        name=GATE,
        kind="approval",
        needs=(),
        input=msgspec.json.encode(question),
        approval=ApprovalSpec(
            action="ci.secrets",
            tier="med",
            within_seconds=WITHIN_SECONDS,
            digest=sha256(canonical(question)).hexdigest(),
        ),
    )
