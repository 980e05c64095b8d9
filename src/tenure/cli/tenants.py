"""`tenure tenants`: whose runs they are, and how much of the workers they may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.console import err, out, print_json, shown
from tenure.cli.identity import Name, ask_installation, show_list, show_one
from tenure.cli.options import AsJson, Db
from tenure.cli.runs_show import table
from tenure.cli.session import By

if TYPE_CHECKING:
    from tenure.kernel.model import Cap

_app = typer.Typer(
    name="tenants",
    help="Tenants: runs, people and keys of one are nothing to another.",
    epilog="""
    A tenant and whoever looks after it:

    tenure tenants create acme --name "Acme Ltd"

    tenure people create ada --name "Ada L." --role admin --tenant acme -- prints a code for Ada

    tenure tenants caps acme --max-concurrency 50 --weight 2 -- its share of the workers

    docs/tenants.md explains the whole.
    """,
    no_args_is_help=True,
)

_Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="Its id, see `tenure tenants list`.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


@_app.command()
def create(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Its id: letters, digits, dots, dashes.")],
    name: Name = None,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Make a tenant; makes the database file if there is none."""
    show_one(
        ask_installation(db, by, lambda i: i.add_tenant(tenant, name=name or tenant), make=True), as_json
    )


@_app.command("list")
def list_tenants(db: Db = None, as_json: AsJson = False) -> None:
    """List the tenants, newest first."""
    found = ask_installation(db, None, lambda i: i.tenants())
    show_list(found, "tenants", ("id", "name", "created_at", "closed_at"), as_json)


@_app.command()
def show(tenant: _Tenant, db: Db = None, as_json: AsJson = False) -> None:
    """Show a tenant."""
    show_one(ask_installation(db, None, lambda i: i.tenant(tenant)), as_json)


@_app.command()
def rename(
    tenant: _Tenant,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new one.")],
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Give a tenant another name; its id stays."""
    show_one(ask_installation(db, by, lambda i: i.set_tenant(tenant, name=name)), as_json)


@_app.command()
def close(tenant: _Tenant, db: Db = None, by: By = None, as_json: AsJson = False) -> None:
    """Close a tenant: none of its keys works any more. Nothing is deleted, and its runs go on."""
    _told(ask_installation(db, by, lambda i: i.set_tenant(tenant, closed=True)), "closed", as_json)


@_app.command("open")
def reopen(tenant: _Tenant, db: Db = None, by: By = None, as_json: AsJson = False) -> None:
    """Open a closed tenant again."""
    _told(ask_installation(db, by, lambda i: i.set_tenant(tenant, closed=False)), "open", as_json)


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
        int | None,
        typer.Option("--max-writes-per-run", min=0, help="Actions that one run does to the world."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Weight 1 and no limits.")] = False,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Show a tenant's weights and limits; with an option, set them for the tenant, a workspace or a workflow."""
    if workspace is not None and workflow is not None:
        raise typer.BadParameter("name a --workspace or a --workflow, not both")
    scope = f"ws:{workspace}" if workspace else f"wf:{workflow}" if workflow else ""
    asked = (weight, max_concurrency, max_runs_per_min, max_writes_per_run)
    if clear and any(value is not None for value in asked):
        raise typer.BadParameter("--clear goes without the others")

    if clear:
        found = ask_installation(db, by, lambda i: i.set_cap(tenant, scope, clear=True))
    elif any(value is not None for value in asked):
        found = ask_installation(db, by, lambda i: i.set_cap(tenant, scope, *asked))
    else:
        found = ask_installation(db, by, lambda i: i.caps(tenant))
    _show_caps(found, as_json)


@_app.command("slack-app")
def slack_app(
    tenant: _Tenant,
    team: Annotated[str, typer.Argument(metavar="TEAM", help="Slack's id of the team, like T0123456789.")],
    secrets: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="REFERENCE",
            help="Where its signing secret is read: env:NAME or file:/PATH; during a rotation two, the newest first.",
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Nobody decides through it any more.")] = False,
    db: Db = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Register the Slack app of a team: only through it people link accounts and decide in Slack."""
    from tenure.secrets import FORM, is_reference

    if remove == bool(secrets):
        raise typer.BadParameter("say its --secret, or --remove")
    if remove:
        ask_installation(db, by, lambda i: i.drop_slack_app(tenant, team))
        _say({"tenant": tenant, "team": team, "removed": True}, f"{team} is removed", as_json)
        return
    given = secrets or []
    if not all(is_reference(one) for one in given):
        raise typer.BadParameter(FORM, param_hint="--secret")
    made = ask_installation(db, by, lambda i: i.set_slack_app(tenant, team, given))
    _say(made, f"{team} is registered for {tenant}", as_json)


@_app.command("slack-apps")
def slack_apps(tenant: _Tenant, db: Db = None, as_json: AsJson = False) -> None:
    """List the Slack apps through which a tenant's people decide."""
    found = ask_installation(db, None, lambda i: i.slack_apps(tenant))
    if as_json:
        print_json(found)
        return
    made = table("team", "secrets", "registered by", "at (UTC)")
    for one in found:
        secrets = ", ".join(one.secrets)
        made.add_row(
            one.team, shown(secrets), shown(one.registered_by), f"{one.registered_at:%Y-%m-%d %H:%M}"
        )
    out().print(made if found else "no Slack apps")


@_app.command()
def audit(
    tenant: Annotated[
        str | None, typer.Argument(metavar="[TENANT]", help="Whose chain; without it the installation's own.")
    ] = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Show who changed what of people, clients and keys, newest first, and whether the chain of it is whole."""
    lines, broken = ask_installation(db, None, lambda i: i.audit(tenant or ""))
    if as_json:
        print_json({"lines": lines, "problems": broken})
    else:
        made = table("no", "at (UTC)", "what", "by", "about")
        for line in lines:
            about = " ".join(f"{key}={value}" for key, value in line.about.items() if value is not None)
            made.add_row(
                str(line.seq), f"{line.at:%Y-%m-%d %H:%M:%S}", line.kind, shown(line.actor), shown(about)
            )
        out().print(made)
        out().print(f"{len(lines)} lines; the chain is {'broken' if broken else 'whole'}")
    for problem in broken:
        err().print(shown(problem), soft_wrap=True)
    if broken:
        raise typer.Exit(1)


def _say(made: Any, text: str, as_json: bool) -> None:
    if as_json:
        print_json(made)
    else:
        out().print(shown(text))


def _told(made: Any, word: str, as_json: bool) -> None:
    if as_json:
        print_json(made)
    else:
        out().print(shown(f"{made.id} is {word}"))


def _show_caps(found: list[Cap], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "scope": cap.scope,
                    "weight": cap.weight,
                    "max_concurrency": cap.max_concurrency,
                    "max_runs_per_min": cap.max_runs_per_min,
                    "max_writes_per_run": cap.max_writes_per_run,
                }
                for cap in found
            ]
        )
        return
    made = table("of", "weight", "leases at once", "runs a minute", "writes a run")
    for cap in found:
        kind, _, name = cap.scope.partition(":")
        of = {"ws": f"workspace {name}", "wf": f"workflow {name}"}.get(kind, "the tenant")
        most = (cap.max_concurrency, cap.max_runs_per_min, cap.max_writes_per_run)
        limits = ["-" if x is None else str(x) for x in most]
        made.add_row(shown(of), str(cap.weight), *limits)
    out().print(made if found else "no caps: weight 1 and no limits")
