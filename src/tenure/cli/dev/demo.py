"""`tenure demo`: a release that survives a crash of its worker, and its history.

Law: everything that is shown is read from the database. The demonstration ends with 1 if its outcome is wrong.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from tenure.cli.approvals.prompt import read_line
from tenure.cli.common.console import count_noun, escape_control, out, print_json, safe_text, say, warn
from tenure.cli.common.options import AsJson, not_empty
from tenure.cli.common.work_folder import work_folder
from tenure.cli.ops.doctor import locate_violation
from tenure.demo.scenario import DIRECTOR, FIRST, STEPS, DemoApproval, DemoProgress, DemoResult, DemoScenario
from tenure.demo.timeline import TimelineEntry
from tenure.demo.workflow import release
from tenure.engine import Engine
from tenure.engine.entry_point import run_in_loop
from tenure.shapes.approvals import Approval

if TYPE_CHECKING:
    from tenure.doctor.examination import DoctorReport

SWEEP_SECONDS = 0.2
ANSWER_SECONDS = 1.0
"""How long the approval stays open if there is no terminal."""
_TONES = {"": "", "good": "green", "bad": "red", "wait": "yellow"}
_MARKS = {"waits": ("·", "dim"), "done": ("✓", "green"), "asks": ("?", "yellow"), "failed": ("✗", "red")}
_EPILOG = """
What to look for:

1. build runs once, however often a worker crashes after it: its result is recorded.

2. test fails and runs again: the failure and the number of the attempt are recorded, too.

3. approve asks you. While you think, no worker holds the run; it would survive a restart of everything.

4. deploy is running when its worker is killed (kill -9, a real process). Tenure notices, and another worker takes over.

5. verify waits for an external event, which is delivered twice and counts once.

Then you see the history, and the doctor checks every invariant over the database.

tenure demo --folder demo -- keep the database, and look at it: tenure runs list --db demo/demo.db

The workflow is src/tenure/demo/workflow.py. Continue with docs/quickstart.md.
"""


app = typer.Typer()


@app.command(epilog=_EPILOG)
def demo(
    folder: Annotated[
        str | None,
        typer.Option(
            help="Create this folder, and keep it.  \\[default: a temporary folder]",
            show_default=False,
            callback=not_empty,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; approve.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch a release survive a crash of its worker, answer its approval, and read its history. Takes 15 seconds.

    It runs a workflow of five steps on a new SQLite file, with workers in separate processes.
    """
    with work_folder(folder, "tenure-demo-") as place:
        result, lines, report = run_in_loop(_play(place, yes, as_json))
    if as_json:
        found = {"clean": report.clean, "checked": len(report.checked), "found": report.found}
        print_json({"verdict": result, "story": lines, "doctor": found})
    else:
        _show(result, lines, report, folder)
    if result.problems or not report.clean:
        raise typer.Exit(1)


async def _play(folder: Path, yes: bool, quiet: bool) -> tuple[DemoResult, list[TimelineEntry], DoctorReport]:
    console = out()
    is_live = console.is_terminal and not quiet
    screen: _Screen = _Screen() if quiet else _Picture(console) if is_live else _Lines(console)
    asks = is_live and not yes and sys.stdin is not None and sys.stdin.isatty()

    async def answer(question: Approval) -> DemoApproval:
        if not asks:
            await asyncio.sleep(ANSWER_SECONDS)
            return DemoApproval(True, "ada", "there is no terminal, so the demonstration approves")
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
    """Ask at the terminal. Enter alone means yes."""
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
        text = await read_line()
        if not text:
            raise EOFError("the terminal was closed")
        answer = text.strip().lower()
        if answer in ("", "y", "yes"):
            return DemoApproval(True, "you")
        if answer in ("n", "no"):
            return DemoApproval(False, "you", "said at the terminal")


# -------------------------------------------------------------------------------------------- progress


