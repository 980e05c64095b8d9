"""Tenure inside a Python program: an engine on a database of its own, and workers beside it.

async with Engine("sqlite:runs.db") as engine, Worker(engine, {"build": build}):
    run = await engine.create("release", [Step(name="build", tool="build")])
    print(await engine.result(run, wait=60))
"""

from __future__ import annotations

from tenure.embedded.engine import Engine
from tenure.embedded.plan import read_plan
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
    "StepSpec",
    "StepView",
    "ToolError",
    "WaitSpec",
    "Why",
    "Worker",
    "read_plan",
]
