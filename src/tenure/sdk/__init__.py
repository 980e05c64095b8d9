"""What users import: see the names below, all of them also in `tenure` itself."""

from __future__ import annotations

from tenure.sdk.acts import act
from tenure.sdk.definitions import Registry, Step, Tool, Workflow, registry, step, tool, workflow
from tenure.sdk.faults import (
    ActionConflict,
    ActionFailed,
    ApprovalExpired,
    ApprovalRejected,
    ChildFailed,
    Failure,
    StepFailed,
    WaitExpired,
)
from tenure.sdk.words import (
    Child,
    Decision,
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
    "ApprovalExpired",
    "ApprovalRejected",
    "Child",
    "ChildFailed",
    "Decision",
    "Failure",
    "Proposal",
    "Registry",
    "Step",
    "StepFailed",
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
