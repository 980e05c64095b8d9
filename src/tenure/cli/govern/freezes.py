"""`tenure freeze` and `tenure thaw`: deny every action of a tenant, a workflow or a connector, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.backend import call_backend, check_tenant
from tenure.cli.common.console import show_result
from tenure.cli.common.options import AsJson, By, Db, not_empty

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.shapes.policies import Freeze, ThawResult

_Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        help="Freeze this tenant, or its workflow or connector.  \\[default: default, or the key's]",
        show_default=False,
        callback=not_empty,
    ),
]
_Workflow = Annotated[
    str | None, typer.Option("--workflow", help="Actions of this workflow's runs.", callback=not_empty)
]
_Connector = Annotated[
    str | None, typer.Option("--connector", help="Actions through this connector.", callback=not_empty)
]


app = typer.Typer()


@app.command()
def freeze(
    tenant: _Tenant = None,
    workflow: _Workflow = None,
    connector: _Connector = None,
    listed: Annotated[bool, typer.Option("--list", help="Only show what is frozen.")] = False,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Deny every action of a tenant, a workflow or a connector, from the next commit on. Calls that were sent before continue."""

    async def call(backend: Backend) -> list[Freeze]:
        await check_tenant(backend, tenant)
        return await backend.freezes.freeze(workflow=workflow, connector=connector)

    if listed:
        found = call_backend(db, tenant or "default", lambda b: b.freezes.list(), by=by, changes=True)
    else:
        _check(tenant, workflow, connector)
        found = call_backend(db, tenant or "default", call, by=by, changes=True, make=True)
    show_result(found, as_json, *_freeze_lines(found))


@app.command()
def thaw(
    tenant: _Tenant = None,
    workflow: _Workflow = None,
    connector: _Connector = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Allow frozen actions again. On a server the first person proposes it, and a second person runs the same command. On a database
    they thaw at once, if the tenant has no people."""

    async def call(backend: Backend) -> ThawResult:
        await check_tenant(backend, tenant)
        return await backend.freezes.thaw(workflow=workflow, connector=connector)

    _check(tenant, workflow, connector)
    made = call_backend(db, tenant or "default", call, by=by, changes=True)
    proposed = "proposed; another person runs the same command to thaw it"
    show_result(made, as_json, *[proposed] * (made.state == "proposed"), *_freeze_lines(made.frozen))


def _check(tenant: str | None, workflow: str | None, connector: str | None) -> None:
    if workflow is not None and connector is not None:
        raise typer.BadParameter("name a --workflow or a --connector, not both")
    if tenant is None and workflow is None and connector is None:
        raise typer.BadParameter(
            "name a --tenant, --workflow or --connector; `tenure freeze --list` shows what is frozen"
        )


def _freeze_lines(found: list[Freeze]) -> list[str]:
    return [
        f"frozen: {one.scope} {one.name}"
        + (f"; {one.thaw_proposed_by} proposes to thaw it" if one.thaw_proposed_by else "")
        for one in found
    ] or ["nothing is frozen"]
