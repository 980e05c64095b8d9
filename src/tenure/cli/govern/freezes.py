"""`tenure freeze` and `tenure thaw`: deny every action of a tenant, a workflow or a connector, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.console import out, print_json, safe_text
from tenure.cli.common.options import AsJson, Db, not_empty
from tenure.cli.common.session import By

if TYPE_CHECKING:
    from tenure.shapes.policies import Freeze

_Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        help="All of this tenant's, or (with one of the others) whose it is.  \\[default: default, or the key's]",
        show_default=False,
        callback=not_empty,
    ),
]
_Workflow = Annotated[
    str | None, typer.Option("--workflow", help="What runs of this workflow do.", callback=not_empty)
]
_Connector = Annotated[
    str | None, typer.Option("--connector", help="What is done through this connector.", callback=not_empty)
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(freeze)
    app.command()(thaw)


def freeze(
    tenant: _Tenant = None,
    workflow: _Workflow = None,
    connector: _Connector = None,
    listed: Annotated[bool, typer.Option("--list", help="Only show what is frozen.")] = False,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Deny every action of a tenant, a workflow or a connector, from the next commit on. What was called before goes on."""
    from tenure.cli.govern.policy_access import call_policies

    if listed:
        found = call_policies(db, tenant, by, lambda d: d.frozen())
    else:
        _check(tenant, workflow, connector)
        found = call_policies(db, tenant, by, lambda d: d.freeze(workflow, connector), make=True)
    _show(found, as_json)


def thaw(
    tenant: _Tenant = None,
    workflow: _Workflow = None,
    connector: _Connector = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Allow what was frozen again: at a server the first person proposes it, the second one makes it so by the same command. Beside
    a database it thaws at once, where the tenant has no people."""
    from tenure.cli.govern.policy_access import call_policies

    _check(tenant, workflow, connector)
    state, found = call_policies(db, tenant, by, lambda d: d.thaw(workflow, connector))
    if as_json:
        print_json({"state": state, "frozen": found})
        return
    if state == "proposed":
        out().print("proposed; another person says the same to make it so")
    _show(found, as_json=False)


def _check(tenant: str | None, workflow: str | None, connector: str | None) -> None:
    if workflow is not None and connector is not None:
        raise typer.BadParameter("name a --workflow or a --connector, not both")
    if tenant is None and workflow is None and connector is None:
        raise typer.BadParameter(
            "say what: --tenant, --workflow or --connector; `tenure freeze --list` shows what is frozen"
        )


def _show(found: list[Freeze], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    if not found:
        out().print("nothing is frozen")
    for one in found:
        thaws = f"; {one.thaw_proposed_by} wants it to thaw" if one.thaw_proposed_by else ""
        out().print(safe_text(f"frozen: {one.scope} {one.name}{thaws}"), soft_wrap=True)
