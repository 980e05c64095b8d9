"""The orchestrator: the only writer of runs. Commands that arrive during a commit are committed together in the next one.

Laws:
1. Every command gets exactly one answer: its result or its error.
2. Commands on one run are carried out in the order of submission: a run always uses the same lane.
3. The queue is bounded: `submit` raises QUEUE_FULL, `send` waits for room.
4. After a deadlock a batch is retried. After a data error it is divided. After a commit of unknown fate its commands
   are decided again under the lock, where the hash of each event shows whether the commit happened.
5. The kernel makes every decision. Recovery needs no state of this process: after a crash the sweeper of any
   process finds what is due.
"""

from __future__ import annotations

import asyncio
import contextvars
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from tenure import tracing
from tenure.chance import SystemChance
from tenure.clock import Clock, HostClock
from tenure.errors import TenureError
from tenure.futures import fail_future, run_in_thread
from tenure.ids import RunIds
from tenure.kernel.commands import Claimant, Command, CreateRun, Heartbeat, Resolution
from tenure.kernel.decide.creation import CreatedRun
from tenure.kernel.decide.validation import check_cap
from tenure.kernel.draft import Chance
from tenure.kernel.feed import ObservedEvent, build_observed_event
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.kernel.run_rows import Cap, OutboxRow
from tenure.kernel.snapshot import DecisionTooLong, Snapshot
from tenure.limits import (
    CLAIM_STEPS_MAX,
    COMMAND_SECONDS_MAX,
    QUEUE_COMMANDS_MAX,
    ROWS_DECIDED_ON_LOOP_MAX,
    SNAPSHOTS_CACHED_MAX,
)
from tenure.logs import get_logger
from tenure.orchestrator import batch as batches
from tenure.orchestrator.batch import BatchOutcome, KeyRecorder, PendingCommand, RunWork
from tenure.orchestrator.cap_cache import NO_CAPS, CapCache
from tenure.orchestrator.claims import POLL_SECONDS, Claim, ClaimDispatcher
from tenure.orchestrator.commit_lanes import CommitLane
from tenure.orchestrator.external_queue import ANNOUNCED_PER_COMMIT_MAX, ExternalQueue, find_ready_steps
from tenure.orchestrator.heartbeats import HeartbeatBatcher
from tenure.orchestrator.outbox import deliver_outbox
from tenure.store.port import AmbiguousCommit, Save, Saved, Store, WriteConflict

log = get_logger(__name__)

COMMIT_LANES = 2
"""With two lanes one batch is decided while the other commits."""
RETRY_SECONDS_MIN = 0.002
RETRY_SECONDS_MAX = 0.5
ROWS_PER_TURN = 500
"""Runs of a batch, and rows of those runs, that are decided before the event loop gets a turn."""
KEY_LOOKUPS_MAX = 3
"""How often an act whose key was taken meanwhile is decided again before the database's refusal counts as an error."""


class Resolver(Protocol):
    """Evaluates templates. `tenure.declared.step_resolver` implements it: that package is above this one."""

    async def resolve(self, run_id: int, wanted: Sequence[tuple[int, int]]) -> tuple[Resolution, ...]:
        """The inputs of these steps (index, number of the attempt). After a retryable error the caller asks again later."""


def _split_long_plans(items: list[PendingCommand]) -> list[list[PendingCommand]]:
    """Split a batch: a run with a long plan gets its own commit, so that no commit holds the event loop for long."""
    if not any(item.long for item in items):
        return [items]
    short: list[PendingCommand] = []
    long: list[list[PendingCommand]] = []
    for items_of_run in batches.group_by_run(items).values():
        if any(item.long for item in items_of_run):
            long.append(items_of_run)
        else:
            short += items_of_run
    return [short, *long] if short else long


