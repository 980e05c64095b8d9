"""The orchestrator: the only writer. Collects what arrives while the last commit is under way, and commits it at once.

Laws:
1. Every command gets exactly one answer: its result or its error. None is lost, none answered twice.
2. Commands on one run are carried out in the order they were submitted: a run always uses the same lane.
3. The queue is bounded: `submit` says QUEUE_FULL, `send` waits for room.
4. A batch is retried after deadlocks, divided after data errors, and after a commit of unknown fate decided
   again under the lock, where the hash of its event tells whether it happened.
5. Nothing here decides; the kernel does. Nothing here is needed for recovery: whatever dies, the sweeper of
   any other process finds what is due.
"""

from __future__ import annotations

import asyncio
import contextvars
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from tenure.clock import Clock, HostClock
from tenure.errors import TenureError
from tenure.futures import fail, run_in_thread
from tenure.ids import RunIds
from tenure.kernel.commands import ClaimBy, Command, CreateRun, Heartbeat, Resolution
from tenure.kernel.decide.checks import check_cap
from tenure.kernel.decide.leases import Lease, Reply
from tenure.kernel.decide.plans import Created
from tenure.kernel.draft import Chance
from tenure.kernel.feed import Seen, seen
from tenure.kernel.model import Cap, Outbox
from tenure.kernel.snapshot import Snapshot, TooLong
from tenure.limits import (
    CLAIM_STEPS_MAX,
    COMMAND_SECONDS_MAX,
    QUEUE_COMMANDS_MAX,
    ROWS_DECIDED_ON_LOOP_MAX,
    SNAPSHOTS_CACHED_MAX,
)
from tenure.logs import get_logger
from tenure.orchestrator import batch as batches
from tenure.orchestrator import spans
from tenure.orchestrator.batch import Item, Outcome, Recorder, Work
from tenure.orchestrator.caps import NO_CAPS, KnownCaps
from tenure.orchestrator.chance import SystemChance
from tenure.orchestrator.claiming import Claiming
from tenure.orchestrator.claims import Claim
from tenure.orchestrator.heartbeats import Pulse
from tenure.orchestrator.lanes import Lane
from tenure.orchestrator.outbox import deliver
from tenure.store.port import Ambiguous, Conflict, Save, Saved, Store

log = get_logger(__name__)

LANES = 2
"""Two, so that one batch is decided while the other is being committed."""
POLL_SECONDS = 1.0
"""The poll beneath the wake-ups: what a lost one costs."""
RETRY_SECONDS_MIN = 0.002
RETRY_SECONDS_MAX = 0.5
ROWS_IN_A_TURN = 500
"""Runs of one batch, and rows beneath them, that are decided before the loop turns."""
LOOKS_MAX = 3
"""How often an action's key is looked up before what the database says against it is believed to be something else."""


class Resolver(Protocol):
    """What is above the orchestrator and evaluates templates (`tenure.declared.resolution`)."""

    async def resolve(self, run_id: int, wanted: Sequence[tuple[int, int]]) -> tuple[Resolution, ...]:
        """What was made for these steps (index, number of the try). An error that is retryable: ask again later."""
        ...


def _parts(items: list[Item]) -> list[list[Item]]:
    """A batch in the parts that are committed together: a run with a long plan is one of its own, so that no commit is larger
    than the loop can hand over in a turn."""
    if not any(item.long for item in items):
        return [items]
    short: list[Item] = []
    long: list[list[Item]] = []
    for mine in batches.group(items).values():
        if any(item.long for item in mine):
            long.append(mine)
        else:
            short += mine
    return [short, *long] if short else long


