"""`tenure schedule`: runs that start by the clock.

Law: nothing is decided here; each command is one call of the engine's schedules and a way to show its answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar
from zoneinfo import ZoneInfo

import typer

from tenure.cli.common.console import out, print_json, safe_text, show_fields
from tenure.cli.common.options import AsJson, Db, not_empty
from tenure.cli.common.session import (
    By,
    Tenant,
    caller_id,
    open_backend,
    open_backend_for_change,
    parse_json,
    parse_pairs,
    run_async,
)
from tenure.cli.runs.run_tables import format_time, make_table
from tenure.client.workflows import RemoteSchedules
from tenure.engine import Schedules, read_plan
from tenure.kernel.registry_rows import CATCH_UP_POLICIES
from tenure.limits import CATCH_UP_RUNS_MAX, SLOTS_SHOWN_MAX
from tenure.services.schedules import CATCH_UP_RUNS, SchedulableWorkflow
from tenure.shapes.schedules import Schedule

T = TypeVar("T")

_app = typer.Typer(
    name="schedule",
    help="Start runs by the clock: one run per slot, however many schedulers run.",
    epilog="""
    The form of a cron expression:

    minute hour day-of-month month day-of-week -- `30 2 * * *` is 02:30 every day, `*/15 * * * *` every quarter of
    an hour, `0 9 * * MON-FRI` nine o'clock on working days, `0 0 L * *` the last midnight of a month

    A schedule by hand:

    tenure schedule create nightly app.py:report --cron '30 2 * * *' --zone Europe/Berlin --catch-up last

    tenure schedule next nightly -- when it is due, in its zone and in UTC

    tenure schedule trigger nightly -- start a run now, beside the slots

    Slots are found by every process that keeps an engine running. docs/schedules.md says what happens on the two days
    the clocks change, and what catching up means.
    """,
    no_args_is_help=True,
)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule, see `tenure schedule list`.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(_app)


def _ask(
    db: str | None,
    tenant: str,
    call: Callable[[Schedules | RemoteSchedules], Awaitable[T]],
    *,
    changes: bool = False,
    make: bool = False,
) -> T:
    """One call of the schedules."""

    async def run() -> T:
        opened = open_backend_for_change(db, tenant, make=make) if changes else open_backend(db, tenant)
        async with opened as backend:
            return await call(backend.schedules)

    return run_async(run())


def _known(given: str) -> str:
    if given not in CATCH_UP_POLICIES:
        raise typer.BadParameter(f"'{given}' is not one of {', '.join(CATCH_UP_POLICIES)}")
    return given


@_app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the schedule is called.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Whose runs it starts: module:workflow, file.py:workflow or FILE.yaml; with --plan a name.",
        ),
    ],
    cron: Annotated[
        str,
        typer.Option(
            "--cron", metavar="TEXT", help="Five fields in quotes: '30 2 * * *'.", callback=not_empty
        ),
    ],
    zone: Annotated[
        str, typer.Option("--zone", help="The time zone the expression is read in: Europe/Berlin.")
    ] = "UTC",
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            help="The steps of a plan, as for `runs create`.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", help="See `tenure lifecycle list`.  \\[default: the workflow's]", show_default=False
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--input", help="key=value, JSON, or @FILE with JSON; may be repeated."),
    ] = None,
    pass_slot: Annotated[
        bool, typer.Option("--pass-slot", help="Put the slot's moment into the input, under `slot`.")
    ] = False,
    catch_up: Annotated[
        str,
        typer.Option(
            "--catch-up",
            help="Slots that passed while nothing ran: `skip` them, run the `last`, or `all`.",
            callback=_known,
        ),
    ] = "skip",
    catch_up_max: Annotated[
        int,
        typer.Option("--catch-up-max", min=1, max=CATCH_UP_RUNS_MAX, help="Of `all`: the newest so many."),
    ] = CATCH_UP_RUNS,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="May be repeated.")
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Start nothing until it is unpaused.")] = False,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Make a schedule; makes the database file if there is none. Whoever makes it is the requester of its runs."""
    from tenure.cli.workflows.targets import load_target_workflow, parse_inputs

    steps = None if plan is None else read_plan(plan)
    workflow: SchedulableWorkflow = target
    value: Any = None
    if steps is not None:
        if given is not None and len(given) > 1:
            raise typer.BadParameter("with --plan it is one JSON value", param_hint="--input")
        value = parse_json(given[0], "--input") if given else None
    else:
        workflow = load_target_workflow(target)
        value = parse_inputs(workflow, given, check=False)  # what it lacks may be the slot
    made = _ask(
        db,
        tenant,
        lambda schedules: schedules.create(
            name,
            workflow,
            cron,
            zone=zone,
            plan=steps,
            profile=profile,
            input=value,
            pass_slot=pass_slot,
            catch_up=catch_up,
            catch_up_max=catch_up_max,
            labels=parse_pairs(label),
            paused=paused,
            owner=caller_id(by),
            by=caller_id(by),
        ),
        changes=True,
        make=True,
    )
    _tell(made, as_json)


