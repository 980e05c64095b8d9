"""`tenure tenants`: the tenants of an installation, their caps, their Slack apps and their audit chains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from tenure.cli.common.backend import call_backend
from tenure.cli.common.console import print_json, say, show_result, warn
from tenure.cli.common.options import AsJson, By, Db
from tenure.cli.common.tables import format_time, show_list, show_struct, show_table
from tenure.cli.identity.shared import Name, show_closed
from tenure.shapes.identity import CapLimits

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.shapes.identity import AuditEntry, TenantCaps

T = TypeVar("T")

app = typer.Typer(
    name="tenants",
    help="Tenants. The runs, people and keys of one tenant are invisible to the others.",
    epilog="""
    Create a tenant and its first admin:

    tenure tenants create acme --name "Acme Ltd"

    tenure people create ada --name "Ada L." --role admin --tenant acme -- prints a code for Ada

    tenure tenants caps acme --max-concurrency 50 --weight 2 -- its share of the workers

    docs/tenants.md explains clients, people and keys.
    """,
    no_args_is_help=True,
)

_Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's id, see `tenure tenants list`.")]


def _change(
    db: str | None, by: str | None, call: Callable[[Backend], Awaitable[T]], *, make: bool = False
) -> T:
    return call_backend(db, "", call, changes=True, by=by, make=make)


@app.command()
def create(
    tenant: Annotated[
        str, typer.Argument(metavar="TENANT", help="The new id: letters, digits, dots, dashes.")
    ],
    name: Name = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Create a tenant. Creates the database file if it does not exist."""
    made = _change(db, by, lambda backend: backend.tenants.create(tenant, name=name or tenant), make=True)
    show_struct(made, as_json)


@app.command("list")
def list_tenants(db: Db = None, as_json: AsJson = False) -> None:
    """List the tenants, newest first."""
    found = call_backend(db, "", lambda backend: backend.tenants.list())
    show_list(found, "tenants", ("id", "name", "created_at", "closed_at"), as_json)


@app.command()
def show(tenant: _Tenant, db: Db = None, as_json: AsJson = False) -> None:
    """Show a tenant."""
    show_struct(call_backend(db, "", lambda backend: backend.tenants.get(tenant)), as_json)


