"""`tenure doctor`: every invariant over a whole database.

Law: what could not be checked is said as plainly as what was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tenure import ids
from tenure.artifacts import ArtifactStore, artifact_place
from tenure.cli.common.console import count_noun, err, out, print_json, safe_text
from tenure.cli.common.options import AsJson, Db
from tenure.clock import us
from tenure.config import Database, choose_database
from tenure.doctor import INVARIANTS, Violation
from tenure.doctor.examination import DoctorReport, examine_database
from tenure.store.factory import open_store
from tenure.store.port import Store

SHOWN_MAX = 100
"""Violations printed; the table counts them all."""
RATE_SECONDS = 600.0
"""How far back runs per minute are looked at: caps may have been changed before."""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(doctor)


def doctor(
    db: Db = None,
    settled: bool = typer.Option(
        False,
        "--settled",
        help="Check also what holds once faults have stopped and everything due has been done. Runs that are queued"
        " and wait for a worker, or back off, are not settled and are named: let workers finish first.",
    ),
    as_json: AsJson = False,
) -> None:
    """Check every invariant over a database, and name the rows that break one.

    It only reads, and may run beside working processes. Ends with 0 when all is well, with 1 when not.
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
    """Say that this process's clock is doubted, on stderr: that is no violation of the database's."""
    from tenure.store.sqlite import SqliteStore

    if isinstance(store, SqliteStore) and (doubt := store.clock_doubt_us):
        ahead = f"{abs(doubt) / 1e6:.0f} s {'ahead of' if doubt > 0 else 'behind'}"
        text = (
            f"this process's clock is {ahead} the time of the file, and is doubted; docs/operating.md, Time"
        )
        err().print(Text(text, style="yellow"), soft_wrap=True)


def locate_violation(violation: Violation) -> str:
    """The run and the row, as people know them."""
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
    console = out()
    table = Table(show_edge=False, pad_edge=False, box=None)
    for name in ("", "invariant", "state"):
        table.add_column(name, header_style="bold")
    for number, invariant in INVARIANTS.items():
        table.add_row(number, Text(invariant.text), _state(number, report))
    console.print(table)
    console.print()
    for violation in report.violations[:SHOWN_MAX]:
        console.print(
            safe_text(f"{violation.number}  {locate_violation(violation)}: {violation.text}"), soft_wrap=True
        )
    count = sum(report.found.values())
    if count > SHOWN_MAX:
        console.print(
            Text(f"... and {count - SHOWN_MAX} more (--json has the first {len(report.violations)})")
        )
    for line in report.unchecked:
        console.print(safe_text(f"not checked: {line}", "yellow"), soft_wrap=True)
    for run_id in report.unsteady:
        console.print(Text(f"not examined, it kept changing: {ids.run_text(run_id)}", style="yellow"))
    verdict = count_noun(count, "violation") if count else "no violation"
    console.print(
        Text(
            f"{database}: {count_noun(report.runs, 'run')}, {count_noun(report.events, 'event')},"
            f" {len(report.checked)} invariants checked, "
            f"{len(report.elsewhere)} shown elsewhere: {verdict}.",
            style="bold red" if count else "bold green",
        ),
        soft_wrap=True,
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
