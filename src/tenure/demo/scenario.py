"""The scenario of `tenure demo`: a release whose worker is killed, and the check of its outcome.

Laws:
1. Everything that is shown and checked is read from the database and from `production`. The scenario only plays the outside world: it
   starts workers, kills one, answers the approval and reports that the deployment is healthy.
2. No process outlives the scenario, however it ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from tenure.demo.timeline import TimelineEntry, load_timeline
from tenure.demo.workflow import PRODUCTION, SERVERS, release
from tenure.doctor.examination import DoctorReport, examine_database
from tenure.engine.engine import Engine
from tenure.errors import TenureError
from tenure.kernel.run_rows import CLOSED_RUN
from tenure.private_files import append_file, make_folder
from tenure.shapes.approvals import Approval

STEPS = ("build", "test", "approve", "deploy", "verify")
"""The five steps that are shown."""
DIRECTOR, MONITOR = "demo", "monitor"
HEALTHY = "deploy.healthy"
FIRST, SECOND = "worker-1", "worker-2"
LOOK_SECONDS = 0.1
HEALTHY_SECONDS = 0.8
"""How long the monitor takes to report a healthy deployment."""
STUCK_SECONDS = 30.0
"""Longer than anything here takes."""
STOP_SECONDS = 5.0


class DemoProgress(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    status: str
    states: dict[str, str]
    """The state of each step: waits, runs, asks, again, done or failed."""
    details: dict[str, str]
    last_by: str
    """The actor of the last event."""
    note: str
    """What has just happened."""


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    status: str
    reason: str | None
    output: str | None
    seconds: float
    killed_pid: int | None
    killed_seconds: float | None
    """Since the run was started."""
    taken_over_seconds: float | None
    """From the kill to the next worker's claim."""
    updated_before: tuple[str, ...]
    updated_after: tuple[str, ...]
    problems: list[str]


class DemoApproval(msgspec.Struct, frozen=True):
    approve: bool
    approver: str
    reason: str | None = None


OnProgress = Callable[[DemoProgress], None]
AskApproval = Callable[[Approval], Awaitable[DemoApproval]]


