"""`tenure runs`: create, list, show and watch runs. Commands that change runs are in `run_control`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tenure.cli.common.arguments import parse_json, parse_pairs, parse_seconds, parse_time
from tenure.cli.common.backend import call_backend, call_engine, caller_id
from tenure.cli.common.console import print_json, say, show_result, warn
from tenure.cli.common.options import (
    AsJson,
    By,
    ConcurrencyKey,
    Db,
    Key,
    Labels,
    NotBefore,
    Priority,
    RunArg,
    Supersede,
    Tenant,
    Timeout,
    not_empty,
)
from tenure.cli.common.tables import format_time
from tenure.cli.runs import artifacts, run_control, test_reports
from tenure.cli.runs.run_tables import show_run, show_runs

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.engine import Engine
    from tenure.shapes.costs import RunCosts
    from tenure.shapes.runs import Explanation, Run, RunLogLine
    from tenure.shapes.steps import Step

app = typer.Typer(
    name="runs",
    help="List, show, watch and control runs.",
    epilog="""
    Examples:

    tenure runs list --status failed --workflow release --label team=a

    tenure runs list --profile approval-runs --status WAITING_APPROVAL

    tenure runs why RUN -- the one reason why it is not moving

    tenure runs show RUN; tenure runs events RUN --timeline; tenure runs logs RUN --follow

    tenure runs logs RUN --step JOB --tail 100; tenure runs tests RUN -- what a CI job printed, and its tests

    tenure runs resume RUN -- continue after a failure, as a new run that keeps the recorded steps

    tenure runs rerun RUN -- start from the beginning, as a new run linked to it

    Run a plan of steps with workers that have its tools:

    run=$(tenure runs create --workflow release --plan plan.json); tenure worker tools.py
    """,
    no_args_is_help=True,
)


app.add_typer(run_control.app)
app.add_typer(artifacts.app)
app.add_typer(test_reports.app)


@app.command()
def create(
    workflow: Annotated[str, typer.Option("--workflow", help="The workflow's name.")],
    plan: Annotated[
        Path,
        typer.Option(
            "--plan",
            help="A file of steps: a JSON list, or TOML with \\[\\[steps]].",
            exists=True,
            dir_okay=False,
        ),
    ],
    profile: Annotated[
        str, typer.Option("--profile", help="The lifecycle, see `tenure lifecycle list`.")
    ] = "tenure",
    given: Annotated[
        str | None, typer.Option("--input", help="The run's input: JSON, or @FILE with JSON.")
    ] = None,
    repo: Annotated[
        str | None,
        typer.Option(help="The repository of the run, see `runs list --repo`.", callback=not_empty),
    ] = None,
    label: Labels = None,
    key: Key = None,
    priority: Priority = 0,
    concurrency_key: ConcurrencyKey = None,
    supersede: Supersede = False,
    not_before: NotBefore = None,
    timeout: Timeout = None,
    metadata: Annotated[
        str | None, typer.Option("--metadata", help="A JSON object to store with the run, or @FILE.")
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Create a run of a plan of steps, and print its id. Creates the database file if it does not exist.

    To start a workflow in Python or YAML, use `tenure run`.
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

    run = call_engine(db, tenant, call, make=True)
    show_result(run, as_json, run.id)


@app.command("list")
def list_runs(
    status: Annotated[
        str | None, typer.Option(help="Only runs with this status; with --profile, a word of it.")
    ] = None,
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Only runs with this label; may be repeated."),
    ] = None,
    repo: Annotated[str | None, typer.Option(help="Only runs of this repository.")] = None,
    parked: Annotated[
        bool, typer.Option("--parked", help="Only runs that no worker has the code for; see `runs why`.")
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", help="Show runs in the words of this lifecycle, see `tenure lifecycle list`."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most runs to show.")] = 50,
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
    """List the newest runs that meet all conditions. If there are more, stderr shows the cursor to continue with."""
    from tenure.kernel.machines import RUN

    if profile is None and status is not None and status not in RUN.states:
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
            profile=profile,
            limit=limit,
            cursor=cursor,
        ),
    )
    show_runs(lines, as_json)
    if lines.next_cursor is not None:
        warn(f"more: the same command with --cursor {lines.next_cursor}", "")


DOCUMENTED = "git-with-intent"
"""The profile whose document defines the JSON of a run."""


@app.command()
def show(
    run: RunArg,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also show recorded times, uuids and random numbers among the steps."),
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Use the words of this profile; git-with-intent with --json: the JSON of its document."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="PATH",
            help="With --profile: a part of the document: steps/NAME, checkpoints/NAME, idempotency/KEY, or steps.",
        ),
    ] = None,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show a run with its steps, in the words of the kernel and of its profile."""
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


