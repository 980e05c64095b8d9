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

Everything users need is a name of this module; what lies in the packages beneath it may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenure.client import Client as Client
    from tenure.engine.engine import Engine as Engine
    from tenure.engine.entry_point import run as run
    from tenure.engine.run_handle import RunHandle as RunHandle
    from tenure.errors import TenureError as TenureError
    from tenure.kernel.run_rows import Cap as Cap
    from tenure.sdk import ActionConflict as ActionConflict
    from tenure.sdk import ActionFailed as ActionFailed
    from tenure.sdk import ApprovalDecision as ApprovalDecision
    from tenure.sdk import ApprovalExpired as ApprovalExpired
    from tenure.sdk import ApprovalRejected as ApprovalRejected
    from tenure.sdk import ChildFailed as ChildFailed
    from tenure.sdk import ChildHandle as ChildHandle
    from tenure.sdk import Failure as Failure
    from tenure.sdk import Proposal as Proposal
    from tenure.sdk import Registry as Registry
    from tenure.sdk import StepFailed as StepFailed
    from tenure.sdk import WaitExpired as WaitExpired
    from tenure.sdk import act as act
    from tenure.sdk import approve as approve
    from tenure.sdk import current as current
    from tenure.sdk import gather as gather
    from tenure.sdk import log as log
    from tenure.sdk import map as map  # noqa: A004 - tenure.map, not a bare map
    from tenure.sdk import now as now
    from tenure.sdk import patched as patched
    from tenure.sdk import propose as propose
    from tenure.sdk import random as random
    from tenure.sdk import report_cost as report_cost
    from tenure.sdk import restart as restart
    from tenure.sdk import sleep as sleep
    from tenure.sdk import start as start
    from tenure.sdk import step as step
    from tenure.sdk import tool as tool
    from tenure.sdk import uuid as uuid
    from tenure.sdk import wait as wait
    from tenure.sdk import workflow as workflow
    from tenure.services.schedules import Schedules as Schedules

_ELSEWHERE = {
    "Cap": "tenure.kernel.run_rows",
    "Client": "tenure.client",
    "Engine": "tenure.engine.engine",
    "RunHandle": "tenure.engine.run_handle",
    "Schedules": "tenure.services.schedules",
    "TenureError": "tenure.errors",
    "run": "tenure.engine.entry_point",
}
_SDK = (
    "ActionConflict", "ActionFailed", "ApprovalExpired", "ApprovalRejected", "ApprovalDecision", "ChildFailed", "ChildHandle", "Failure",
    "Proposal", "Registry", "StepFailed", "WaitExpired", "act", "approve", "current", "gather", "log", "map", "now", "patched", "propose", "random",
    "report_cost", "restart", "sleep", "start", "step", "tool", "uuid", "wait", "workflow",
)  # fmt: skip

__all__ = sorted((*_ELSEWHERE, *_SDK))  # noqa: PLE0605 - made from the two lists above


def __getattr__(name: str) -> Any:
    """Names are fetched when they are first used: the command line need not load what it does not use."""
    module = _ELSEWHERE.get(name) or ("tenure.sdk" if name in _SDK else None)
    if module is None:
        raise AttributeError(f"module 'tenure' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
