"""`tenure hooks`: create hooks; the deliveries that they received, and their outcome."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tenure.cli.common.arguments import parse_json
from tenure.cli.common.backend import call_backend, call_either
from tenure.cli.common.console import print_json, show_fields, show_result
from tenure.cli.common.options import AsJson, By, Db, Tenant
from tenure.cli.common.tables import format_time, show_list
from tenure.shapes.hooks import HookKind

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.engine import Engine
    from tenure.shapes.hooks import DeliveryListItem, DeliveryStatus, Hook

SHOWN = 50
SHOWN_MAX = 1_000

app = typer.Typer(
    name="hooks",
    help="Create hooks, look at the deliveries that they received, and replay those that were set aside.",
    epilog="""
    Find deliveries that were set aside, look at one, and replay it:

    tenure hooks deliveries --set-aside -- of all hooks, each with its reason

    tenure hooks show HOOK DELIVERY -- its headers and body

    tenure hooks replay HOOK DELIVERY -- by the hook's current rules, as a new run

    A delivery is set aside if processes crashed repeatedly while they handled it, or if it failed 20 times. First fix what its
    reason names: the rules of the hook, or what the run needs. People who replay a delivery are involved in its run and cannot
    approve it. Hooks are created and changed on a server: `tenure hooks create`, docs/triggers.md.
    """,
    no_args_is_help=True,
)

_Hook = Annotated[str, typer.Argument(metavar="HOOK", help="The hook's id, see `tenure hooks list`.")]
_Delivery = Annotated[
    str, typer.Argument(metavar="DELIVERY", help="The delivery's id, see `tenure hooks deliveries`.")
]


@app.command("list")
def list_hooks(db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """List the hooks of a tenant, newest first."""
    found = call_backend(db, tenant, lambda b: b.hooks.list(), changes=True)
    columns = ("id", "kind", "name", "workspace", "owner", "revision", "unconfirmed", "disabled")
    show_list(found, "hooks", columns, as_json)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for people.")],
    kind: Annotated[
        HookKind,
        typer.Option("--kind", help="Who calls it; `generic` accepts Standard Webhooks and CloudEvents."),
    ],
    secret: Annotated[
        list[str],
        typer.Option(
            "--secret",
            metavar="REFERENCE",
            help="Where the server finds the secret: env:TENURE_SECRET_TENANT_NAME or file:/PATH. Twice during a rotation.",
        ),
    ],
    workflow: Annotated[
        str | None, typer.Option("--workflow", help="Start a run of this workflow.", show_default=False)
    ] = None,
    when: Annotated[
        str, typer.Option("--when", metavar="EXPRESSION", help="Only for deliveries for which this is true.")
    ] = "true",
    given: Annotated[
        str | None,
        typer.Option(
            "--input",
            help="The run's input, with ${{ body... }} in its texts: JSON, or @FILE.",
            show_default=False,
        ),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(
            "--rules",
            help="Instead of --workflow: a file with the list of rules, as JSON.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    secret_header: Annotated[
        str | None,
        typer.Option(
            "--secret-header",
            metavar="HEADER",
            help="servicenow: the header that has the secret. Without it the secret is user:password of basic authentication.",
            show_default=False,
        ),
    ] = None,
    event_id: Annotated[
        list[str] | None,
        typer.Option(
            "--event-id",
            metavar="PLACE",
            help="servicenow: where an event's id is, header:NAME or body:FIELD; may be repeated. A repeated event counts once.",
            show_default=False,
        ),
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Create a hook on a server, and print the path that its sender calls.

    A call of ServiceNow with a shared secret, whose repeats are recognised by the record and its number of changes:

    tenure hooks create incidents --kind servicenow --secret env:TENURE_SECRET_acme_SN --secret-header x-tenure-secret
    --event-id body:sys_id --event-id body:sys_mod_count --workflow triage --input '{"sys_id": "${{ body.sys_id }}"}'
    """
    if (workflow is None) == (rules is None):
        raise typer.BadParameter("use either --workflow or --rules", param_hint="--workflow")
    settings = {"secret_header": secret_header, "event_id": event_id}
    fields = {
        "name": name,
        "secrets": secret,
        "rules": [{"when": when, "workflow": workflow, "input": parse_json(given, "--input") or {}}]
        if rules is None
        else parse_json(rules.read_text(), "--rules"),
        "settings": {key: value for key, value in settings.items() if value},
    }

    async def local(engine: Engine) -> Hook:
        from tenure.secrets import Secrets
        from tenure.services.hooks.registry import HookFields

        return await engine.hooks.create(kind, msgspec.convert(fields, HookFields), Secrets())

    made = call_either(db, tenant, local, lambda client: client.hooks.create(kind, fields))
    show_result(made, as_json, made.address)


