"""`tenure runs`: start, watch and steer runs from the shell.

Law: nothing is decided here; each command is one call of the engine and a way to show its answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tenure.cli import work
from tenure.cli.console import out, print_json, shown
from tenure.cli.options import AsJson, Db, not_empty
from tenure.cli.runs_show import show_list, show_run
from tenure.cli.session import (
    By,
    RunArg,
    Tenant,
    change,
    code_of,
    json_value,
    moment_of,
    pairs,
    seconds,
    session,
    wait_for,
    who,
)
from tenure.cli.timeline import timeline
from tenure.embedded import EventView, RunLine, RunView, StepView, Why, read_plan
from tenure.errors import TenureError
from tenure.kernel.commands import Trigger
from tenure.kernel.machines import RUN

_app = typer.Typer(
    name="runs",
    help="Start, watch and steer runs.",
    epilog="""
    A life by hand:

    tenure runs create --workflow release --plan plan.json

    tenure runs work -- be the worker: take what is ready and complete it

    tenure approvals approve RUN --by ada

    tenure runs why RUN -- what it waits for
    """,
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    _app.command("work")(work.work)
    app.add_typer(_app)


def _said(text: str) -> None:
    out().print(shown(text), soft_wrap=True)


@_app.command()
def create(
    workflow: Annotated[str, typer.Option("--workflow", help="The workflow's name.")],
    plan: Annotated[
        Path,
        typer.Option(
            "--plan", help="JSON: a list of steps; TOML: \\[\\[steps]].", exists=True, dir_okay=False
        ),
    ],
    profile: Annotated[str, typer.Option("--profile", help="See `tenure lifecycle list`.")] = "agent-runs",
    given: Annotated[str | None, typer.Option("--input", help="JSON, or @FILE with JSON.")] = None,
    repo: Annotated[
        str | None, typer.Option(help="The repository it is for, see `runs list --repo`.", callback=not_empty)
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="May be repeated.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: the same request, the same run.")
    ] = None,
    priority: Annotated[int, typer.Option("--priority", help="Higher goes first within a tenant.")] = 0,
    concurrency_key: Annotated[str | None, typer.Option(help="One run with this key at a time.")] = None,
    supersede: Annotated[
        bool, typer.Option("--supersede", help="Cancel earlier runs with the same key.")
    ] = False,
    not_before: Annotated[str | None, typer.Option(help="Start later: +5m, or a time.")] = None,
    timeout: Annotated[str | None, typer.Option(help="The run's deadline: 90s, 5m, 2h.")] = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Start a run of a declared plan; makes the database file if there is none."""
    if supersede and concurrency_key is None:
        raise typer.BadParameter("--supersede needs --concurrency-key")
    steps = read_plan(plan)

    async def call() -> RunView:
        async with change(db, tenant, make=True) as engine:
            run_id = await engine.create(
                workflow,
                steps,
                input=json_value(given, "--input"),
                profile=profile,
                key=key,
                labels=pairs(label),
                priority=priority,
                concurrency_key=concurrency_key,
                supersede=supersede,
                not_before=None if not_before is None else moment_of(not_before),
                timeout=None if timeout is None else seconds(timeout),
                trigger=Trigger("cli", repo=repo),
                source="cli",
                actor=who(by),
            )
            return await engine.get(run_id)

    run = wait_for(call())
    if as_json:
        print_json(run)
    else:
        print(run.id)


