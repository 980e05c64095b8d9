"""What users import: see the names below, all of them also in `tenure` itself."""

from __future__ import annotations

from tenure.sdk.acts import act
from tenure.sdk.definitions import Registry, StepFunction, Tool, Workflow, registry, step, tool, workflow
from tenure.sdk.errors import (
    ActionConflict,
    ActionFailed,
    ApprovalExpired,
    ApprovalRejected,
    ChildFailed,
    Failure,
    StepFailed,
    WaitExpired,
)
from tenure.sdk.primitives import (
    ApprovalDecision,
    ChildHandle,
    Proposal,
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
    uuid,
    wait,
)

__all__ = [
    "ActionConflict",
    "ActionFailed",
    "ApprovalDecision",
    "ApprovalExpired",
    "ApprovalRejected",
    "ChildFailed",
    "ChildHandle",
    "Failure",
    "Proposal",
    "Registry",
    "StepFailed",
    "StepFunction",
    "Tool",
    "WaitExpired",
    "Workflow",
    "act",
    "approve",
    "current",
    "gather",
    "log",
    "map",
    "now",
    "patched",
    "propose",
    "random",
    "registry",
    "report_cost",
    "restart",
    "sleep",
    "start",
    "step",
    "tool",
    "uuid",
    "wait",
    "workflow",
]
