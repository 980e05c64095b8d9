"""Tenure inside a Python program: an engine on a database, and workers in the same process.

Workflows in Python need only `import tenure`. Beneath them are plans of steps, which tools run:

    import tenure

    @tenure.tool("build")
    async def build(ref: str) -> dict[str, str]:
        return {"image": f"app:{ref}"}

    async with Engine("sqlite:runs.db") as engine, engine.worker(build):
        run = await engine.create("release", [StepSpec(name="build")], input={"ref": "main"})
        print(await engine.result(run, wait=60))

A tool gets its step's own input by name, else the run's. It does not get the outputs of earlier steps: use a workflow in Python
or in a file for that.
"""

from __future__ import annotations

from tenure.engine.engine import Engine
from tenure.kernel.commands import ApprovalSpec, BackoffSpec, StepSpec, WaitSpec
from tenure.services.plans import read_plan
from tenure.services.schedules import Schedules
from tenure.shapes.approvals import Approval
from tenure.shapes.events import Event
from tenure.shapes.runs import Explanation, Run, RunPage, RunSummary
from tenure.shapes.schedules import Schedule
from tenure.shapes.steps import Step

__all__ = [
    "Approval",
    "ApprovalSpec",
    "BackoffSpec",
    "Engine",
    "Event",
    "Explanation",
    "Run",
    "RunPage",
    "RunSummary",
    "Schedule",
    "Schedules",
    "Step",
    "StepSpec",
    "WaitSpec",
    "read_plan",
]
