"""Tools of a CI for the tests of planning: one plans, the others do the jobs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import tenure
from tests.worker.flows import is_open, note

FILES = {"lib": ("lint", "test"), "docs": ("spell",)}
"""Folder -> the jobs that a change of it needs."""


@tenure.tool("tests.plan_change")
def plan_change(folder: str, changed: list[str], wait: bool = False) -> Any:
    """Plan the jobs that a change needs. With `wait`, only after the gate is open."""
    note(folder, f"plan {os.getpid()}")
    while wait and not is_open(folder, "gate"):
        time.sleep(0.02)
    if "ci.yaml" in changed:
        raise tenure.Failure("CONFIG_INVALID", "ci.yaml:3:1: 'stepz' is unknown")
    if "names" in changed:
        return {"not": "a list"}
    if "twice" in changed:
        return [{"name": "a", "tool": "tests.job"}, {"name": "a", "tool": "tests.job"}]
    jobs = [job for name in changed for job in FILES.get(name, ())]
    return [
        {"name": job, "tool": "tests.job", "needs": [], "input": {"folder": folder, "job": job}}
        for job in jobs
    ]


@tenure.tool("tests.job")
def do_job(folder: str, job: str) -> str:
    """Do a job."""
    note(folder, job)
    Path(folder, f"{job}.out").touch()
    return job
