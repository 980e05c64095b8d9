"""Tenure inside a Python program: an engine on a database of its own, and workers beside it.

Workflows in Python need no more than `import tenure`. Beneath them lie plans of steps, which tools do:

    import tenure

    @tenure.tool("build")
    async def build(ref: str) -> dict[str, str]:
        return {"image": f"app:{ref}"}

    async with Engine("sqlite:runs.db") as engine, engine.worker(build):
        run = await engine.create("release", [StepSpec(name="build")], input={"ref": "main"})
        print(await engine.result(run, wait=60))

A tool gets its step's own input by name, else the run's. What earlier steps made does not come to it: that is what
workflows in Python and in files do.
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
