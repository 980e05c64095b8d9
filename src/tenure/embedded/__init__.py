"""Tenure inside a Python program: an engine on a database of its own, and workers beside it.

    async def build(job: Job) -> dict[str, str]:
        return {"image": f"app:{job.input['ref']}"}

    async with Engine("sqlite:runs.db") as engine, Worker(engine, {"build": build}):
        run = await engine.create("release", [StepSpec(name="build")], input={"ref": "main"})
        print(await engine.result(run, wait=60))

A tool gets its step's own input, else the run's. What earlier steps made does not come to it: `engine.steps(run)`
has their outputs, and the SDK (`@tenure.workflow`, still to come) will pass them on.
"""

from __future__ import annotations

from tenure.embedded.engine import Engine
from tenure.embedded.plan import read_plan
from tenure.embedded.schedules import Schedules, ScheduleView
from tenure.embedded.worker import Job, ToolError, Worker
from tenure.kernel.commands import ApprovalSpec, BackoffSpec, StepSpec, WaitSpec
from tenure.orchestrator.views import ApprovalView, EventView, RunLine, RunView, StepView
from tenure.orchestrator.why import Why

__all__ = [
    "ApprovalSpec",
    "ApprovalView",
    "BackoffSpec",
    "Engine",
    "EventView",
    "Job",
    "RunLine",
    "RunView",
    "ScheduleView",
    "Schedules",
    "StepSpec",
    "StepView",
    "ToolError",
    "WaitSpec",
    "Why",
    "Worker",
    "read_plan",
]