@app.command()
def show(
    hook: _Hook,
    delivery: Annotated[
        str | None,
        typer.Argument(
            metavar="[DELIVERY]", help="One of its deliveries, with headers and body.", show_default=False
        ),
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show a hook with its rules, or one of its deliveries with headers and body."""

    async def call(backend: Backend) -> Any:
        hooks = backend.hooks
        return await (hooks.get(hook) if delivery is None else hooks.delivery(hook, delivery))

    found = call_backend(db, tenant, call, changes=True)
    if as_json:
        print_json(found)
    else:
        show_fields(msgspec.structs.asdict(found))


@app.command()
def deliveries(
    hook: Annotated[
        str | None, typer.Argument(metavar="[HOOK]", help="Only deliveries of this hook.", show_default=False)
    ] = None,
    set_aside: Annotated[
        bool,
        typer.Option("--set-aside", help="Only deliveries that failed too often and are not retried."),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=SHOWN_MAX, help="The most deliveries to show for each hook.")
    ] = SHOWN,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """List the deliveries that hooks received, newest first, each with its outcome and the reason."""

    async def call(backend: Backend) -> list[tuple[str, DeliveryListItem]]:
        hooks = backend.hooks
        asked = [hook] if hook is not None else [each.id for each in await hooks.list()]
        return [
            (one, row)
            for one in asked
            for row in await hooks.deliveries(one, set_aside=set_aside, limit=limit)
        ]

    rows = call_backend(db, tenant, call, changes=True)
    found = sorted(rows, key=lambda each: each[1].received_at, reverse=True)
    lines = [line for of, row in found for line in _delivery_lines(of, row)]
    show_result(
        [{"hook": of, **msgspec.to_builtins(row)} for of, row in found],
        as_json,
        *(lines or ["nothing is set aside" if set_aside else "no deliveries"]),
    )


def _delivery_lines(hook: str, row: DeliveryListItem) -> list[str]:
    tries = "1 try" if row.tries == 1 else f"{row.tries} tries"
    lines = [f"{hook} {row.id}", f"  {format_time(row.received_at)}  {row.event}  {_outcome(row)}, {tries}"]
    return [*lines, f"  {row.note}"] if row.note else lines


def _outcome(delivery: DeliveryListItem | DeliveryStatus) -> str:
    return f"{delivery.status}, run {delivery.run_id}" if delivery.run_id else delivery.status


@app.command()
def replay(
    hook: _Hook,
    delivery: _Delivery,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Process a delivery again, by the hook's current rules, and print the outcome.

    A replay has a new idempotency key, so it starts a new run even if the delivery started one before. People who replay it are
    involved in that run and cannot approve it; the tenant's audit chain (`tenure tenants audit`) names them.
    """
    made = call_backend(db, tenant, lambda b: b.hooks.replay(hook, delivery), by=by, changes=True)
    note = f": {made.note}" if made.note else ""
    show_result(made, as_json, f"{made.delivery} is {_outcome(made)}{note}")
