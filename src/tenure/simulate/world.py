"""The world of one seed: the database, processes, workers, clients, people, faults and checks.

Laws:
1. The world is a function of its seed. Each purpose has its own random generator, so that a new draw changes as few
   others as possible.
2. There are three phases: a time with faults; a time without faults, in which everything must settle; and a time in
   which people answer everything, so that every run must end.
3. The first violation ends the world, because results after it prove nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import sys
import zlib
from collections.abc import Callable, Coroutine, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from typing import Any

import msgspec
import structlog

from tenure.clock import SECOND_US
from tenure.doctor.examination import run_inline
from tenure.errors import TenureError
from tenure.kernel.commands import Context, ExpireDeadLease
from tenure.kernel.governance_rows import GovernanceRow
from tenure.kernel.run_rows import OutboxRow
from tenure.simulate.actors import Finisher, SimulatedClients, SimulatedPeople
from tenure.simulate.checks import LATE_SECONDS_MAX, Checks
from tenure.simulate.external_service import ExternalService
from tenure.simulate.faults import CALM, Faults, draw_faults
from tenure.simulate.loop import Host, SimLoop, Stalled, Stopped, TooManyCallbacks
from tenure.simulate.network import Network, NoAnswer
from tenure.simulate.oracle import Oracle
from tenure.simulate.process import Agenda, MachineClock, Process
from tenure.simulate.store import WriteLog, new_database
from tenure.simulate.worker import SimulatedWorker
from tenure.simulate.workload import Workload
from tenure.store.port import Query, Transaction
from tenure.store.sqlite import SqliteStore
from tenure.store.workers import SessionLease

QUEUES = ("default", "slow")
PROOFS_EVERY = 10
"""One world in this many proves the deaths of its workers."""
SETTLE_SECONDS_MAX = 3 * 3600.0
"""Everything must settle within this time after the last fault."""
END_SECONDS_MAX = 60 * 86_400.0
HANDLES_MAX = 60_000
"""A world that runs more callbacks than this does not make progress."""


class SeedReport(msgspec.Struct):
    """The result of one seed."""

    seed: int
    violation: str | None
    digest: str
    commands: int
    commits: int
    seconds: float
    """Virtual seconds."""
    runs: int
    trace: list[str] = []


class World:
    def __init__(self, seed: int, *, trace: bool = False, faults: Faults | None = None) -> None:
        self.seed = seed
        self.loop = SimLoop(self.rng("loop"))  # type: ignore[abstract]  # sockets, signals and processes do not exist here
        self.loop.handles_max = HANDLES_MAX
        self.connection = new_database()
        self.violation: str | None = None
        self.commits = 0
        self.trace: list[str] = []
        self._tracing = trace
        self._digest = hashlib.sha256()
        self.faults = draw_faults(self.rng("faults")) if faults is None else faults
        self.chaos = True
        self.out_until = 0.0
        self._observer = SqliteStore(
            ":memory:", clock=MachineClock(self.loop), inline=True, connection=self.connection
        )
        run_inline(self._observer.open())
        self.network = Network(self, self.rng("network"))
        self.oracle = Oracle(self)
        self.checks = Checks(self)
        self.agenda = Agenda(self)
        self.workload = Workload(self)
        self.service = ExternalService(self)
        self.workers: dict[str, SimulatedWorker] = {}
        self._proofs = seed % PROOFS_EVERY == PROOFS_EVERY - 3
        self.dead_sessions: set[int] = set()
        """Sessions of workers that are proven dead."""
        self._outside = contextvars.copy_context()
        self._lives: dict[str, int] = {}
        self._clocks: dict[str, MachineClock] = {}
        self._serving: dict[str, Process] = {}
        self._picks = self.rng("picks")
        self._lanes = self.rng("lanes").choice((1, 1, 2))

    def rng(self, purpose: str) -> Random:
        """A random generator for one purpose."""
        return Random(f"{self.seed}/{purpose}")

    # ------------------------------------------------------------------------------------ the trace

    def note(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        line = f"{self.loop.time():13.6f} {who:<6} {what}"
        self._digest.update(line.encode())
        if self._tracing:
            self.trace.append(line)

    def violate(self, what: str) -> None:
        """Report a violation, and end the world if it is the first."""
        if self.violation is None:
            self.violation = f"at {self.loop.time():.3f} s: {what}"
            self.note("check", what)
            self.loop.stop()

    # --------------------------------------------------------------------------------- the database

    def inspect(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """Query the database without faults and without taking time."""
        found: list[Any] = run_inline(self._observer.read(name, *scalars, rows=rows))
        return found

    def pending_outbox(self) -> list[OutboxRow]:
        """The oldest outbox row, if there is one."""
        return self.inspect("outbox_pending", 1 << 62, 1)

    def has_work(self) -> bool:
        """Whether any step could be claimed."""
        return bool(self.inspect("claim_queues", "", "", 1, rows=[(queue,) for queue in QUEUES]))

    def now_us(self) -> int:
        """The store's time by a correct clock."""
        moment: int = self.inspect("now")[0].now_us
        return moment

    def on_commit(self, process: Process, seen: WriteLog) -> None:
        self.commits += 1
        self.checks.check_commit(process, seen)
        self.agenda.look()

    # -------------------------------------------------------------------------------- the processes

    def start(self, name: str) -> None:
        """Start a process, or start it again."""
        life = self._lives[name] = self._lives.get(name, 0) + 1
        if name not in self._clocks:
            self._clocks[name] = MachineClock(self.loop, self._lasting_skew(name))
        Process(self, name, life, self._clocks[name], self._lanes).start()

    def _lasting_skew(self, name: str) -> int:
        """The error of a machine's clock, in microseconds, that stays when the faults stop."""
        rng = self.rng(f"clock of {name}")
        if rng.random() >= self.faults.skewed:
            return 0
        seconds = _draw_skew(rng)
        self.note(name, f"its clock is {seconds:.3f} s off permanently")
        return int(seconds * SECOND_US)

    def serve(self, process: Process) -> None:
        """Let a process receive requests."""
        self._serving[process.name] = process
        self.note(process.name, "serving")

    def kill(self, process: Process) -> None:
        """Kill a process now, and start it again later."""
        process.alive = False
        self._serving.pop(process.name, None)
        self.later(10.0 * self._picks.random() ** 2, partial(self.start, process.name))

    def later(self, delay: float, callback: Callable[[], None]) -> None:
        """Call a function after a delay. It belongs to no host, so no death prevents it."""
        self.loop.call_later(delay, callback, context=self._outside)

    def slowest_us(self) -> int | None:
        """The earliest estimate of the store's time among the serving processes; None if no process serves."""
        known = [process.store.estimate_us() for process in self._serving.values()]
        return min((moment for moment in known if moment is not None), default=None)

    def any_process(self) -> Process | None:
        serving = list(self._serving.values())
        return self._picks.choice(serving) if serving else None

    def session_of(self, name: str, life: int) -> int | None:
        """The session of a worker's leases, in worlds that prove deaths."""
        return zlib.crc32(f"{name}/{life}".encode()) if self._proofs else None

    def prove_death(self, session: int) -> None:
        """Send the proof of a worker's death for each lease that it holds now: once soon, and once more later."""
        self.dead_sessions.add(session)
        leases: list[SessionLease] = self.inspect("leases_of_session", session, "")
        rng = self.rng(f"proof/{session}")
        for lease in leases:
            context = Context("system:process-watch", "system", f"process is gone: session {session}")
            proof = ExpireDeadLease(
                context=context, run_id=lease.run_id, idx=lease.idx, n=lease.n, session=session
            )
            for delay in (4.0 * rng.random(), 90.0 * rng.random()):
                self.later(delay, partial(self._spawn_proof, proof))

    def _spawn_proof(self, proof: ExpireDeadLease) -> None:
        self.spawn("proof", self._send_proof(proof))

    async def _send_proof(self, proof: ExpireDeadLease) -> None:
        with suppress(NoAnswer, TenureError):
            await self.network.call("send", proof)

    async def _kill_workers(self) -> None:
        """In worlds that prove deaths, workers die more often."""
        rng = self.rng("reaper")
        while True:
            await asyncio.sleep(40.0 * rng.random())
            if not self.chaos:
                return
            alive = [worker for _, worker in sorted(self.workers.items()) if worker.host.alive]
            if alive:
                rng.choice(alive).die()

    def notify_work(self) -> None:
        """Tell every process that there is work. A notification may get lost."""
        for process in list(self._serving.values()):
            if self._picks.random() >= self.faults.deaf:
                process.store.wake()

    # ----------------------------------------------------------------------------------- the faults

    async def _cause_faults(self) -> None:
        rng, faults = self.rng("weather"), self.faults
        second_policy = False
        while True:
            await asyncio.sleep(20.0 * rng.random())
            if not self.chaos:
                return
            third = 1 / 3  # of a minute
            if self.workload.acts and self.loop.time() > self.workload.seconds / 2 and not second_policy:
                second_policy = True
                await self._activate_policies(2)
            if rng.random() < faults.outage * third:
                self.out_until = self.loop.time() + 60.0 * rng.random() ** 2
                self.note("store", f"out until {self.out_until:.3f}")
            for name, process in list(self._serving.items()):
                if rng.random() < faults.stall * third:
                    process.paused_until = self.loop.time() + rng.choice((1.0, 10.0, 100.0)) * rng.random()
                    self.note(name, f"stands still until {process.paused_until:.3f}")
                if rng.random() < faults.unswept * third:
                    process.unswept_until = self.loop.time() + 120.0 * rng.random()
                    self.note(name, f"does not sweep until {process.unswept_until:.3f}")
                if rng.random() < faults.skew * third:
                    seconds = _draw_skew(rng)
                    process.clock.offset_us = int(seconds * SECOND_US)
                    self.note(name, f"its clock is {seconds:.3f} s off")

    def _stop_faults(self) -> None:
        self.chaos = False
        self.faults = CALM
        self.out_until = 0.0
        for clock in self._clocks.values():
            clock.offset_us = clock.lasting_us
        for process in self._serving.values():
            process.unswept_until = 0.0
            process.paused_until = 0.0
        self.note("world", "the faults stop")
        self.agenda.wake_all()

    # ------------------------------------------------------------------------------------ the phases

    async def _live(self) -> None:
        rng = self.rng("world")
        await self._observer.put_caps(self.workload.caps)
        if self.workload.acts:
            await self._activate_policies(1)
        for n in range(rng.choice((1, 2, 2, 3))):
            self.start(f"p{n + 1}")
        for n in range(rng.choice((1, 2, 3))):
            SimulatedWorker(self, f"w{n + 1}").start()
        clients, people = SimulatedClients(self), SimulatedPeople(self)
        self.spawn("client", clients.live())
        self.spawn("people", people.live())
        faults_task = self.loop.create_task(self._cause_faults())
        if self._proofs:
            self.spawn("reaper", self._kill_workers())
        await asyncio.sleep(self.workload.seconds)
        self._stop_faults()
        await faults_task
        await clients.done()
        await self._wait_until_none(self.checks.unsettled, SETTLE_SECONDS_MAX)
        self.spawn("finish", Finisher(self).live())
        await self._wait_until_none(self.checks.unfinished, END_SECONDS_MAX)
        self.checks.check_end()

    async def _activate_policies(self, version: int) -> None:
        """Activate a version of every tenant's policy."""

        def write() -> Transaction[None]:
            for tenant in self.workload.tenants:
                row = GovernanceRow(tenant, version, None, None, "{}", "{}", version, self.now_us())
                yield Query("save_governance", scalars=msgspec.structs.astuple(row))

        await self._observer.transact(write)

    async def _wait_until_none(self, problem: Callable[[], str | None], seconds_max: float) -> None:
        """Wait until `problem` returns None, and then examine everything. Taking longer than `seconds_max` is a violation."""
        begun = self.loop.time()
        pause = 1.0
        while (found := problem()) is not None:
            if self.loop.time() > begun + 2 * LATE_SECONDS_MAX:
                self.checks.check_nothing_late()
            if self.loop.time() > begun + seconds_max:
                self.violate(f"I55: after {seconds_max / 3600:.0f} hours without faults {found}")
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.3, seconds_max / 100, 3600.0)
        self.checks.check_everything()

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Start a task on a host of its own."""
        self.loop.create_task(work, context=Host(name).context())

    def run(self) -> SeedReport:
        """Run to the end, or to the first violation."""
        with _errors_reported(self.violate):
            try:
                self.loop.run_until_complete(self._live())
            except Stopped:
                pass
            except TooManyCallbacks:
                self.violate(f"I55: {HANDLES_MAX} callbacks have run, and the runs have not ended")
            except Stalled:
                self.violate("I55: nothing is scheduled any more, and the runs have not ended")
            finally:
                self.loop.close()
                self.connection.close()
        if self.violation is None and self.loop.broken:
            self.violation = self.loop.broken[0]
        return SeedReport(
            self.seed,
            self.violation,
            self._digest.hexdigest(),
            self.oracle.answers,
            self.commits,
            self.loop.time(),
            len(self.checks.run_ids),
            self.trace,
        )


def _draw_skew(rng: Random) -> float:
    """The error of a clock, in seconds."""
    return rng.choice((-600.0, -60.0, -2.0, 0.5, 5.0, 60.0, 600.0)) * rng.random()


@contextmanager
def _errors_reported(report: Callable[[str], None]) -> Iterator[None]:
    """Drop all log lines, and report each error among them."""

    def catch(_logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        if method in ("error", "exception", "critical"):
            details = ", ".join(f"{k}={v}" for k, v in event.items() if k not in ("event", "exc_info"))
            fault = event.get("exc_info")
            if fault is True:
                fault = sys.exc_info()[1]
            report(f"an error was logged: {event.get('event')} ({details}) {fault!r}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[catch], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
