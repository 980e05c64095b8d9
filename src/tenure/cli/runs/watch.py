"""Watching a run until it has ended: a live table on a terminal, lines elsewhere, questions answered right there.

Laws:
1. Progress goes to stderr; stdout is for what the run came to.
2. Watching changes nothing, but for the answers a person gives. Whoever stops watching does not stop the run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import typer

from tenure.cli.common.console import err, print_json, safe_text
from tenure.cli.runs.progress import LineScreen, LiveScreen, WaitScreen
from tenure.cli.runs.run_tables import costs_text, format_seconds, value_text
from tenure.clock import HostClock, to_datetime
from tenure.errors import TenureError
from tenure.shapes.costs import StepCost
from tenure.shapes.runs import Explanation, Run
from tenure.shapes.steps import Step

if TYPE_CHECKING:
    from tenure.cli.common.backend import Backend
    from tenure.sdk.frame import Frame
    from tenure.shapes.runs import RunLogLine
    from tenure.worker import Worker

LOOK_SECONDS = 0.1
REFRESH_SECONDS = 1.0
"""How often everything is read again although the run's history has not grown: progress is not history."""
LOG_PAGE = 1_000
FOLLOW_SECONDS = 0.3


class EndedRun(NamedTuple):
    """A run that has ended, as it was last seen."""

    run: Run
    steps: list[Step]
    why: Explanation
    output: Any
    costs: tuple[StepCost, ...]
    """All that it has spent, failed tries too."""


class ProgressScreen(Protocol):
    """Where progress is shown."""

    def update(self, run: Run, steps: list[Step]) -> None:
        """Show how it is now."""
        ...

    def stop(self) -> None:
        """Leave what was shown, and the terminal to others."""
        ...

    def go_on(self) -> None:
        """Show again, after a stop."""
        ...


async def watch_run(backend: Backend, run_id: str, *, quiet: bool, approver: str) -> EndedRun:
    """Watch a run to its end; a run that is restarted as another is followed."""
    from tenure.cli.approvals.prompt import ApprovalPrompt

    console = err()
    screen: ProgressScreen = (
        WaitScreen(console) if quiet else LiveScreen(console) if console.is_terminal else LineScreen(console)
    )
    asks = not quiet and console.is_terminal and sys.stdin is not None and sys.stdin.isatty()
    answering = ApprovalPrompt(backend, console, approver) if asks else None
    try:
        while True:
            ended = await _to_its_end(backend, run_id, screen, answering)
            successor = ended.run.restarted_as
            if successor is None:
                return ended
            run_id = successor
    finally:
        screen.stop()


async def _to_its_end(backend: Backend, run_id: str, screen: ProgressScreen, answering: Any) -> EndedRun:
    loop = asyncio.get_running_loop()
    seen, read_at = -1, 0.0
    here = _Here(backend, run_id)
    while True:
        version, news = await _version(backend, run_id), here.look()
        if version != seen or news or loop.time() - read_at > REFRESH_SECONDS:
            run, steps = await backend.get(run_id), await backend.runs.steps(run_id)
            seen, read_at = run.events, loop.time()
            screen.update(run, steps if run.finished else here.among(steps))
            if run.finished:
                output = None
                if run.status == "succeeded" and run.restarted_as is None:
                    output = await backend.result(run_id)
                return EndedRun(
                    run,
                    steps,
                    await backend.runs.explain(run_id),
                    output,
                    (await backend.costs.get(run_id)).lines,
                )
            if answering is not None and await answering.ask(run, steps, screen):
                continue
        await asyncio.sleep(LOOK_SECONDS)


class _Here:
    """The steps of a code-first run that are under way in this process: the history tells of them when they end."""

    def __init__(self, backend: Backend, run_id: str) -> None:
        self._workers: list[Worker] = getattr(backend, "workers", [])
        self._run_id = run_id
        self._clock = HostClock()
        self._frames: dict[tuple[str, int], Frame] = {}
        self._said: list[str] = []
        self._since: dict[tuple[str, int], datetime] = {}

    def look(self) -> bool:
        """Whether something has begun, ended or told of its progress since the last look."""
        found = [frame for worker in self._workers for frame in worker.frames(self._run_id)]
        now = {(frame.step, frame.attempt): frame for frame in found}
        said = [frame.progress_text for frame in found]
        news = now.keys() != self._frames.keys() or said != self._said
        self._frames, self._said = now, said
        at = to_datetime(self._clock.now_us())
        self._since = {key: self._since.get(key, at) for key in now}
        return news

    def among(self, steps: list[Step]) -> list[Step]:
        """The steps as the history has them, with those that are under way."""
        running = {
            name: Step(
                name=name,
                kind="checkpoint",
                state="running",
                shown="running",
                attempt=attempt,
                progress=frame.progress_text,
                started_at=self._since[name, attempt],
            )
            for (name, attempt), frame in self._frames.items()
        }
        known = [running.pop(step.name, step) for step in steps]
        return known + list(running.values())


async def _version(backend: Backend, run_id: str) -> int:
    try:
        return await backend.runs.version(run_id)
    except TenureError as refused:
        if refused.code != "STORE_BUSY":
            raise
        return -1


def print_outcome(ended: EndedRun, *, as_json: bool) -> None:
    """Print what the run came to; ends the program with 1 where it did not succeed."""
    run, steps = ended.run, ended.steps
    costs = ended.costs
    if as_json:
        print_json({"run": run, "steps": steps, "costs": costs, "why": ended.why})
    else:
        console = err()
        style = {"succeeded": "green", "canceled": "yellow"}.get(run.status, "red")
        told = f" ({costs_text(costs)})" if costs else ""
        console.print(
            safe_text(f"{run.id} {run.status} after {format_seconds(run.seconds)}{told}", style),
            soft_wrap=True,
        )
        if run.status == "succeeded":
            print_json(ended.output)
        else:
            _show_failure(run)
    if run.status != "succeeded":
        raise typer.Exit(1)


def _show_failure(run: Run) -> None:
    """Code and message, and what a person can do now: nothing happens by itself any more."""
    console = err()
    said = "" if run.error is None else f": {value_text(run.error)}"
    console.print(safe_text(f"{run.reason}{said}", "bold red"), soft_wrap=True)
    for line in (
        f"tenure runs show {run.id}      # its steps",
        f"tenure runs resume {run.id}    # go on as a new run, keeping what was done",
        f"tenure runs rerun {run.id}     # start afresh",
    ):
        console.print(safe_text(f"  {line}"), soft_wrap=True)


async def read_log_lines(
    backend: Backend, run: str, after: int, *, follow: bool
) -> AsyncIterator[RunLogLine]:
    """The lines that a run's code has logged; with `follow` until it has ended."""
    while True:
        # Asked before the lines are read: what was logged before the end is not missed.
        finished = (await backend.get(run)).finished
        page = await backend.runs.logs(run, after=after, limit=LOG_PAGE)
        for line in page:
            after = line.no
            yield line
        if len(page) == LOG_PAGE:
            continue
        if not follow or finished:
            return
        await asyncio.sleep(FOLLOW_SECONDS)
