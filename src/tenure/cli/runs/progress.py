"""The progress of a run: a table that changes in place on a terminal, a line for each change elsewhere."""

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
"""If a run has more steps, the first ones that have succeeded are only counted."""


def next_command(run: Run, step: Step) -> str | None:
    """The command that ends a step's wait."""
    if step.state == "waiting_approval" and step.kind == "approval":
        return f"tenure approvals approve {run.id}"
    if step.state == "waiting_external" and step.kind == "wait" and step.tool:
        return f"tenure signal {run.id} {step.tool}"
    return None


def step_state(step: Step) -> str:
    return SKIPPED if step.skipped else step.state


class ProgressScreen:
    """Where the progress of a run is shown."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def update(self, run: Run, steps: list[Step]) -> None:
        """Show the current state."""
        raise NotImplementedError

    def stop(self) -> None:
        """Leave the terminal to others."""

    def resume(self) -> None:
        """Continue after a stop."""


class LiveScreen(ProgressScreen):
    """A table that changes in place."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live: RichLive | None = None
        self._last: RenderableType = ""
        self._clock = HostClock()

    def update(self, run: Run, steps: list[Step]) -> None:
        self._last = self._picture(run, steps)
        self.resume()
        assert self._live is not None
        self._live.update(self._last)

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def resume(self) -> None:
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
            text = safe_text(about(step), "dim" if step.state == "succeeded" else "")
            if command := next_command(run, step):
                text.append(f"\n{command}", style="dim")
            table.add_row(
                mark,
                safe_text(step.name),
                Text(step_state(step), state_colour(step.state)),
                f"try {tries_text(step)}" if step.attempt > 1 else "",
                format_elapsed(step, self._clock.now_us()),
                text,
            )
        if run.status == "running" and not any(step.state in _BUSY for step in lines):
            table.add_row(Spinner("dots"), Text("working", "dim"))
        return Group(head, table)


def _newest(steps: list[Step]) -> tuple[list[Step], int]:
    """The steps that fit, and the number of earlier, succeeded steps that were left out."""
    done = [step for step in steps if step.state == "succeeded"]
    left_out = {step.name for step in done[: max(len(steps) - LINES_SHOWN_MAX, 0)]}
    return [step for step in steps if step.name not in left_out], len(left_out)


class LineScreen(ProgressScreen):
    """A line for each change, for pipes and logs."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._seen: dict[str, tuple[str, int, str]] = {}
        self._run = ""

    def update(self, run: Run, steps: list[Step]) -> None:
        if run.id != self._run:
            self._run, self._seen = run.id, {}
            self._print(f"{run.id}  {run.workflow} (version {run.code_version})")
        for step in steps:
            now = (step.state, step.attempt, step.progress)
            if step.kind == "value" or self._seen.get(step.name) == now or step.state == "pending":
                continue
            self._seen[step.name] = now
            self._print(self._line(run, step))

    def _line(self, run: Run, step: Step) -> str:
        words = [step.name, step_state(step)]
        if step.attempt > 1:
            words.append(f"try {tries_text(step)}")
        if step.seconds is not None:
            words.append(f"in {format_seconds(step.seconds)}")
        if text := about(step):
            words.append(text)
        line = "  " + "  ".join(words)
        command = next_command(run, step)
        return f"{line}\n  waiting for {_awaited(step)}: {command}" if command else line

    def _print(self, text: str) -> None:
        self._console.print(safe_text(text), soft_wrap=True)


def _awaited(step: Step) -> str:
    return "approval" if step.state == "waiting_approval" else "an event"


class WaitScreen(ProgressScreen):
    """Only what people have to do, once each: for runs that nobody watches."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._said: set[str] = set()

    def update(self, run: Run, steps: list[Step]) -> None:
        for step in steps:
            command = next_command(run, step)
            if command is None or f"{step.name} {command}" in self._said:
                continue
            self._said.add(f"{step.name} {command}")
            text = f"{run.id} is waiting for {_awaited(step)}: {command}"
            self._console.print(safe_text(text), soft_wrap=True)
