"""The lab: an engine with workers, sweeper and scheduler in a test, on a clock that jumps.

Laws:
1. The code of workflows and steps really runs, on the real kernel and a real database. Only time is the lab's: leases, backoffs, sleeps,
   timeouts, expiries and schedules wait until the clock is moved.
2. `settle` returns when nothing can happen without time or people. `jump` moves the clock from one due time to the next, and settles at
   each, so that everything happens in order.
3. The lab waits for running code at most `patience` seconds of real time; the error names what is still running.
4. When a test ends without an error, the doctor examines the database.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, get_args

from tenure import ids
from tenure.artifacts import ArtifactStore
from tenure.clock import us
from tenure.declared.step_resolver import StepResolver
from tenure.doctor.examination import examine_database
from tenure.durations import parse_duration
from tenure.engine.engine import Engine
from tenure.engine.run_handle import RunHandle
from tenure.errors import TenureError
from tenure.govern.connector import Connector
from tenure.govern.evidence.sealer import RunSealer
from tenure.kernel.run_rows import CLOSED_RUN, CheckpointRow
from tenure.limits import SWEEP_TIMERS_MAX
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.scheduler import Scheduler
from tenure.orchestrator.sweeper import Sweeper
from tenure.reads.run_list import FOREVER_US
from tenure.sdk.definitions import Registry, Tool, Workflow
from tenure.sdk.options import Duration
from tenure.services.schedules import SchedulableWorkflow
from tenure.shapes.events import Event
from tenure.shapes.schedules import Schedule
from tenure.shapes.steps import Step
from tenure.store.policies import PolicyRegistry
from tenure.store.postgres import PostgresStore
from tenure.store.sqlite import SqliteStore
from tenure.testing.crashes import CrashPlan, PlannedCrash, When
from tenure.testing.lab_clock import QUIET_SECONDS, LabClock, LabTimers
from tenure.testing.work_source import LabWorker, LabWorkSource

R = TypeVar("R")
Definition = Workflow[..., Any] | Tool | Registry

BEGIN = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
"""A Monday."""
PATIENCE_SECONDS = 10.0
LONGEST: Duration = "366d"
SPINS = 50
PAUSE_SECONDS = 0.001
SCHEDULES_LOOKED_AT = 500


class LabEngine(Engine):
    """An engine with the lab's clock. The lab sweeps, schedules and sends heartbeats."""

    def __init__(
        self,
        url: str,
        folder: Path,
        clock: LabClock,
        timers: LabTimers,
        crashes: CrashPlan,
        connectors: Iterable[Connector] = (),
    ) -> None:
        super().__init__(url, sweep=False, connectors=connectors)
        self.runtime.artifacts = ArtifactStore(str(folder / "artifacts"))
        self._clock = clock
        self._timers = timers
        self._crashes = crashes
        self._lab_store: SqliteStore | PostgresStore = (
            SqliteStore(url.removeprefix("sqlite:"), clock=clock)
            if url.startswith("sqlite:")
            else PostgresStore(url)
        )

    async def __aenter__(self) -> Self:
        store = self._lab_store
        self.sync_clock()
        async with AsyncExitStack() as stack:
            await store.migrate()
            await store.open()
            stack.push_async_callback(store.close)
            orchestrator = Orchestrator(store, clock=self._clock)
            orchestrator.resolver = StepResolver(store, self.artifacts)
            await stack.enter_async_context(orchestrator)
            self.sweeper = Sweeper(orchestrator)
            self.scheduler = Scheduler(orchestrator)
            self.runtime.sealing = RunSealer(store, self.artifacts, None)
            self.runtime.open(store, orchestrator)
            self._stack = stack.pop_all()
        return self

    def sync_clock(self) -> None:
        """Set the clock of a PostgreSQL store to the lab's time."""
        if isinstance(self._lab_store, PostgresStore):
            self._lab_store.shift_clock(self._clock.ahead_us)

    @property
    def work_source(self) -> LabWorkSource:
        if not isinstance(self._work_source, LabWorkSource):
            self._work_source = LabWorkSource(self, self._clock, self._timers, self._crashes)
        return self._work_source


