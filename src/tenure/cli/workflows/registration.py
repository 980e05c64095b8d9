"""Registering workflows in a database, so that `tenure workflows` can list them.

Law: registration only informs people. If a version is already registered with another definition, the process reports that and continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tenure.cli.common.backend import caller_id
from tenure.errors import TenureError
from tenure.kernel.registry_rows import SHARED_TENANT
from tenure.sdk.definitions import Registry, Tool, Workflow
from tenure.services.catalog import register_definition

if TYPE_CHECKING:
    from tenure.declared import DeclaredWorkflow
    from tenure.engine import Engine
    from tenure.kernel.registry_rows import WorkflowRow


def select_workflows(definitions: Iterable[Registry | Workflow[..., Any] | Tool]) -> list[Workflow[..., Any]]:
    """The workflows among what a worker serves."""
    found: list[Workflow[..., Any]] = []
    for each in definitions:
        if isinstance(each, Registry):
            found += each.workflows.values()
        elif isinstance(each, Workflow):
            found.append(each)
    return found


def served_lines(definitions: Iterable[Registry | Workflow[..., Any] | Tool]) -> list[str]:
    """The workflows and tools that a worker serves, as lines to show."""
    lines = [
        f"  workflow {flow.name} version {flow.version} on {flow.queue}"
        for flow in select_workflows(definitions)
    ]
    return lines + [f"  tool {name}" for name in select_tool_names(definitions)]


def select_tool_names(definitions: Iterable[Registry | Workflow[..., Any] | Tool]) -> list[str]:
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
    """Register one version of a workflow, by default for the engine's tenant. WORKFLOW_CHANGED if that version has another
    definition."""
    return await register_definition(
        engine.scope, workflow, tenant or engine.tenant, registered_by=caller_id()
    )


async def register_workflows(
    engine: Engine, workflows: Iterable[Workflow[..., Any] | DeclaredWorkflow]
) -> list[str]:
    """Register workflows for all tenants, because a worker with access to the database serves all of them. Returns refusals, as
    lines to show."""
    refused: list[str] = []
    for workflow in workflows:
        try:
            await register_workflow(engine, workflow, tenant=SHARED_TENANT)
        except TenureError as error:
            if error.code != "WORKFLOW_CHANGED":
                raise
            refused.append(f"{error.code}: {error.message}. {error.spec.remedy}")
    return refused
