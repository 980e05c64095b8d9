"""One seed's world: the database, the processes, everybody outside, the weather, and the checks.

Laws:
1. The world is a function of its seed. Chance is drawn from generators named after what uses them, so that
   a new use disturbs as few others as possible.
2. First chaos; then the faults stop, and everything must settle; then people answer, and everything must end.
3. The first violation ends the world: what comes after it proves nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import zlib
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import msgspec

from tenure.clock import SECOND_US
from tenure.errors import TenureError
from tenure.kernel.commands import Context, ExpireDeadLease
from tenure.kernel.governance_rows import GovernanceRow
from tenure.kernel.run_rows import OutboxRow
from tenure.simulate import faults as weather
from tenure.simulate.actors import Finisher, SimulatedClients, SimulatedPeople
from tenure.simulate.checks import LATE_SECONDS_MAX, Checks
from tenure.simulate.database import new_database, run_sync
from tenure.simulate.external_service import ExternalService
from tenure.simulate.log_capture import LogCapture
from tenure.simulate.loop import Host, SimLoop, Stalled, Stopped, TooManyCallbacks
from tenure.simulate.network import Network, NoAnswer
from tenure.simulate.oracle import Oracle
from tenure.simulate.process import Agenda, MachineClock, Process
from tenure.simulate.store import WriteLog
from tenure.simulate.worker import SimulatedWorker
from tenure.simulate.workload import Workload
from tenure.store.port import Query, Transaction
from tenure.store.sqlite import SqliteStore
from tenure.store.workers import SessionLease

QUEUES = ("default", "slow")
PROOFS_EVERY = 10
"""In one world of so many, deaths of workers are proven."""
SETTLE_SECONDS_MAX = 3 * 3600.0
"""How long after the last fault everything must have settled."""
END_SECONDS_MAX = 60 * 86_400.0
HANDLES_MAX = 60_000
"""A world that does more than this is going round in circles."""


class SeedReport(msgspec.Struct):
    """What one seed came to."""

    seed: int
    violation: str | None
    digest: str
    commands: int
    commits: int
    seconds: float
    """Virtual ones."""
    runs: int
    trace: list[str] = []


class World:
    """See the laws above."""

    def __init__(self, seed: int, *, trace: bool = False, faults: weather.Faults | None = None) -> None:
        self.seed = seed
        self.loop = SimLoop(self.rng("loop"))  # type: ignore[abstract]  # sockets, signals and processes do not exist here
        self.loop.handles_max = HANDLES_MAX
        self.connection = new_database()
        self.violation: str | None = None
        self.commits = 0
        self.trace: list[str] = []
        self._tracing = trace
        self._digest = hashlib.sha256()
        self.faults = weather.draw(self.rng("faults")) if faults is None else faults
        self.chaos = True
        self.out_until = 0.0
        self._eye = SqliteStore(
            ":memory:", clock=MachineClock(self.loop), inline=True, connection=self.connection
        )
        run_sync(self._eye.open())
        self.network = Network(self, self.rng("network"))
        self.oracle = Oracle(self)
        self.checks = Checks(self)
        self.agenda = Agenda(self)
        self.workload = Workload(self)
        self.service = ExternalService(self)
        self.workers: dict[str, SimulatedWorker] = {}
        self._proofs = seed % PROOFS_EVERY == PROOFS_EVERY - 3
        self.dead_sessions: set[int] = set()
        """Sessions of workers that have died, in worlds where that is proven."""
        self._outside = contextvars.copy_context()
        self._lives: dict[str, int] = {}
        self._clocks: dict[str, MachineClock] = {}
        self._serving: dict[str, Process] = {}
        self._picks = self.rng("picks")
        self._lanes = self.rng("lanes").choice((1, 1, 2))

    def rng(self, purpose: str) -> Random:
        """A generator of its own for each purpose."""
        return Random(f"{self.seed}/{purpose}")

    # ------------------------------------------------------------------------------------ the trace

    def note(self, who: str, what: str) -> None:
        """Write a line of the trace."""
        line = f"{self.loop.time():13.6f} {who:<6} {what}"
        self._digest.update(line.encode())
        if self._tracing:
            self.trace.append(line)

    def violate(self, what: str) -> None:
        """Something that must hold does not."""
        if self.violation is None:
            self.violation = f"at {self.loop.time():.3f} s: {what}"
            self.note("check", what)
            self.loop.stop()

    # --------------------------------------------------------------------------------- the database

    def inspect(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """Ask the database, outside of all faults and of time."""
        found: list[Any] = run_sync(self._eye.read(name, *scalars, rows=rows))
        return found

    def owed(self, limit: int) -> list[OutboxRow]:
        """Outbox rows, oldest first."""
        return self.inspect("outbox_pending", 1 << 62, limit)

    def has_work(self) -> bool:
        """Whether any step could be claimed."""
        return bool(self.inspect("claim_queues", "", "", 1, rows=[(queue,) for queue in QUEUES]))

    def now_us(self) -> int:
        """The store's time, as a right clock has it."""
        moment: int = self.inspect("now")[0].now_us
        return moment

    def committed(self, process: Process, seen: WriteLog) -> None:
        """A transaction has been committed."""
        self.commits += 1
        self.checks.after(process, seen)
        self.agenda.look()

    # -------------------------------------------------------------------------------- the processes

    def start(self, name: str) -> None:
        """Start a process, or its next life."""
        life = self._lives[name] = self._lives.get(name, 0) + 1
        clock = self._clocks.get(name)
        if clock is None:
            clock = self._clocks[name] = MachineClock(self.loop, self._lasting_skew(name))
        Process(self, name, life, clock, self._lanes).start()

    def _lasting_skew(self, name: str) -> int:
        """Microseconds that a machine's clock is wrong by for good."""
        rng = self.rng(f"clock of {name}")
        if rng.random() >= self.faults.skewed:
            return 0
        seconds = rng.choice((-600.0, -60.0, -2.0, 0.5, 5.0, 60.0, 600.0)) * rng.random()
        self.note(name, f"its clock is {seconds:.3f} s off for good")
        return int(seconds * SECOND_US)

    def serving(self, process: Process) -> None:
        """A process takes requests from now on."""
        self._serving[process.name] = process
        self.note(process.name, "serving")

    def kill(self, process: Process) -> None:
        """The process dies here and now, and is started again after a while."""
        process.alive = False
        self._serving.pop(process.name, None)
        delay = 10.0 * self._picks.random() ** 2
        self.later(delay, partial(self.start, process.name))

    def later(self, delay: float, deed: Callable[[], None]) -> None:
        """Do something after a while, whoever is dead by then."""
        self.loop.call_later(delay, deed, context=self._outside)

    def slowest_us(self) -> int | None:
        """The store's time as the process has it that believes it to be earliest; None where no process serves."""
        known = [process.store.estimate_us() for process in self._serving.values()]
        return min((moment for moment in known if moment is not None), default=None)

    def any_process(self) -> Process | None:
        """One that can be reached, or one that just might."""
        serving = list(self._serving.values())
        return self._picks.choice(serving) if serving else None

    def session_of(self, name: str, life: int) -> int | None:
        """What the leases of a worker's life are known by, in worlds where deaths are proven."""
        if not self._proofs:
            return None
        return zlib.crc32(f"{name}/{life}".encode())

    def proven_dead(self, session: int) -> None:
        """A worker has died for certain: its leases are told of as they are now, soon and once more later."""
        self.dead_sessions.add(session)
        leases: list[SessionLease] = self.inspect("leases_of_session", session, "")
        rng = self.rng(f"proof/{session}")
        for lease in leases:
            context = Context("system:process-watch", "system", f"process is gone: session {session}")
            told = ExpireDeadLease(
                context=context, run_id=lease.run_id, idx=lease.idx, n=lease.n, session=session
            )
            for delay in (4.0 * rng.random(), 90.0 * rng.random()):
                self.later(delay, partial(self._tell_of_death, told))

    async def _reap(self) -> None:
        """In worlds where deaths are proven, workers die more often."""
        rng = self.rng("reaper")
        while True:
            await asyncio.sleep(40.0 * rng.random())
            if not self.chaos:
                return
            alive = [worker for _, worker in sorted(self.workers.items()) if worker.host.alive]
            if alive:
                rng.choice(alive).die()

    def _tell_of_death(self, told: ExpireDeadLease) -> None:
        self.spawn("proof", self._told_of_death(told))

    async def _told_of_death(self, told: ExpireDeadLease) -> None:
        with suppress(NoAnswer, TenureError):
            await self.network.call("send", told)

    def ring(self) -> None:
        """Work became ready somewhere: tell the others, who may not hear it."""
        for process in list(self._serving.values()):
            if self._picks.random() >= self.faults.deaf:
                process.store.wake()

    # ---------------------------------------------------------------------------------- the weather

    async def _weather(self) -> None:
        rng, faults = self.rng("weather"), self.faults
        governed_anew = False
        while True:
            await asyncio.sleep(20.0 * rng.random())
            if not self.chaos:
                return
            third = 1 / 3  # of a minute
            if self.workload.acts and self.loop.time() > self.workload.seconds / 2 and not governed_anew:
                governed_anew = True
                await self._govern(2)
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
                    seconds = rng.choice((-600.0, -60.0, -2.0, 0.5, 5.0, 60.0, 600.0)) * rng.random()
                    process.clock.offset_us = int(seconds * SECOND_US)
                    self.note(name, f"its clock is {seconds:.3f} s off")

    def _clear_up(self) -> None:
        """The faults stop."""
        self.chaos = False
        self.faults = weather.CALM
        self.out_until = 0.0
        for clock in self._clocks.values():
            clock.offset_us = clock.lasting_us
        for process in self._serving.values():
            process.unswept_until = 0.0
            process.paused_until = 0.0
        self.note("world", "the faults stop")
        self.agenda.wake_everybody()

    # -------------------------------------------------------------------------------------- its life

    async def _live(self) -> None:
        rng = self.rng("world")
        await self._eye.put_caps(self.workload.caps)
        if self.workload.acts:
            await self._govern(1)
        for n in range(rng.choice((1, 2, 2, 3))):
            self.start(f"p{n + 1}")
        for n in range(rng.choice((1, 2, 3))):
            SimulatedWorker(self, f"w{n + 1}").start()
        clients, people = SimulatedClients(self), SimulatedPeople(self)
        self.spawn("client", clients.live())
        self.spawn("people", people.live())
        weather_task = self.loop.create_task(self._weather())
        if self._proofs:
            self.spawn("reaper", self._reap())
        await asyncio.sleep(self.workload.seconds)
        self._clear_up()
        await weather_task
        await clients.done()
        await self._until(self.checks.unsettled, SETTLE_SECONDS_MAX, settled=True)
        finisher = Finisher(self)
        self.spawn("finish", finisher.live())
        await self._until(self.checks.unfinished, END_SECONDS_MAX, settled=True)
        self.checks.at_the_end()

    async def _govern(self, version: int) -> None:
        """Activate a version of every tenant's policy."""

        def write() -> Transaction[None]:
            for tenant in self.workload.tenants:
                row = GovernanceRow(tenant, version, None, None, "{}", "{}", version, self.now_us())
                yield Query("save_governance", scalars=msgspec.structs.astuple(row))

        await self._eye.transact(write)

    async def _until(self, problem: Any, seconds_max: float, *, settled: bool) -> None:
        """Wait until nothing is left to be done, or too long; then the whole doctor's report."""
        begun = self.loop.time()
        deadline = begun + seconds_max
        pause = 1.0
        while (found := problem()) is not None:
            if self.loop.time() > begun + 2 * LATE_SECONDS_MAX:
                self.checks.check_nothing_late()
            if self.loop.time() > deadline:
                self.violate(f"I55: after {seconds_max / 3600:.0f} hours without faults {found}")
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.3, seconds_max / 100, 3600.0)
        self.checks.everything(settled=settled)

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Let somebody outside do something, on a host of their own."""
        self.loop.create_task(work, context=Host(name).context())

    def run(self) -> SeedReport:
        """Live from the beginning to the end, or to the first violation."""
        with LogCapture(self.violate):
            try:
                self.loop.run_until_complete(self._live())
            except Stopped:
                pass
            except TooManyCallbacks:
                self.violate("I55: the world goes round in circles")
            except Stalled:
                self.violate("I55: nothing will ever happen again, and not everything is done")
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
