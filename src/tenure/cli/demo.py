"""`tenure demo`: a few hundred runs on a database of their own, and the proof that everything went as it must.

Law: what is shown is read from the database; the demonstration fails (exit 1) if anything is not as it must be.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tenure.cli.console import counted, err, out, print_json
from tenure.cli.doctor import where
from tenure.cli.options import not_empty
from tenure.cli.timeline import timeline
from tenure.embedded import Engine, EventView
from tenure.embedded.demo import LEASE_SECONDS, SWEEP_SECONDS, Demo, Lost, Tally, Verdict
from tenure.kernel import profiles
from tenure.store.bundles import Report, examine

LOST_SHOWN_MAX = 12
LINE_SECONDS = 1.0
_ORDER = ("queued", "running", "retry_wait", "waiting_approval", "canceling")
_WORDS = {"retry_wait": "backing off", "waiting_approval": "waiting for people"}


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(demo)


def demo(
    runs: Annotated[int, typer.Option(min=10, max=5_000, help="How many runs.")] = 300,
    db: Annotated[
        str | None,
        typer.Option(
            help="Where: sqlite:PATH, a path or a DSN.  \\[default: a temporary file]",
            show_default=False,
            callback=not_empty,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="What happens to whom is drawn from this.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")] = False,
) -> None:
    """Run a few hundred runs with retries, approvals, cancels and a killed worker, and judge the outcome."""
    with _database(db) as url:
        verdict, events, report = asyncio.run(_play(url, runs, seed, quiet=as_json))
    if as_json:
        print_json({"verdict": verdict, "doctor": {"clean": report.clean, "found": report.found}})
    else:
        _show(verdict, events, report)
    if verdict.problems or not report.clean:
        raise typer.Exit(1)


@contextmanager
def _database(db: str | None) -> Iterator[str]:
    if db:
        yield db
        return
    folder = Path(tempfile.mkdtemp(prefix="tenure-demo-"))
    try:
        yield f"sqlite:{folder / 'demo.db'}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _play(url: str, runs: int, seed: int, *, quiet: bool) -> tuple[Verdict, list[EventView], Report]:
    # A tenant of its own, so that other runs in the same database are no matter.
    tenant = f"demo-{secrets.token_hex(3)}"
    async with Engine(url, tenant=tenant, sweep_seconds=SWEEP_SECONDS) as engine:
        with _progress(runs, quiet) as tell:
            verdict = await Demo(engine, runs, seed, tell).play()
        events = await engine.events(verdict.interesting)
        report = await examine(engine.store, settled=not verdict.problems)
    return verdict, events, report


# -------------------------------------------------------------------------------------------- progress


@contextmanager
def _progress(runs: int, quiet: bool) -> Iterator[Callable[[Tally], None]]:
    """A bar on a terminal, a line a second elsewhere, nothing where JSON is wanted."""
    console = out()
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("runs", total=runs, state="")
            yield lambda tally: bar.update(task, completed=tally.finished, state=_state(tally))
    else:
        yield _Lines(console).tell


class _Lines:
    """Progress where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0
        self._note = ""

    def tell(self, tally: Tally) -> None:
        """A line a second, and one when something happened."""
        if tally.seconds < self._next and tally.note == self._note and tally.finished < tally.total:
            return
        self._next, self._note = tally.seconds + LINE_SECONDS, tally.note
        line = f"{tally.seconds:5.1f} s  {tally.finished:4} of {tally.total} runs finished  {_state(tally)}"
        self._console.print(Text(line))


def _state(tally: Tally) -> str:
    parts = [f"{n} {_WORDS.get(s, s)}" for s in _ORDER if (n := tally.statuses.get(s, 0))]
    return " · ".join([*parts, tally.note])


# -------------------------------------------------------------------------------------------- the report


def _show(verdict: Verdict, events: list[EventView], report: Report) -> None:
    console = out()
    console.print()
    table = Table(title="How the runs ended", title_justify="left", title_style="bold")
    for name in ("status", "reason", "runs"):
        table.add_column(name, justify="right" if name == "runs" else "left")
    for status, reason, count in verdict.outcomes:
        table.add_row(status, reason, str(count))
    console.print(table)
    console.print(
        f"{verdict.runs} runs in {verdict.seconds:.1f} s: {verdict.retries} failed tests tried again,"
        f" {verdict.deployed} deployments ({verdict.deployed_again} repeats recognised by their key),"
        f" {verdict.commands} commands in {verdict.commits} commits."
    )
    console.print()
    _show_lost(console, verdict)
    console.print()
    console.print(Text(f"The history of one of them: {verdict.interesting}", style="bold"))
    console.print(timeline(events))
    console.print()
    _show_doctor(console, report)
    trouble = err()
    for problem in verdict.problems:
        trouble.print(Text(problem, style="red"), soft_wrap=True)
    if verdict.problems or not report.clean:
        trouble.print(Text("The demonstration failed.", style="bold red"))
    else:
        console.print(Text("Everything is as it must be.", style="bold green"))


def _show_lost(console: Console, verdict: Verdict) -> None:
    lost = verdict.lost
    table = Table(
        title=f"What {verdict.killed} lost when it was killed", title_justify="left", title_style="bold"
    )
    for name in ("run", "step", "profile", "try", "taken over by", "after", "the run"):
        table.add_column(name)
    for row in lost[:LOST_SHOWN_MAX]:
        after = "" if row.healed_seconds is None else f"{row.healed_seconds:.1f} s"
        table.add_row(
            row.run_id, row.step, row.profile, str(row.attempt), row.healed_by or "-", after, row.outcome
        )
    console.print(table)
    if len(lost) > LOST_SHOWN_MAX:
        console.print(f"... and {len(lost) - LOST_SHOWN_MAX} more")
    taken = [row for row in lost if row.healed_by is not None]
    console.print(
        f"{counted(len(lost), 'lease')} of {LEASE_SECONDS:g} s ran out;"
        f" {counted(len(taken), 'step')} {'was' if len(taken) == 1 else 'were'} taken over by other workers."
    )
    for profile in sorted({row.profile for row in lost if row.healed_by is None}):
        console.print(_given_up(profile, [row for row in lost if row.profile == profile]))


def _given_up(profile: str, lost: list[Lost]) -> str:
    count = sum(row.healed_by is None for row in lost)
    if profiles.get(profile).recovery == "requeue":
        return f"{profile}: {count} had been asked to cancel, and ended so."
    return (
        f"{profile}: {count} ended; this profile resumes from a checkpoint or fails, it does not try again."
    )


def _show_doctor(console: Console, report: Report) -> None:
    for violation in report.violations[:LOST_SHOWN_MAX]:
        console.print(
            Text(f"{violation.number} {where(violation)}: {violation.text}", style="red"), soft_wrap=True
        )
    count = sum(report.found.values())
    console.print(
        Text(
            f"Doctor: {report.runs} runs and {report.events} events examined, {len(report.checked)} invariants checked,"
            f" {len(report.not_yet)} not yet: {counted(count, 'violation') if count else 'no violation'}.",
            style="bold red" if count else "bold green",
        ),
        soft_wrap=True,
    )
