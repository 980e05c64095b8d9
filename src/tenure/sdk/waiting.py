"""What a body waits for, and when it is let go.

Laws:
1. The run suspends when every strand waits and no step is at work. A strand that does something we cannot see (an await of
   its own) is given its line's `quiet_seconds`.
2. While steps are at work, waits that settle are noticed all the same.
3. A call or a wait that the code itself gave up (a gather stopped it, a task was canceled) is recorded as that: in a
   replay it is not made again, and waits until it is given up once more.
4. While the worker ends, whatever is new waits, and the run is given back as soon as nothing is at work: at once where its
   strands only wait or let time pass, after HAND_OVER_SECONDS where one does something we cannot see. A run that only waits for
   what is durable is suspended, as ever.
5. A run that was let go is replayed when the first of its waits settles, which costs as much as it has recorded. One that has recorded
   much stays a while before it is let go, about as long as its replay takes, so that what arrives meanwhile is taken without one:
   of a thousand events that come one by one each would cost a replay. It stays only where none of its next AHEAD_MAX waits has settled yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any, Literal, NoReturn, TypeVar

from tenure.errors import TenureError
from tenure.futures import finish, take_outcome
from tenure.kernel.decide.leases import Reply
from tenure.sdk import here
from tenure.sdk.faults import HandedOver, Interrupted, LeaseLost, Signal, StartRefused, Suspended
from tenure.sdk.line import Line
from tenure.sdk.outcomes import LOST
from tenure.sdk.past import BESIDE, Past
from tenure.sdk.recording import Recording
from tenure.store.port import Waited

T = TypeVar("T")

STOPPED = "STEP_CANCELED"
"""With no tries: how something is recorded that the code gave up; see law 3."""
SHORT_SECONDS = 5.0
"""A pause below it is waited for here."""
AHEAD_MAX = 100
"""Waits that are asked for beyond the one that has settled: code often asks for one after the other."""
HAND_OVER_SECONDS = 0.2
CANCELING = "RUN_CANCELING"
OPENINGS_MAX = 256
"""Waits of one body whose opening is not durable yet."""
STAY_SECONDS_PER_ROW = 50e-6
STAY_SECONDS_MIN = 0.01
STAY_SECONDS_MAX = 1.0
"""How long a run that only waits stays in memory; see law 5."""
TURNS_OF_A_WAKE_UP = 5
"""Of the event loop, between the end of a task and the next line of whoever waits for it."""
LOOK_SECONDS = 0.5
"""How often waits are looked at while other strands keep the run from suspending."""

Opening = int | asyncio.Future[Reply]
"""A wait that was opened: its number, or the answer that will name it."""


class Waiting(Recording):
    """See the laws above."""

    def __init__(self, line: Line, past: Past, steps_max: int) -> None:
        super().__init__(line, past, steps_max)
        self.strand_tasks: set[asyncio.Task[Any]] = set()
        """Tasks of the code's own that have said something durable."""
        self.closed = False
        """Whether its code has ended."""
        self._strands = 1
        self._busy = 0
        self._resting = 0
        self._parked = 0
        """Strands that would begin something new and may not; see law 4."""
        self._waiting: dict[int, list[asyncio.Future[Waited]]] = {}
        self._turns: dict[int, int] = {}
        """How often a wait was waited for."""
        self._ahead: dict[int, Waited] = {}
        """Answers that came with another one, before the code has asked for them."""
        self._openings: set[asyncio.Future[Reply]] = set()
        """Waits that were opened without waiting for the answer, until it has come."""
        self._openings_room = asyncio.Semaphore(OPENINGS_MAX)
        self._quiet: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None
        self._letting_go: asyncio.Task[None] | None = None

    def end(self, signal: Signal) -> None:
        """The body is over: nobody waits in it any more."""
        if self._over is None:
            super().end(signal)
            for waiter in [each for waiters in self._waiting.values() for each in waiters]:
                if not waiter.done():
                    waiter.cancel()

    def goes_on(self) -> bool:
        """Whether the code has more to say: neither its body nor its lease is at its end."""
        return self._over is None and not self.closed and not self.line.stop.is_set()

    def _close(self) -> None:
        self.closed = True
        for each in (self._quiet, self._watch, *self.strand_tasks):
            if each is not None:
                each.cancel()

    async def busy(self, work: Coroutine[Any, Any, Any]) -> None:
        """Something that keeps the run from being let go: time that passes."""
        self._busy += 1
        self._resting += 1
        try:
            await work
        finally:
            self._busy -= 1
            self._resting -= 1
            self._poke()

    async def barrier(self) -> None:
        """Wait until everything recorded is durable. A strand that waits for our own commits is at work, however long
        they take."""
        self._busy += 1
        try:
            await self._durable()
        finally:
            self._busy -= 1
            if self._waiting or self.line.draining:
                self._poke()

    async def _durable(self) -> None:
        """Wait for what was recorded; where the run is being canceled, wait to be stopped."""
        try:
            await super().barrier()
        except TenureError as refused:
            if refused.code != CANCELING:
                raise
            await self._canceled()

    async def _at_work(self, work: Awaitable[T]) -> T:
        self._busy += 1
        try:
            return await work
        finally:
            self._busy -= 1
            self._poke()

    async def _let_pass(self, seconds: float) -> None:
        await self.busy(self.line.sleep(seconds))

    async def wait(self, label: str, *, check: bool = False, **what: Any) -> Waited:
        """Open a wait and be told how it was settled; suspends when there is nothing else to do."""
        self.unbegun.pop(label, None)
        self.check()
        known = self.past.waits.get(label)
        if known is None:
            if check:
                self._fit(self.past.check_new_wait, label)
            no = await self._open(label, **what)
            if isinstance(no, Waited):
                return no
        else:
            no = known.no
        return await self._settled(no)

    async def pause(self, label: str, until: int) -> None:
        """Let time pass: here, or suspended when it is long."""
        left = (until - self.line.now_us()) / 1e6
        if left <= 0:
            return
        if left < SHORT_SECONDS and label not in self.past.waits:
            await self.busy(self.line.sleep(left))
            return
        await self.wait(label, until=until)

    async def wait_for(self, no: int) -> Waited:
        """How a wait that is open was settled, or will be."""
        self.check()
        return await self._settled(no)

    async def _settled(self, no: int) -> Waited:
        turn = self._turns[no] = self._turns.get(no, 0) + 1
        given_up = f"{BESIDE}{no}.{turn}"
        if self.past:
            if given_up in self.past.checkpoints:
                await self.never()
            known = self.past.settled.get(no)
            if known is not None:
                await self.turns.take((known.settled_at or 0, no))
                return known
        if not self._waiting and not self.turns.awaited:  # else an earlier answer may have to be given first
            ahead = self._ahead.pop(no, None)
            if ahead is not None:
                return ahead
        here.here()  # a task of the code's own that waits is a strand of its own
        waiter: asyncio.Future[Waited] = self._loop.create_future()
        waiters = self._waiting.setdefault(no, [])
        waiters.append(waiter)
        self.strand_ends()
        try:
            settled = await waiter
        except asyncio.CancelledError:
            if self.goes_on():
                self.record(given_up, state="failed", error=STOPPED, tries=0, closes=no)
            raise
        finally:
            waiters.remove(waiter)
            if not waiters:
                self._waiting.pop(no, None)
            self.strand_begins()
        if self._waiting or self.turns.awaited:
            await self.turns.take((settled.settled_at or 0, no))
        return settled

    async def never(self) -> None:
        """Wait for nothing: until whoever waits here is canceled."""
        here.here()
        self.strand_ends()
        try:
            await self._loop.create_future()
        finally:
            self.strand_begins()

    async def open(self, label: str, **what: Any) -> int:
        """Open a wait that nobody waits for yet (a child, a proposal); its number."""
        if (known := await self._recorded_wait(label)) is not None:
            return known
        no = await self._open(label, **what)
        return no.no if isinstance(no, Waited) else no

    async def _recorded_wait(self, label: str) -> int | None:
        """The number of a wait that was opened before; None: it is new, and may be opened."""
        self.unbegun.pop(label, None)
        self.check()
        known = self.past.waits.get(label)
        if known is not None:
            return known.no
        self._fit(self.past.check_new_wait, label)
        if self.line.draining:
            await self.park()
        return None

    async def begin_open(self, label: str, **what: Any) -> Opening:
        """Open a wait that nobody waits for yet, and go on before it is durable. One that is refused ends the body: its code has
        gone on without it."""
        if (known := await self._recorded_wait(label)) is not None:
            return known
        if self._openings_room.locked():
            await self._at_work(self._openings_room.acquire())
        else:
            await self._openings_room.acquire()
        try:
            opening = self._say_open(label, what)
        except BaseException:
            self._openings_room.release()
            raise
        if opening.done():
            self._openings_room.release()
            await self._number(opening)  # a refusal is raised here
        else:
            self._openings.add(opening)
            self._pending.append(opening)
            opening.add_done_callback(self._begun_open)
        return opening

    async def opened(self, opening: Opening) -> int:
        """The number of a wait that was opened, once it is durable."""
        if isinstance(opening, int):
            return opening
        if not opening.done():
            try:
                await self._at_work(asyncio.wait((opening,)))
            except asyncio.CancelledError:
                if self.goes_on():  # held until it is known what the code has given up; see law 3
                    with suppress(TenureError):
                        no = (await self._anyhow(opening)).no or 0
                        self._turns[no] = turn = self._turns.get(no, 0) + 1
                        self.record(f"{BESIDE}{no}.{turn}", state="failed", error=STOPPED, tries=0, closes=no)
                raise
        self.check()
        return await self._number(opening)

    def _begun_open(self, opening: asyncio.Future[Reply]) -> None:
        self._openings_room.release()
        refused = None if opening.cancelled() else opening.exception()
        if isinstance(refused, TenureError):
            self._refuse(opening, refused)
            if refused.code == CANCELING:
                self.line.hurry()
        self._openings.discard(opening)

    def _refuse(self, opening: asyncio.Future[Reply], refused: TenureError) -> BaseException:
        if opening in self._openings and not refused.retryable and refused.code not in LOST | {CANCELING}:
            self.end(StartRefused(refused))
        return super()._refuse(opening, refused)

    def _say_open(self, label: str, what: dict[str, Any]) -> asyncio.Future[Reply]:
        # Recorded before it in the same conversation, so committed before it or together with it.
        self.flush()
        try:
            return self.line.open_wait(label, **what)
        except TenureError as refused:
            raise self._trouble(refused) from refused

    async def _number(self, opening: asyncio.Future[Reply]) -> int:
        """The number of a wait from the answer to its opening, which is there."""
        try:
            no = opening.result().no
        except TenureError as refused:
            if refused.code != CANCELING:
                raise self._trouble(refused) from refused
            await self._canceled()
        assert no is not None
        return no

    async def _canceled(self) -> NoReturn:
        """The run is being canceled and opens nothing any more: wait to be stopped."""
        if self.line.stop.is_set():  # it knows, and asks all the same
            raise asyncio.CancelledError
        self.line.hurry()
        await self.never()
        raise AssertionError("never ends")

    async def _open(self, label: str, **what: Any) -> int | Waited:
        self._busy += 1
        try:
            async with self._openings_room:
                opening = self._say_open(label, what)
                opening.add_done_callback(take_outcome)  # a barrier that fails may fail together with it
                try:
                    await self._durable()
                except BaseException:
                    opening.cancel()
                    raise
                try:
                    reply = await self._opened(opening)
                except TenureError as refused:
                    if refused.code != CANCELING:
                        raise self._trouble(refused) from refused
                    await self._canceled()
            assert reply.no is not None
            return await self._answer(reply.no) if reply.state == "go_on" else reply.no
        finally:
            self._busy -= 1
            if self.line.draining:
                self._poke()

    async def _opened(self, opening: asyncio.Future[Reply]) -> Reply:
        """The answer to an opening. Code that gives the wait up meanwhile is held until it is known what to give up."""
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if self.goes_on():
                with suppress(TenureError):
                    no = (await self._anyhow(opening)).no
                    self.record(f"{BESIDE}{no}.1", state="failed", error=STOPPED, tries=0, closes=no)
            raise

    async def _anyhow(self, opening: asyncio.Future[Reply]) -> Reply:
        """The answer to an opening for code that was canceled, however often it is canceled meanwhile."""
        with suppress(asyncio.CancelledError):
            await finish(opening)
        return opening.result()

    async def _answer(self, no: int) -> Waited:
        return (await self.line.waited(no, no))[0]

    def rest(self, at_work: int) -> Literal["resting", "unseen", "working"]:
        """`resting` where every strand only lets time pass, but for so many that are in their steps; `unseen` where
        a strand besides does something we cannot see."""
        stays = self._quiet is not None and self._strands <= 0  # it suspends in a moment
        if stays or self._letting_go is not None or self._busy != self._resting + at_work:
            return "working"
        return "resting" if self._strands <= self._busy else "unseen"

    def strand_begins(self) -> None:
        """A strand of the code can go on."""
        self._strands += 1

    def strand_ends(self) -> None:
        """A strand has ended, or waits for something durable."""
        self._strands -= 1
        self._poke()

    def _poke(self) -> None:
        """Something changed: perhaps everything waits now; see law 1."""
        draining = self.line.draining
        if not (self._waiting or draining) or self._over is not None or self._letting_go is not None:
            return
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        if self.closed:
            return
        if self._busy > (self._resting if draining else 0):
            if self._waiting and (self._watch is None or self._watch.done()):
                self._watch = self._loop.create_task(self._look_again())
        elif draining and self._strands > self._resting:
            self._quiet = self._loop.call_later(HAND_OVER_SECONDS, self._let_go)
        elif draining or (self._strands <= 0 and (stay := self._stay_seconds()) < STAY_SECONDS_MIN):
            self._let_go()
        elif self._strands <= 0:
            self._letting_go = self._loop.create_task(self._stay(stay))
        else:
            self._quiet = self._loop.call_later(self.line.quiet_seconds, self._let_go)

    def _stay_seconds(self) -> float:
        """How long a run that only waits stays here before it suspends: about as long as its replay would take; see law 5."""
        past = self.past
        rows = len(past.checkpoints) + self._steps_begun + max(len(past.waits), len(self._turns))
        return min(rows * STAY_SECONDS_PER_ROW, STAY_SECONDS_MAX)

    async def _stay(self, seconds: float) -> None:
        """Take what the next waits have come to; if nothing has come, stay `seconds` before the run is let go (law 5)."""
        rows: list[Waited] = []
        if not self._waiting:  # whoever waited was canceled before this task began
            self._letting_go = None
            self._poke()
            return
        first = min(self._waiting)
        try:
            with suppress(TenureError):  # the store cannot be asked now: suspending asks again
                rows = await self.line.waited(first, first + AHEAD_MAX)
        except Signal:
            return
        finally:
            self._letting_go = None
        came = any(row.state == "settled" and row.no in self._waiting for row in rows)
        self._settle(rows)
        if came or self._over is not None or self.closed:
            return
        if self._strands > 0 or self._busy or self.line.draining:  # while the store was asked
            self._poke()
        else:
            self._quiet = self._loop.call_later(seconds, self._let_go)

    async def undecided(self) -> None:
        """While it is being let go, nothing new begins: nobody would hear of it."""
        while self._letting_go is not None:
            await asyncio.wait((self._letting_go,))
        self.check()

    async def _look_again(self) -> None:
        """While a step keeps the run from suspending, waits may settle all the same."""
        while self._waiting and self._busy and self._over is None:
            await self.line.sleep(LOOK_SECONDS)
            if self._waiting and self._over is None:
                with suppress(TenureError):  # the store cannot be asked now: there is a next time
                    self._settle(await self.line.waited(min(self._waiting), max(self._waiting)))

    def drain(self) -> None:
        """The worker ends (`line.draining` says so); see law 4."""
        self._poke()

    async def park(self) -> None:
        """Wait for the run to be given back: this strand would begin something new."""
        here.here()
        self._parked += 1
        self.strand_ends()
        try:
            await self._loop.create_future()
        finally:
            self._parked -= 1
            self.strand_begins()

    def _let_go(self) -> None:
        self._quiet = None
        if self._over is not None or self._letting_go is not None or self.closed:
            return
        if self.line.draining and (self._parked or self._resting or self._strands > 0 or not self._waiting):
            if self._busy == self._resting:
                self._letting_go = self._loop.create_task(self._give_back())
        elif self._busy == 0 and self._waiting:
            self._letting_go = self._loop.create_task(self._suspend(self._strands))

    async def _give_back(self) -> None:
        """Have the run given back once all that it recorded is durable; see law 4."""
        try:
            await super().barrier()
        except (Signal, TenureError):  # what could not be recorded is done again, whoever goes on
            pass
        finally:
            self._letting_go = None
        if self._busy > self._resting:  # a wait is being opened: its end looks again
            self._poke()
        else:
            self.end(HandedOver("the worker ends"))

    async def _suspend(self, strands: int) -> None:
        # Whoever waits for a strand that has just ended goes on in one of these turns.
        for _ in range(TURNS_OF_A_WAKE_UP):
            await asyncio.sleep(0)
        if self._strands > strands or self._busy:
            self._letting_go = None
            self._poke()
            return
        try:
            try:
                await super().barrier()
            except TenureError as refused:
                if refused.code != CANCELING:  # that is what it is told again
                    raise
            reply = await self.line.suspend(tuple(self._waiting))
            rows = await self._answers(reply.settled) if reply.state == "go_on" else []
        except Signal:
            return
        except TenureError as refused:
            if refused.code == "CHECKPOINT_OPEN":  # a step has begun meanwhile: not now
                return
            self.end(Interrupted(refused.code) if refused.retryable else LeaseLost(refused.code))
            return
        finally:
            self._letting_go = None
        if reply.state == "go_on":
            self._settle(rows)
        elif reply.state == "suspended":
            self.end(Suspended("suspended"))
        else:  # refused by a governed wait, or canceled: the run has moved on without us
            self.end(LeaseLost(reply.state))

    async def _answers(self, settled: tuple[int, ...]) -> list[Waited]:
        """What waits were answered that have settled, and some behind the first of them."""
        first = min(settled)
        return await self.line.waited(first, max(*settled, first + AHEAD_MAX))

    def _settle(self, rows: list[Waited]) -> None:
        self._ahead.clear()
        for row in rows:
            if row.state == "settled":
                waiters = self._waiting.get(row.no)
                if waiters is None and len(self._ahead) < AHEAD_MAX:
                    self._ahead[row.no] = row
                for waiter in waiters or ():
                    if not waiter.done():
                        waiter.set_result(row)
