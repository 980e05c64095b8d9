"""`tenure hooks`: what hooks were told, and what became of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tenure.cli.common.console import out, print_json, safe_text, show_fields
from tenure.cli.common.options import AsJson, Db
from tenure.cli.common.session import By, Tenant
from tenure.cli.identity.shared import show_list
from tenure.cli.runs.run_tables import format_time

if TYPE_CHECKING:
    from tenure.cli.triggers.hook_access import Hooks
    from tenure.shapes.hooks import DeliveryListItem

T = TypeVar("T")
SHOWN = 50
SHOWN_MAX = 1_000

_app = typer.Typer(
    name="hooks",
    help="What hooks were told and what became of it; carry out again what was set aside.",
    epilog="""
    Find what was set aside, look at it, and carry it out again:

    tenure hooks deliveries --set-aside -- of all hooks, with the reason of each

    tenure hooks show HOOK DELIVERY -- what it said: headers and body

    tenure hooks replay HOOK DELIVERY -- by the hook's rules of now, as a run of its own

    A delivery is set aside when its process ended again and again while it was carried out, or when it could not be carried out
    in 20 tries. Repair what the reason names first: the rules of the hook, or what the run needs. Whoever replays a delivery
    stands behind its run and does not approve it. Hooks are made and changed at a server: docs/triggers.md.
    """,
    no_args_is_help=True,
)

_Hook = Annotated[str, typer.Argument(metavar="HOOK", help="Its id, see `tenure hooks list`.")]
_Delivery = Annotated[str, typer.Argument(metavar="DELIVERY", help="Its id, see `tenure hooks deliveries`.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


def _ask(db: str | None, tenant: str, call: Callable[[Hooks], Awaitable[T]], by: str | None = None) -> T:
    from tenure.cli.triggers.hook_access import call_hooks

    return call_hooks(db, tenant, by, call)


@_app.command("list")
def list_hooks(db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """List the hooks of a tenant, newest first."""
    found = _ask(db, tenant, lambda hooks: hooks.hooks())
    columns = ("id", "kind", "name", "workspace", "owner", "revision", "unconfirmed", "disabled")
    show_list(found, "hooks", columns, as_json)


@_app.command()
def show(
    hook: _Hook,
    delivery: Annotated[
        str | None,
        typer.Argument(
            metavar="[DELIVERY]", help="One of its deliveries, with what it said.", show_default=False
        ),
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show a hook with its rules, or one of its deliveries with what it said."""

    async def call(hooks: Hooks) -> Any:
        return await (hooks.hook(hook) if delivery is None else hooks.delivery(hook, delivery))

    found = _ask(db, tenant, call)
    if as_json:
        print_json(found)
        return
    import msgspec

    show_fields(msgspec.structs.asdict(found))


@_app.command()
def deliveries(
    hook: Annotated[
        str | None, typer.Argument(metavar="[HOOK]", help="Of this hook alone.", show_default=False)
    ] = None,
    set_aside: Annotated[
        bool,
        typer.Option("--set-aside", help="Only what was tried too often, which nobody carries out any more."),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=SHOWN_MAX, help="At most so many of each hook.")
    ] = SHOWN,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """List what hooks were told, newest first, with what became of it and why."""

    async def call(hooks: Hooks) -> list[tuple[str, DeliveryListItem]]:
        asked = [hook] if hook is not None else [each.id for each in await hooks.hooks()]
        return [
            (one, row) for one in asked for row in await hooks.deliveries(one, limit, set_aside=set_aside)
        ]

    found = sorted(_ask(db, tenant, call), key=lambda each: each[1].received_at, reverse=True)
    if as_json:
        import msgspec

        print_json([{"hook": of, **msgspec.to_builtins(row)} for of, row in found])
        return
    if not found:
        out().print("nothing is set aside" if set_aside else "no deliveries")
        return
    for of, row in found:
        became = f"{row.status}, run {row.run_id}" if row.run_id else row.status
        tries = "1 try" if row.tries == 1 else f"{row.tries} tries"
        out().print(safe_text(f"{of} {row.id}"), soft_wrap=True)
        out().print(
            safe_text(f"  {format_time(row.received_at)}  {row.event}  {became}, {tries}"), soft_wrap=True
        )
        if row.note:
            out().print(safe_text(f"  {row.note}"), soft_wrap=True)


@_app.command()
def replay(
    hook: _Hook,
    delivery: _Delivery,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Carry out a delivery again, by the hook's rules of now; prints what became of it.

    It gets a key of its own, so that there is a new run also where the first one made one. Whoever replays it stands behind that run
    and does not approve it; the tenant's chain (`tenure tenants audit`) names them.
    """
    made = _ask(db, tenant, lambda hooks: hooks.replay(hook, delivery), by)
    if as_json:
        print_json(made)
        return
    became = f"{made.status}, run {made.run_id}" if made.run_id else made.status
    out().print(
        safe_text(f"{made.delivery} is {became}" + (f": {made.note}" if made.note else "")), soft_wrap=True
    )
