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

if TYPE_CHECKING:
    from tenure.declared import Declared
    from tenure.embedded import Engine
    from tenure.kernel.beside import RegisteredWorkflow
    from tenure.sdk.definitions import Registry, Tool, Workflow


def workflows_in(definitions: Iterable[Registry | Workflow[..., Any] | Tool]) -> list[Workflow[..., Any]]:
    """The workflows among what a worker serves."""
    from tenure.sdk.definitions import Registry, Workflow

    found: list[Workflow[..., Any]] = []
    for each in definitions:
        if isinstance(each, Registry):
            found += each.workflows.values()
        elif isinstance(each, Workflow):
            found.append(each)
    return found


def tools_in(definitions: Iterable[Registry | Workflow[..., Any] | Tool]) -> list[str]:
    """The names of the tools among what a worker serves."""
    from tenure.sdk.definitions import Registry, Tool

    found: list[str] = []
    for each in definitions:
        if isinstance(each, Registry):
            found += each.tools
        elif isinstance(each, Tool):
            found.append(each.name)
    return found


async def put(
    engine: Engine, workflow: Workflow[..., Any] | Declared, *, tenant: str | None = None
) -> RegisteredWorkflow:
    """Register one version of a workflow for a tenant (the engine's); WORKFLOW_CHANGED where that version is something
    else."""
    from tenure.cli.session import who
    from tenure.embedded.describing import described

    about = described(workflow)
    definition = msgspec.json.encode(about, order="sorted")
    digest = about.get("digest") or hashlib.sha256(canonical(msgspec.to_builtins(about))).hexdigest()
    return await engine.store.put_workflow(
        tenant or engine.tenant, about["name"], about["version"], about["kind"], definition.decode(), digest,
        registered_by=who(None),
    )  # fmt: skip


async def put_all(engine: Engine, workflows: Iterable[Workflow[..., Any] | Declared]) -> list[str]:
    """Register some workflows for everybody, since whoever reaches the database serves all its tenants; what was refused,
    as lines to show. See the law above."""
    from tenure.embedded.looking import EVERYBODY

    refused: list[str] = []
    for workflow in workflows:
        try:
            await put(engine, workflow, tenant=EVERYBODY)
        except TenureError as error:
            if error.code != "WORKFLOW_CHANGED":
                raise
            refused.append(f"{error.code}: {error.message}. {error.spec.remedy}")
    return refused
