"""A simulated process: an orchestrator with its own cache, chance, clock and sweeper, on the shared database."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.chance import SeededChance
from tenure.clock import SECOND_US
from tenure.errors import TenureError
from tenure.ids import RunIds
from tenure.kernel.commands import Resolution
from tenure.kernel.run_rows import PayloadRow, StepRow
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.sweeper import OUTBOX_GRACE_SECONDS, Sweeper
from tenure.reads.reuse import read_terms, reuse_key
from tenure.simulate.loop import Host, SimLoop
from tenure.simulate.store import FaultyStore, wake_all
from tenure.store.port import AmbiguousCommit, Store, WriteConflict
from tenure.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from tenure.simulate.world import World

EPOCH_US = 1_767_225_600 * SECOND_US
SWEEP_SECONDS = 1.0
SWEEP_IDLE_SECONDS_MAX = 30.0


class MachineClock:
    """A host's clock: the virtual time plus an error.

    `offset_us` is the error now; `lasting_us` is the error that stays when the faults stop."""

    def __init__(self, loop: SimLoop, lasting_us: int = 0) -> None:
        self._loop = loop
        self.lasting_us = lasting_us
        self.offset_us = lasting_us

    def now_us(self) -> int:
        return EPOCH_US + int(self._loop.time() * SECOND_US) + self.offset_us

    def monotonic_us(self) -> int:
        return int(self._loop.time() * SECOND_US)


class SimulatedClaim(msgspec.Struct, frozen=True):
    """A worker's request for leases."""

    worker: str
    limit: int
    ack: bool
    wait_seconds: float
    queues: tuple[str, ...] = ("default",)
    session: int | None = None


