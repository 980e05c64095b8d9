"""`tenure runs`: start, look at and watch runs from the shell. What steers them is in `run_control`.

Law: nothing is decided here; each command is one call of the engine and a way to show its answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.common.console import err, out, print_json, safe_text
from tenure.cli.common.options import (
    AsJson,
    ConcurrencyKey,
    Db,
    Key,
    Labels,
    NotBefore,
    Priority,
    Supersede,
    Timeout,
    not_empty,
)
from tenure.cli.common.session import (
    By,
    RunArg,
    Tenant,
    call_backend,
    call_engine,
    caller_id,
    parse_json,
    parse_pairs,
    parse_seconds,
    parse_time,
    run_async,
)
from tenure.cli.runs import artifacts, run_control
from tenure.cli.runs.run_tables import format_time, show_run, show_runs

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.cli.runs.watch import EndedRun
    from tenure.engine import Engine
    from tenure.shapes.costs import RunCosts
    from tenure.shapes.events import Event
    from tenure.shapes.runs import Explanation, Run, RunLogLine
    from tenure.shapes.steps import FailedAttempt, Step

_app = typer.Typer(
    name="runs",
    help="List, show, watch and steer runs.",
    epilog="""
    Examples:

    tenure runs list --status failed --workflow release --label team=a

    tenure runs why RUN -- what it waits for, in one reason

    tenure runs show RUN; tenure runs events RUN --timeline; tenure runs logs RUN --follow

    tenure runs resume RUN -- go on after a failure: what was done is kept

    tenure runs rerun RUN -- afresh, as a new run linked to it

    A plan of steps, done by workers that have its tools:

    run=$(tenure runs create --workflow release --plan plan.json); tenure worker tools.py
    """,
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    run_control.register(_app)
    artifacts.register(_app)
    app.add_typer(_app)


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
    label: Labels = None,
    key: Key = None,
    priority: Priority = 0,
    concurrency_key: ConcurrencyKey = None,
    supersede: Supersede = False,
    not_before: NotBefore = None,
    timeout: Timeout = None,
    metadata: Annotated[
        str | None, typer.Option("--metadata", help="A JSON object that is kept with it, or @FILE.")
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Start a run of a plan of steps; makes the database file if there is none. Prints its id.

    `tenure run` starts workflows that are code or YAML, and runs them too.
    """
    from tenure.engine import read_plan
    from tenure.shapes.runs import RunTrigger

    if supersede and concurrency_key is None:
        raise typer.BadParameter("--supersede needs --concurrency-key")
    steps = read_plan(plan)

    async def call(engine: Engine) -> Run:
        run_id = await engine.create(
            workflow,
            steps,
            input=parse_json(given, "--input"),
            profile=profile,
            key=key,
            labels=parse_pairs(label),
            metadata=parse_json(metadata, "--metadata"),
            priority=priority,
            concurrency_key=concurrency_key,
            supersede=supersede,
            not_before=None if not_before is None else parse_time(not_before),
            timeout=None if timeout is None else parse_seconds(timeout),
            trigger=RunTrigger(type="cli", repo=repo),
            source="cli",
            actor=caller_id(by),
        )
        return await engine.get(run_id)

    run = run_async(call_engine(db, tenant, call, make=True))
    if as_json:
        print_json(run)
    else:
        print(run.id)