@_app.command("list")
def list_runs(
    status: Annotated[str | None, typer.Option(help="Only runs of this (kernel's) status.")] = None,
    repo: Annotated[str | None, typer.Option(help="Only runs of this repository.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 50,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """List the newest runs."""
    if status is not None and status not in RUN.states:
        raise typer.BadParameter(f"'{status}' is not one of {', '.join(RUN.states)}")

    async def call() -> list[RunLine]:
        async with session(db, tenant) as engine:
            return await engine.runs(status=status, repo=repo, limit=limit)

    lines = wait_for(call())
    if as_json:
        print_json(lines)
    else:
        show_list(lines)


@_app.command()
def show(run: RunArg, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Show a run with its steps, in the kernel's words and in its profile's."""

    async def call() -> tuple[RunView, list[StepView], Why]:
        async with session(db, tenant) as engine:
            return await engine.get(run), await engine.steps(run), await engine.why(run)

    view, steps, reason = wait_for(call())
    if as_json:
        print_json({"run": view, "steps": steps, "why": reason})
    else:
        show_run(view, steps, reason)


@_app.command()
def events(
    run: RunArg,
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show a run's history: when, who, what."""

    async def call() -> list[EventView]:
        async with session(db, tenant) as engine:
            return await engine.events(run, after=after)

    history = wait_for(call())
    if as_json:
        print_json(history)
    else:
        out().print(timeline(history))


@_app.command()
def why(run: RunArg, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Say why a run is not moving, in one reason."""

    async def call() -> Why:
        async with session(db, tenant) as engine:
            return await engine.why(run)

    reason = wait_for(call())
    if as_json:
        print_json(reason)
    else:
        until = f" Until {reason.until:%Y-%m-%d %H:%M:%S} UTC." if reason.until is not None else ""
        _said(reason.text + until)


# ------------------------------------------------------------------------------------------ interventions


@_app.command()
def cancel(
    run: RunArg,
    reason: Annotated[
        str, typer.Option(help="A code for the history: A-Z, 0-9 and _.", callback=code_of)
    ] = "RUN_CANCELED",
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Request the cancellation of a run."""

    async def call() -> str:
        async with change(db, tenant) as engine:
            return await engine.cancel(run, reason=reason, actor=who(by))

    status = wait_for(call())
    _answer(as_json, run, {"status": status}, f"{run} is {status}")


@_app.command("cancel-step")
def cancel_step(
    run: RunArg,
    name: Annotated[str, typer.Argument(help="The step's name, see `tenure runs show`.")],
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Cancel one step of a run. A required step that is canceled fails its run."""

    async def call() -> str:
        async with change(db, tenant) as engine:
            return await engine.cancel_step(run, name, actor=who(by))

    state = wait_for(call())
    _answer(as_json, run, {"step": name, "state": state}, f"step {name} of {run} is {state}")


@_app.command()
def pause(
    run: RunArg, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Give out no step of a run until it is unpaused; deadlines go on."""

    async def call() -> None:
        async with change(db, tenant) as engine:
            await engine.pause(run, actor=who(by))

    wait_for(call())
    _answer(as_json, run, {"paused": True}, f"{run} is paused")


@_app.command()
def unpause(
    run: RunArg, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Give out steps again, also of a run that was parked."""

    async def call() -> None:
        async with change(db, tenant) as engine:
            await engine.unpause(run, actor=who(by))

    wait_for(call())
    _answer(as_json, run, {"paused": False}, f"{run} goes on")


@_app.command()
def resume(
    run: RunArg, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Go on: a finished run as a new one that keeps what was done; a waiting one by ending its wait.

    Ends a wait for an event or a time, never an approval.
    """

    async def call() -> RunView:
        async with change(db, tenant) as engine:
            return await engine.get(await engine.resume(run, actor=who(by)))

    view = wait_for(call())
    if as_json:
        print_json(view)
    elif view.id == run:
        _said(f"{run} waits no longer; it is {view.status}")
    else:
        print(view.id)


@_app.command()
def rerun(
    run: RunArg, db: Db = None, tenant: Tenant = "default", by: By = None, as_json: AsJson = False
) -> None:
    """Start a finished run afresh, as a new run linked to it."""

    async def call() -> RunView:
        async with change(db, tenant) as engine:
            return await engine.get(await engine.rerun(run, actor=who(by)))

    view = wait_for(call())
    if as_json:
        print_json(view)
    else:
        print(view.id)


@_app.command()
def signal(
    run: RunArg,
    event: Annotated[str, typer.Argument(help="The event's name.")],
    data: Annotated[str | None, typer.Option("--data", help="JSON, or @FILE with JSON.")] = None,
    event_id: Annotated[str | None, typer.Option("--id", help="The same id never counts twice.")] = None,
    source: Annotated[str, typer.Option(help="Where it comes from.")] = "cli",
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Deliver an event to a run; one that nobody waits for yet is kept."""
    if not event:
        raise TenureError("INVALID_INPUT", "an event has a name")

    async def call() -> bool:
        value = json_value(data, "--data")
        async with change(db, tenant) as engine:
            return await engine.deliver(run, event, value, event_id=event_id, source=source, actor=who(by))

    taken = wait_for(call())
    _answer(
        as_json,
        run,
        {"event": event, "taken": taken},
        "taken" if taken else "kept until somebody waits for it",
    )


def _answer(as_json: bool, run: str, fields: dict[str, object], text: str) -> None:
    if as_json:
        print_json({"run": run, **fields})
    else:
        _said(text)
