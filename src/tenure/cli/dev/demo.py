"""`tenure demo`: a release that survives the death of its worker, and the record of it.

Law: what is shown is read from the database; the demonstration fails (exit 1) if anything is not as it must be.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from tenure.cli.common.console import err, escape_control, out, print_json, safe_text
from tenure.cli.common.options import not_empty
from tenure.cli.ops.doctor import locate_violation
from tenure.demo.scenario import DIRECTOR, FIRST, STEPS, DemoApproval, DemoProgress, DemoResult, DemoScenario
from tenure.demo.timeline import TimelineEntry
from tenure.demo.workflow import release
from tenure.engine import Engine
from tenure.engine.entry_point import run_in_loop
from tenure.errors import TenureError
from tenure.futures import fail_future
from tenure.private_files import make_folder
from tenure.shapes.approvals import Approval

if TYPE_CHECKING:
    from tenure.doctor.examination import DoctorReport

SWEEP_SECONDS = 0.2
ANSWER_SECONDS = 1.0
"""How long the question stays open where there is nobody to ask."""
_TONES = {"": "", "good": "green", "bad": "red", "wait": "yellow"}
_MARKS = {"waits": ("·", "dim"), "done": ("✓", "green"), "asks": ("?", "yellow"), "failed": ("✗", "red")}
_EPILOG = """
What to look for:

1. build is done once, however often a worker dies after it: its result is recorded.

2. test fails, and is tried again: the failure and the number of the try are recorded too.

3. approve asks you. While you think, no worker holds the run; it would survive a restart of everything.

4. deploy is under way when its worker is killed (kill -9, a real process). It is seen to be gone, another worker takes over.

5. verify waits for an event from outside, which is delivered twice and counts once.

Then the history is told, and the doctor checks every invariant over the database.

tenure demo --folder demo -- keep it, and look at it: tenure --help, tenure runs list --db demo/demo.db

The workflow is src/tenure/demo/workflow.py; docs/quickstart.md goes on from here.
"""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog=_EPILOG)(demo)


def demo(
    folder: Annotated[
        str | None,
        typer.Option(
            help="Where; it is made, and kept.  \\[default: a temporary folder]",
            show_default=False,
            callback=not_empty,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; the answer is yes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")] = False,
) -> None:
    """Watch a release survive the death of its worker, answer its question, and read the record. Takes 15 seconds.

    A workflow of five steps on an SQLite file of its own, with workers that are processes of their own.
    """
    with _folder(folder) as place:
        verdict, lines, report = run_in_loop(_play(place, yes, as_json))
    if as_json:
        found = {"clean": report.clean, "checked": len(report.checked), "found": report.found}
        print_json({"verdict": verdict, "story": lines, "doctor": found})
    else:
        _show(verdict, lines, report, folder)
    if verdict.problems or not report.clean:
        raise typer.Exit(1)


@contextmanager
def _folder(named: str | None) -> Iterator[Path]:
    """An empty folder; one that nobody named is gone afterwards."""
    if named is not None:
        place = Path(named).absolute()
        try:
            make_folder(place)
            used = any(place.iterdir())
        except OSError as fault:
            raise TenureError("INVALID_INPUT", f"{named} cannot be used: {fault}") from fault
        if used:
            raise TenureError("INVALID_INPUT", f"{named} is not empty; name a folder that is not there yet")
        yield place
        return
    made = Path(tempfile.mkdtemp(prefix="tenure-demo-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


async def _play(folder: Path, yes: bool, quiet: bool) -> tuple[DemoResult, list[TimelineEntry], DoctorReport]:
    console = out()
    is_live = console.is_terminal and not quiet
    screen: _Screen = _Quiet() if quiet else _Picture(console) if is_live else _Lines(console)
    asks = is_live and not yes and sys.stdin is not None and sys.stdin.isatty()

    async def answer(question: Approval) -> DemoApproval:
        if not asks:
            await asyncio.sleep(ANSWER_SECONDS)
            return DemoApproval(True, "ada", "there is nobody at a terminal, so the demonstration says yes")
        screen.stop()
        return await _ask(console, question)

    if not quiet:
        _introduce(console)
    async with Engine(f"sqlite:{folder / 'demo.db'}", actor=DIRECTOR, sweep_seconds=SWEEP_SECONDS) as engine:
        try:
            return await DemoScenario(engine, folder, screen.show, answer).play()
        finally:
            screen.stop()


def _introduce(console: Console) -> None:
    source = inspect.getsource(release.function)
    code = source[source.index("async def") :]
    if console.is_terminal:
        console.print(
            Panel(
                Syntax(code.rstrip(), "python", background_color="default"),
                title="the workflow",
                expand=False,
            )
        )
    else:
        console.print(Text(code))


async def _ask(console: Console, question: Approval) -> DemoApproval:
    """Ask at the terminal; whoever just presses Enter says yes."""
    facts = "\n".join(f"{name}: {value}" for name, value in question.question.items())
    panel = Panel(
        Text(escape_control(facts)),
        title=Text(escape_control(question.action)),
        border_style="yellow",
        expand=False,
    )
    console.print(panel)
    while True:
        console.print(Text("Your answer? [Y/n] "), end="")
        said = (await _line()).strip().lower()
        if said in ("", "y", "yes"):
            return DemoApproval(True, "you")
        if said in ("n", "no"):
            return DemoApproval(False, "you", "said at the terminal")


async def _line() -> str:
    """A line from the terminal, which can be given up: no thread is left reading."""
    loop = asyncio.get_running_loop()
    got: asyncio.Future[str] = loop.create_future()
    descriptor = sys.stdin.fileno()

    def ready() -> None:
        text = os.read(descriptor, 4096).decode(errors="replace")
        if not got.done():
            if text:
                got.set_result(text)
            else:
                fail_future(got, EOFError("the terminal was closed"))

    sys.stdout.flush()
    loop.add_reader(descriptor, ready)
    try:
        return await got
    finally:
        loop.remove_reader(descriptor)


# -------------------------------------------------------------------------------------------- progress


class _Screen(Protocol):
    def show(self, now: DemoProgress) -> None: ...

    def stop(self) -> None: ...


class _Quiet:
    def show(self, now: DemoProgress) -> None:
        """Nothing, where JSON is wanted."""

    def stop(self) -> None:
        """Nothing to leave."""


class _Picture:
    """The five steps, changing in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._spinner = Spinner("dots")

    def show(self, now: DemoProgress) -> None:
        """Show how it stands."""
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=10, transient=False)
            self._live.start()
        self._live.update(self._drawn(now))

    def stop(self) -> None:
        """Leave the last picture, and the terminal to others."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _drawn(self, now: DemoProgress) -> RenderableType:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for name in STEPS:
            state = now.states[name]
            mark, style = _MARKS.get(state, ("", "cyan"))
            first: RenderableType = Text(mark, style) if mark else self._spinner
            table.add_row(first, Text(name, "bold"), Text(now.details[name], "dim"))
        head = Text.assemble((now.run_id, "dim"), "  ", (now.status, "bold"))
        return Group(head, table, Text(now.note, "italic"))


class _Lines:
    """A line for each change, where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: dict[str, tuple[str, str]] = {}
        self._note = ""

    def show(self, now: DemoProgress) -> None:
        """Tell what has changed."""
        if now.note != self._note:
            self._note = now.note
            self._console.print(Text(now.note))
        for name in STEPS:
            is_now = now.states[name], now.details[name]
            if is_now != self._seen.get(name, ("waits", "")):
                self._seen[name] = is_now
                self._console.print(Text(f"  {name:8} {is_now[0]:6} {is_now[1]}".rstrip()))

    def stop(self) -> None:
        """Nothing to leave."""


