"""Plan steps at a runner: a change is fetched, and planned in a sandbox.

Laws:
1. The sandbox of the planner has no network and nothing to write to. It sees the programs of this machine, and its request.
2. A failure is reported with its code, and the profile decides whether it is tried again: NETWORK_* is, PIPELINE_INVALID is not.
3. The output of the step explains each job of the pipeline, whether it is in the plan or not.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import msgspec

from tenure.ci.change import Change
from tenure.ci.plan_step import PLANNER_ARGUMENTS, execute_plan_step, planner_folders
from tenure.ci.planner import PlannedChange
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.limits import CI_PLAN_BYTES_MAX, PAYLOAD_BYTES_MAX
from tenure.sandbox.bubblewrap import Mount
from tenure.sandbox.sandbox import SandboxSpec, run_sandboxed
from tenure.shapes.ci import PlanExplanation, PlannedJob

if TYPE_CHECKING:
    from tenure.ci_runner.job_host import JobHost
    from tenure.ci_runner.runner import StepLease

PLANNER_PROCESSES_MAX = 16


class SandboxedPlanner:
    """Executes the plan steps of a runner."""

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
        except TenureError as refused:
            if held.canceled:
                await held.acknowledge_cancel()
            else:
                code = "RUNNER_STARTUP_SANDBOX" if refused.code == "SANDBOX_UNAVAILABLE" else refused.code
                await held.fail(code, refused.message)
            return
        if held.canceled:
            await held.acknowledge_cancel()
            return
        await held.send_final(
            c.Complete(**held.address(), plan=planned.steps, output=encode_explanation(planned))
        )

    async def _plan(self, change: Change) -> PlannedChange:
        loop = asyncio.get_running_loop()

        def launch(request: bytes, seconds: float) -> bytes:
            return asyncio.run_coroutine_threadsafe(self._launch(request, seconds), loop).result()

        return await asyncio.to_thread(
            execute_plan_step, change, self._host.settings.folder / "plans", launch
        )

    async def _launch(self, request: bytes, seconds: float) -> bytes:
        isolation = self._host.isolation
        spec = SandboxSpec(
            isolation=isolation.kind,
            files=self._host.files,
            mounts=tuple(Mount(path, path) for path in planner_folders()),
            uid=isolation.uid(self._slot),
            processes=PLANNER_PROCESSES_MAX,
        )
        try:
            done = await run_sandboxed(
                (sys.executable, *PLANNER_ARGUMENTS),
                spec,
                stdin=request,
                timeout=seconds,
                output_bytes_max=2 * CI_PLAN_BYTES_MAX,
            )
        except TenureError as refused:
            if refused.code == "SANDBOX_UNAVAILABLE":
                raise
            raise TenureError("PLAN_FAILED", f"the planner was stopped: {refused.message}") from refused
        if done.exit_code != 0:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise TenureError("PLAN_FAILED", f"the planner ended with {done.exit_code}: {said}")
        return done.stdout


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