@_app.command("list")
def list_runs(
    status: Annotated[str | None, typer.Option(help="Only runs of this (kernel's) status.")] = None,
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Only runs with this label; may be repeated."),
    ] = None,
    repo: Annotated[str | None, typer.Option(help="Only runs of this repository.")] = None,
    parked: Annotated[
        bool, typer.Option("--parked", help="Only runs that no worker's code fits; `runs why` says more.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 50,
    cursor: Annotated[
        str | None,
        typer.Option(
            "--cursor",
            metavar="TEXT",
            help="Continue from the cursor that the previous list printed.",
            show_default=False,
        ),
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """List the newest runs; conditions add up. Where there are more, stderr says how to go on."""
    from tenure.kernel.machines import RUN

    if status is not None and status not in RUN.states:
        known = ", ".join(RUN.states)
        raise typer.BadParameter(f"'{status}' is not one of {known}", param_hint="--status")
    labels = parse_pairs(label)
    lines = call_backend(
        db,
        tenant,
        lambda backend: backend.runs.list(
            status=status,
            repo=repo,
            workflow=workflow,
            labels=labels,
            parked=parked,
            limit=limit,
            cursor=cursor,
        ),
    )
    if as_json:
        print_json(lines)
    else:
        show_runs(lines)
    if lines.next_cursor is not None:
        err().print(
            f"more: the same command with --cursor {lines.next_cursor}", soft_wrap=True, highlight=False
        )


DOCUMENTED = "git-with-intent"
"""The profile whose document says what a run looks like as JSON."""


@_app.command()
def show(
    run: RunArg,
    everything: Annotated[
        bool, typer.Option("--all", help="Recorded times, uuids and numbers among the steps too.")
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            help="In the words of this profile; git-with-intent, with --json: as its document has it."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="PATH",
            help="With --profile: what lies below the document: steps/NAME, checkpoints/NAME, idempotency/KEY,"
            " or just steps.",
        ),
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show a run with its steps, in the kernel's words and in its profile's."""
    if profile == DOCUMENTED or at is not None:
        if not as_json:
            raise typer.BadParameter("a profile's document is JSON: add --json", param_hint="--profile")
        print_json(call_backend(db, tenant, lambda backend: backend.runs.document(run, profile or "", at)))
        return

    async def call(backend: Backend) -> tuple[Run, list[Step], Explanation, RunCosts]:
        view, steps = await backend.get(run, profile), await backend.runs.steps(run, profile)
        return view, steps, await backend.runs.explain(run), await backend.costs.get(run)

    view, steps, reason, costs = call_backend(db, tenant, call)
    if as_json:
        print_json({"run": view, "steps": steps, "costs": costs.lines, "spent": costs, "why": reason})
    else:
        show_run(view, steps, reason, costs, everything=everything, words=profile)


@_app.command()
def events(
    run: RunArg,
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="The run's life as people tell it: steps, tries, answers.")
    ] = False,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show a run's history: when, who, what. Each line is one commit, chained to the one before it by its hash."""

    if timeline:
        from tenure.cli.runs.timeline import build_timeline, timeline_table

        told = build_timeline(*call_backend(db, tenant, lambda backend: _lived(backend, run, after)))
        if as_json:
            print_json(told)
        else:
            out().print(timeline_table(told))
        return
    history = call_backend(db, tenant, lambda backend: backend.runs.events(run, after=after))
    if as_json:
        print_json(history)
        return
    from tenure.cli.runs.event_table import event_table as history_table

    out().print(history_table(history))


async def _lived(
    backend: Backend, run: str, after: int
) -> tuple[Run, list[Step], list[Event], list[FailedAttempt]]:
    """What the story of a run is made from."""
    tries = await backend.runs.failed_attempts(run)
    return (
        await backend.get(run),
        await backend.runs.steps(run),
        await backend.runs.events(run, after=after),
        tries,
    )


@_app.command()
def why(run: RunArg, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Say why a run is not moving, in one reason."""
    reason = call_backend(db, tenant, lambda backend: backend.runs.explain(run))
    if as_json:
        print_json(reason)
    else:
        until = f" Until {reason.until:%Y-%m-%d %H:%M:%S} UTC." if reason.until is not None else ""
        out().print(safe_text(reason.text + until), soft_wrap=True)


@_app.command()
def logs(
    run: RunArg,
    after: Annotated[int, typer.Option(min=0, help="Only lines after this number.")] = 0,
    step: Annotated[str | None, typer.Option(help="Only lines of this step.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show what a run's code has logged: `tenure.log(...)`, and what commands printed."""

    async def call(backend: Backend) -> list[RunLogLine]:
        from tenure.cli.runs.watch import read_log_lines

        found: list[RunLogLine] = []
        async for line in read_log_lines(backend, run, after, follow=follow):
            if step is not None and line.step != step:
                continue
            if as_json:
                found.append(line)
            else:
                _show_line(line)
        return found

    found = call_backend(db, tenant, call)
    if as_json:
        print_json(found)


def _show_line(line: RunLogLine) -> None:
    import msgspec

    fields = f"  {msgspec.json.encode(line.fields).decode()}" if line.fields else ""
    style = {"warning": "yellow", "error": "red"}.get(line.level, "")
    text = f"{format_time(line.at)}  {line.level:<7} {line.step}  {line.text}{fields}"
    out().print(safe_text(text, style=style), soft_wrap=True)


@_app.command()
def watch(
    run: RunArg,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Watch a run until it has ended; on a terminal its questions can be answered right there.

    Ends with 0 when the run succeeded and with 1 when not. Ctrl-C stops watching, not the run.
    """
    from tenure.cli.runs.watch import print_outcome, watch_run

    async def call(backend: Backend) -> EndedRun:
        return await watch_run(backend, run, quiet=as_json, approver=caller_id(None))

    try:
        ended = call_backend(db, tenant, call, changes=True)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    print_outcome(ended, as_json=as_json)