class LabStuck(AssertionError):
    """A lab waited for something that cannot happen."""


class LabRun(RunHandle[R], Generic[R]):
    def __init__(self, lab: Lab, run_id: str, workflow: Workflow[..., Any] | None = None) -> None:
        super().__init__(lab.engine, run_id, workflow)
        self._lab = lab

    async def result(self, *, wait: float | None = None, within: Duration = LONGEST) -> R:
        """The output of the run, or its error. Lets time pass until the run has ended, at most `within`. Raises LabStuck if it waits for
        people or events."""
        del wait  # a lab does not wait in real time
        lab, until = self._lab, self._lab.moment(within)
        await lab.settle()
        while True:
            try:
                return await super().result(wait=0.0)
            except TenureError as refused:
                if refused.code != "COMMAND_DEADLINE":
                    raise
            await lab.pass_time(until, self)

    async def reaches(self, *statuses: str, wait: float | None = None, within: Duration = LONGEST) -> str:
        """Let time pass until the run has one of these statuses, and return it."""
        del wait  # a lab does not wait in real time
        lab, until = self._lab, self._lab.moment(within)
        await lab.settle()
        while (status := await self.status()) not in statuses:
            if status in CLOSED_RUN:
                raise LabStuck(f"{self.id} is {status} and will not be {' or '.join(statuses)}")
            await lab.pass_time(until, self)
        return status

    async def steps(self) -> list[Step]:
        return await self._engine.runs.steps(self.id)

    async def recorded(self) -> dict[str, CheckpointRow]:
        """Its checkpoints by key, in the order in which they were begun."""
        rows: list[CheckpointRow] = await self._engine.store.read("checkpoints_of", self._lab.number(self))
        return {row.name: row for row in sorted(rows, key=lambda row: row.no)}

    async def history(self) -> list[Event]:
        return await self._engine.runs.events(self.id)

    async def why(self) -> str:
        """Why it is not moving."""
        return (await self._engine.runs.explain(self.id)).text


