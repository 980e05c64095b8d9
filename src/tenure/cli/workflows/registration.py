"""Telling a database which workflows there are, so that `tenure workflows` can list them.

Law: registering is for people to look at. A version that is registered as something else is told and goes on as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.canonical import canonical
from tenure.errors import TenureError
from tenure.store.workflows import save_workflow

if TYPE_CHECKING:
    from tenure.declared import DeclaredWorkflow
    from tenure.engine import Engine
    from tenure.kernel.registry_rows import WorkflowRow
    from tenure.sdk.definitions import Registry, Tool, Workflow


def select_workflows(definitions: Iterable[Registry | Workflow[..., Any] | Tool]) -> list[Workflow[..., Any]]:
    """The workflows among what a worker serves."""
    from tenure.sdk.definitions import Registry, Workflow

    found: list[Workflow[..., Any]] = []
    for each in definitions:
        if isinstance(each, Registry):
            found += each.workflows.values()
        elif isinstance(each, Workflow):
            found.append(each)
    return found


def select_tool_names(definitions: Iterable[Registry | Workflow[..., Any] | Tool]) -> list[str]:
    """The names of the tools among what a worker serves."""
    from tenure.sdk.definitions import Registry, Tool

    found: list[str] = []
    for each in definitions:
        if isinstance(each, Registry):
            found += each.tools
        elif isinstance(each, Tool):
            found.append(each.name)
    return found


async def register_workflow(
    engine: Engine, workflow: Workflow[..., Any] | DeclaredWorkflow, *, tenant: str | None = None
) -> WorkflowRow:
    """Register one version of a workflow for a tenant (the engine's); WORKFLOW_CHANGED where that version is something
    else."""
    from tenure.cli.common.session import caller_id
    from tenure.services.catalog import describe_workflow

    about = describe_workflow(workflow)
    definition = msgspec.json.encode(about, order="sorted")
    digest = about.get("digest") or hashlib.sha256(canonical(msgspec.to_builtins(about))).hexdigest()
    return await save_workflow(engine.store,
        tenant or engine.tenant, about["name"], about["version"], about["kind"], definition.decode(), digest,
        registered_by=caller_id(None),
    )  # fmt: skip


async def register_workflows(
    engine: Engine, workflows: Iterable[Workflow[..., Any] | DeclaredWorkflow]
) -> list[str]:
    """Register some workflows for everybody, since whoever reaches the database serves all its tenants; what was refused,
    as lines to show. See the law above."""
    from tenure.kernel.registry_rows import SHARED_TENANT

    refused: list[str] = []
    for workflow in workflows:
        try:
            await register_workflow(engine, workflow, tenant=SHARED_TENANT)
        except TenureError as error:
            if error.code != "WORKFLOW_CHANGED":
                raise
            refused.append(f"{error.code}: {error.message}. {error.spec.remedy}")
    return refused
