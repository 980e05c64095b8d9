"""One attempt of a plan step: a change is fetched, and planned in a sandbox.

Laws:
1. The planner, which parses what the commit contains, runs in the sandbox (`sandboxed_planner`); only git fetches here, into the mirrors of the jobs
   and within the bounds of the runner's owner.
2. A failure is reported with its code, and the profile decides whether it is tried again: NETWORK_* is, PIPELINE_INVALID is not.
3. The output of the step explains each job of the pipeline, whether it is in the plan or not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from tenure.ci.change import Change
from tenure.ci.plan_step import execute_plan_step
from tenure.ci.planner import PlannedChange
from tenure.ci_runner.sandboxed_planner import make_planner_launcher
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.limits import PAYLOAD_BYTES_MAX
from tenure.logs import get_logger
from tenure.shapes.ci import PlanExplanation, PlannedJob

if TYPE_CHECKING:
    from tenure.ci_runner.job_host import JobHost
    from tenure.ci_runner.runner import StepLease

log = get_logger(__name__)


class PlanAttempt:
    """One attempt of a plan step."""

    def __init__(self, host: JobHost, slot: int) -> None:
        self._host = host
        self._slot = slot

    async def execute(self, body: bytes, held: StepLease) -> None:
        """Plan a change, and send the final message of its lease."""
        try:
            change = msgspec.json.decode(body, type=Change)
        except msgspec.DecodeError as wrong:
            await held.fail(
                "PLAN_FAILED", f"the input of this step is no change that this runner knows: {wrong}"
            )
            return
        try:
            planned = await self._plan(change)
        except Exception as fault:
            if held.canceled:
                await held.acknowledge_cancel()
            else:
                await held.fail(*_name_failure(fault))
            return
        if held.canceled:
            await held.acknowledge_cancel()
            return
        await held.send_final(
            c.Complete(**held.address(), plan=planned.steps, output=encode_explanation(planned))
        )

    async def _plan(self, change: Change) -> PlannedChange:
        launch = make_planner_launcher(self._host, asyncio.get_running_loop(), self._slot)
        mirrors, owner = self._host.mirrors, self._host.settings.git
        return await self._host.run_git(lambda stop: execute_plan_step(change, mirrors, owner, launch, stop))


def _name_failure(fault: Exception) -> tuple[str, str]:
    """The code and the message of a failure."""
    if not isinstance(fault, TenureError):
        log.error("plan_attempt_failed", error=repr(fault))
        return "INFRA_RUNNER", f"the runner failed: {fault!r}"
    return "RUNNER_STARTUP_SANDBOX" if fault.code == "SANDBOX_UNAVAILABLE" else fault.code, fault.message


def encode_explanation(planned: PlannedChange) -> bytes:
    """Why each job is in the plan or not, as the output of a plan step. Of a very long pipeline, the first jobs."""
    jobs = [
        PlannedJob(name=job.name, included=job.included, reasons=list(job.reasons), needs=list(job.needs))
        for job in planned.jobs
    ]
    while True:
        explained = PlanExplanation(
            base=planned.base or None,
            head=planned.head,
            jobs=jobs,
            jobs_left_out=len(planned.jobs) - len(jobs),
            withheld_secrets=list(planned.withheld),
        )
        body = msgspec.json.encode(explained)
        if len(body) <= PAYLOAD_BYTES_MAX:
            return body
        jobs = jobs[: len(jobs) // 2]
