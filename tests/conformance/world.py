"""`World`: a real store, one or more orchestrators on it, and a clock that only the test moves.

    async with World(place) as w:
        run = await w.create(profile="delta-ci", plan=["build", "test"])
        lease = await w.claim("bob")
        await w.at("10:01:01").sweep()
        async with w.refuses("LEASE_STALE"):
            await w.complete(lease)

Laws:
1. A world begins at 10:00:00 on 5 January 2026. `at` and `later` move the clock of every store. Otherwise it stands still,
   however slow the machine is.
2. Sweeps happen and time passes only if the test says so.
3. Messages of a lease are numbered automatically, unless the test passes `seq`.
4. At the end of a successful test, the doctor examines the whole database and must find nothing.
5. `refuses` compares every row of every run before and after: a refusal must change nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import pytest

from tenure.clock import us
from tenure.doctor import RunDump
from tenure.doctor.examination import examine_database, load_run_dump
from tenure.errors import TenureError
from tenure.ids import RunIds
from tenure.kernel import commands as c
from tenure.kernel import reruns
from tenure.kernel.decide.creation import CreatedRun
from tenure.kernel.history import decode_body
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.kernel.run_rows import (
    PLAN_IDX,
    ApprovalRow,
    AttemptRow,
    Cap,
    EventRow,
    RunRow,
    RunSpecRow,
    StepRow,
    WaitRow,
)
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.sweeper import Sweeper
from tenure.store.port import Store
from tenure.store.postgres import PostgresStore
from tenure.store.postgres.connection import PostgresConnection
from tenure.store.postgres.statements import NOW
from tenure.store.sqlite import SqliteStore
from tenure.store.sqlite.file_clock import FileClock

BEGIN = datetime(2026, 1, 5, 10, 0, 0, tzinfo=UTC)
BEGIN_US = us(BEGIN.timestamp())
SWEEPS_MAX = 50

Plan = Sequence["str | c.StepSpec"]


class Place(NamedTuple):
    """An empty database."""

    kind: Literal["sqlite", "postgres"]
    address: str

    def store(self) -> SqliteStore | PostgresStore:
        """A store on this database, not yet open."""
        return SqliteStore(self.address) if self.kind == "sqlite" else PostgresStore(self.address)


class Dice:
    """A random generator without randomness: it returns `number`, and counts its salts."""

    def __init__(self) -> None:
        self.number = 0.0
        self._salts = 0

    def random(self) -> float:
        return self.number

    def salt(self) -> bytes:
        self._salts += 1
        return self._salts.to_bytes(16, "big")


PLANNER = c.build_plan_step("planner", queue="planners", retries=1)
"""The plan of a run that is planned later."""


def plan_of(plan: Plan) -> tuple[c.StepSpec, ...]:
    """Steps as commands expect them: a bare name is a step of work."""
    return tuple(c.StepSpec(name=step) if isinstance(step, str) else step for step in plan)


def step(name: str, *needs: str, **how: Any) -> c.StepSpec:
    """A step of work with exactly these needs."""
    return c.StepSpec(name=name, needs=needs, **how)


def gate(name: str = "gate", **spec: Any) -> c.StepSpec:
    """An approval gate after the previous step."""
    return c.StepSpec(name=name, kind="approval", approval=c.ApprovalSpec(**spec))


def pause(name: str = "pause", event: str = "", **spec: Any) -> c.StepSpec:
    """A declared wait for an event, or only for time."""
    return c.StepSpec(name=name, kind="wait", wait=c.WaitSpec(event=event, **spec))


class WorldClock:
    """A clock that only tests move. Every reading is a microsecond later than the last one, so that timestamps are ordered."""

    def __init__(self) -> None:
        self._now = BEGIN_US
        self._passed = 0

    def set(self, moment: int) -> None:
        """Move forward to a time; a time in the past is ignored."""
        self.move(max(0, moment - self._now))

    def move(self, by: int) -> None:
        """Let time pass. A negative value sets back the wall clock, but not the monotonic clock."""
        self._now += by
        self._passed += max(0, by)

    def now_us(self) -> int:
        self.move(1)
        return self._now

    def monotonic_us(self) -> int:
        self.move(1)
        return self._passed

    def control(self, store: Any) -> None:
        """Make a store use this clock."""
        store = getattr(store, "_inner", store)
        if isinstance(store, SqliteStore):
            store._clock, store._file_time = self, FileClock(self)
        else:
            store.__class__ = type("Controlled", (_ControlledStore, type(store)), {"world_clock": self})
            for link in store._readers:
                link.__class__ = _ControlledConnection


class _ControlledConnection(PostgresConnection):
    """A connection that uses the store's clock shift as the current time."""

    async def statement(self, text: str) -> Any:
        return await super().statement(text.replace(NOW, "$1::bigint"))