class Lab:
    """An async context manager.

    `workers` workers serve the definitions, or else everything that decorators have registered. `url` is the database; a new SQLite file
    by default. `check=False` skips the doctor at the end. `connectors` do the actions of runs, and `policy` is the text of their policy.
    """

    def __init__(
        self,
        *definitions: Definition,
        workers: int = 1,
        slots: int = 100,
        commands: bool = False,
        start: datetime = BEGIN,
        url: str | None = None,
        check: bool = True,
        patience: float = PATIENCE_SECONDS,
        connectors: Iterable[Connector] = (),
        policy: str | None = None,
    ) -> None:
        self._definitions = definitions
        self._how: dict[str, Any] = {
            "slots": slots,
            "commands": commands,
            "allow_unconfined_commands": True,  # they are the test's own
        }
        self._worker_count = workers
        self._url = url
        self._check = check
        self._connectors = connectors
        self._policy = policy
        self.patience = patience
        self.clock = LabClock(us(start.timestamp()), runs_on=url is not None and "postgres" in url[:10])
        self.timers = LabTimers(self.clock)
        self.crashes = CrashPlan(self._killed)
        self.workers: list[LabWorker] = []
        self._dead: list[LabWorker] = []
        self._restarting: set[asyncio.Task[LabWorker]] = set()
        self.folder = Path()
        """The folder of its artifacts and its SQLite database while it is open."""
        self._stack = AsyncExitStack()
        self._engine: LabEngine | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-lab-")))
            url = self._url or f"sqlite:{self.folder / 'lab.db'}"
            made = LabEngine(url, self.folder, self.clock, self.timers, self.crashes, self._connectors)
            self._engine = await stack.enter_async_context(made)
            if self._policy is not None:
                await PolicyRegistry(made.store, made.tenant).install(self._policy)
            stack.push_async_callback(self._stop)
            for _ in range(self._worker_count):
                await self.add_worker(*self._definitions)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None and self._check:
                await self.check()
        finally:
            await self._stack.aclose()

    async def _stop(self) -> None:
        await asyncio.gather(*self._restarting, return_exceptions=True)
        for worker in self.workers:
            worker.kill()
        for worker in (*self.workers, *self._dead):
            await worker.wait_until_gone()
        await self.engine.work_source.leave("lab")

    @property
    def engine(self) -> LabEngine:
        """The engine, for everything that the lab has no method for."""
        if self._engine is None:
            raise RuntimeError("the lab is not open: use `async with Lab(…) as lab`")
        return self._engine

    # ------------------------------------------------------------------------------------------ runs

    async def start(self, workflow: Workflow[..., Any], *args: Any, **kwargs: Any) -> LabRun[Any]:
        return self.run(await self.engine.start(workflow, *args, **kwargs), workflow)

    async def submit(self, workflow: Any, input: Any = None, **options: Any) -> LabRun[Any]:  # noqa: A002 - as in the engine
        """Start a workflow with an input and any of the options of `Engine.submit`."""
        return self.run(await self.engine.submit(workflow, input, **options), workflow)

    def run(self, run: RunHandle[Any] | str, workflow: Any = None) -> LabRun[Any]:
        known = workflow if isinstance(workflow, Workflow) else None
        return LabRun(self, run if isinstance(run, str) else run.id, known)

    async def approve(self, run: RunHandle[Any], *, by: str = "ada", **answer: Any) -> str:
        """Approve the open question as a person who sees its current revision; also an action that a policy asks about. `no` names the question
        if the run has several; `digest` and `revision` name an older revision that the person saw."""
        return await self.engine.approve(run.id, approver=by, **await self._with_revision(run, answer))

    async def reject(self, run: RunHandle[Any], *, by: str = "ada", **answer: Any) -> str:
        """Reject the open question; the arguments are those of `approve`."""
        return await self.engine.reject(run.id, approver=by, **await self._with_revision(run, answer))

    async def _with_revision(self, run: RunHandle[Any], answer: dict[str, Any]) -> dict[str, Any]:
        open_questions = await self.engine.approvals.list(run.id)
        meant = [
            one for one in open_questions if one.no == answer.get("no", one.no) and one.status == "requested"
        ]
        if len(meant) != 1:
            return answer  # the engine refuses it
        return {"no": meant[0].no, "digest": meant[0].digest or "", "revision": meant[0].revision, **answer}

    async def deliver(self, run: RunHandle[Any], event: str, data: Any = None, **how: Any) -> bool:
        """Deliver an event, and return whether the run waited for it."""
        return (await self.engine.signal(run.id, event, data, **how)).taken

    async def cancel(self, run: RunHandle[Any], **how: Any) -> str:
        return await self.engine.cancel(run.id, **how)

    async def schedule(self, name: str, workflow: SchedulableWorkflow, cron: str, **how: Any) -> Schedule:
        """Schedule a workflow; `how` as in `Schedules.create`."""
        return await self.engine.schedules.create(name, workflow, cron, **how)

    async def runs(self, **how: Any) -> list[LabRun[Any]]:
        return [self.run(line.id) for line in await self.engine.runs.list(**how)]

    # ------------------------------------------------------------------------------------------ time

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now_us() / 1e6, UTC)

    def moment(self, ahead: Duration) -> int:
        """The time that far ahead, in microseconds."""
        return self.clock.now_us() + us(parse_duration(ahead))

    async def settle(self, *, leave: str | Iterable[str] = ()) -> None:
        """Wait until nothing can happen without time or people. Steps named in `leave` may keep running."""
        left = (leave,) if isinstance(leave, str) else tuple(leave)
        deadline = asyncio.get_running_loop().time() + self.patience
        while True:
            before = self._progress()
            await self._wait_for_rest(left, deadline)
            self.timers.fire()
            found = sum(
                [await heartbeater.send_due() for heartbeater in self.engine.work_source.heartbeaters]
            )
            found += await self.engine.sweeper.sweep()
            found += await self.engine.scheduler.look()
            found += await self.engine.orchestrator.deliver(
                await self.engine.store.read("outbox_pending", FOREVER_US, SWEEP_TIMERS_MAX)
            )
            await self._wait_for_rest(left, deadline)
            await self._wait_for_claims(deadline)
            await self._wait_for_rest(left, deadline)
            if not found and self._progress() == before:
                return
            self._check_patience(deadline, left)

    async def jump(self, length: Duration | None = None, *, leave: str | Iterable[str] = ()) -> None:
        """Move the clock by `length`, or without it to the next time at which something is due. Everything due meanwhile happens, in order."""
        await self.settle(leave=leave)
        to = await self._next_due() if length is None else self.moment(length)
        if to is None:
            raise LabStuck("nothing is due: all runs wait for people or events, or have ended")
        while (at := await self._next_due()) is not None and at < to:
            await self._go(at, leave)
        await self._go(to, leave)

    async def pass_time(self, until: int, run: LabRun[Any]) -> None:
        """Move the clock to the next due time, for a caller that waits for a run."""
        at = await self._next_due()
        if at is None or at > until:
            if (status := await run.status()) in CLOSED_RUN:
                return  # it ended meanwhile, by a timer of its own code
            why = await run.why()
            due = "nothing more is due" if at is None else "nothing more is due in time"
            raise LabStuck(f"{run.id} is {status}, and {due}: {why}")
        await self._go(at, ())

    async def _go(self, at: int, leave: str | Iterable[str]) -> None:
        self.clock.move(at)
        self.engine.sync_clock()
        await self.settle(leave=leave)

    async def _next_due(self) -> int | None:
        read = self.engine.store.read
        moments = [
            *(row.now_us for row in await read("next_wake")),
            *(row.next_at for row in await read("schedules_due", self.moment(LONGEST), SCHEDULES_LOOKED_AT)),
            *(heartbeater.next_us() for heartbeater in self.engine.work_source.heartbeaters),
            self.timers.next_us(),
        ]
        return min((at for at in moments if at is not None), default=None)

    def _progress(self) -> tuple[int, ...]:
        return (
            self.engine.orchestrator.commands,
            self.engine.work_source.claimed,
            self.timers.fired,
            len(self.crashes.points),
        )

    async def _wait_for_rest(self, leave: Sequence[str], deadline: float) -> None:
        loop = asyncio.get_running_loop()
        spins, since, progress = 0, loop.time(), self._progress()
        while True:
            activities = {worker.activity(leave) for worker in self.workers}
            busy = self._restarting or not self.engine.orchestrator.idle
            if not busy and activities <= {"resting"}:
                return
            if busy or "working" in activities or self._progress() != progress:
                since, progress = loop.time(), self._progress()
            elif loop.time() - since > 3 * QUIET_SECONDS:
                return
            self._check_patience(deadline, leave)
            spins += 1
            await asyncio.sleep(0 if spins < SPINS else PAUSE_SECONDS)

    async def _wait_for_claims(self, deadline: float) -> None:
        """Have every worker with a free slot claim, and wait until all have."""
        work_source = self.engine.work_source
        work_source.wake_workers()
        number, spins = work_source.wake_ups, 0
        while any(
            worker.is_looking and work_source.looked.get(worker.name, 0) < number for worker in self.workers
        ):
            self._check_patience(deadline, ())
            spins += 1
            await asyncio.sleep(0 if spins < SPINS else PAUSE_SECONDS)

    def _check_patience(self, deadline: float, leave: Sequence[str]) -> None:
        if asyncio.get_running_loop().time() < deadline:
            return
        working = [
            f"{session.run_id} in {', '.join(steps) or 'workflow code'}"
            for worker in self.workers
            for session, steps in worker.running_steps().items()
            if not set(steps) or set(steps) - set(leave)
        ]
        raise LabStuck(
            f"still running after {self.patience:g} s of real time: "
            + ("; ".join(working) or "the engine itself")
            + ". If a step should keep running, name it: `leave=…`"
        )

    # --------------------------------------------------------------------------------------- workers

    async def add_worker(self, *definitions: Definition, **how: Any) -> LabWorker:
        worker = LabWorker(self.engine.work_source, *definitions, **{**self._how, **how})
        await worker.start()
        self.workers.append(worker)
        self.engine.add_worker(worker)
        return worker

    async def deploy(self, *definitions: Definition) -> None:
        """Stop all workers, and start as many with other definitions."""
        await self.settle()
        stopped, self.workers = self.workers, []
        for worker in stopped:
            self.engine.remove_worker(worker)
            await worker.stop(grace=0)
        for _ in range(max(1, len(stopped))):
            await self.add_worker(*definitions)

    async def reached(self, step: str) -> None:
        deadline = asyncio.get_running_loop().time() + self.patience
        while not any(step in steps for w in self.workers for steps in w.running_steps().values()):
            if asyncio.get_running_loop().time() > deadline:
                raise LabStuck(f"no worker came to step {step!r} within {self.patience:g} s of real time")
            await asyncio.sleep(PAUSE_SECONDS)

    # --------------------------------------------------------------------------------------- crashes

    async def crash(self) -> None:
        """Kill all workers at once, wherever they are, and start new ones. Their leases expire."""
        for worker in list(self.workers):
            worker.kill()
            self._killed(worker.name)
        await asyncio.gather(*self._restarting)

    def crash_before(self, step: str) -> Any:
        """`async with`: the worker dies after this step, before its outcome is recorded."""
        return self._crashing(PlannedCrash("before", step=step))

    def crash_after(self, step: str) -> Any:
        """`async with`: the worker dies right after this step's outcome is recorded."""
        return self._crashing(PlannedCrash("after", step=step))

    @asynccontextmanager
    async def _crashing(self, crash: PlannedCrash) -> AsyncIterator[PlannedCrash]:
        self.crashes.planned.append(crash)
        try:
            yield crash
            if not crash.happened:
                await self.settle()
            if not crash.happened:
                raise LabStuck(f"{crash} did not happen: no worker came there inside the block")
        finally:
            self.crashes.planned.remove(crash)

    def _killed(self, name: str) -> None:
        """Replace a worker that dies by another one like it."""
        worker = next((each for each in self.workers if each.name == name), None)
        if worker is None:
            return
        worker.kill()
        self.workers.remove(worker)
        self.engine.remove_worker(worker)
        self._dead.append(worker)
        task = asyncio.get_running_loop().create_task(self.add_worker(*worker.definitions, **worker.how))
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)

    # ---------------------------------------------------------------------------------------- the end

    async def check(self) -> None:
        """Have the doctor examine the database; it must find nothing."""
        await self.settle()
        report = await examine_database(self.engine.store)
        if not report.clean:
            raise AssertionError("the doctor found:\n" + "\n".join(map(str, report.violations)))

    def number(self, run: RunHandle[Any]) -> int:
        """A run's id as a number, as in the store."""
        return ids.run_int(run.id)


async def crash_everywhere(
    story: Callable[[Lab], Awaitable[Any]],
    *definitions: Definition,
    **how: Any,
) -> int:
    """Run a test story without a crash, then twice per commit point: with the worker killed before that commit, and after it. Returns how
    often the story ran.

    The story gets a new lab each time, and must pass each time. Let it wait with `run.reaches(…)` and `run.result()`, which let the time
    pass that a new worker needs.
    """
    async with Lab(*definitions, **how) as lab:
        await story(lab)
        points = list(lab.crashes.points)
    count = 1
    for number, name in enumerate(points):
        for when in get_args(When):
            crash = PlannedCrash(when, point=number)
            async with Lab(*definitions, **how) as lab:
                lab.crashes.planned.append(crash)
                try:
                    await story(lab)
                except BaseException as fault:
                    fault.add_note(f"with a crash {when} commit point {number} ({name})")
                    raise
            count += 1
    return count
