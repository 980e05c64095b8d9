"""Tenure: a durable run orchestrator for Python.

    import tenure

    @tenure.step(retries=3)
    async def build(ref: str) -> str: ...

    @tenure.workflow
    async def release(ref: str) -> str:
        image = await build(ref)
        await tenure.approve(f"Deploy {image}?")
        return image

    tenure.run(release, "main")

The names of this module are the public API. The packages below it may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenure.client import Client
    from tenure.engine.engine import Engine
    from tenure.engine.entry_point import run
    from tenure.engine.run_handle import RunHandle
    from tenure.errors import TenureError
    from tenure.kernel.run_rows import Cap
    from tenure.sdk import (
        ActionConflict,
        ActionFailed,
        ApprovalDecision,
        ApprovalExpired,
        ApprovalRejected,
        ChildFailed,
        ChildHandle,
        Failure,
        Proposal,
        Registry,
        StepFailed,
        WaitExpired,
        act,
        approve,
        current,
        gather,
        log,
        map,  # noqa: A004 - tenure.map, not a bare map
        now,
        patched,
        propose,
        random,
        report_cost,
        restart,
        sleep,
        start,
        step,
        tool,
        uuid,
        wait,
        workflow,
    )
    from tenure.services.schedules import Schedules

__all__ = [
    "ActionConflict", "ActionFailed", "ApprovalDecision", "ApprovalExpired", "ApprovalRejected", "Cap", "ChildFailed", "ChildHandle",
    "Client", "Engine", "Failure", "Proposal", "Registry", "RunHandle", "Schedules", "StepFailed", "TenureError", "WaitExpired", "act",
    "approve", "current", "gather", "log", "map", "now", "patched", "propose", "random", "report_cost", "restart", "run", "sleep", "start",
    "step", "tool", "uuid", "wait", "workflow",
]  # fmt: skip
_MODULES = dict.fromkeys(__all__, "tenure.sdk") | {
    "Cap": "tenure.kernel.run_rows",
    "Client": "tenure.client",
    "Engine": "tenure.engine.engine",
    "RunHandle": "tenure.engine.run_handle",
    "Schedules": "tenure.services.schedules",
    "TenureError": "tenure.errors",
    "run": "tenure.engine.entry_point",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is first used, so that the command line does not load modules that it does not need."""
    if name not in _MODULES:
        raise AttributeError(f"module 'tenure' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