class _ControlledStore(PostgresStore):
    """A PostgreSQL store on the clock of a world."""

    world_clock: WorldClock
    _set_us = 0

    @property
    def _shift_us(self) -> int:
        return self.world_clock.now_us() + self._set_us

    @_shift_us.setter
    def _shift_us(self, by: int) -> None:
        self._set_us = by

    def estimate_us(self) -> int | None:
        return None if super().estimate_us() is None else self._shift_us

    def _lane(self, number: int) -> PostgresConnection:
        link = super()._lane(number)
        link.__class__ = _ControlledConnection
        return link


class World:
    """See the laws above."""

    def __init__(
        self,
        place: Place,
        *,
        orchestrators: int = 1,
        stores: Sequence[Store] = (),
        caps: Sequence[Cap] = (),
        examined: bool = True,
        **how: Any,
    ) -> None:
        self.place = place
        self.dice = Dice()
        self.clock = WorldClock()
        self.stores: list[Any] = list(stores) or [place.store() for _ in range(orchestrators)]
        self.number = 0
        self._caps = list(caps)
        self._examined = examined
        self._how = {"chance": self.dice, **how}
        self._seqs: dict[tuple[int, int, int], int] = {}
        self._causes = [0]
        self._opened = 0
        self.orchestrators: list[Orchestrator] = []

    async def __aenter__(self) -> World:
        await self.place.store().migrate()
        await self._open()
        return self

    async def _open(self) -> None:
        for store in self.stores:
            self.clock.control(store)
            await store.open()
            self._opened += 1
            ids = RunIds(seed=self._opened)
            self.orchestrators.append(Orchestrator(store, ids=ids, clock=self.clock, **self._how))
        if self._caps:
            await self.stores[0].put_caps(self._caps)
        for orchestrator in self.orchestrators:
            await orchestrator.start()

    async def crash(self) -> World:
        """Kill and restart every process, so that only the database is left."""
        for orchestrator in self.orchestrators:
            tasks = {*orchestrator._tasks, *(lane.task for lane in orchestrator._lanes if lane.task)}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for store in self.stores:
            await store.close()
        self.stores[:] = [self.place.store() for _ in self.stores]
        self.orchestrators.clear()
        await self._open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        for orchestrator in self.orchestrators:
            await orchestrator.stop()
        try:
            if kind is None and self._examined:
                await self.examine()
        finally:
            for store in self.stores:
                await store.close()

    def through(self, number: int) -> World:
        """The same world, with commands sent to another of its orchestrators."""
        other = copy.copy(self)
        other.number = number
        return other

    @property
    def orchestrator(self) -> Orchestrator:
        """The orchestrator that receives commands."""
        return self.orchestrators[self.number]

    @property
    def store(self) -> Any:
        return self.stores[self.number]

    # ------------------------------------------------------------------------------------------- time

    def at(self, moment: str) -> World:
        """Move to a time of the day ("10:00:31")."""
        day = datetime.strptime(f"{BEGIN:%Y-%m-%d} {moment}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        target = us(day.timestamp())
        assert target > self.now - us(5), "a test cannot go back in time"
        self.clock.set(target)
        return self

    def later(self, seconds: float) -> World:
        """Let time pass."""
        self.clock.move(us(seconds))
        return self

    @property
    def now(self) -> int:
        """The current time in microseconds."""
        return self.clock.now_us()

    async def sweep(self) -> World:
        """Handle all due timers, including those that become due by it."""
        sweeper = Sweeper(self.orchestrator)
        for _ in range(SWEEPS_MAX):
            found = await sweeper.sweep()
            await self.settle()
            if not found:
                return self
        raise AssertionError("the sweep does not end")

    async def settle(self) -> World:
        """Wait until deliveries to other runs are done."""
        while tasks := [task for o in self.orchestrators for task in o._tasks]:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)
        return self

    # -------------------------------------------------------------------------------------- commands

    async def do(self, command: c.Command) -> Any:
        """Send any command; its answer."""
        return await self.orchestrator.send(command)

    def context(self, who: str, initiator: c.Initiator = "user") -> c.Context:
        """A context with an actor and a unique cause."""
        self._causes[0] += 1
        return c.Context(who, initiator, f"cause-{self._causes[0]}")

    def request(
        self, *, plan: Plan | None = (c.BODY_STEP,), by: str = "u_alice", **fields: Any
    ) -> c.CreateRun:
        """A CreateRun. Without a plan it has a plan step."""
        fields.setdefault("tenant", "acme")
        fields.setdefault("workflow", "flow")
        fields.setdefault("run_id", self.orchestrator.new_id("default"))
        fields.setdefault("context", self.context(by))
        return c.CreateRun(plan=(PLANNER,) if plan is None else plan_of(plan), **fields)

    async def created(self, **request: Any) -> CreatedRun:
        """Create a run; the whole answer."""
        return await self.orchestrator.create(self.request(**request))

    async def create(self, **request: Any) -> int:
        """Create a run; its id."""
        return (await self.created(**request)).run_id

    async def begin(self, worker: str = "bob", **request: Any) -> Lease:
        """Create a run whose first step is leased to a worker of this process in the same commit."""
        lease = (await self.created(eager=c.Claimant(worker), **request)).lease
        assert lease is not None, "the first step was not leased"
        return lease

    async def claims(self, worker: str = "bob", limit: int = 1, **how: Any) -> list[Lease]:
        """Claim up to a number of steps."""
        return await self.orchestrator.claim(worker, limit=limit, **how)

    async def claim(self, worker: str = "bob", **how: Any) -> Lease:
        """Claim one step, which must exist."""
        leases = await self.claims(worker, **how)
        assert leases, f"there is nothing to claim for {worker}"
        return leases[0]

    async def say(
        self, type_: type[c.LeaseCommand], lease: Lease, *, seq: int | None = None, **fields: Any
    ) -> Any:
        """Send a message of a lease's holder; see law 3."""
        key = (lease.run_id, lease.idx, lease.n)
        if seq is None:
            seq = self._seqs.get(key, 0) + 1
        self._seqs[key] = max(seq, self._seqs.get(key, 0))
        command = type_(
            run_id=lease.run_id,
            idx=lease.idx,
            n=lease.n,
            seq=seq,
            context=c.Context("w_runner", "system", f"{lease.idx}/{lease.n}/{seq}"),
            **fields,
        )
        if isinstance(command, c.Heartbeat):
            return await self.orchestrator.heartbeat(command)
        return await self.orchestrator.send(command)

    async def ack(self, lease: Lease, **how: Any) -> LeaseReply:
        """Acknowledge the lease."""
        return await self.say(c.AckLease, lease, **how)  # type: ignore[no-any-return]  # messages are answered with a Reply

    async def beat(self, lease: Lease, progress: str = "", **how: Any) -> LeaseReply:
        return await self.say(c.Heartbeat, lease, progress=progress, **how)  # type: ignore[no-any-return]  # likewise

    async def upload(self, lease: Lease, **how: Any) -> LeaseReply:
        """Report that the work is done and its artifacts are being uploaded."""
        return await self.say(c.BeginUpload, lease, **how)  # type: ignore[no-any-return]  # likewise

    async def checkpoint(self, lease: Lease, name: str, **how: Any) -> LeaseReply:
        return await self.say(c.RecordCheckpoint, lease, name=name, **how)  # type: ignore[no-any-return]  # likewise

    async def complete(self, lease: Lease, output: bytes | None = None, **how: Any) -> LeaseReply:
        return await self.say(c.Complete, lease, output=output, **how)  # type: ignore[no-any-return]  # likewise

    async def fail(self, lease: Lease, code: str = "STEP_FAILED", **how: Any) -> LeaseReply:
        return await self.say(c.Fail, lease, code=code, **how)  # type: ignore[no-any-return]  # likewise

    async def release(self, lease: Lease, **how: Any) -> LeaseReply:
        """Give the step back without working on it."""
        return await self.say(c.Release, lease, **how)  # type: ignore[no-any-return]  # likewise

    async def park(self, lease: Lease, why: str, **how: Any) -> LeaseReply:
        """Give the step back because the code does not match."""
        return await self.say(c.Park, lease, why=why, **how)  # type: ignore[no-any-return]  # likewise

    async def cancel_ack(self, lease: Lease, **how: Any) -> LeaseReply:
        """Acknowledge a cancel."""
        return await self.say(c.AckCancel, lease, **how)  # type: ignore[no-any-return]  # likewise

    async def wait(self, lease: Lease, label: str, **what: Any) -> LeaseReply:
        """Open a wait: `approval=`, `event=`, `until=` or `child=`."""
        return await self.say(c.OpenWait, lease, label=label, **what)  # type: ignore[no-any-return]  # likewise

    async def suspend(self, lease: Lease, *waits: int, **how: Any) -> LeaseReply:
        """Release the lease until one of these waits settles."""
        return await self.say(c.Suspend, lease, waits=waits, **how)  # type: ignore[no-any-return]  # likewise

    async def work_off(self, run: int, worker: str = "bob") -> World:
        """Claim and complete all ready steps, which must belong to this run."""
        while leases := await self.claims(worker):
            assert leases[0].run_id == run
            await self.complete(leases[0], b"done")
        return self

    async def plan_ready(self, run: int, *plan: str | c.StepSpec) -> Any:
        """Lease the plan step and complete it with a plan."""
        return await self.complete(await self.lease_planner(run), plan=plan_of(plan))

    async def plan_failed(self, run: int, code: str = "PLAN_FAILED", message: bytes = b"") -> Any:
        """Likewise, but let it fail for good."""
        return await self.fail(await self.lease_planner(run), code, message=message, retryable=False)

    async def lease_planner(self, run: int) -> Lease:
        """Lease the plan step of this run."""
        context = self.context("planner", "system")
        command = c.ClaimStep(run_id=run, idx=PLAN_IDX, by=c.Claimant("planner"), context=context)
        lease: Lease = await self.do(command)
        return lease

    async def add(self, run: int, *plan: str | c.StepSpec) -> Any:
        """Add steps to the plan."""
        return await self.do(c.AddSteps(run_id=run, plan=plan_of(plan), context=self.context("u_alice")))

    async def approve(self, run: int, no: int | None = None, by: str = "u_bob", **how: Any) -> Any:
        """Approve the only open approval, or the one that `no` names."""
        return await self._decide(run, no, by, approve=True, **how)

    async def reject(self, run: int, no: int | None = None, by: str = "u_bob", **how: Any) -> Any:
        """Reject the only open approval, or the one that `no` names."""
        return await self._decide(run, no, by, approve=False, **how)

    async def _decide(self, run: int, no: int | None, by: str, **how: Any) -> Any:
        if no is None:
            (no,) = [row.no for row in await self.approvals(run) if row.status == "requested"]
        context = self.context(by, "approval")
        return await self.do(c.DecideApproval(run_id=run, no=no, approver=by, context=context, **how))

    async def revise(self, run: int, no: int, digest: str, **how: Any) -> Any:
        """Change the digest of an open approval."""
        context = self.context("u_alice")
        return await self.do(c.ReviseApproval(run_id=run, no=no, digest=digest, context=context, **how))

    async def deliver(self, run: int, name: str, event_id: str = "e-1", **how: Any) -> Any:
        """Deliver an event to the run."""
        context = self.context("webhook", "webhook")
        return await self.do(c.DeliverEvent(run_id=run, name=name, event_id=event_id, context=context, **how))

    async def cancel(self, run: int, **how: Any) -> Any:
        return await self.do(c.RequestCancel(run_id=run, context=self.context("u_alice"), **how))

    async def cancel_step(self, run: int, name: str) -> Any:
        return await self.do(c.CancelStep(run_id=run, name=name, context=self.context("u_alice")))

    async def revoke(self, lease: Lease) -> Any:
        context = self.context("u_operator")
        return await self.do(c.RevokeLease(run_id=lease.run_id, idx=lease.idx, n=lease.n, context=context))

    async def tell(self, command: type[c.RunCommand], run: int, who: str = "u_operator", **how: Any) -> Any:
        """Send any other command to a run."""
        return await self.do(command(run_id=run, context=self.context(who), **how))

    async def report(self, run: int) -> Any:
        """Mark the run as reported, as the status reporter does."""
        context = self.context("system:reporter", "system")
        return await self.do(c.MarkReported(run_id=run, context=context))

    async def finished(self, run: int) -> reruns.FinishedRun:
        """The rows that resume and rerun use."""
        rows = await self.bundle(run)
        assert rows.spec is not None
        return reruns.FinishedRun(rows.run, rows.spec, rows.steps, rows.checkpoints, rows.payloads)

    async def rerun(self, run: int) -> int:
        """Rerun a run; the new run's id."""
        old = await self.finished(run)
        request = reruns.build_rerun(old, old, self.orchestrator.new_id("default"), self.context("u_alice"))
        return (await self.orchestrator.create(request)).run_id

    async def resume(self, run: int, **settled: Any) -> int:
        """Resume a run; the new run's id."""
        old = await self.finished(run)
        request = reruns.build_resumed_run(
            old, self.orchestrator.new_id("default"), self.context("u_alice"), **settled
        )
        return (await self.orchestrator.create(request)).run_id

    # ------------------------------------------------------------------------------------- questions

    async def read(self, name: str, *scalars: Any) -> list[Any]:
        """A named query."""
        rows: list[Any] = await self.store.read(name, *scalars)
        return rows

    async def run(self, run: int) -> RunRow:
        (row,) = await self.read("get_run", run)
        assert isinstance(row, RunRow)
        return row

    async def spec(self, run: int) -> RunSpecRow:
        (row,) = await self.read("get_spec", run)
        assert isinstance(row, RunSpecRow)
        return row

    async def status(self, run: int) -> str:
        return (await self.run(run)).status

    async def steps(self, run: int) -> list[StepRow]:
        """The steps of the run without its plan step."""
        return [row for row in await self.read("steps_of", run) if row.kind != "plan"]

    async def states(self, run: int) -> dict[str, str]:
        """The state of each step, by name."""
        return {row.name: row.state for row in await self.steps(run)}

    async def step(self, run: int, name: str = "main") -> StepRow:
        return next(row for row in await self.steps(run) if row.name == name)

    async def attempts(self, run: int, name: str | None = None) -> list[AttemptRow]:
        """The attempts of a run, or of one of its steps."""
        rows: list[AttemptRow] = await self.read("attempts_of", run)
        if name is None:
            return rows
        idx = (await self.step(run, name)).idx
        return [row for row in rows if row.idx == idx]

    async def waits(self, run: int) -> list[WaitRow]:
        """All waits of the run, open or not."""
        return await self.read("waits_of", run)

    async def approvals(self, run: int) -> list[ApprovalRow]:
        return await self.read("approvals_of", run)

    async def events(self, run: int) -> list[EventRow]:
        return await self.read("events_of", run)

    async def kinds(self, run: int) -> list[str]:
        return [event.kind for event in await self.events(run)]

    async def noted(self, run: int, kind: str) -> dict[str, Any]:
        """The context of the run's last event of this kind."""
        event = [event for event in await self.events(run) if event.kind == kind][-1]
        context: dict[str, Any] = decode_body(event).get("context", {})
        return context

    async def body(self, run: int, ref: int | None) -> bytes | None:
        """The payload of a reference."""
        if ref is None:
            return None
        (payload,) = await self.read("payload", run, ref)
        found: bytes = payload.body
        return found

    async def run_ids(self) -> list[int]:
        """The ids of all runs."""
        ids: list[int] = []
        while rows := await self.read("run_ids_after", ids[-1] if ids else 0, 1000):
            ids += [row.run_id for row in rows]
        return ids

    async def bundle(self, run: int) -> RunDump:
        """Every row of one run."""
        found = await load_run_dump(self.store, run)
        assert found is not None, f"there is no run {run}"
        return found

    # ------------------------------------------------------------------------------- checks

    @contextlib.asynccontextmanager
    async def refuses(self, code: str) -> AsyncIterator[pytest.ExceptionInfo[TenureError]]:
        """Expect that the block is refused with this code and changes no row of any run."""
        before = [await self.bundle(run) for run in await self.run_ids()]
        with pytest.raises(TenureError) as refusal:
            yield refusal
        assert refusal.value.code == code, f"refused with {refusal.value}, not {code}"
        assert [await self.bundle(run) for run in await self.run_ids()] == before, (
            "a refusal changed something"
        )

    async def examine(self) -> None:
        """Run the doctor, which must find nothing."""
        report = await examine_database(self.store)
        assert report.clean, "the doctor found:\n" + "\n".join(map(str, report.violations))
