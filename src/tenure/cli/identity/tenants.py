"""`tenure tenants`: the tenants of an installation, their caps, their Slack apps and their audit chains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tenure.cli.common.console import err, out, print_json, safe_text
from tenure.cli.common.options import AsJson, Db
from tenure.cli.common.session import By, call_backend
from tenure.cli.identity.shared import Name, show_closed, show_list, show_one
from tenure.cli.runs.run_tables import make_table

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.shapes.identity import TenantCaps

T = TypeVar("T")

_app = typer.Typer(
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


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


def _change(
    db: str | None, by: str | None, call: Callable[[Backend], Awaitable[T]], *, make: bool = False
) -> T:
    return call_backend(db, "", call, changes=True, by=by, make=make)


@_app.command()
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
    show_one(made, as_json)


@_app.command("list")
def list_tenants(db: Db = None, as_json: AsJson = False) -> None:
    """List the tenants, newest first."""
    found = call_backend(db, "", lambda backend: backend.tenants.list())
    show_list(found, "tenants", ("id", "name", "created_at", "closed_at"), as_json)


@_app.command()
def show(tenant: _Tenant, db: Db = None, as_json: AsJson = False) -> None:
    """Show a tenant."""
    show_one(call_backend(db, "", lambda backend: backend.tenants.get(tenant)), as_json)


@_app.command()
def rename(
    tenant: _Tenant,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name.")],
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Rename a tenant. Its id stays."""
    show_one(_change(db, by, lambda backend: backend.tenants.update(tenant, name=name)), as_json)


@_app.command()
def close(tenant: _Tenant, db: Db = None, by: By = None, as_json: AsJson = False) -> None:
    """Close a tenant: its keys stop working. Nothing is deleted, and its runs continue."""
    show_closed(_change(db, by, lambda backend: backend.tenants.update(tenant, closed=True)), as_json)


@_app.command("open")
def reopen(tenant: _Tenant, db: Db = None, by: By = None, as_json: AsJson = False) -> None:
    """Open a closed tenant again."""
    show_closed(_change(db, by, lambda backend: backend.tenants.update(tenant, closed=False)), as_json)


@_app.command()
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
        import msgspec

        from tenure.shapes.identity import CapLimits

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
    import msgspec

    from tenure.shapes.identity import CapLimits

    limits = {"": found.tenant}
    limits |= {f"wf:{name}": each for name, each in sorted(found.workflows.items())}
    limits |= {f"ws:{name}": each for name, each in sorted(found.workspaces.items())}
    if as_json:
        print_json([{"scope": scope, **msgspec.structs.asdict(each)} for scope, each in limits.items()])
        return
    table = make_table("scope", "weight", "leases at once", "runs per minute", "writes per run")
    for scope, each in limits.items():
        kind, _, name = scope.partition(":")
        whose = {"ws": f"workspace {name}", "wf": f"workflow {name}"}.get(kind, "the tenant")
        values = msgspec.structs.astuple(each)
        table.add_row(safe_text(whose), *("-" if value is None else str(value) for value in values))
    is_default = all(each == CapLimits() for each in limits.values())
    out().print("no caps: weight 1 and no limits" if is_default else table)


@_app.command("slack-app")
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
        bool, typer.Option("--remove", help="Remove the app: nobody decides through it any more.")
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
    if as_json:
        print_json(made)
    else:
        out().print(safe_text(f"{team} is removed" if remove else f"{team} is registered for {tenant}"))


@_app.command("slack-apps")
def slack_apps(tenant: _Tenant, db: Db = None, as_json: AsJson = False) -> None:
    """List the Slack apps through which a tenant's people decide."""
    found = call_backend(db, "", lambda backend: backend.tenants.slack_apps(tenant))
    show_list(found, "Slack apps", ("team", "secrets", "registered_by", "registered_at"), as_json)


@_app.command()
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
        table = make_table("no", "at (UTC)", "what", "by", "about")
        for entry in found.entries:
            about = " ".join(f"{key}={value}" for key, value in entry.about.items() if value is not None)
            table.add_row(
                str(entry.seq),
                f"{entry.at:%Y-%m-%d %H:%M:%S}",
                entry.kind,
                safe_text(entry.actor),
                safe_text(about),
            )
        out().print(table)
        state = "broken" if found.problems else "whole"
        out().print(f"{len(found.entries)} entries; the chain is {state}")
    for problem in found.problems:
        err().print(safe_text(problem), soft_wrap=True)
    if found.problems:
        raise typer.Exit(1)