# -------------------------------------------------------------------------------------------- the report


def _show(verdict: DemoResult, lines: list[TimelineEntry], report: DoctorReport, folder: str | None) -> None:
    console = out()
    console.print()
    console.print(Text(f"The history of {verdict.run_id}", "bold"))
    console.print(_told(verdict, lines))
    console.print()
    if verdict.killed_pid is not None:
        console.print(
            Text(
                f"{FIRST} had updated {_listed(verdict.updated_before)} when it was killed;"
                f" {verdict.taken_over_seconds:.1f} s later another worker went on with"
                f" {_listed(verdict.updated_after)}. Nothing that was done is done again."
            )
        )
    elif verdict.reason == "APPROVAL_REJECTED":
        console.print(
            Text("You said no: the run has ended, nothing was deployed. Say yes to see a worker die.")
        )
    for violation in report.violations:
        console.print(safe_text(f"{violation.number} {locate_violation(violation)}: {violation.text}", "red"))
    found = sum(report.found.values())
    console.print(
        Text(
            f"Doctor: {report.runs} run, {report.events} events, {len(report.checked)} invariants checked:"
            f" {found or 'no'} violation{'' if found in (0, 1) else 's'}.",
            "bold red" if found else "bold green",
        )
    )
    trouble = err()
    for problem in verdict.problems:
        trouble.print(safe_text(problem, "red"), soft_wrap=True)
    if verdict.problems or not report.clean:
        trouble.print(Text("The demonstration failed.", style="bold red"))
        return
    console.print(Text(f"All of it took {verdict.seconds:.0f} s."))
    _go_on(console, verdict, folder)


def _told(verdict: DemoResult, lines: list[TimelineEntry]) -> Table:
    """The history; the one thing that is in no history is the death of a process, so it stands between the lines."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("", "after", "who", "what"):
        table.add_column(name, overflow="fold", justify="right" if name in ("", "after") else "left")
    killed = verdict.killed_seconds
    for line in lines:
        if killed is not None and line.seconds > killed:
            told = (
                f"kill -9 {verdict.killed_pid}: {FIRST} dies in deploy (not recorded: the dead do not write)"
            )
            table.add_row("", f"{killed:.1f} s", "", Text(told, "bold red"))
            killed = None
        style = _TONES[line.tone]
        table.add_row(
            str(line.seq), f"{line.seconds:.1f} s", safe_text(line.who), safe_text(line.what, style)
        )
    return table


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"


def _go_on(console: Console, verdict: DemoResult, folder: str | None) -> None:
    console.print()
    if folder is None:
        console.print(Text("tenure demo --folder demo    # keeps the database, to look at it"))
    else:
        database = f"{folder.rstrip('/')}/demo.db"
        console.print(Text(f"tenure runs show {verdict.run_id} --db {database}"), soft_wrap=True)
        console.print(Text(f"tenure runs events {verdict.run_id} --db {database}"), soft_wrap=True)
        console.print(Text(f"tenure doctor --db {database}"), soft_wrap=True)
    console.print(Text("docs/quickstart.md           # your first workflow, in ten minutes"))
