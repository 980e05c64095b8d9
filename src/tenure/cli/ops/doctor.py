"""`tenure doctor`: every invariant over a whole database.

Law: the report names what could not be checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from tenure import ids
from tenure.artifacts import ArtifactStore, artifact_place
from tenure.cli.common.console import count_noun, err, print_json, say, warn
from tenure.cli.common.options import AsJson, Db
from tenure.cli.common.tables import make_table
from tenure.clock import us
from tenure.config import Database, choose_database
from tenure.doctor import INVARIANTS, Violation
from tenure.doctor.examination import DoctorReport, examine_database
from tenure.store.factory import open_store
from tenure.store.port import Store

SHOWN_MAX = 100
"""Violations printed; the table counts them all."""
RATE_SECONDS = 600.0
"""How far back runs per minute are checked: caps may have been different before."""


app = typer.Typer()


@app.command()
def doctor(
    db: Db = None,
    settled: bool = typer.Option(
        False,
        "--settled",
        help="Also check what must hold once faults have stopped and all due work is done. Let workers finish first: runs that"
        " wait for a worker or a retry are reported.",
    ),
    as_json: AsJson = False,
) -> None:
    """Check every invariant over a database, and name the rows that violate one.

    It only reads, and can run while servers and workers run. Ends with 0 if there is no violation, else with 1.
    """
    database = choose_database(db)
    console = err()
    if as_json or not console.is_terminal:
        report = asyncio.run(_examine(database, settled, None))
    else:
        with _bar(console) as bar:
            task = bar.add_task("examining runs", total=None)
            report = asyncio.run(
                _examine(database, settled, lambda done, total: bar.update(task, completed=done, total=total))
            )
    if as_json:
        print_json(_as_json(database, report))
    else:
        _show(database, report)
    if not report.clean:
        raise typer.Exit(1)


def _bar(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    return Progress(*columns, console=console, transient=True)


async def _examine(
    database: Database, settled: bool, on_progress: Callable[[int, int], None] | None
) -> DoctorReport:
    store = open_store(database, only_reads=True)
    await store.open()
    try:
        now: int = (await store.read("now"))[0].now_us
        _warn_of_clock(store)
        place = artifact_place(database.address)
        return await examine_database(
            store,
            on_progress=on_progress,
            settled=settled,
            rates_since=now - us(RATE_SECONDS),
            artifacts=None if place is None else ArtifactStore(place),
        )
    finally:
        await store.close()


def _warn_of_clock(store: Store) -> None:
    """Warn if this process's clock is ignored. That is not a violation of the database."""
    from tenure.store.sqlite import SqliteStore

    if isinstance(store, SqliteStore) and (doubt := store.clock_doubt_us):
        ahead = f"{abs(doubt) / 1e6:.0f} s {'ahead of' if doubt > 0 else 'behind'}"
        warn(
            f"this process's clock is {ahead} the time of the file, so Tenure ignores it; see docs/operating.md#time"
        )


def locate_violation(violation: Violation) -> str:
    """The run's id, and the row unless it is the run's own."""
    run = ids.run_text(violation.run_id) if violation.run_id > 0 else ""
    row = "" if violation.row == f"run {violation.run_id}" else violation.row
    return f"{run} {row}".strip()


def _state(number: str, report: DoctorReport) -> Text:
    invariant = INVARIANTS[number]
    if count := report.found.get(number):
        return Text(f"{count} broken", style="bold red")
    if invariant.scope == "elsewhere":
        return Text(f"shown by {invariant.shown_by}", style="dim")
    if invariant.scope == "eventual" and not report.settled:
        return Text("not asked: --settled", style="dim")
    return Text("holds", style="green")


def _show(database: Database, report: DoctorReport) -> None:
    table = make_table("", "invariant", "state")
    for number, invariant in INVARIANTS.items():
        table.add_row(number, Text(invariant.text), _state(number, report))
    say(table)
    say("")
    for violation in report.violations[:SHOWN_MAX]:
        say(f"{violation.number}  {locate_violation(violation)}: {violation.text}")
    count = sum(report.found.values())
    if count > SHOWN_MAX:
        say(f"... and {count - SHOWN_MAX} more (--json has the first {len(report.violations)})")
    for line in report.unchecked:
        say(f"not checked: {line}", "yellow")
    for run_id in report.unsteady:
        say(f"not examined, it kept changing: {ids.run_text(run_id)}", "yellow")
    verdict = count_noun(count, "violation") if count else "no violation"
    say(
        f"{database}: {count_noun(report.runs, 'run')}, {count_noun(report.events, 'event')},"
        f" {len(report.checked)} invariants checked, {len(report.elsewhere)} shown elsewhere: {verdict}.",
        "bold red" if count else "bold green",
    )


def _as_json(database: Database, report: DoctorReport) -> dict[str, object]:
    return {
        "database": str(database),
        "clean": report.clean,
        "settled": report.settled,
        "runs": report.runs,
        "events": report.events,
        "checked": report.checked,
        "elsewhere": report.elsewhere,
        "not_checked": report.unchecked,
        "found": report.found,
        "violations": [
            {
                "number": v.number,
                "invariant": INVARIANTS[v.number].text,
                "run": ids.run_text(v.run_id) if v.run_id > 0 else None,
                "row": v.row,
                "problem": v.text,
            }
            for v in report.violations
        ],
        "not_examined": [ids.run_text(run_id) for run_id in report.unsteady],
    }
