"""`tenure schedule`: runs that start on a schedule."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from zoneinfo import ZoneInfo

import typer

from tenure.cli.common.arguments import parse_json, parse_pairs
from tenure.cli.common.backend import call_backend, caller_id
from tenure.cli.common.console import print_json, show_fields, show_result
from tenure.cli.common.options import AsJson, By, Db, Labels, Tenant, not_empty
from tenure.cli.common.tables import format_time, show_table
from tenure.engine import read_plan
from tenure.limits import CATCH_UP_RUNS_MAX, SLOTS_SHOWN_MAX
from tenure.services.schedules import CATCH_UP_RUNS, SchedulableWorkflow
from tenure.shapes.schedules import Schedule

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend

app = typer.Typer(
    name="schedule",
    help="Start runs on a schedule: one run for each slot, however many processes look for slots.",
    epilog="""
    The form of a cron expression:

    minute hour day-of-month month day-of-week -- `30 2 * * *` is 02:30 every day, `*/15 * * * *` every quarter of
    an hour, `0 9 * * MON-FRI` nine o'clock on working days, `0 0 L * *` the last midnight of a month

    Create a schedule:

    tenure schedule create nightly app.py:report --cron '30 2 * * *' --zone Europe/Berlin --catch-up last

    tenure schedule next nightly -- its next slots, in its time zone and in UTC

    tenure schedule trigger nightly -- start a run now, in addition to the slots

    Every worker and server looks for due slots. docs/schedules.md explains catching up, and the two days on which the clocks
    change.
    """,
    no_args_is_help=True,
)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule, see `tenure schedule list`.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the new schedule.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="The workflow to run: module:workflow, file.py:workflow or FILE.yaml; with --plan, a name.",
        ),
    ],
    cron: Annotated[
        str,
        typer.Option(
            "--cron", metavar="TEXT", help="Five fields in quotes: '30 2 * * *'.", callback=not_empty
        ),
    ],
    zone: Annotated[
        str, typer.Option("--zone", help="The time zone of the cron expression, like Europe/Berlin.")
    ] = "UTC",
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            help="A file with a plan of steps, as for `tenure runs create`.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            help="The lifecycle, see `tenure lifecycle list`.  \\[default: the workflow's]",
            show_default=False,
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--input", help="key=value, JSON, or @FILE with JSON; may be repeated."),
    ] = None,
    pass_slot: Annotated[
        bool, typer.Option("--pass-slot", help="Add the slot's time to the input, as `slot`.")
    ] = False,
    catch_up: Annotated[
        Literal["skip", "last", "all"],
        typer.Option(
            "--catch-up",
            help="Slots that were missed while no process ran: `skip` them, run the `last`, or `all`.",
        ),
    ] = "skip",
    catch_up_max: Annotated[
        int,
        typer.Option(
            "--catch-up-max",
            min=1,
            max=CATCH_UP_RUNS_MAX,
            help="With `all`: run at most this many, the newest.",
        ),
    ] = CATCH_UP_RUNS,
    label: Labels = None,
    paused: Annotated[bool, typer.Option("--paused", help="Start no runs until it is unpaused.")] = False,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Create a schedule, and the database file if it does not exist. Its creator is the requester of its runs."""
    from tenure.cli.workflows.targets import load_target_workflow, parse_inputs

    steps = None if plan is None else read_plan(plan)
    workflow: SchedulableWorkflow = target
    if steps is not None:
        if given is not None and len(given) > 1:
            raise typer.BadParameter("with --plan, give one JSON value", param_hint="--input")
        value: Any = parse_json(given[0], "--input") if given else None
    else:
        workflow = load_target_workflow(target)
        value = parse_inputs(workflow, given, check=False)  # the slot may be what is missing
    made = call_backend(
        db,
        tenant,
        lambda backend: backend.schedules.create(
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
    _show_schedule(made, as_json)


@app.command("list")
def list_schedules(db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """List the schedules by name."""
    found = call_backend(db, tenant, lambda backend: backend.schedules.list())
    show_table(
        found,
        as_json,
        "no schedules",
        ("schedule", "workflow", "cron", "zone", "catch up", "next (UTC)", "last slot (UTC)"),
        lambda s: (
            s.name,
            s.workflow,
            s.cron,
            s.zone,
            _catch_up(s),
            "paused" if s.paused else format_time(s.next_at),
            format_time(s.last_slot),
        ),
    )


@app.command()
def show(name: _Name, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Show a schedule and the runs that it starts."""
    s = call_backend(db, tenant, lambda backend: backend.schedules.show(name))
    if as_json:
        print_json(s)
        return
    fields = {
        "schedule": s.name,
        "cron": f"{s.cron} ({s.zone})",
        "next": "paused" if s.paused else _both_times(s.next_at, s.zone) or "never again",
        "last slot": _both_times(s.last_slot, s.zone) or "none yet",
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
    show_fields(fields)


@app.command()
def pause(name: _Name, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Start no runs of a schedule until it is unpaused."""
    _show_schedule(
        call_backend(db, tenant, lambda backend: backend.schedules.pause(name), changes=True), as_json
    )


@app.command()
def unpause(name: _Name, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Continue with the next slot. Slots that passed in the meantime are not caught up."""
    _show_schedule(
        call_backend(
            db, tenant, lambda backend: backend.schedules.unpause(name, by=caller_id()), changes=True
        ),
        as_json,
    )


@app.command()
def trigger(
    name: _Name, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Start a run now, in addition to the slots, and print its id. Works on a paused schedule, too."""
    run = call_backend(
        db, tenant, lambda backend: backend.schedules.trigger(name, actor=caller_id(by)), changes=True
    )
    show_result({"run": run}, as_json, run)


@app.command()
def delete(name: _Name, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Delete a schedule. The runs that it has started stay."""
    call_backend(db, tenant, lambda backend: backend.schedules.delete(name), changes=True)
    show_result({"deleted": name}, as_json, "deleted")


@app.command("next")
def next_times(
    name: _Name,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=SLOTS_SHOWN_MAX, help="How many slots to show.")
    ] = 5,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show the next slots, in the schedule's time zone and in UTC. Ignores whether it is paused."""

    async def call(backend: Backend) -> tuple[str, list[datetime]]:
        return (await backend.schedules.show(name)).zone, await backend.schedules.next(name, count)

    zone, times = call_backend(db, tenant, call)
    show_result(times, as_json, *(_both_times(at, zone) for at in times))


def _step(planned: dict[str, Any]) -> dict[str, Any]:
    """A step of a plan, without its empty fields."""
    return {word: value for word, value in planned.items() if value not in (None, "", [], {})}


def _both_times(at: datetime | None, zone: str) -> str:
    """A time in the schedule's zone and in UTC."""
    if at is None:
        return ""
    there = at.astimezone(ZoneInfo(zone))
    return f"{there:%a %Y-%m-%d %H:%M} {there:%Z}" + ("" if zone == "UTC" else f"  ({at:%Y-%m-%d %H:%M} UTC)")


def _catch_up(s: Schedule) -> str:
    return f"all, at most {s.catch_up_max}" if s.catch_up == "all" else s.catch_up


def _show_schedule(s: Schedule, as_json: bool) -> None:
    text = "paused" if s.paused else f"due next at {_both_times(s.next_at, s.zone)}"
    show_result(s, as_json, f"{s.name} is {text}")