class PlainResolver:
    """Resolves the inputs of steps without expressions: the text of a template decides the result.

    A step with the template `false` never begins (I61); one with `each` gets a new input for each try. It reads from the store as the
    real resolver does, so that the same races can occur."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def resolve(self, run_id: int, wanted: Sequence[tuple[int, int]]) -> tuple[Resolution, ...]:
        try:
            rows: list[StepRow] = await self._store.read(
                "load_steps", rows=[(run_id, idx) for idx, _ in wanted]
            )
            steps = {step.idx: step for step in rows}
            refs = [(run_id, step.template_ref) for step in rows if step.template_ref is not None]
            found: list[PayloadRow] = await self._store.read("load_payloads", rows=refs) if refs else []
        except (WriteConflict, AmbiguousCommit) as fault:
            raise TenureError("STORE_UNAVAILABLE", repr(fault)) from fault
        bodies = {payload.ref: payload.body for payload in found}
        made = []
        for idx, n in wanted:
            if idx in steps:
                template = steps[idx].template_ref
                one = Resolution(idx=idx, n=n)
                if template is not None:
                    one = _resolution(idx, n, bodies.get(template, b"fails"))
                made.append(await self._with_result(steps[idx], one))
        return tuple(made)

    async def _with_result(self, step: StepRow, made: Resolution) -> Resolution:
        """The resolution with an earlier result. Steps of the simulation have no files, and their outputs are equal."""
        terms = read_terms(step)
        if terms is None or step.attempt or made.skipped or made.code:
            return made
        keys = [reuse_key(terms, scope, []) for scope in (terms.scope, *terms.also)]
        made = msgspec.structs.replace(made, reuse_key=keys[0])
        for key in keys:
            try:
                found: list[StepRow] = await self._store.read("reusable_steps", step.tenant, key, 1)
            except (WriteConflict, AmbiguousCommit) as fault:
                raise TenureError("STORE_UNAVAILABLE", repr(fault)) from fault
            if found:
                return msgspec.structs.replace(
                    made, reused=(found[0].run_id, found[0].name), output=b'{"ok":true}'
                )
        return made


def _resolution(idx: int, n: int, template: bytes) -> Resolution:
    if template == b"false":
        return Resolution(idx=idx, n=n, skipped=True)
    if template == b"fails":
        return Resolution(idx=idx, n=n, code="EXPRESSION_FAILED", message=b"it has no value")
    return Resolution(idx=idx, n=n, input=b"for try %d" % n, each_try=template == b"each")


class Process(Host):
    """A process from its start to its death. When it is started again, that is a new object."""

    __slots__ = ("_context", "_world", "clock", "orchestrator", "store", "sweeper", "unswept_until")

    def __init__(self, world: World, name: str, life: int, clock: MachineClock, lanes: int) -> None:
        super().__init__(name)
        self._world = world
        self.clock = clock
        self._context = self.context()
        rng = Random(f"{world.seed}/{name}/{life}")
        inner = SqliteStore(":memory:", clock=clock, inline=True, connection=world.connection)
        self.store = FaultyStore(world, self, inner, rng)
        self.orchestrator: Orchestrator = self._context.run(
            Orchestrator,
            self.store,
            chance=SeededChance(f"{world.seed}/{name}/{life}/chance"),
            ids=RunIds(rng.getrandbits(31)),
            clock=clock,
            lanes=lanes,
            command_seconds=rng.choice((5.0, 30.0)),
        )
        self.orchestrator.resolver = PlainResolver(self.store)
        self.sweeper = Sweeper(self.orchestrator)
        self.unswept_until = 0.0

    def start(self) -> None:
        self._world.loop.create_task(self._live(), context=self._context)

    async def _live(self) -> None:
        await self.store.open()
        while True:
            try:
                await self.orchestrator.start()
                break
            except TenureError:
                await asyncio.sleep(1.0)
        self._world.serve(self)
        await self._sweep()

    async def _sweep(self) -> None:
        """The loop of `Sweeper`, but it waits until something is due instead of polling."""
        idle = SWEEP_SECONDS
        while True:
            await self._world.agenda.wait_until_due(self, idle)
            if self.unswept_until > self._world.loop.time():
                await asyncio.sleep(self.unswept_until - self._world.loop.time())
                continue
            try:
                found = await self.sweeper.sweep()
            except (TenureError, WriteConflict, AmbiguousCommit):
                found = 1
            idle = SWEEP_SECONDS if found else min(2 * idle, SWEEP_IDLE_SECONDS_MAX)

    # ------------------------------------------------------------------------------------- requests

    def _arrive(self, verb: str, asked: Any, answer: asyncio.Future[Any], back: contextvars.Context) -> None:
        self._world.loop.create_task(self._handle(verb, asked, answer, back), context=self._context)

    def receive(
        self, delay: float, verb: str, asked: Any, answer: asyncio.Future[Any], back: contextvars.Context
    ) -> None:
        """Let a request arrive after a delay, if the process is alive then."""
        self._world.loop.call_later(delay, self._arrive, verb, asked, answer, back, context=self._context)

    async def _handle(
        self, verb: str, asked: Any, answer: asyncio.Future[Any], back: contextvars.Context
    ) -> None:
        world = self._world
        known = world.oracle.arrived(verb, asked)
        result: Any = None
        error: TenureError | None = None
        try:
            result = await self._do(verb, asked)
        except TenureError as refused:
            error = refused
        except (WriteConflict, AmbiguousCommit) as fault:
            error = TenureError("STORE_UNAVAILABLE", repr(fault))
        world.oracle.answered(verb, asked, known, result, error)
        world.network.send_back(answer, back, result, error)

    async def _do(self, verb: str, asked: Any) -> Any:
        orchestrator = self.orchestrator
        if verb == "send":
            return await orchestrator.send(asked)
        if verb == "create":
            return await orchestrator.create(asked)
        if verb == "beat":
            return await orchestrator.heartbeat(asked)
        if verb == "read":
            return await self.store.read(*asked)
        assert isinstance(asked, SimulatedClaim), f"unknown verb {verb}"
        return await orchestrator.claim(
            asked.worker,
            queues=asked.queues,
            limit=asked.limit,
            ack=asked.ack,
            wait_seconds=asked.wait_seconds,
            session=asked.session,
        )


class Agenda:
    """Knows when the next timer is due and whether there is work, so that processes and workers need not poll."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._due_us: int | None = None
        self._claimable = False
        self._sleepers: dict[asyncio.Future[None], None] = {}
        self._idle: dict[asyncio.Future[None], None] = {}

    def look(self) -> None:
        """Read what is due next and whether there is work, after a commit."""
        world = self._world
        due = [moment.now_us for moment in world.inspect("next_wake")]
        due += [row.created_at + int(OUTBOX_GRACE_SECONDS * SECOND_US) + 1 for row in world.pending_outbox()]
        before, self._due_us = self._due_us, min(due, default=None)
        self._claimable = world.has_work()
        if self._claimable:
            wake_all(self._idle)
        if self._due_us is not None and (before is None or self._due_us < before):
            wake_all(self._sleepers)  # they sleep again, but not as long

    def wake_all(self) -> None:
        wake_all(self._sleepers)
        wake_all(self._idle)

    def _seconds_left(self, process: Process) -> float:
        """Seconds until the next timer is due, by the estimate of the store's time that the process's sweeper uses, too."""
        if self._due_us is None:
            return 1e9
        return (self._due_us - (process.store.estimate_us() or process.clock.now_us())) / SECOND_US

    async def wait_until_due(self, process: Process, idle: float) -> None:
        """Wait until the process may have something to sweep, but at least `idle` seconds."""
        await asyncio.sleep(idle)
        while (left := self._seconds_left(process)) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, 1e8) + 0.001):
                    await self._sleep_in(self._sleepers)

    async def wait_for_work(self) -> None:
        """Wait until a step can be claimed."""
        while not self._claimable:
            await self._sleep_in(self._idle)

    async def _sleep_in(self, sleepers: dict[asyncio.Future[None], None]) -> None:
        """Wait until these sleepers are woken."""
        sleeper: asyncio.Future[None] = self._world.loop.create_future()
        sleepers[sleeper] = None
        try:
            await sleeper
        finally:
            sleepers.pop(sleeper, None)
