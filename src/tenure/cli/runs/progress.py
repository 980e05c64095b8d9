"""How progress looks: a table that changes in place on a terminal, a line per change elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tenure.cli.common.console import safe_text
from tenure.cli.runs.run_tables import (
    SKIPPED,
    about,
    format_elapsed,
    format_seconds,
    state_colour,
    state_text,
    tries_text,
)
from tenure.clock import HostClock

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tenure.shapes.runs import Run
    from tenure.shapes.steps import Step

_MARKS = {
    "succeeded": "✓",
    "failed": "✗",
    "timed_out": "✗",
    "canceled": "-",
    "skipped": "-",
    "waiting_approval": "?",
    "waiting_external": "…",
    "retry_wait": "↻",
    "pending": "·",
    "ready": "·",
}
_BUSY = ("running", "leased", "starting", "uploading", "canceling")
FRAMES_PER_SECOND = 8
LINES_SHOWN_MAX = 30
"""Of more steps than this the first that have succeeded are only counted."""


def next_command(run: Run, step: Step) -> str | None:
    """The command that would help a step which waits."""
    if step.state == "waiting_approval" and step.kind == "approval":
        return f"tenure approvals approve {run.id}"
    if step.state == "waiting_external" and step.kind == "wait" and step.tool:
        return f"tenure signal {run.id} {step.tool}"
    return None


def step_state(step: Step) -> str:
    """A step's state in one word; what its condition skipped was not done."""
    return SKIPPED if step.skipped else step.state


class LiveScreen:
    """A table that changes in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: RichLive | None = None
        self._last: RenderableType = ""
        self._clock = HostClock()

    def update(self, run: Run, steps: list[Step]) -> None:
        """Show how it is now."""
        self._last = self._picture(run, steps)
        self.go_on()
        assert self._live is not None
        self._live.update(self._last)

    def stop(self) -> None:
        """Leave the last picture, and the terminal to others."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def go_on(self) -> None:
        """Show again, after a stop."""
        if self._live is None:
            self._live = RichLive(
                self._last,
                console=self._console,
                refresh_per_second=FRAMES_PER_SECOND,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def _picture(self, run: Run, steps: list[Step]) -> RenderableType:
        state = state_text(run.status, run.shown)
        head = Text.assemble(safe_text(run.workflow, "bold"), "  ", run.id, "  ", state)
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for name in ("mark", "step", "state", "try", "took", "about"):
            table.add_column(name, overflow="fold", no_wrap=name in ("mark", "took"))
        lines, before = _newest([step for step in steps if step.kind != "value"])
        if before:
            table.add_row(Text("✓", state_colour("succeeded")), Text(f"{before} before", "dim"))
        for step in lines:
            busy = step.state in _BUSY
            mark: RenderableType = (
                Spinner("dots") if busy else Text(_MARKS.get(step_state(step), " "), state_colour(step.state))
            )
            told = safe_text(about(step), "dim" if step.state == "succeeded" else "")
            helps = next_command(run, step)
            if helps:
                told.append(f"\n{helps}", style="dim")
            tries = tries_text(step) if step.attempt > 1 else ""
            state = Text(step_state(step), state_colour(step.state))
            table.add_row(
                mark,
                safe_text(step.name),
                state,
                tries and f"try {tries}",
                format_elapsed(step, self._clock.now_us()),
                told,
            )
        if run.status == "running" and not any(step.state in _BUSY for step in lines):
            table.add_row(Spinner("dots"), Text("working", "dim"))
        return Group(head, table)


def _newest(steps: list[Step]) -> tuple[list[Step], int]:
    """The steps that fit, and how many that have succeeded were left out before them."""
    done = [step for step in steps if step.state == "succeeded"]
    left_out = {step.name for step in done[: max(len(steps) - LINES_SHOWN_MAX, 0)]}
    return [step for step in steps if step.name not in left_out], len(left_out)


class LineScreen:
    """A line per change, for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: dict[str, tuple[str, int, str]] = {}
        self._run = ""

    def update(self, run: Run, steps: list[Step]) -> None:
        """A line for each step that has changed."""
        if run.id != self._run:
            self._run, self._seen = run.id, {}
            self._print(f"{run.id}  {run.workflow} (version {run.code_version})")
        for step in steps:
            now = (step.state, step.attempt, step.progress)
            if step.kind == "value" or self._seen.get(step.name) == now or step.state == "pending":
                continue
            self._seen[step.name] = now
            self._print(self._line(run, step))

    def stop(self) -> None:
        """Nothing to leave."""

    def go_on(self) -> None:
        """Nothing to show."""

    def _line(self, run: Run, step: Step) -> str:
        words = [step.name, step_state(step)]
        if step.attempt > 1:
            words.append(f"try {tries_text(step)}")
        if step.seconds is not None:
            words.append(f"in {format_seconds(step.seconds)}")
        line = "  " + "  ".join(words)
        told = about(step)
        if told:
            line += f"  {told}"
        helps = next_command(run, step)
        if helps and step.state == "waiting_approval":
            return f"{line}\n  waiting for approval: {helps}"
        return f"{line}\n  waiting for an event: {helps}" if helps else line

    def _print(self, text: str) -> None:
        self._console.print(safe_text(text), soft_wrap=True)


class WaitScreen:
    """Only what somebody has to do, once each: for those who do not watch, so that nothing waits in silence."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: set[str] = set()

    def update(self, run: Run, steps: list[Step]) -> None:
        """Say what is waited for, with the command that answers it."""
        for step in steps:
            helps = next_command(run, step)
            if helps is None or f"{step.name} {helps}" in self._said:
                continue
            self._said.add(f"{step.name} {helps}")
            what = "approval" if step.state == "waiting_approval" else "an event"
            self._console.print(safe_text(f"{run.id} is waiting for {what}: {helps}"), soft_wrap=True)

    def stop(self) -> None:
        """Nothing to leave."""

    def go_on(self) -> None:
        """Nothing to show."""