@app.command()
def events(
    run: RunArg,
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Show a timeline for people: steps, attempts, approvals.")
    ] = False,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show a run's history: when, who, what. Each line is one commit, chained to the one before by its hash."""
    from tenure.cli.runs.timeline import event_table, load_timeline, timeline_table

    if timeline:
        entries = call_backend(db, tenant, lambda backend: load_timeline(backend, run, after))
        show_result(entries, as_json, timeline_table(entries))
    else:
        history = call_backend(db, tenant, lambda backend: backend.runs.events(run, after=after))
        show_result(history, as_json, event_table(history))


@app.command()
def why(run: RunArg, db: Db = None, tenant: Tenant = "default", as_json: AsJson = False) -> None:
    """Explain in one sentence why a run is not moving."""
    reason = call_backend(db, tenant, lambda backend: backend.runs.explain(run))
    until = "" if reason.until is None else f" Until {format_time(reason.until)} UTC."
    show_result(reason, as_json, reason.text + until)


@app.command()
def logs(
    run: RunArg,
    after: Annotated[int, typer.Option(min=0, help="Only lines after this number.")] = 0,
    step: Annotated[
        str | None, typer.Option(help="Only lines of this step; of a CI job also everything that it printed.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="With --step: what this attempt of the job printed.")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="With --step: only the last lines that the job printed."),
    ] = None,
    late: Annotated[
        bool, typer.Option("--late", help="With --step: also what arrived after the end of the job's lease.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the run has ended.")] = False,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Show the log of a run: the lines of `tenure.log(...)`, and the output of commands.

    What a CI job printed is shown with --step JOB: as it is to a file, and without control characters on a terminal.
    """
    if step is None and (attempt is not None or tail is not None or late):
        raise typer.BadParameter("--attempt, --tail and --late need --step")

    async def call(backend: Backend) -> list[RunLogLine]:
        from tenure.cli.runs.job_logs import print_job_log
        from tenure.cli.runs.watch import read_log_lines

        found: list[RunLogLine] = []
        show_line = found.append if as_json else _show_line

        async def show_lines() -> None:
            async for line in read_log_lines(backend, run, after, follow=follow):
                if step is None or line.step == step:
                    show_line(line)

        if step is None or as_json:
            await show_lines()
        else:
            shown = print_job_log(backend, run, step, attempt=attempt, tail=tail, late=late, follow=follow)
            await asyncio.gather(show_lines(), shown)
        return found

    found = call_backend(db, tenant, call)
    if as_json:
        print_json(found)


def _show_line(line: RunLogLine) -> None:
    fields = f"  {msgspec.json.encode(line.fields).decode()}" if line.fields else ""
    style = {"warning": "yellow", "error": "red"}.get(line.level, "")
    say(f"{format_time(line.at)}  {line.level:<7} {line.step}  {line.text}{fields}", style)


@app.command()
def watch(
    run: RunArg,
    db: Db = None,
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    """Watch a run until it has ended. On a terminal you can answer its approvals right there.

    Ends with 0 if the run succeeded, else with 1. Ctrl-C stops watching, not the run.
    """
    from tenure.cli.runs.watch import print_outcome, watch_run

    try:
        ended = call_backend(
            db,
            tenant,
            lambda backend: watch_run(backend, run, quiet=as_json, approver=caller_id()),
            changes=True,
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    print_outcome(ended, as_json=as_json)