@_app.command("list")
def list_schedules(db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """List the schedules by name."""
    found = _ask(db, tenant, lambda schedules: schedules.list())
    if as_json:
        print_json(found)
        return
    console = out()
    if not found:
        console.print("no schedules")
        return
    made = make_table("schedule", "workflow", "cron", "zone", "catch up", "next (UTC)", "last slot (UTC)")
    for s in found:
        made.add_row(
            safe_text(s.name),
            safe_text(s.workflow),
            safe_text(s.cron),
            safe_text(s.zone),
            _catch_up(s),
            "paused" if s.paused else format_time(s.next_at),
            format_time(s.last_slot),
        )
    console.print(made)


@_app.command()
def show(name: _Name, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Show a schedule and what its runs are."""
    s = _ask(db, tenant, lambda schedules: schedules.show(name))
    if as_json:
        print_json(s)
        return
    lines: dict[str, Any] = {
        "schedule": s.name,
        "cron": f"{s.cron} ({s.zone})",
        "next": "paused" if s.paused else _both(s.next_at, s.zone) or "never again",
        "last slot": _both(s.last_slot, s.zone) or "none yet",
        "catch up": _catch_up(s),
        "workflow": f"{s.workflow} (version {s.code_version}, profile {s.profile})",
        "workspace": s.workspace,
        "queue": s.queue,
        "input": "none" if s.input is None else s.input,
        "slot in input": "yes" if s.pass_slot else "no",
        "labels": [f"{key}={value}" for key, value in sorted(s.labels.items())] or "none",
        "owner": s.owner,
        "made": format_time(s.created_at),
        "changed": f"{format_time(s.updated_at)} (revision {s.revision})",
        "unconfirmed": " ".join(s.unconfirmed) or "nothing",
        "steps": [_step(one) for one in s.plan] if s.plan else "main",
    }
    show_fields(lines)


@_app.command()
def pause(name: _Name, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Start nothing until it is unpaused."""
    _tell(_ask(db, tenant, lambda schedules: schedules.pause(name), changes=True), as_json)


@_app.command()
def unpause(name: _Name, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Go on with the next slot; those that passed meanwhile are not caught up."""
    _tell(
        _ask(db, tenant, lambda schedules: schedules.unpause(name, by=caller_id(None)), changes=True), as_json
    )


@_app.command()
def trigger(
    name: _Name, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Start a run now, beside the slots; prints its id. Works on a paused schedule too."""
    run = _ask(db, tenant, lambda schedules: schedules.trigger(name, actor=caller_id(by)), changes=True)
    if as_json:
        print_json({"run": run})
    else:
        print(run)


@_app.command()
def delete(name: _Name, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Delete a schedule; the runs it has started stay."""
    _ask(db, tenant, lambda schedules: schedules.delete(name), changes=True)
    if as_json:
        print_json({"deleted": name})
    else:
        out().print("deleted")


@_app.command("next")
def next_times(
    name: _Name,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=SLOTS_SHOWN_MAX, help="How many.")] = 5,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show when it is due next, in its time zone and in UTC, as if it were not paused."""

    async def call(schedules: Schedules | RemoteSchedules) -> tuple[str, list[datetime]]:
        return (await schedules.show(name)).zone, await schedules.next(name, count)

    zone, times = _ask(db, tenant, call)
    if as_json:
        print_json(times)
        return
    for at in times:
        out().print(_both(at, zone))


def _step(planned: dict[str, Any]) -> dict[str, Any]:
    """A step of a plan, without what it leaves open."""
    return {word: value for word, value in planned.items() if value not in (None, "", [], {})}


def _both(at: datetime | None, zone: str) -> str:
    """A moment by the schedule's clock and by UTC's."""
    if at is None:
        return ""
    there = at.astimezone(ZoneInfo(zone))
    return f"{there:%a %Y-%m-%d %H:%M} {there:%Z}" + ("" if zone == "UTC" else f"  ({at:%Y-%m-%d %H:%M} UTC)")


def _catch_up(s: Schedule) -> str:
    return f"all, at most {s.catch_up_max}" if s.catch_up == "all" else s.catch_up


def _tell(s: Schedule, as_json: bool) -> None:
    if as_json:
        print_json(s)
    elif s.paused:
        out().print(safe_text(f"{s.name} is paused"), soft_wrap=True)
    else:
        out().print(safe_text(f"{s.name} is due next at {_both(s.next_at, s.zone)}"), soft_wrap=True)