@app.command()
def rename(
    tenant: _Tenant,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name.")],
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Rename a tenant. Its id stays."""
    show_struct(_change(db, by, lambda backend: backend.tenants.update(tenant, name=name)), as_json)


@app.command()
def close(tenant: _Tenant, db: Db = None, by: By = None, as_json: AsJson = False) -> None:
    """Close a tenant: its keys stop working. Nothing is deleted, and its runs continue."""
    show_closed(_change(db, by, lambda backend: backend.tenants.update(tenant, closed=True)), as_json)


@app.command("open")
def reopen(tenant: _Tenant, db: Db = None, by: By = None, as_json: AsJson = False) -> None:
    """Open a closed tenant again."""
    show_closed(_change(db, by, lambda backend: backend.tenants.update(tenant, closed=False)), as_json)


@app.command()
def caps(
    tenant: _Tenant,
    workspace: Annotated[str | None, typer.Option("--workspace", help="Of one workspace.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", help="Of one workflow.")] = None,
    weight: Annotated[int | None, typer.Option("--weight", min=1, help="Its share of the workers.")] = None,
    max_concurrency: Annotated[
        int | None, typer.Option("--max-concurrency", min=0, help="Leases at the same time.")
    ] = None,
    max_runs_per_min: Annotated[
        int | None, typer.Option("--max-runs-per-min", min=0, help="Runs that start within a minute.")
    ] = None,
    max_writes_per_run: Annotated[
        int | None, typer.Option("--max-writes-per-run", min=0, help="Actions of one run.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Weight 1 and no limits.")] = False,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Show a tenant's weights and limits. With an option, set them for the tenant, a workspace or a workflow."""
    if workspace is not None and workflow is not None:
        raise typer.BadParameter("give --workspace or --workflow, not both")
    given = {
        "weight": weight,
        "max_concurrency": max_concurrency,
        "max_runs_per_min": max_runs_per_min,
        "max_writes_per_run": max_writes_per_run,
    }
    given = {option: value for option, value in given.items() if value is not None}
    if clear and given:
        raise typer.BadParameter("--clear excludes the other options")

    async def set_caps(backend: Backend) -> TenantCaps:
        found = await backend.tenants.caps(tenant)
        field, name = ("workspaces", workspace) if workspace is not None else ("workflows", workflow)
        known = found.tenant if name is None else getattr(found, field).get(name, CapLimits())
        limits = CapLimits() if clear else msgspec.structs.replace(known, **given)
        changed = {"tenant": limits} if name is None else {field: {**getattr(found, field), name: limits}}
        return await backend.tenants.set_caps(tenant, msgspec.structs.replace(found, **changed))

    if clear or given:
        found = _change(db, by, set_caps)
    else:
        found = call_backend(db, "", lambda backend: backend.tenants.caps(tenant))
    _show_caps(found, as_json)


def _show_caps(found: TenantCaps, as_json: bool) -> None:
    limits = {"": found.tenant}
    limits |= {f"wf:{name}": each for name, each in sorted(found.workflows.items())}
    limits |= {f"ws:{name}": each for name, each in sorted(found.workspaces.items())}
    if as_json:
        print_json([{"scope": scope, **msgspec.structs.asdict(each)} for scope, each in limits.items()])
        return
    if all(each == CapLimits() for each in limits.values()):
        say("no caps: weight 1 and no limits")
        return
    columns = ("scope", "weight", "leases at once", "runs per minute", "writes per run")
    show_table(list(limits.items()), False, "", columns, _cap_cells)


def _cap_cells(cap: tuple[str, CapLimits]) -> list[object]:
    kind, _, name = cap[0].partition(":")
    scope = {"ws": f"workspace {name}", "wf": f"workflow {name}"}.get(kind, "the tenant")
    return [scope, *("-" if value is None else value for value in msgspec.structs.astuple(cap[1]))]


@app.command("slack-app")
def slack_app(
    tenant: _Tenant,
    team: Annotated[str, typer.Argument(metavar="TEAM", help="The Slack team's id, like T0123456789.")],
    secrets: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="REFERENCE",
            help="The signing secret: env:NAME or file:/PATH. During a rotation give two, the newest first.",
        ),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the app: people cannot decide through it any more.")
    ] = False,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Register the Slack app of a team. People link accounts and decide in Slack only through a registered app."""
    from tenure.secrets import REFERENCE_FORM, is_reference

    if remove == bool(secrets):
        raise typer.BadParameter("give --secret or --remove")
    if remove:
        _change(db, by, lambda backend: backend.tenants.remove_slack_app(tenant, team))
        made: Any = {"tenant": tenant, "team": team, "removed": True}
    else:
        given = secrets or []
        if not all(is_reference(one) for one in given):
            raise typer.BadParameter(REFERENCE_FORM, param_hint="--secret")
        made = _change(db, by, lambda backend: backend.tenants.set_slack_app(tenant, team, given))
    show_result(made, as_json, f"{team} is removed" if remove else f"{team} is registered for {tenant}")


@app.command("slack-apps")
def slack_apps(tenant: _Tenant, db: Db = None, as_json: AsJson = False) -> None:
    """List the Slack apps through which a tenant's people decide."""
    found = call_backend(db, "", lambda backend: backend.tenants.slack_apps(tenant))
    show_list(found, "Slack apps", ("team", "secrets", "registered_by", "registered_at"), as_json)


@app.command()
def audit(
    tenant: Annotated[
        str | None,
        typer.Argument(metavar="[TENANT]", help="The tenant; without it, the installation itself."),
    ] = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Show who changed people, clients and keys, newest first, and whether the audit chain recomputes."""
    found = call_backend(db, "", lambda backend: backend.tenants.audit(tenant or ""))
    if as_json:
        print_json({"lines": found.entries, "problems": found.problems})
    else:
        columns = ("no", "at (UTC)", "what", "by", "about")
        show_table(found.entries, False, "no changes", columns, _audit_cells)
        state = "broken" if found.problems else "whole"
        say(f"{len(found.entries)} entries; the chain is {state}")
    for problem in found.problems:
        warn(problem, "")
    if found.problems:
        raise typer.Exit(1)


def _audit_cells(entry: AuditEntry) -> tuple[object, ...]:
    about = " ".join(f"{key}={value}" for key, value in entry.about.items() if value is not None)
    return entry.seq, format_time(entry.at), entry.kind, entry.actor, about