class DemoScenario:
    """One release from start to check; see the laws above."""

    def __init__(self, engine: Engine, folder: Path, on_progress: OnProgress, ask: AskApproval) -> None:
        self._engine = engine
        self._folder = folder
        self._on_progress = on_progress
        self._ask = ask
        self._run_id = ""
        self._note = ""
        self._process: asyncio.subprocess.Process | None = None
        self._log = folder
        self._begun = 0.0
        self._killed_pid: int | None = None
        self._killed_at = 0.0
        self._taken_over: float | None = None
        self._before: tuple[str, ...] = ()

    async def play(self) -> tuple[DemoResult, list[TimelineEntry], DoctorReport]:
        """Run the scenario, and return its outcome, its timeline and the doctor's report."""
        engine, self._begun = self._engine, time.monotonic()
        make_folder(self._folder / PRODUCTION)
        self._run_id = (await engine.start(release, "v42")).id
        self._note = f"the run is recorded; {FIRST} starts as its own process"
        async with self._worker(FIRST) as first:
            await self._until("waiting_approval")
            approved = await self._answer()
            if approved:
                await self._kill(first)
                async with self._worker(SECOND):
                    await self._until_taken_over()
                    await self._until("waiting_external")
                    await self._deliver_healthy()
                    await self._until(*CLOSED_RUN)
            else:
                await self._until(*CLOSED_RUN)
        result = await self._check(approved)
        return (
            result,
            await load_timeline(engine, self._run_id),
            await examine_database(engine.store, settled=True),
        )

    # ------------------------------------------------------------------------------------- the outside world

    @asynccontextmanager
    async def _worker(self, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
        command = (sys.executable, "-P", "-m", "tenure.demo.worker", self._engine.url, name)
        log = self._folder / f"{name}.log"
        with append_file(log) as output:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=output, stderr=output, cwd=self._folder
            )
        self._process, self._log = process, log
        try:
            yield process
        finally:
            self._process = None
            await _stop(process)

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        wanted = len(SERVERS) // 2
        await self._look(lambda _: len(self._updated()) >= wanted)
        await asyncio.sleep(0.2)  # the next server is being updated
        self._note = f"kill -9 {process.pid}: {FIRST} dies in the middle of deploy"
        self._process = None
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        self._killed_pid, self._killed_at = process.pid, time.monotonic()
        self._before = self._updated()
        self._on_progress(await self._now())

    async def _until_taken_over(self) -> None:
        """Wait until the lease ends (the process is found dead, or the lease expires) and the other worker claims the run."""
        await self._look(lambda now: now.last_by == f"worker:{SECOND}")
        self._taken_over = time.monotonic() - self._killed_at
        self._note = f"{FIRST} is gone and its lease has ended; {SECOND} resumes at deploy and repeats nothing before it"

    async def _answer(self) -> bool:
        (question,) = await self._engine.approvals.list(self._run_id)
        self._note = "the run waits for a person; it holds no worker and no memory"
        self._on_progress(await self._now())
        answer = await self._ask(question)
        decide = self._engine.approve if answer.approve else self._engine.reject
        await decide(
            self._run_id,
            approver=answer.approver,
            no=question.no,
            digest=question.digest,
            revision=question.revision,
            reason=answer.reason,
        )
        self._note = f"{answer.approver} {'approved' if answer.approve else 'rejected'}"
        return answer.approve

    async def _deliver_healthy(self) -> None:
        self._note = f"the run waits for the event {HEALTHY!r}"
        self._on_progress(await self._now())
        await asyncio.sleep(HEALTHY_SECONDS)
        # Webhooks may be delivered twice: the same id counts once.
        event: dict[str, Any] = {"data": {"p95_ms": 87}, "event_id": "probe-7", "actor": MONITOR}
        await asyncio.gather(*(self._engine.signal(self._run_id, HEALTHY, **event) for _ in range(2)))
        self._note = f"{MONITOR} delivered {HEALTHY!r} twice; it counts once"

    # ------------------------------------------------------------------------------------------- watching

    def _updated(self) -> tuple[str, ...]:
        return tuple(name for name in SERVERS if (self._folder / PRODUCTION / name).exists())

    async def _until(self, *statuses: str) -> None:
        await self._look(lambda now: now.status in statuses)

    async def _look(self, enough: Callable[[DemoProgress], bool]) -> None:
        try:
            async with asyncio.timeout(STUCK_SECONDS):
                while True:
                    now = await self._now()
                    self._on_progress(now)
                    if enough(now):
                        return
                    if now.status in CLOSED_RUN:
                        raise TenureError("STEP_FAILED", f"{self._run_id} ended too early: {now.status}")
                    if self._process is not None and self._process.returncode is not None:
                        raise TenureError(
                            "STEP_LOST", f"a worker process ended unexpectedly: {_tail(self._log)}"
                        )
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            why = await self._engine.runs.explain(self._run_id)
            raise TenureError(
                "COMMAND_DEADLINE", f"the demonstration makes no progress: {why.text}"
            ) from None

    async def _now(self) -> DemoProgress:
        run = await self._engine.get(self._run_id)
        steps = {step.name: step for step in await self._engine.runs.steps(self._run_id)}
        states: dict[str, str] = {}
        details: dict[str, str] = {}
        for name in STEPS:
            step = steps.get(name)
            state, detail = "waits", ""
            if step is not None:
                state = {"succeeded": "done", "waiting_approval": "asks", "retry_wait": "again"}.get(
                    step.state, "failed"
                )
                if step.attempt > 1:
                    detail = f"try {step.attempt}"
                if state == "again":
                    detail = f"failed with {step.last_error}, retried after a pause"
            states[name], details[name] = state, detail
        done = sum(state == "done" for state in states.values())
        if done < len(STEPS) and run.status in ("running", "waiting_external"):
            current = STEPS[done]
            if states[current] == "waits" and run.started_at is not None:
                states[current] = "runs"
            if run.status == "waiting_external":
                states[current], details[current] = "asks", f"waits for {HEALTHY!r}"
        if states["deploy"] == "runs" or self._updated():
            details["deploy"] = f"{len(self._updated())} of {len(SERVERS)} servers"
        (last,) = (await self._engine.runs.events(self._run_id))[-1:]
        return DemoProgress(
            run_id=self._run_id,
            status=run.status,
            states=states,
            details=details,
            last_by=last.actor,
            note=self._note,
        )

    # --------------------------------------------------------------------------------------------- the check

    async def _check(self, approved: bool) -> DemoResult:
        run = await self._engine.get(self._run_id)
        events = await self._engine.runs.events(self._run_id)
        steps = {step.name: step for step in await self._engine.runs.steps(self._run_id)}
        after: tuple[str, ...] = ()
        if approved:
            after = tuple(steps["deploy"].output or ()) if "deploy" in steps else ()
            checks = {
                f"the run should have succeeded, but is {run.status} ({run.reason})": run.status
                == "succeeded",
                "a lease should have expired": any(event.kind == "lease_expired" for event in events),
                "the tests should have passed at the second attempt": (
                    "test" in steps and steps["test"].attempt == 2
                ),
                f"each server should be updated once, but both workers updated some: {self._before} and {after}": (
                    not set(self._before) & set(after)
                ),
            }
        else:
            checks = {
                f"a rejection should end the run, but it is {run.status} ({run.reason})": (
                    run.reason == "APPROVAL_REJECTED"
                ),
                "nothing should have been deployed": self._updated() == (),
            }
        return DemoResult(
            run_id=run.id,
            status=run.status,
            reason=run.reason,
            output=run.output,
            seconds=time.monotonic() - self._begun,
            killed_pid=self._killed_pid,
            killed_seconds=None if self._killed_pid is None else self._killed_at - self._begun,
            taken_over_seconds=self._taken_over,
            updated_before=self._before,
            updated_after=after,
            problems=[problem for problem, holds in checks.items() if not holds],
        )


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Ask a worker to end, and kill it after STOP_SECONDS."""
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2_000:].strip()
