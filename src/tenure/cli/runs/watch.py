"""Watching a run until it has ended: a live table on a terminal, lines elsewhere, approvals answered right there.

Laws:
1. Progress goes to stderr; stdout is for the run's output.
2. Watching changes nothing, except for the answers that a person gives. Stopping to watch does not stop the run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from tenure.cli.common.console import err, print_json, warn
from tenure.cli.runs.progress import LineScreen, LiveScreen, ProgressScreen, WaitScreen
from tenure.cli.runs.run_tables import costs_text, failure_text, format_seconds
from tenure.clock import HostClock, to_datetime
from tenure.errors import TenureError
from tenure.shapes.costs import StepCost
from tenure.shapes.runs import Explanation, Run
from tenure.shapes.steps import Step

if TYPE_CHECKING:
    from tenure.cli.approvals.prompt import ApprovalPrompt
    from tenure.cli.common.backend import Backend
    from tenure.sdk.frame import Frame
    from tenure.shapes.runs import RunLogLine
    from tenure.worker import Worker

LOOK_SECONDS = 0.1
REFRESH_SECONDS = 1.0
"""How often everything is read again even if the run's history has not grown: progress is not in the history."""
LOG_PAGE = 1_000
FOLLOW_SECONDS = 0.3


class EndedRun(NamedTuple):
    run: Run
    steps: list[Step]
    why: Explanation
    output: Any
    costs: tuple[StepCost, ...]
    """Including the costs of failed attempts."""


async def watch_run(backend: Backend, run_id: str, *, quiet: bool, approver: str) -> EndedRun:
    """Watch a run to its end. If it restarts as another run, watch that one."""
    from tenure.cli.approvals.prompt import ApprovalPrompt

    console = err()
    screen: ProgressScreen = (
        WaitScreen(console) if quiet else LiveScreen(console) if console.is_terminal else LineScreen(console)
    )
    asks = not quiet and console.is_terminal and sys.stdin is not None and sys.stdin.isatty()
    prompt = ApprovalPrompt(backend, console, approver) if asks else None
    try:
        while True:
            ended = await _watch_one(backend, run_id, screen, prompt)
            if ended.run.restarted_as is None:
                return ended
            run_id = ended.run.restarted_as
    finally:
        screen.stop()


async def _watch_one(
    backend: Backend, run_id: str, screen: ProgressScreen, prompt: ApprovalPrompt | None
) -> EndedRun:
    loop = asyncio.get_running_loop()
    seen, read_at = -1, 0.0
    local = _LocalSteps(backend, run_id)
    while True:
        version, changed = await _version(backend, run_id), local.look()
        if version != seen or changed or loop.time() - read_at > REFRESH_SECONDS:
            run, steps = await backend.get(run_id), await backend.runs.steps(run_id)
            seen, read_at = run.events, loop.time()
            screen.update(run, steps if run.finished else local.merge(steps))
            if run.finished:
                output = None
                if run.status == "succeeded" and run.restarted_as is None:
                    output = await backend.result(run_id)
                why, costs = await backend.runs.explain(run_id), await backend.costs.get(run_id)
                return EndedRun(run, steps, why, output, costs.lines)
            if prompt is not None and await prompt.ask(run, steps, screen):
                continue
        await asyncio.sleep(LOOK_SECONDS)


class _LocalSteps:
    """The steps of a code-first run that are running in this process. The history contains them only when they end."""

    def __init__(self, backend: Backend, run_id: str) -> None:
        self._workers: list[Worker] = getattr(backend, "workers", [])
        self._run_id = run_id
        self._clock = HostClock()
        self._frames: dict[tuple[str, int], Frame] = {}
        self._progress: list[str] = []
        self._since: dict[tuple[str, int], datetime] = {}

    def look(self) -> bool:
        """Whether a step has started, ended or reported progress since the last look."""
        found = [frame for worker in self._workers for frame in worker.frames(self._run_id)]
        now = {(frame.step, frame.attempt): frame for frame in found}
        progress = [frame.progress_text for frame in found]
        changed = now.keys() != self._frames.keys() or progress != self._progress
        self._frames, self._progress = now, progress
        at = to_datetime(self._clock.now_us())
        self._since = {key: self._since.get(key, at) for key in now}
        return changed

    def merge(self, steps: list[Step]) -> list[Step]:
        """The steps of the history, with those that are running."""
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
        return [running.pop(step.name, step) for step in steps] + list(running.values())


async def _version(backend: Backend, run_id: str) -> int:
    try:
        return await backend.runs.version(run_id)
    except TenureError as refused:
        if refused.code != "STORE_BUSY":
            raise
        return -1


def print_outcome(ended: EndedRun, *, as_json: bool) -> None:
    """Print the run's output or failure. Ends the program with 1 if it did not succeed."""
    run, costs = ended.run, ended.costs
    if as_json:
        print_json({"run": run, "steps": ended.steps, "costs": costs, "why": ended.why})
    else:
        style = {"succeeded": "green", "canceled": "yellow"}.get(run.status, "red")
        spent = f" ({costs_text(costs)})" if costs else ""
        warn(f"{run.id} {run.status} after {format_seconds(run.seconds)}{spent}", style)
        if run.status == "succeeded":
            print_json(ended.output)
        else:
            _show_failure(run)
    if run.status != "succeeded":
        raise typer.Exit(1)


def _show_failure(run: Run) -> None:
    warn(failure_text(run), "bold red")
    warn(f"  tenure runs show {run.id}      # its steps", "")
    warn(f"  tenure runs resume {run.id}    # continue as a new run that keeps the recorded steps", "")
    warn(f"  tenure runs rerun {run.id}     # start from the beginning", "")


async def read_log_lines(
    backend: Backend, run: str, after: int, *, follow: bool
) -> AsyncIterator[RunLogLine]:
    """The log lines of a run; with `follow`, until the run has ended."""
    while True:
        # Read this before the lines, so that no line before the end is missed.
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