class Orchestrator:
    """See the laws above. Use it as an async context manager, or call `start` and `stop`."""

    def __init__(
        self,
        store: Store,
        *,
        chance: Chance | None = None,
        ids: RunIds | None = None,
        clock: Clock | None = None,
        lanes: int | None = None,
        queue_max: int = QUEUE_COMMANDS_MAX,
        command_seconds: float = COMMAND_SECONDS_MAX,
    ) -> None:
        self.store = store
        self.ids = ids or RunIds()
        self._chance: Chance = chance or SystemChance()
        self._clock: Clock = clock or HostClock()
        self._caps = KnownCaps(self)
        self._lanes = [Lane(i, self._caps.of) for i in range(lanes or min(LANES, store.lanes_max))]
        self._queue_max = queue_max
        self._command_seconds = command_seconds
        self._queued = self._patient = 0
        self._room = asyncio.Condition()
        self._cache: dict[int, Snapshot] = {}
        self._work_ready = asyncio.Event()
        self._pulse = Pulse(self, lane=len(self._lanes) + 1)
        self.claims = Claiming(self, self._cache, self._chance, len(self._lanes), command_seconds)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._context = contextvars.copy_context()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.batches = self.commands = self.stale = 0
        """How many batches and commands there were, and messages of leases that had ended."""
        self.on_batch: Callable[[int, float], None] | None = None
        """Told of every batch: its commands, and the seconds it took."""
        self._watching: list[Callable[[list[Seen]], None]] = []
        self.resolver: Resolver | None = None
        """Makes the inputs of steps from their templates. Without one that is left to other processes."""
        self.on_told: list[Callable[[], None]] = []
        """Called after each commit of this process that has put something into the feed."""

    # ------------------------------------------------------------------------------------- life cycle

    async def start(self) -> None:
        """Begin to take commands."""
        self._loop = asyncio.get_running_loop()
        await self._caps.read()
        for lane in self._lanes:
            lane.task = self._loop.create_task(self._serve(lane), name=f"tenure-lane-{lane.number}")

    async def stop(self) -> None:
        """Finish what was submitted, then stop."""
        self._stopping = True
        for lane in self._lanes:
            lane.wake.set()
        await asyncio.gather(*(lane.task for lane in self._lanes if lane.task is not None))
        if self._tasks:
            await self.store.tell_work()  # it may be among them: work that was given back just now
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pulse.close()

    async def __aenter__(self) -> Orchestrator:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # --------------------------------------------------------------------------------------- commands

    def submit(
        self,
        command: Command,
        *,
        delivery: tuple[int, int, int] | None = None,
        record: Recorder | None = None,
    ) -> asyncio.Future[Any]:
        """Put a command into its lane's queue; the future is its answer. QUEUE_FULL when there is no room."""
        loop = self._loop
        if loop is None or self._stopping:
            raise TenureError("STORE_UNAVAILABLE", "the orchestrator is not running")
        if self._queued >= self._queue_max:
            raise TenureError("QUEUE_FULL", f"{self._queued} commands are waiting")
        future: asyncio.Future[Any] = loop.create_future()
        caps: dict[str, Cap] | None = NO_CAPS
        if isinstance(command, CreateRun):
            caps = self._caps.of(command.tenant)
            if (trace := spans.going_on(command)) is not None:
                command = replace(command, trace=trace)
        item = Item(command, future, loop.time() + self._command_seconds, caps, delivery, record)
        lane = self._lanes[item.run_id % len(self._lanes)]
        if self.store.at_once and lane.alone and not item.long and self._commit_now(lane, item, loop):
            return future
        lane.put(item)
        self._queued += 1
        return future

    async def send(self, command: Command, *, record: Recorder | None = None) -> Any:
        """Submit a command, waiting for room in the queue, and wait for its answer."""
        await self.wait_for_room()
        return await self.submit(command, record=record)

    async def wait_for_room(self) -> None:
        """Wait until the queue has room: what is submitted at once finds it. QUEUE_FULL when there is none for long."""
        if self._queued >= self._queue_max:
            self._patient += 1
            try:
                async with asyncio.timeout(self._command_seconds), self._room:
                    await self._room.wait_for(lambda: self._queued < self._queue_max)
            except TimeoutError:
                raise TenureError("QUEUE_FULL", f"{self._queued} commands are waiting") from None
            finally:
                self._patient -= 1

    async def create(self, command: CreateRun, record: Recorder | None = None) -> Created:
        """Create a run; the command's id is replaced should another run have it. With `record`, the record of its key is
        written in the same commit, and the answer has it (`Created.record`)."""
        while True:
            try:
                created: Created = await self.send(command, record=record)
            except TenureError as refused:
                if refused.code != "RUN_ID_TAKEN" or command.parent_id is not None:
                    raise
                command = replace(command, run_id=self.new_id(command.tenant))
            else:
                return created

    def new_id(self, tenant: str) -> int:
        """An id for a new run of this tenant."""
        return self.ids.new(self.store.estimate_us() or self._clock.now_us(), tenant)

    async def put_caps(self, caps: list[Cap]) -> None:
        """Set caps and weights."""
        for cap in caps:
            check_cap(cap)
        await self.store.put_caps(caps)
        await self._caps.read()

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    # ------------------------------------------------------------------------------------------ lanes

    async def _serve(self, lane: Lane) -> None:
        while True:
            if not lane:
                if self._stopping:
                    return
                lane.wake.clear()
                await lane.wake.wait()
                continue
            lane.busy = True
            items = lane.take()
            self._queued -= len(items)
            if self._patient and self._queued < self._queue_max:
                async with self._room:
                    self._room.notify_all()
            began = self._now()
            try:
                await self._commit(lane.number, items)
            except Exception as broken:  # a defect here must not lose commands
                self._give_up(items, broken)
            finally:
                lane.busy = False
            self._count(len(items), began)

    def _commit_now(self, lane: Lane, item: Item, loop: asyncio.AbstractEventLoop) -> bool:
        """Carry out a command that is alone before its caller is left: no task is woken for it, nor its caller by
        one. False: it has to go the ordinary way."""
        if not (item.run_id in self._cache or isinstance(item.command, CreateRun)):
            return False
        lane.go_alone(loop)
        lane.busy = True
        works: list[Work] = []
        try:
            try:
                saved = self.store.save_now(partial(self._decide_now, item, works))
            except Exception as fault:
                batches.unsaved(works, fault)
                return False
            if saved is None or self._conclude(works, saved):
                return False
        except Exception as broken:
            self._give_up([item], broken)
        finally:
            lane.busy = False
        self._count(1, item.deadline - self._command_seconds)
        return True

    def _decide_now(self, item: Item, works: list[Work], now: int) -> Save | None:
        """Decided only when nobody is in the way: a snapshot that was decided on cannot be used again. None: it needs
        the lock."""
        work = self._decide_run([item], now)
        if work is None:
            return None
        works.append(work)
        return batches.save_of(works, None)

    def _count(self, commands: int, began: float) -> None:
        self.batches += 1
        self.commands += commands
        if self.on_batch is not None:
            self.on_batch(commands, self._now() - began)

    def _give_up(self, items: list[Item], broken: Exception) -> None:
        log.error("batch_failed", traceback=traceback.format_exc())
        error = TenureError("INTERNAL_ERROR", f"the batch failed: {broken!r}")
        for item in items:
            self._answer(item, None, error)

    async def _commit(self, lane: int, items: list[Item]) -> None:
        for part in _parts(items):
            slow = await self._commit_cached(lane, part)
            if slow:
                await self._commit_locked(lane, slow)

    async def _commit_cached(self, lane: int, items: list[Item]) -> list[Item]:
        """The quick way, for runs whose snapshots we have. Answers the items that need the lock."""
        now = self.store.estimate_us()
        if now is None:
            return items
        works, slow = await self._decide_cached(items, now)
        if works:
            long = batches.is_long_save(works)
            save = partial(batches.saving, works, now, aside=long)
            try:
                saved = await self.store.transact(save, lane=lane, single=not long)
            except Exception as fault:
                return slow + batches.unsaved(works, fault)
            slow += self._conclude(works, saved)
        return slow

    async def _decide_cached(self, items: list[Item], now: int) -> tuple[list[Work], list[Item]]:
        """What can be decided on the snapshots we have, and the items that need the lock. What takes long is decided in a
        thread: one at a time in each lane, and nobody else has its snapshot."""
        works: list[Work] = []
        slow: list[Item] = []
        rows = 0
        for mine in batches.group(items).values():
            if rows >= ROWS_IN_A_TURN:
                rows = 0
                await asyncio.sleep(0)
            work = self._begin(mine)
            if work is None:
                slow += mine
                continue
            decide = partial(batches.decide_cached, work, now, self._chance)
            aside, decided = any(item.long for item in mine), False
            if not aside:
                try:
                    decided = decide()
                    rows += 1 + len(work.rows)
                except TooLong:
                    aside = True
            if aside:
                work.snap.rows_max = None
                decided = await run_in_thread(decide)
            if decided:
                works.append(work)
            else:
                self._put_back(work)
                slow += mine
        return works, slow

    def _put_back(self, work: Work) -> None:
        """Keep a snapshot that nothing was decided on, for the same commands under the lock: there it counts if its run has the same head."""
        if work.unused and not work.new:
            work.snap.rows_max = None
            self._cache[work.snap.run_id] = work.snap

    def _decide_run(self, mine: list[Item], now: int) -> Work | None:
        """What is decided about the commands of one run on the snapshot we have; None: they need the lock."""
        work = self._begin(mine)
        try:
            if work is None or batches.decide_cached(work, now, self._chance):
                return work
        except TooLong:
            pass  # it is decided where that may take long
        assert work is not None
        self._put_back(work)
        return None

    def _begin(self, mine: list[Item]) -> Work | None:
        """Commands of one run with the snapshot we have; None: there is none."""
        first = mine[0]
        snap = self._cache.pop(first.run_id, None)
        if snap is None:
            if not isinstance(first.command, CreateRun) or first.gate_tenant is not None:
                return None
            snap = Snapshot.of_new_run(first.run_id)
            snap.caps = first.caps or NO_CAPS
        snap.rows_max = ROWS_DECIDED_ON_LOOP_MAX
        return Work(snap, mine)

    def _conclude(self, works: list[Work], saved: Saved) -> list[Item]:
        """Answer what was saved; the items whose runs have moved on."""
        outcome = Outcome()
        batches.conclude(works, saved, outcome)
        self.finish(outcome)
        return outcome.again

    async def _commit_locked(self, lane: int, items: list[Item]) -> None:
        """Under the lock, until every item has its answer."""
        pause = RETRY_SECONDS_MIN
        looked = 0
        while items:
            works: list[Work] = []
            cached = {item.run_id: snap for item in items if (snap := self._cache.pop(item.run_id, None))}
            make = partial(batches.locked, items, cached, self._chance, works)
            failure: Exception
            try:
                outcome = await self.store.transact(make, lane=lane)
            except Ambiguous as unknown:
                batches.remember(works)
                failure = unknown
            except Conflict as conflict:
                failure = conflict
            except TenureError as refused:
                if not refused.retryable:
                    for item in items:
                        self._answer(item, None, refused)
                    return
                failure = refused
            except Exception as fault:  # something in the batch is at fault, the rest is not
                if len(items) > 1:
                    half = len(items) // 2
                    await self._commit_locked(lane, items[:half])
                    items = items[half:]
                    continue
                looked += 1
                if not batches.lost_race(items[0], fault) or looked > LOOKS_MAX:
                    self._answer(items[0], None, batches.refusal(fault))
                    return
                failure = fault
            else:
                self.finish(outcome)
                items = outcome.again
                if outcome.done:
                    continue  # there was progress: nothing to wait for
                failure = Conflict("the run changed")
            items = self._drop_late(items, failure)
            await asyncio.sleep(pause * (0.5 + self._chance.random()))
            pause = min(pause * 2, RETRY_SECONDS_MAX)

    def _drop_late(self, items: list[Item], failure: Exception) -> list[Item]:
        """Tell those whose deadline has passed; the rest is tried again."""
        now = self._now()
        left = []
        for item in items:
            if item.deadline > now:
                left.append(item)
            elif isinstance(failure, TenureError):
                self._answer(item, None, failure)
            else:
                self._answer(item, None, TenureError("COMMAND_DEADLINE", f"not done in time: {failure}"))
        return left

    def finish(self, outcome: Outcome) -> None:
        """Answer, remember, and set off what follows from a commit that happened."""
        cache = self._cache
        for snap in outcome.snapshots:
            cache[snap.run_id] = snap
        while len(cache) > SNAPSHOTS_CACHED_MAX:
            del cache[next(iter(cache))]
        for item in outcome.done:
            if isinstance(item.error, TenureError) and item.error.code == "LEASE_STALE":
                self.stale += 1
            self._answer(item, item.result, item.error)
        if outcome.told:
            for wake in self.on_told:
                wake()
        if self._watching:
            self._show(outcome.works)
        if outcome.ready:
            self._work_ready.set()
            self.claims.ring()
            self.spawn(self.store.tell_work())
        if outcome.outbox:
            self.spawn(self.deliver(outcome.outbox))

    def watch(self, callback: Callable[[list[Seen]], None]) -> Callable[[], None]:
        """Have a function called in the event loop with the events of every commit of this process, after it. (Not
        those of a commit of unknown fate that turned out to have happened.) Answers how to end it."""
        self._watching.append(callback)
        return lambda: self._watching.remove(callback)

    def _show(self, works: list[Work]) -> None:
        events = [
            event
            for work in works
            for _, decision, before in work.decided
            if (event := seen(work.snap, before, decision)) is not None
        ]
        if not events:
            return
        for callback in list(self._watching):
            try:
                callback(events)
            except Exception:  # whoever watches must not hold up those who wait for answers
                log.error("watcher_failed", traceback=traceback.format_exc())

    @staticmethod
    def _answer(item: Item, result: Any, error: Exception | None) -> None:
        future = item.future
        if future is None or future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            fail(future, error)

    @property
    def waiting(self) -> int:
        """Commands that wait for their batch."""
        return self._queued

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, being committed or on its way to another run."""
        return not self._tasks and not any(lane or lane.wake.is_set() for lane in self._lanes)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something beside, in nobody's context; stopped with the orchestrator."""
        assert self._loop is not None
        task = self._loop.create_task(work, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            # What the store refused now, the sweeper finds again; anything else is a defect.
            tell = log.warning if isinstance(fault, TenureError) else log.error
            tell("task_failed", error=repr(fault))

    # ----------------------------------------------------------------------------------------- claims

    async def claim(
        self,
        worker: str,
        *,
        queues: Sequence[str] = ("default",),
        limit: int = 1,
        ack: bool = True,
        wait_seconds: float = 0.0,
        session: int | None = None,
    ) -> list[Lease]:
        """Take up to `limit` ready steps; with `wait_seconds`, wait for some when there are none."""
        if not 0 < limit <= CLAIM_STEPS_MAX:
            raise TenureError("INVALID_INPUT", f"a claim takes 1 to {CLAIM_STEPS_MAX} steps, not {limit}")
        wanted = Claim(ClaimBy(worker, ack, session), tuple(dict.fromkeys(queues)), limit)
        deadline = self._now() + wait_seconds
        while True:
            self._work_ready.clear()
            leases = (await self.claims.once(wanted)).leases
            left = deadline - self._now()
            if leases or left <= 0 or self._stopping:
                return leases
            await self.wait_for_work(min(left, POLL_SECONDS))

    async def wait_for_work(self, timeout_s: float) -> None:
        """Until work became ready here or elsewhere, or the time is over."""
        await self.claims.until(self._work_ready, timeout_s)

    def heartbeat(self, message: Heartbeat) -> asyncio.Future[Reply]:
        """Extend a lease; collected into commits of their own so that nothing holds them up."""
        return self._pulse.heartbeat(message)

    def extended(self, message: Heartbeat, reply: Reply) -> None:
        """A heartbeat was written: what we know of its lease is brought up to date."""
        snap = self._cache.get(message.run_id)
        attempt = snap.attempts.get((message.idx, message.n)) if snap is not None else None
        if snap is not None and attempt is not None and reply.expires_at is not None:
            snap.attempts[message.idx, message.n] = replace(
                attempt,
                seq=max(attempt.seq, message.seq),
                expires_at=max(attempt.expires_at, reply.expires_at),
            )

    # ----------------------------------------------------------------------------------------- outbox

    async def deliver(self, rows: Iterable[Outbox], lacking: list[Outbox] | None = None) -> int:
        """Tell other runs what they are owed; what fails is found again by the sweeper. See `outbox.deliver`."""
        return await deliver(self, rows, lacking)
