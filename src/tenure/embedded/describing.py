"""Workflows as they are registered: what others need to know to start one by its name, and to show it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.declared import Declared

if TYPE_CHECKING:
    from tenure.sdk.definitions import Workflow


def described(workflow: Workflow[..., Any] | Declared) -> dict[str, Any]:
    """A workflow as it is registered and shown."""
    if isinstance(workflow, Declared):
        return {
            "name": workflow.name,
            "version": workflow.version,
            "kind": "declared",
            "profile": workflow.profile,
            "digest": workflow.digest,
            "inputs": msgspec.to_builtins(workflow.inputs),
            "steps": [{"id": step.id, "kind": step.kind, "queue": step.queue} for step in workflow.steps],
            "document": workflow.text,
        }
    return {
        "name": workflow.name,
        "version": workflow.version,
        "accepts": list(workflow.accepts),
        "kind": "code",
        "profile": workflow.profile.name,
        "queue": workflow.queue,
        "timeout_seconds": workflow.timeout_seconds,
        "lease_seconds": workflow.lease_seconds,
        "terms": workflow.terms.fields(),
        "doc": inspect.getdoc(workflow.function) or "",
        "inputs": workflow.parameters.schema,
    }