class _Screen:
    """Shows nothing: for JSON."""

    def show(self, now: DemoProgress) -> None:
        """Show the current state."""

    def stop(self) -> None:
        """Leave the terminal to others."""


class _Picture(_Screen):
    """The five steps, changing in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._spinner = Spinner("dots")

    def show(self, now: DemoProgress) -> None:
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=10, transient=False)
            self._live.start()
        self._live.update(self._drawn(now))

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _drawn(self, now: DemoProgress) -> RenderableType:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for name in STEPS:
            mark, style = _MARKS.get(now.states[name], ("", "cyan"))
            first: RenderableType = Text(mark, style) if mark else self._spinner
            table.add_row(first, Text(name, "bold"), Text(now.details[name], "dim"))
        head = Text.assemble((now.run_id, "dim"), "  ", (now.status, "bold"))
        return Group(head, table, Text(now.note, "italic"))


class _Lines(_Screen):
    """A line for each change, if there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: dict[str, tuple[str, str]] = {}
        self._note = ""

    def show(self, now: DemoProgress) -> None:
        if now.note != self._note:
            self._note = now.note
            self._console.print(Text(now.note))
        for name in STEPS:
            is_now = now.states[name], now.details[name]
            if is_now != self._seen.get(name, ("waits", "")):
                self._seen[name] = is_now
                self._console.print(Text(f"  {name:8} {is_now[0]:6} {is_now[1]}".rstrip()))


# -------------------------------------------------------------------------------------------- the report


def _show(result: DemoResult, lines: list[TimelineEntry], report: DoctorReport, folder: str | None) -> None:
    say("")
    say(f"The history of {result.run_id}", "bold")
    say(_history_table(result, lines))
    say("")
    if result.killed_pid is not None:
        say(
            f"{FIRST} had updated {_join_names(result.updated_before)} when it was killed;"
            f" {result.taken_over_seconds:.1f} s later another worker continued with"
            f" {_join_names(result.updated_after)}. No completed step was repeated."
        )
    elif result.reason == "APPROVAL_REJECTED":
        say("You said no: the run has ended, and nothing was deployed. Say yes to see a worker crash.")
    for violation in report.violations:
        say(f"{violation.number} {locate_violation(violation)}: {violation.text}", "red")
    found = sum(report.found.values())
    say(
        f"Doctor: {report.runs} run, {report.events} events, {len(report.checked)} invariants checked:"
        f" {count_noun(found, 'violation') if found else 'no violations'}.",
        "bold red" if found else "bold green",
    )
    for problem in result.problems:
        warn(problem, "red")
    if result.problems or not report.clean:
        warn("The demonstration failed.", "bold red")
        return
    say(f"All of it took {result.seconds:.0f} s.")
    say("")
    if folder is None:
        say("tenure demo --folder demo    # keeps the database, to look at it")
    else:
        database = f"{folder.rstrip('/')}/demo.db"
        say(f"tenure runs show {result.run_id} --db {database}")
        say(f"tenure runs events {result.run_id} --db {database}")
        say(f"tenure doctor --db {database}")
    say("docs/quickstart.md           # your first workflow, in ten minutes")


def _history_table(result: DemoResult, lines: list[TimelineEntry]) -> Table:
    """The history. The crash of a process is in no history, so it is added as a line without a number."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("", "after", "who", "what"):
        table.add_column(name, overflow="fold", justify="right" if name in ("", "after") else "left")
    killed = result.killed_seconds
    for line in lines:
        if killed is not None and line.seconds > killed:
            text = f"kill -9 {result.killed_pid}: {FIRST} dies in deploy (not in the history: it could not record that)"
            table.add_row("", f"{killed:.1f} s", "", Text(text, "bold red"))
            killed = None
        what = safe_text(line.what, _TONES[line.tone])
        table.add_row(str(line.seq), f"{line.seconds:.1f} s", safe_text(line.who), what)
    return table


def _join_names(names: tuple[str, ...]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"