class Orchestrator:
    """Use it as an async context manager, or call `start` and `stop`."""

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
        self._caps = CapCache(self)
        self._lanes = [
            CommitLane(i, self._caps.of) for i in range(lanes or min(COMMIT_LANES, store.lanes_max))
        ]
        self._queue_max = queue_max
        self._command_seconds = command_seconds
        self._queued = self._waiting_for_room = 0
        self._room = asyncio.Condition()
        self._cache: dict[int, Snapshot] = {}
        self._work_ready = asyncio.Event()
        self._heartbeats = HeartbeatBatcher(self, lane=len(self._lanes) + 1)
        self.claims = ClaimDispatcher(self, self._cache, self._chance, len(self._lanes), command_seconds)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._context = contextvars.copy_context()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.batches = self.commands = self.stale = 0
        """Counters: batches, commands, and messages of leases that had ended."""
        self.on_batch: Callable[[int, float], None] | None = None
        """Called after every batch with the number of its commands and its seconds."""
        self._watchers: list[Callable[[list[ObservedEvent]], None]] = []
        self.resolver: Resolver | None = None
        """Makes the inputs of steps from templates. Without a resolver, other processes do that."""
        self.external_queue: ExternalQueue | None = None
        """Wakes claims of other processes. Without one, the store does."""
        self.on_feed: list[Callable[[], None]] = []
        """Called after each commit of this process that wrote to the feed."""

    # ------------------------------------------------------------------------------------- life cycle

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._caps.read()
        for lane in self._lanes:
            lane.task = self._loop.create_task(self._run_lane(lane), name=f"tenure-lane-{lane.number}")

    async def stop(self) -> None:
        """Finish what was submitted, then stop."""
        self._stopping = True
        for lane in self._lanes:
            lane.wake.set()
        await asyncio.gather(*(lane.task for lane in self._lanes if lane.task is not None))
        if self._tasks:
            await self.store.notify_work()  # a task that is canceled next may have been about to
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._heartbeats.close()

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
        record: KeyRecorder | None = None,
    ) -> asyncio.Future[Any]:
        """Put a command into its lane's queue. The future is its answer. Raises QUEUE_FULL when there is no room."""
        loop = self._loop
        if loop is None or self._stopping:
            raise TenureError(
                "STORE_UNAVAILABLE", "the orchestrator is not running: start it before you submit commands"
            )
        if self._queued >= self._queue_max:
            raise TenureError("QUEUE_FULL", f"{self._queued} commands are waiting")
        future: asyncio.Future[Any] = loop.create_future()
        caps: dict[str, Cap] | None = NO_CAPS
        if isinstance(command, CreateRun):
            caps = self._caps.of(command.tenant)
            if (trace := tracing.trace_for_new_run(command)) is not None:
                command = replace(command, trace=trace)
        item = PendingCommand(command, future, loop.time() + self._command_seconds, caps, delivery, record)
        lane = self._lanes[item.run_id % len(self._lanes)]
        if (
            self.store.commits_inline
            and lane.is_idle
            and not item.long
            and self._commit_now(lane, item, loop)
        ):
            return future
        lane.put(item)
        self._queued += 1
        return future

    async def send(self, command: Command, *, record: KeyRecorder | None = None) -> Any:
        """Submit a command, waiting for room in the queue, and wait for its answer."""
        await self.wait_for_room()
        return await self.submit(command, record=record)

    async def wait_for_room(self) -> None:
        """Wait until the queue has room for a command that is submitted immediately. Raises QUEUE_FULL after a timeout."""
        if self._queued >= self._queue_max:
            self._waiting_for_room += 1
            try:
                async with asyncio.timeout(self._command_seconds), self._room:
                    await self._room.wait_for(lambda: self._queued < self._queue_max)
            except TimeoutError:
                raise TenureError("QUEUE_FULL", f"{self._queued} commands are waiting") from None
            finally:
                self._waiting_for_room -= 1

    async def create(self, command: CreateRun, record: KeyRecorder | None = None) -> CreatedRun:
        """Create a run. If another run has the command's id, the run gets a new id. With `record`, the same commit writes the
        record of the idempotency key, and the answer has it (`CreatedRun.record`)."""
        while True:
            try:
                created: CreatedRun = await self.send(command, record=record)
            except TenureError as refused:
                if refused.code != "RUN_ID_TAKEN" or command.parent_id is not None:
                    raise
                command = replace(command, run_id=self.new_id(command.tenant))
            else:
                return created

    def new_id(self, tenant: str) -> int:
        return self.ids.new(self.store.estimate_us() or self._clock.now_us(), tenant)

    async def put_caps(self, caps: list[Cap]) -> None:
        for cap in caps:
            check_cap(cap)
        await self.store.put_caps(caps)
        await self._caps.read()

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    # ------------------------------------------------------------------------------------------ lanes

    async def _run_lane(self, lane: CommitLane) -> None:
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
            if self._waiting_for_room and self._queued < self._queue_max:
                async with self._room:
                    self._room.notify_all()
            began = self._now()
            try:
                for part in _split_long_plans(items):
                    if needs_lock := await self._commit_cached(lane.number, part):
                        await self._commit_locked(lane.number, needs_lock)
            except Exception as broken:  # every command still gets an answer
                self._fail_batch(items, broken)
            finally:
                lane.busy = False
            self._count(len(items), began)

    def _commit_now(self, lane: CommitLane, item: PendingCommand, loop: asyncio.AbstractEventLoop) -> bool:
        """Commit a lone command before `submit` returns, so that no task has to be woken for it or for its caller.
        False: the command goes through the queue instead."""
        if not (item.run_id in self._cache or isinstance(item.command, CreateRun)):
            return False
        lane.count_lone_command(loop)
        lane.busy = True
        works: list[RunWork] = []
        try:
            try:
                saved = self.store.commit_inline(partial(self._decide_now, item, works))
            except Exception as fault:
                batches.unsaved_commands(works, fault)
                return False
            if saved is None or self._answer_saved(works, saved):
                return False
        except Exception as broken:
            self._fail_batch([item], broken)
        finally:
            lane.busy = False
        self._count(1, item.deadline - self._command_seconds)
        return True

    def _decide_now(self, item: PendingCommand, works: list[RunWork], now: int) -> Save | None:
        """Decide a lone command. The store calls this when it has the write lock: a snapshot that a decision has changed
        cannot be used again. None: the command needs the run's lock."""
        work = self._take_snapshot([item])
        if work is None:
            return None
        try:
            decided = batches.decide_cached(work, now, self._chance)
        except DecisionTooLong:
            decided = False  # it is decided again in a thread
        if not decided:
            self._keep_undecided(work)
            return None
        works.append(work)
        return batches.build_save(works, None)

    def _count(self, commands: int, began: float) -> None:
        self.batches += 1
        self.commands += commands
        if self.on_batch is not None:
            self.on_batch(commands, self._now() - began)

    def _fail_batch(self, items: list[PendingCommand], broken: Exception) -> None:
        log.error("batch_failed", traceback=traceback.format_exc())
        error = TenureError("INTERNAL_ERROR", f"the commit failed: {broken!r}; see the log of this process")
        for item in items:
            self._answer(item, None, error)

    async def _commit_cached(self, lane: int, items: list[PendingCommand]) -> list[PendingCommand]:
        """Commit the items whose runs have a cached snapshot. Returns the items that need the lock."""
        now = self.store.estimate_us()
        if now is None:
            return items
        works, needs_lock = await self._decide_cached(items, now)
        if works:
            long = batches.is_long_save(works)
            save = partial(batches.save_cached, works, now, long=long)
            try:
                saved = await self.store.transact(save, lane=lane, single=not long)
            except Exception as fault:
                return needs_lock + batches.unsaved_commands(works, fault)
            needs_lock += self._answer_saved(works, saved)
        return needs_lock

    async def _decide_cached(
        self, items: list[PendingCommand], now: int
    ) -> tuple[list[RunWork], list[PendingCommand]]:
        """Decide on cached snapshots. Returns the decided runs and the items that need the lock. A long decision is made in a
        thread, one at a time in each lane; its snapshot is not in the cache meanwhile."""
        works: list[RunWork] = []
        needs_lock: list[PendingCommand] = []
        rows = 0
        for items_of_run in batches.group_by_run(items).values():
            if rows >= ROWS_PER_TURN:
                rows = 0
                await asyncio.sleep(0)
            work = self._take_snapshot(items_of_run)
            if work is None:
                needs_lock += items_of_run
                continue
            decide = partial(batches.decide_cached, work, now, self._chance)
            in_thread, decided = any(item.long for item in items_of_run), False
            if not in_thread:
                try:
                    decided = decide()
                    rows += 1 + len(work.rows)
                except DecisionTooLong:
                    in_thread = True
            if in_thread:
                work.snap.rows_max = None
                decided = await run_in_thread(decide)
            if decided:
                works.append(work)
            else:
                self._keep_undecided(work)
                needs_lock += items_of_run
        return works, needs_lock

    def _keep_undecided(self, work: RunWork) -> None:
        """Put an undecided snapshot back into the cache. Under the lock it is used if its run still has the same head."""
        if work.undecided and not work.new:
            work.snap.rows_max = None
            self._cache[work.snap.run_id] = work.snap

    def _take_snapshot(self, items_of_run: list[PendingCommand]) -> RunWork | None:
        """The commands of one run with its cached snapshot, which leaves the cache. None: there is none."""
        first = items_of_run[0]
        snap = self._cache.pop(first.run_id, None)
        if snap is None:
            if not isinstance(first.command, CreateRun) or first.gate_tenant is not None:
                return None
            snap = Snapshot.of_new_run(first.run_id)
            snap.caps = first.caps or NO_CAPS
        snap.rows_max = ROWS_DECIDED_ON_LOOP_MAX
        return RunWork(snap, items_of_run)

    def _answer_saved(self, works: list[RunWork], saved: Saved) -> list[PendingCommand]:
        """Answer the saved items. Returns the items whose runs have changed since they were decided."""
        outcome = BatchOutcome()
        batches.sort_outcomes(works, saved, outcome)
        self.finish(outcome)
        return outcome.again

    async def _commit_locked(self, lane: int, items: list[PendingCommand]) -> None:
        """Commit items under the locks of their runs, until every item has its answer."""
        pause = RETRY_SECONDS_MIN
        lookups = 0
        while items:
            works: list[RunWork] = []
            cached = {item.run_id: snap for item in items if (snap := self._cache.pop(item.run_id, None))}
            make = partial(batches.commit_locked, items, cached, self._chance, works)
            failure: Exception
            try:
                outcome = await self.store.transact(make, lane=lane)
            except AmbiguousCommit as unknown:
                batches.remember_proofs(works)
                failure = unknown
            except WriteConflict as conflict:
                failure = conflict
            except TenureError as refused:
                if not refused.retryable:
                    for item in items:
                        self._answer(item, None, refused)
                    return
                failure = refused
            except Exception as fault:  # one command is at fault: divide the batch until it is alone
                if len(items) > 1:
                    half = len(items) // 2
                    await self._commit_locked(lane, items[:half])
                    items = items[half:]
                    continue
                lookups += 1
                if not batches.is_lost_race(items[0], fault) or lookups > KEY_LOOKUPS_MAX:
                    self._answer(items[0], None, batches.store_failure_error(fault))
                    return
                failure = fault
            else:
                self.finish(outcome)
                items = outcome.again
                if outcome.done:
                    continue  # there was progress: retry without a pause
                failure = WriteConflict("the run changed")
            items = self._answer_late(items, failure)
            await asyncio.sleep(pause * (0.5 + self._chance.random()))
            pause = min(pause * 2, RETRY_SECONDS_MAX)

    def _answer_late(self, items: list[PendingCommand], failure: Exception) -> list[PendingCommand]:
        """Answer the items whose deadline has passed. Returns the others."""
        now = self._now()
        if not isinstance(failure, TenureError):
            failure = TenureError("COMMAND_DEADLINE", f"the command was not committed in time: {failure}")
        for item in items:
            if item.deadline <= now:
                self._answer(item, None, failure)
        return [item for item in items if item.deadline > now]

    def finish(self, outcome: BatchOutcome) -> None:
        """After a commit: answer its commands, cache its snapshots, and start what follows from it."""
        cache = self._cache
        for snap in outcome.snapshots:
            cache[snap.run_id] = snap
        while len(cache) > SNAPSHOTS_CACHED_MAX:
            del cache[next(iter(cache))]
        for item in outcome.done:
            if isinstance(item.error, TenureError) and item.error.code == "LEASE_STALE":
                self.stale += 1
            self._answer(item, item.result, item.error)
        if outcome.wrote_feed:
            for wake in self.on_feed:
                wake()
        if self._watchers:
            self._notify_watchers(outcome.works)
        if outcome.ready:
            self._work_ready.set()
            self.claims.ring()
            self.spawn(self.store.notify_work())
            if self.external_queue is not None:
                self._announce(outcome.works)
        if outcome.outbox:
            self.spawn(self.deliver(outcome.outbox))

    def _announce(self, works: list[RunWork]) -> None:
        """Tell the external queue which steps a commit has made ready."""
        assert self.external_queue is not None
        left = ANNOUNCED_PER_COMMIT_MAX
        for work in works:
            steps = find_ready_steps(work.rows.values(), left)
            self.external_queue.announce(steps)
            left -= len(steps)
            if left <= 0:
                break

    def watch(self, callback: Callable[[list[ObservedEvent]], None]) -> Callable[[], None]:
        """Call a function in the event loop after every commit of this process, with its events. A commit of unknown fate
        that turns out to have happened is not reported. Returns a function that ends the watch."""
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def _notify_watchers(self, works: list[RunWork]) -> None:
        events = [
            event
            for work in works
            for _, decision, before in work.decided
            if (event := build_observed_event(work.snap, before, decision)) is not None
        ]
        if not events:
            return
        for callback in list(self._watchers):
            try:
                callback(events)
            except Exception:  # a failing watcher must not delay the answers
                log.error("watcher_failed", traceback=traceback.format_exc())

    @staticmethod
    def _answer(item: PendingCommand, result: Any, error: Exception | None) -> None:
        future = item.future
        if future is None or future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            fail_future(future, error)

    @property
    def waiting(self) -> int:
        """How many commands are queued."""
        return self._queued

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, being committed or being delivered to another run."""
        return not self._tasks and not any(lane or lane.wake.is_set() for lane in self._lanes)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a task in the background, in a context of its own. `stop` cancels it."""
        assert self._loop is not None
        task = self._loop.create_task(work, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            # The sweeper retries what the store refused; anything else is a defect.
            report = log.warning if isinstance(fault, TenureError) else log.error
            report("task_failed", error=repr(fault))

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
        """Lease up to `limit` ready steps. With `wait_seconds`, wait if there are none."""
        if not 0 < limit <= CLAIM_STEPS_MAX:
            raise TenureError(
                "INVALID_INPUT", f"`limit` must be between 1 and {CLAIM_STEPS_MAX}, not {limit}"
            )
        wanted = Claim(Claimant(worker, ack, session), tuple(dict.fromkeys(queues)), limit)
        deadline = self._now() + wait_seconds
        while True:
            self._work_ready.clear()
            leases = (await self.claims.once(wanted)).leases
            left = deadline - self._now()
            if leases or left <= 0 or self._stopping:
                return leases
            await self.wait_for_work(min(left, POLL_SECONDS))

    async def wait_for_work(self, timeout_s: float) -> None:
        """Wait until a step becomes ready in this or another process, or until the timeout."""
        await self.claims.until(self._work_ready, timeout_s)

    def heartbeat(self, message: Heartbeat) -> asyncio.Future[LeaseReply]:
        """Extend a lease. Heartbeats have their own commits, so that commands do not delay them."""
        return self._heartbeats.heartbeat(message)

    def update_lease(self, message: Heartbeat, reply: LeaseReply) -> None:
        """Bring the cached lease up to date after its heartbeat was written."""
        snap = self._cache.get(message.run_id)
        attempt = snap.attempts.get((message.idx, message.n)) if snap is not None else None
        if snap is not None and attempt is not None and reply.expires_at is not None:
            snap.attempts[message.idx, message.n] = replace(
                attempt,
                seq=max(attempt.seq, message.seq),
                expires_at=max(attempt.expires_at, reply.expires_at),
            )

    # ----------------------------------------------------------------------------------------- outbox

    async def deliver(self, rows: Iterable[OutboxRow], lacking: list[OutboxRow] | None = None) -> int:
        """Deliver outbox rows to other runs. The sweeper finds again what fails. See `deliver_outbox`."""
        return await deliver_outbox(self, rows, lacking)
