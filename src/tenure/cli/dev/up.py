"""`tenure up`: start one of the five systems, play its story, and keep it running."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Annotated

import msgspec
import structlog
import typer

from tenure.cli.common.console import print_json, say, warn
from tenure.cli.common.options import AsJson, not_empty
from tenure.cli.common.work_folder import work_folder
from tenure.engine.entry_point import run_in_loop
from tenure.engine.worker_process import shutdown_event
from tenure.systems.catalogue import SUMMARIES, load_system
from tenure.systems.stage import StageOptions, StoryFailed, StoryPart, open_stage

_EPILOG = "\n\n".join(
    (
        "The systems:",
        *(f"[bold]{name}[/bold]: {summary}" for name, summary in SUMMARIES.items()),
        "Examples:",
        "tenure up delta-ci -- play the story, then look around until Ctrl-C",
        "tenure up agent-runs --once -- play it, check every part, and exit with 0 if all of it happened",
        "tenure up approval-runs --db postgresql://localhost/tenure --folder up -- on PostgreSQL, and keep the files",
        "Each system has a page in the documentation: docs/systems.md.",
    )
)

app = typer.Typer()


class UpReport(msgspec.Struct, kw_only=True):
    system: str
    happened: list[StoryPart]
    missing: list[str]
    problem: str | None
    seconds: float


@app.command(epilog=_EPILOG)
def up(
    system: Annotated[str, typer.Argument(help="The system to start; see below.", callback=not_empty)],
    once: Annotated[
        bool, typer.Option("--once", help="Stop after the story; exit with 1 if a part of it is missing.")
    ] = False,
    folder: Annotated[
        str | None,
        typer.Option(
            help="Create this folder, and keep it.  \\[default: a temporary folder]",
            show_default=False,
            callback=not_empty,
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            "--db",
            metavar="URL",
            help="An empty database.  \\[default: a SQLite file in the folder]",
            show_default=False,
            callback=not_empty,
        ),
    ] = None,
    files: Annotated[
        str | None,
        typer.Option(
            "--files",
            metavar="PLACE",
            help="Where documents, logs and artifacts go: a folder, or s3://BUCKET/PREFIX.  \\[default: in the folder]",
            show_default=False,
            callback=not_empty,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port of the server; 0: any free port.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Start one of the five systems with everything it needs, and watch its story.

    Every part is real: servers, workers, runners, git, sandboxes and files. Only GitHub, Slack, ServiceNow and Firestore are
    doubles on this machine, which speak HTTP like the services do.
    """
    with work_folder(folder, f"tenure-{system}-") as place:
        options = StageOptions(folder=place, database=database, files=files, port=port)
        report = run_in_loop(_play(system, options, once, as_json))
    if as_json:
        print_json(report)
    if report.problem or report.missing:
        raise typer.Exit(1)


async def _play(name: str, options: StageOptions, once: bool, quiet: bool) -> UpReport:
    system = load_system(name)
    _hide_info_logs()
    begun = time.monotonic()
    problem: str | None = None
    show = _ignore if quiet else say
    with shutdown_event() as shutdown:
        async with open_stage(options, system.parts, show) as stage:
            playing = asyncio.ensure_future(system.play(stage))
            stopping = asyncio.ensure_future(shutdown.wait())
            try:
                await asyncio.wait((playing, stopping), return_when=asyncio.FIRST_COMPLETED)
                if playing.done():
                    await playing
                else:
                    problem = "it was stopped before the end of its story"
            except StoryFailed as failed:
                problem = str(failed)
            finally:
                playing.cancel()
                await asyncio.wait((playing,))
            if problem is None and stage.missing:
                problem = f"{len(stage.missing)} parts of the story did not happen"
            report = UpReport(
                system=name,
                happened=stage.story,
                missing=stage.missing,
                problem=problem,
                seconds=time.monotonic() - begun,
            )
            if not quiet:
                _show(report)
            if not (once or stopping.done() or problem):
                for line in await stage.describe():
                    show(line)
                show("It keeps running until Ctrl-C.")
                await stopping
            stopping.cancel()
    return report


def _hide_info_logs() -> None:
    """The server of a system logs in this process; the story says what happens."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


def _ignore(text: str) -> None:
    """Show nothing: for JSON."""


def _show(report: UpReport) -> None:
    for part in report.missing:
        warn(f"✗ {part}", "red")
    if report.problem is not None:
        warn(report.problem, "bold red")
        return
    say(f"{len(report.happened)} parts of {report.system} happened in {report.seconds:.0f} s.", "bold green")
