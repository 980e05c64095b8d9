"""What an execution waits for, and when its run is suspended or handed over.

Laws:
1. The run suspends when every branch of its code waits and no step is running. A branch that awaits something the SDK cannot see is
   given the lease port's `timers.quiet_seconds`.
2. While steps are running, waits that settle are noticed too.
3. A call or a wait that the code itself canceled (a gather stopped it, a task was canceled) is recorded as canceled. A replay does not
   make it again: it blocks there until the code cancels it once more.
4. While the worker is stopping, nothing new begins, and the run is given back as soon as no step is running: at once if its branches
   only wait or sleep, after HAND_OVER_SECONDS if one awaits something the SDK cannot see. A run that only waits for durable things
   suspends as usual.
5. A suspended run is replayed when the first of its waits settles, which costs time in proportion to what it has recorded. A run with
   many records therefore stays in memory for about as long as its replay would take, so that a thousand events that come one by one
   do not cost a replay each. It stays only if none of its next AHEAD_MAX waits has settled yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NoReturn, TypeVar

from tenure.errors import TenureError
from tenure.futures import ignore_outcome, wait_uninterrupted
from tenure.kernel.lease_types import LeaseReply
from tenure.sdk import codec, context
from tenure.sdk.exits import ExecutionExit, HandedOver, Interrupted, LeaseLost, Suspended
from tenure.sdk.journal import CANCELING, ExecutionJournal
from tenure.sdk.replay_log import INNER_KEY_MARK
from tenure.store.replay import ReplayWait

T = TypeVar("T")

CANCELED_BY_CODE = "STEP_CANCELED"
"""With 0 tries: the code canceled the call; see law 3."""
SHORT_SECONDS = 5.0
"""A shorter pause is spent in memory."""
AHEAD_MAX = 100
"""How many waits are read beyond the one that has settled: code often asks for one after the other."""
HAND_OVER_SECONDS = 0.2
OPENINGS_MAX = 256
STAY_SECONDS_PER_ROW = 50e-6
STAY_SECONDS_MIN = 0.01
STAY_SECONDS_MAX = 1.0
TURNS_OF_A_WAKE_UP = 5
"""Turns of the event loop between the end of a task and the next line of the code that awaits it."""
LOOK_SECONDS = 0.5
"""How often waits are read while other branches keep the run from suspending."""
ARTIFACT_PAUSES_SECONDS = (0.5, 2.0, 8.0, 30.0)
"""Pauses before an artifact store that cannot be reached is tried again: a short outage does not fail a run."""

Opening = int | asyncio.Future[LeaseReply]
"""A wait that was opened: its number, or the reply that will have it."""


class ExecutionWaits:
    def __init__(self, journal: ExecutionJournal) -> None:
        self._journal = journal
        self._lease_port = journal.lease_port
        self._replay_log = journal.replay_log
        self._loop = journal.loop
        self._waiters = journal.waiters
        self.branch_tasks: set[asyncio.Task[Any]] = set()
        """Tasks of the code's own that have made a durable call."""
        self._branches = 1
        """Branches of the code that can continue."""
        self.busy = 0
        """How many of them do something the SDK can see: run a step, wait for a commit, sleep."""
        self._sleeping = 0
        """How many of those only let time pass."""
        self._parked = 0
        """Branches that may not begin anything new; see law 4."""
        self._turns: dict[int, int] = {}
        """How often the code has waited for a wait."""
        self._ahead: dict[int, ReplayWait] = {}
        """Settled waits that were read before the code asked for them."""
        self._openings_room = asyncio.Semaphore(OPENINGS_MAX)
        self._quiet_timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.suspending: asyncio.Task[None] | None = None
        """Set while the run is being suspended or given back."""

    def close(self) -> None:
        self._journal.closed = True
        for each in (self._quiet_timer, self._watcher, *self.branch_tasks):
            if each is not None:
                each.cancel()

    # ------------------------------------------------------------------------------ what keeps a run here

    async def sleep(self, seconds: float) -> None:
        self.busy += 1
        self._sleeping += 1
        try:
            await self._lease_port.timers.sleep(seconds)
        finally:
            self.busy -= 1
            self._sleeping -= 1
            self.reconsider()

    async def work(self, work: Awaitable[T]) -> T:
        """Await something that keeps the run from suspending."""
        self.busy += 1
        try:
            return await work
        finally:
            self.busy -= 1
            self.reconsider()

    async def barrier(self) -> None:
        """Wait until everything recorded is durable. The branch counts as busy meanwhile."""
        self.busy += 1
        try:
            await self._durable()
        finally:
            self.busy -= 1
            if self._waiters or self._lease_port.draining:
                self.reconsider()

    async def _durable(self) -> None:
        """Wait until everything recorded is durable. If the run is being canceled, wait to be stopped."""
        try:
            await self._journal.barrier()
        except TenureError as refused:
            if refused.code != CANCELING:
                raise
            await self.await_cancel()

    async def store_payload(self, body: bytes | None) -> bytes | None:
        """The payload to record: a reference if it is large and becomes an artifact."""
        if body is not None and (len(body) > codec.INLINE_BYTES_MAX or body.startswith(codec.RESERVED)):
            return await self._retry_artifact(partial(self._lease_port.store_artifact, body))
        return body

    async def load_payload(self, body: bytes | None) -> bytes | None:
        """The payload of a record. If its artifact cannot be read now, the run is given back."""
        if body is None or not body.startswith(codec.RESERVED):
            return body
        try:
            return await self._retry_artifact(partial(self._lease_port.load_artifact, body))
        except TenureError as refused:
            if not refused.retryable:
                raise
            self._journal.leave(Interrupted(refused.code))

    async def _retry_artifact(self, transfer: Callable[[], Awaitable[T]]) -> T:
        for pause in ARTIFACT_PAUSES_SECONDS:
            try:
                return await self.work(transfer())
            except TenureError as refused:
                if not refused.retryable:
                    raise
            await self.sleep(pause)
        return await self.work(transfer())

    # ----------------------------------------------------------------------------------------------- waits

    async def wait(self, label: str, *, check: bool = False, **what: Any) -> ReplayWait:
        """Open a wait and return how it was settled. The run suspends when it has nothing else to do."""
        self._journal.unawaited.pop(label, None)
        self._journal.check()
        known = self._replay_log.waits.get(label)
        if known is not None:
            return await self._settled(known.no)
        if check:
            self._journal.check_replay(self._replay_log.check_new, label)
        opened = await self._open(label, **what)
        return opened if isinstance(opened, ReplayWait) else await self._settled(opened)

    async def pause(self, label: str, until: int) -> None:
        """Pause until a time: in memory if that is short, else suspended."""
        left = (until - self._lease_port.now_us()) / 1e6
        if left >= SHORT_SECONDS or (left > 0 and label in self._replay_log.waits):
            await self.wait(label, until=until)
        elif left > 0:
            await self.sleep(left)

    async def wait_for(self, no: int) -> ReplayWait:
        """Wait until an open wait has settled, and return how."""
        self._journal.check()
        return await self._settled(no)

    async def _settled(self, no: int) -> ReplayWait:
        canceled_key = self._next_cancel_key(no)
        if self._replay_log:
            if canceled_key in self._replay_log.checkpoints:
                await self.block()
            known = self._replay_log.settled.get(no)
            if known is not None:
                await self._journal.replay_order.take((known.settled_at or 0, no))
                return known
        alone = (
            not self._waiters and not self._journal.replay_order.awaited
        )  # else an earlier one may come first
        if alone and (ahead := self._ahead.pop(no, None)) is not None:
            return ahead
        context.current_scope()  # a task of the code's own that waits is a branch
        waiter: asyncio.Future[ReplayWait] = self._loop.create_future()
        waiters = self._waiters.setdefault(no, [])
        waiters.append(waiter)
        self.remove_branch()
        try:
            settled = await waiter
        except asyncio.CancelledError:
            if self._journal.is_active():
                self._record_canceled(canceled_key, no)
            raise
        finally:
            waiters.remove(waiter)
            if not waiters:
                self._waiters.pop(no, None)
            self.add_branch()
        if self._waiters or self._journal.replay_order.awaited:
            await self._journal.replay_order.take((settled.settled_at or 0, no))
        return settled

    def _next_cancel_key(self, no: int) -> str:
        """The key that records that the code canceled its next waiting for this wait; see law 3."""
        turn = self._turns[no] = self._turns.get(no, 0) + 1
        return f"{INNER_KEY_MARK}{no}.{turn}"

    def _record_canceled(self, key: str, no: int) -> None:
        self._journal.record(key, state="failed", error=CANCELED_BY_CODE, tries=0, closes=no)

    async def block(self) -> None:
        """Wait until this branch is canceled."""
        context.current_scope()  # a task of the code's own that waits is a branch
        self.remove_branch()
        try:
            await self._loop.create_future()
        finally:
            self.add_branch()

    async def open(self, label: str, **what: Any) -> int:
        """Open a wait without waiting for it (a proposal), and return its number."""
        if (known := await self._recorded_wait(label)) is not None:
            return known
        opened = await self._open(label, **what)
        return opened.no if isinstance(opened, ReplayWait) else opened

    async def _recorded_wait(self, label: str) -> int | None:
        """The number of a wait that was opened before, or None for a new one, which may be opened now."""
        self._journal.unawaited.pop(label, None)
        self._journal.check()
        known = self._replay_log.waits.get(label)
        if known is not None:
            return known.no
        self._journal.check_replay(self._replay_log.check_new, label)
        if self._lease_port.draining:
            await self.park()
        return None

    async def begin_open(self, label: str, **what: Any) -> Opening:
        """Open a wait (a child) and continue before it is durable. A refusal ends the execution, because its code has continued."""
        if (known := await self._recorded_wait(label)) is not None:
            return known
        room = self._openings_room
        await (self.work(room.acquire()) if room.locked() else room.acquire())
        try:
            opening = self._send_opening(label, what)
        except BaseException:
            room.release()
            raise
        if opening.done():
            room.release()
            await self._number(opening)  # a refusal is raised here
        else:
            self._journal.openings.add(opening)
            self._journal.pending.append(opening)
            opening.add_done_callback(self._opening_replied)
        return opening

    async def opened(self, opening: Opening) -> int:
        """The number of an opened wait, once it is durable."""
        if isinstance(opening, int):
            return opening
        if not opening.done():
            try:
                await self.work(asyncio.wait((opening,)))
            except asyncio.CancelledError:
                if self._journal.is_active():  # the record needs the number; see law 3
                    with suppress(TenureError):
                        no = (await self._await_reply(opening)).no or 0
                        self._record_canceled(self._next_cancel_key(no), no)
                raise
        self._journal.check()
        return await self._number(opening)

    def _opening_replied(self, opening: asyncio.Future[LeaseReply]) -> None:
        self._openings_room.release()
        refused = None if opening.cancelled() else opening.exception()
        if isinstance(refused, TenureError):
            self._journal.refuse(refused, opening)
            if refused.code == CANCELING:
                self._lease_port.heartbeat_now()
        self._journal.openings.discard(opening)

    def _send_opening(self, label: str, what: dict[str, Any]) -> asyncio.Future[LeaseReply]:
        # Records that are sent before the opening are committed before it or together with it.
        self._journal.flush()
        try:
            return self._lease_port.open_wait(label, **what)
        except TenureError as refused:
            raise self._journal.refuse(refused) from refused

    async def _number(self, opening: asyncio.Future[LeaseReply]) -> int:
        """The number of a wait from the reply to its opening, which has come."""
        try:
            no = opening.result().no
        except TenureError as refused:
            if refused.code != CANCELING:
                raise self._journal.refuse(refused) from refused
            await self.await_cancel()
        assert no is not None
        return no

    async def await_cancel(self) -> NoReturn:
        """Wait for the cancellation of a run that is being canceled."""
        if self._lease_port.stop.is_set():  # the code went on after it was canceled
            raise asyncio.CancelledError
        self._lease_port.heartbeat_now()
        await self.block()
        raise AssertionError("`block` returned")

    async def _open(self, label: str, **what: Any) -> int | ReplayWait:
        self.busy += 1
        try:
            async with self._openings_room:
                opening = self._send_opening(label, what)
                opening.add_done_callback(ignore_outcome)  # it may fail together with the barrier
                try:
                    await self._durable()
                except BaseException:
                    opening.cancel()
                    raise
                try:
                    reply = await self._opened(opening)
                except TenureError as refused:
                    if refused.code != CANCELING:
                        raise self._journal.refuse(refused) from refused
                    await self.await_cancel()
            assert reply.no is not None
            if reply.state == "go_on":
                return (await self._lease_port.load_waits(reply.no, reply.no))[0]
            return reply.no
        finally:
            self.busy -= 1
            if self._lease_port.draining:
                self.reconsider()

    async def _opened(self, opening: asyncio.Future[LeaseReply]) -> LeaseReply:
        """The reply to an opening. A branch that is canceled meanwhile still waits for it: the record needs the wait's number."""
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if self._journal.is_active():
                with suppress(TenureError):
                    no = (await self._await_reply(opening)).no or 0
                    self._record_canceled(f"{INNER_KEY_MARK}{no}.1", no)
            raise

    async def _await_reply(self, opening: asyncio.Future[LeaseReply]) -> LeaseReply:
        """The reply to an opening, however often this branch is canceled."""
        with suppress(asyncio.CancelledError):
            await wait_uninterrupted(opening)
        return opening.result()

    # ---------------------------------------------------------------------------------- branches, suspending

    def activity(self, steps_ignored: int) -> Literal["resting", "unseen", "working"]:
        """`resting` if every branch only lets time pass, apart from `steps_ignored` running steps; `unseen` if another branch awaits
        something the SDK cannot see."""
        suspends_soon = self._quiet_timer is not None and self._branches <= 0
        if suspends_soon or self.suspending is not None or self.busy != self._sleeping + steps_ignored:
            return "working"
        return "resting" if self._branches <= self.busy else "unseen"

    def add_branch(self) -> None:
        self._branches += 1

    def remove_branch(self) -> None:
        """No longer count a branch that has ended or waits for something durable."""
        self._branches -= 1
        self.reconsider()

    def reconsider(self) -> None:
        """Suspend the run or give it back, if it is time; see laws 1 and 4. Called when something has changed, and when the worker stops."""
        draining = self._lease_port.draining
        if not (self._waiters or draining) or self._journal.exit is not None or self.suspending is not None:
            return
        if self._quiet_timer is not None:
            self._quiet_timer.cancel()
            self._quiet_timer = None
        if self._journal.closed:
            return
        if self.busy > (self._sleeping if draining else 0):
            if self._waiters and (self._watcher is None or self._watcher.done()):
                self._watcher = self._loop.create_task(self._look_again())
        elif draining and self._branches > self._sleeping:
            self._quiet_timer = self._loop.call_later(HAND_OVER_SECONDS, self._suspend_or_give_back)
        elif draining or (self._branches <= 0 and (stay := self._stay_seconds()) < STAY_SECONDS_MIN):
            self._suspend_or_give_back()
        elif self._branches <= 0:
            self.suspending = self._loop.create_task(self._stay(stay))
        else:
            self._quiet_timer = self._loop.call_later(
                self._lease_port.timers.quiet_seconds, self._suspend_or_give_back
            )

    def _stay_seconds(self) -> float:
        known = self._replay_log
        rows = len(known.checkpoints) + self._journal.steps_begun + max(len(known.waits), len(self._turns))
        return min(rows * STAY_SECONDS_PER_ROW, STAY_SECONDS_MAX)

    async def _stay(self, seconds: float) -> None:
        """Read the next waits. If none has settled, stay `seconds` before the run suspends; see law 5."""
        rows: list[ReplayWait] = []
        if not self._waiters:  # the last waiter was canceled before this task began
            self.suspending = None
            self.reconsider()
            return
        first = min(self._waiters)
        try:
            with suppress(TenureError):  # the store cannot be reached: suspending tries again
                rows = await self._lease_port.load_waits(first, first + AHEAD_MAX)
        except ExecutionExit:
            return
        finally:
            self.suspending = None
        settled = any(row.state == "settled" and row.no in self._waiters for row in rows)
        self._settle(rows)
        if settled or self._journal.exit is not None or self._journal.closed:
            return
        if self._branches > 0 or self.busy or self._lease_port.draining:  # changed while the store was read
            self.reconsider()
        else:
            self._quiet_timer = self._loop.call_later(seconds, self._suspend_or_give_back)

    async def wait_while_suspending(self) -> None:
        """Begin nothing new while the run is being suspended: it may be gone in a moment."""
        while self.suspending is not None:
            await asyncio.wait((self.suspending,))
        self._journal.check()

    async def _look_again(self) -> None:
        """Notice waits that settle while a step keeps the run from suspending; see law 2."""
        while self._waiters and self.busy and self._journal.exit is None:
            await self._lease_port.timers.sleep(LOOK_SECONDS)
            if self._waiters and self._journal.exit is None:
                with suppress(TenureError):  # the store cannot be reached: the next look may succeed
                    self._settle(await self._lease_port.load_waits(min(self._waiters), max(self._waiters)))

    async def park(self) -> None:
        """Wait for the run to be given back: the worker is stopping, and this branch would begin something new."""
        self._parked += 1
        try:
            await self.block()
        finally:
            self._parked -= 1

    def _suspend_or_give_back(self) -> None:
        self._quiet_timer = None
        if self._journal.exit is not None or self.suspending is not None or self._journal.closed:
            return
        if self._lease_port.draining and (
            self._parked or self._sleeping or self._branches > 0 or not self._waiters
        ):
            if self.busy == self._sleeping:
                self.suspending = self._loop.create_task(self._give_back())
        elif self.busy == 0 and self._waiters:
            self.suspending = self._loop.create_task(self._suspend(self._branches))

    async def _give_back(self) -> None:
        """Give the run back once everything it recorded is durable; see law 4."""
        try:
            await self._journal.barrier()
        except (ExecutionExit, TenureError):  # the next worker repeats what was not recorded
            pass
        finally:
            self.suspending = None
        if self.busy > self._sleeping:  # a wait is being opened, which reconsiders when it is done
            self.reconsider()
        else:
            self._journal.end(HandedOver("the worker is stopping"))

    async def _suspend(self, branches: int) -> None:
        # Code that awaits a branch that has just ended continues in one of these turns.
        for _ in range(TURNS_OF_A_WAKE_UP):
            await asyncio.sleep(0)
        if self._branches > branches or self.busy:
            self.suspending = None
            self.reconsider()
            return
        try:
            try:
                await self._journal.barrier()
            except TenureError as refused:
                if refused.code != CANCELING:  # `suspend` is refused with the same code
                    raise
            reply = await self._lease_port.suspend(tuple(self._waiters))
            rows: list[ReplayWait] = []
            if (
                reply.state == "go_on"
            ):  # read what has settled, and up to AHEAD_MAX waits after the first of them
                first = min(reply.settled)
                rows = await self._lease_port.load_waits(first, max(*reply.settled, first + AHEAD_MAX))
        except ExecutionExit:
            return
        except TenureError as refused:
            if refused.code == "CHECKPOINT_OPEN":  # a step has begun meanwhile
                return
            self._journal.end(Interrupted(refused.code) if refused.retryable else LeaseLost(refused.code))
            return
        finally:
            self.suspending = None
        if reply.state == "go_on":
            self._settle(rows)
        elif reply.state == "suspended":
            self._journal.end(Suspended("suspended"))
        else:  # refused by a governed wait, or canceled
            self._journal.end(LeaseLost(reply.state))

    def _settle(self, rows: list[ReplayWait]) -> None:
        self._ahead.clear()
        for row in rows:
            if row.state == "settled":
                waiters = self._waiters.get(row.no)
                if waiters is None and len(self._ahead) < AHEAD_MAX:
                    self._ahead[row.no] = row
                for waiter in waiters or ():
                    if not waiter.done():
                        waiter.set_result(row)
