"""The lab: an engine, its workers, its sweeper and its scheduler in a test, on a clock that jumps.

Laws:
1. The code of workflows and steps really runs, on the real kernel and a real database. Only time is the lab's: leases,
   backoffs, sleeps, timeouts, expiries and schedules wait for the clock to be moved.
2. `settle` returns when nothing can happen without time or people. `jump` goes from one moment at which something is
   due to the next, and settles at each: two days and two seconds come in their order.
3. Work that really takes long is not waited for without end: what is still busy after `patience` is named.
4. When a story ends well, the doctor examines everything.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from tenure import ids
from tenure.clock import us
from tenure.durations import seconds
from tenure.embedded.flows import Run
from tenure.embedded.schedules import Scheduled, ScheduleView
from tenure.errors import TenureError
from tenure.govern.connector import Connector
from tenure.kernel.model import CLOSED_RUN, Checkpoint
from tenure.limits import SWEEP_TIMERS_MAX
from tenure.orchestrator.views import FOREVER_US, EventView, StepView
from tenure.sdk.definitions import Registry, Tool, Workflow
from tenure.sdk.options import Duration
from tenure.store.bundles import examine
from tenure.store.policies import Governing
from tenure.testing.clock import QUIET_SECONDS, Alarms, LabClock
from tenure.testing.crashes import Crash, Crashes
from tenure.testing.engine import LabEngine
from tenure.testing.station import LabWorker

R = TypeVar("R")
Definition = Workflow[..., Any] | Tool | Registry

BEGIN = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
"""A Monday."""
PATIENCE_SECONDS = 10.0
LONGEST: Duration = "366d"
SPINS = 50
PAUSE_SECONDS = 0.001
SCHEDULES_LOOKED_AT = 500


class Stuck(AssertionError):
    """A lab waited for something that does not come."""


class LabRun(Run[R], Generic[R]):
    """A run in a lab."""

    def __init__(self, lab: Lab, run_id: str, workflow: Workflow[..., Any] | None = None) -> None:
        super().__init__(lab.engine, run_id, workflow)
        self._lab = lab

    async def result(self, *, wait: float | None = None, within: Duration = LONGEST) -> R:
        """What the workflow returned, or what it failed with raised. Lets time pass until it has ended, at most
        `within`; `Stuck` where it waits for people or events."""
        del wait  # nobody waits in a lab
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
        """Let time pass until the run has one of these statuses; which one."""
        del wait  # nobody waits in a lab
        lab, until = self._lab, self._lab.moment(within)
        await lab.settle()
        while (status := await self.status()) not in statuses:
            if status in CLOSED_RUN:
                raise Stuck(f"{self.id} is {status} and will not be {' or '.join(statuses)}")
            await lab.pass_time(until, self)
        return status

    async def steps(self) -> list[StepView]:
        """Its steps and checkpoints."""
        return await self._engine.steps(self.id)

    async def recorded(self) -> dict[str, Checkpoint]:
        """What it has recorded, by key, in the order in which that was begun."""
        rows: list[Checkpoint] = await self._engine.store.read("checkpoints_of", self._lab.number(self))
        return {row.name: row for row in sorted(rows, key=lambda row: row.no)}

    async def history(self) -> list[EventView]:
        """Its events."""
        return await self._engine.events(self.id)

    async def why(self) -> str:
        """Why it is not moving."""
        return (await self._engine.why(self.id)).text


class Lab:
    """See the laws above. An async context manager.

    `workers` processes serve the definitions, or everything that decorators have collected. `url` is another database
    than a fresh SQLite file. `check=False` leaves the doctor out at the end. `connectors` are what runs can do to the world, and
    `policy` is the text that says what of it they may.
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
            "allow_unconfined_commands": True,  # a test's own
        }
        self._worker_count = workers
        self._url = url
        self._check = check
        self._connectors = connectors
        self._policy = policy
        self.patience = patience
        self.clock = LabClock(us(start.timestamp()), runs_on=url is not None and "postgres" in url[:10])
        self.alarms = Alarms(self.clock)
        self.crashes = Crashes(self._killed)
        self.workers: list[LabWorker] = []
        self._dead: list[LabWorker] = []
        self._reviving: set[asyncio.Task[None]] = set()
        self.folder = Path()
        """Where its artifacts and, unless it has another, its database lie while it is open."""
        self._stack = AsyncExitStack()
        self._engine: LabEngine | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-lab-")))
            url = self._url or f"sqlite:{self.folder / 'lab.db'}"
            made = LabEngine(url, self.folder, self.clock, self.alarms, self.crashes, self._connectors)
            self._engine = await stack.enter_async_context(made)
            if self._policy is not None:
                await Governing(made.store, made.tenant).install(self._policy)
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
        await asyncio.gather(*self._reviving, return_exceptions=True)
        for worker in self.workers:
            worker.kill()
        for worker in (*self.workers, *self._dead):
            await worker.gone()
        await self.engine.station.leave("lab")

    @property
    def engine(self) -> LabEngine:
        """The engine, for all that the lab has no word for."""
        if self._engine is None:
            raise RuntimeError("the lab is not open: use `async with Lab(…) as lab`")
        return self._engine

    # ------------------------------------------------------------------------------------------ runs

    async def start(self, workflow: Workflow[..., Any], *args: Any, **kwargs: Any) -> LabRun[Any]:
        """Start a workflow with these arguments."""
        return self.run(await self.engine.start(workflow, *args, **kwargs), workflow)

    async def submit(self, workflow: Any, input: Any = None, **options: Any) -> LabRun[Any]:  # noqa: A002 - the engine's word
        """Start a workflow with an input by names and any of the options of `Engine.submit`."""
        return self.run(await self.engine.submit(workflow, input, **options), workflow)

    def run(self, run: Run[Any] | str, workflow: Any = None) -> LabRun[Any]:
        """A handle on a run that exists."""
        known = workflow if isinstance(workflow, Workflow) else None
        return LabRun(self, run if isinstance(run, str) else run.id, known)

    async def approve(self, run: Run[Any], *, by: str = "ada", **answer: Any) -> str:
        """A person says yes to the open question, as it is shown now: also to an action that a policy asks people about. `no` names
        the question where the run has several; `digest` and `revision` an older one that they saw."""
        return await self.engine.approve(run.id, approver=by, **await self._shown(run, answer))

    async def reject(self, run: Run[Any], *, by: str = "ada", **answer: Any) -> str:
        """A person says no; the arguments are those of `approve`."""
        return await self.engine.reject(run.id, approver=by, **await self._shown(run, answer))

    async def _shown(self, run: Run[Any], answer: dict[str, Any]) -> dict[str, Any]:
        """An answer with the digest and the revision of the question that it is to."""
        asked = await self.engine.approvals(run.id)
        meant = [one for one in asked if one.no == answer.get("no", one.no) and one.status == "requested"]
        if len(meant) != 1:
            return answer  # the engine says what is wrong with it
        return {"no": meant[0].no, "digest": meant[0].digest or "", "revision": meant[0].revision, **answer}

    async def deliver(self, run: Run[Any], event: str, data: Any = None, **how: Any) -> bool:
        """Something happened outside; whether the run waited for it."""
        return await self.engine.deliver(run.id, event, data, **how)

    async def cancel(self, run: Run[Any], **how: Any) -> str:
        """Ask for the run's cancellation."""
        return await self.engine.cancel(run.id, **how)

    async def schedule(self, name: str, workflow: Scheduled, cron: str, **how: Any) -> ScheduleView:
        """Have a workflow started at the slots of a cron text; `how` as in `Schedules.create`."""
        return await self.engine.schedules.create(name, workflow, cron, **how)

    async def runs(self, **how: Any) -> list[LabRun[Any]]:
        """The newest runs."""
        return [self.run(line.id) for line in await self.engine.runs(**how)]

    # ------------------------------------------------------------------------------------------ time

    @property
    def now(self) -> datetime:
        """The lab's time."""
        return datetime.fromtimestamp(self.clock.now_us() / 1e6, UTC)

    def moment(self, ahead: Duration) -> int:
        """A moment that far ahead, in microseconds."""
        return self.clock.now_us() + us(seconds(ahead))

    async def settle(self, *, leave: str | Iterable[str] = ()) -> None:
        """Until nothing can happen without time or people. Steps named in `leave` are not waited for: they are at work
        on purpose."""
        left = (leave,) if isinstance(leave, str) else tuple(leave)
        deadline = asyncio.get_running_loop().time() + self.patience
        while True:
            before = self._moves()
            await self._rest(left, deadline)
            self.alarms.ring()
            found = sum([await heart.beat() for heart in self.engine.station.hearts])
            found += await self.engine.sweeper.sweep()
            found += await self.engine.scheduler.look()
            owed = await self.engine.store.read("outbox_pending", FOREVER_US, SWEEP_TIMERS_MAX)
            found += await self.engine.orchestrator.deliver(owed)
            await self._rest(left, deadline)
            await self._look(deadline)
            await self._rest(left, deadline)
            if not found and self._moves() == before:
                return
            self._lose_patience(deadline, left)

    async def jump(self, length: Duration | None = None, *, leave: str | Iterable[str] = ()) -> None:
        """Let time pass; everything due meanwhile happens, in order. Without a length: to the next moment at which
        something is due."""
        await self.settle(leave=leave)
        to = await self._next() if length is None else self.moment(length)
        if to is None:
            raise Stuck("nothing is due, ever: what there is waits for people or events")
        while (at := await self._next()) is not None and at < to:
            await self._go(at, leave)
        await self._go(to, leave)

    async def pass_time(self, until: int, run: LabRun[Any]) -> None:
        """Go to the next moment at which something is due, for a run that is waited for."""
        at = await self._next()
        if at is None or at > until:
            if (status := await run.status()) in CLOSED_RUN:
                return  # it has ended meanwhile, by a timer of the code's own
            why = await run.why()
            never = "nothing is due any more" if at is None else "nothing else is due in time"
            raise Stuck(f"{run.id} is {status}, and {never}: {why}")
        await self._go(at, ())

    async def _go(self, at: int, leave: str | Iterable[str]) -> None:
        self.clock.move(at)
        self.engine.pin()
        await self.settle(leave=leave)

    async def _next(self) -> int | None:
        """The next moment at which anything is due."""
        store = self.engine.store
        moments = [row.now_us for row in await store.read("next_wake")]
        horizon = self.moment(LONGEST)
        due = await store.read("schedules_due", horizon, SCHEDULES_LOOKED_AT)
        moments += [row.next_at for row in due if row.next_at is not None]
        moments.append(self.alarms.next_us())
        moments += [heart.next_us() for heart in self.engine.station.hearts]
        return min((at for at in moments if at is not None), default=None)

    def _moves(self) -> tuple[int, ...]:
        """Changes with everything that happens."""
        station = self.engine.station
        return (
            self.engine.orchestrator.commands,
            station.claimed,
            self.alarms.rung,
            len(self.crashes.points),
        )

    async def _rest(self, leave: Sequence[str], deadline: float) -> None:
        """Until every worker and the orchestrator rest."""
        loop = asyncio.get_running_loop()
        spins, still, moves = 0, loop.time(), self._moves()
        while True:
            words = {worker.rest(leave) for worker in self.workers}
            busy = self._reviving or not self.engine.orchestrator.idle
            if not busy and words <= {"resting"}:
                return
            if busy or "working" in words or self._moves() != moves:
                still, moves = loop.time(), self._moves()
            elif loop.time() - still > 3 * QUIET_SECONDS:
                return
            self._lose_patience(deadline, leave)
            spins += 1
            await asyncio.sleep(0 if spins < SPINS else PAUSE_SECONDS)

    async def _look(self, deadline: float) -> None:
        """Have every worker with room look for work, until it has."""
        station = self.engine.station
        station.ring()
        ring, spins = station.rings, 0
        while any(worker.is_looking and station.looked.get(worker.name, 0) < ring for worker in self.workers):
            self._lose_patience(deadline, ())
            spins += 1
            await asyncio.sleep(0 if spins < SPINS else PAUSE_SECONDS)

    def _lose_patience(self, deadline: float, leave: Sequence[str]) -> None:
        if asyncio.get_running_loop().time() < deadline:
            return
        working = [
            f"{held.run_id} in {', '.join(steps) or 'its own code'}"
            for worker in self.workers
            for held, steps in worker.at_work().items()
            if not set(steps) or set(steps) - set(leave)
        ]
        raise Stuck(
            f"still at work after {self.patience:g} s of real time: "
            + ("; ".join(working) or "the engine itself")
            + ". A step that waits on purpose is named: `leave=…`"
        )

    # --------------------------------------------------------------------------------------- workers

    async def add_worker(self, *definitions: Definition, **how: Any) -> LabWorker:
        """Another worker process, so to say."""
        worker = LabWorker(self.engine.station, *definitions, **{**self._how, **how})
        await worker.start()
        self.workers.append(worker)
        self.engine.local.append(worker)
        return worker

    async def deploy(self, *definitions: Definition) -> None:
        """Stop all workers in peace, and start as many with other definitions."""
        await self.settle()
        stopped, self.workers = self.workers, []
        for worker in stopped:
            self.engine.local.remove(worker)
            await worker.stop(grace=0)
        for _ in range(max(1, len(stopped))):
            await self.add_worker(*definitions)

    async def reached(self, step: str) -> None:
        """Until a worker is in this step (in real time)."""
        deadline = asyncio.get_running_loop().time() + self.patience
        while not any(step in steps for w in self.workers for steps in w.at_work().values()):
            if asyncio.get_running_loop().time() > deadline:
                raise Stuck(f"nobody came to step {step!r} within {self.patience:g} s of real time")
            await asyncio.sleep(PAUSE_SECONDS)

    # --------------------------------------------------------------------------------------- crashes

    async def crash(self) -> None:
        """All workers die at once without a word, wherever they are, and new ones start. What they held is free when
        its leases expire."""
        for worker in list(self.workers):
            worker.kill()
            self._killed(worker.name)
        await asyncio.gather(*self._reviving)

    def crash_before(self, step: str) -> Any:
        """`async with`: the worker dies when this step is done, before its outcome is recorded."""
        return self._crashing(Crash("before", step=step))

    def crash_after(self, step: str) -> Any:
        """`async with`: the worker dies right after this step's outcome was recorded."""
        return self._crashing(Crash("after", step=step))

    @asynccontextmanager
    async def _crashing(self, crash: Crash) -> AsyncIterator[Crash]:
        self.crashes.planned.append(crash)
        try:
            yield crash
            if not crash.happened:
                await self.settle()
            if not crash.happened:
                raise Stuck(f"{crash} did not happen: nobody came there inside the block")
        finally:
            self.crashes.planned.remove(crash)

    def _killed(self, name: str) -> None:
        """A worker dies: another one like it starts."""
        worker = next((each for each in self.workers if each.name == name), None)
        if worker is None:
            return
        worker.kill()
        self.workers.remove(worker)
        self.engine.local.remove(worker)
        self._dead.append(worker)
        task = asyncio.get_running_loop().create_task(self._revive(worker))
        self._reviving.add(task)
        task.add_done_callback(self._reviving.discard)

    async def _revive(self, dead: LabWorker) -> None:
        await self.add_worker(*dead.definitions, **dead.how)

    # ---------------------------------------------------------------------------------------- the end

    async def check(self) -> None:
        """Have the doctor look at everything; it must find nothing."""
        await self.settle()
        report = await examine(self.engine.store)
        if not report.clean:
            raise AssertionError("the doctor found:\n" + "\n".join(map(str, report.violations)))

    def number(self, run: Run[Any]) -> int:
        """A run's id as the store has it."""
        return ids.run_int(run.id)
