"""The body of a workflow while it runs: replay, durable calls, and when to let go.

Laws:
1. What was recorded is not done again. A step's function begins only when everything its run recorded before is
   durable; between steps the code may run ahead of the commit, which a replay would repeat anyway.
2. Each failed try is recorded with its count and the next moment. A pause under SHORT_SECONDS is waited for here; a
   longer one suspends the run.
3. The run suspends when every strand waits and no step is at work. A strand that does something we cannot see (an await of
   its own) is given its line's `quiet_seconds`.
4. A body that has been told to end (suspended, misfit, lease lost) does nothing durable any more, whatever it catches.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel.commands import RecordCheckpoint
from tenure.kernel.decide.leases import Reply
from tenure.kernel.retry import Rng
from tenure.sdk import codec, here
from tenure.sdk.definitions import Step, Workflow
from tenure.sdk.faults import (
    Interrupted,
    LeaseLost,
    Misfit,
    Restart,
    Signal,
    StepFailed,
    Suspended,
)
from tenure.sdk.frame import Frame
from tenure.sdk.line import Line
from tenure.sdk.outcomes import LOST, MESSAGE_CHARS_MAX, failure_of, pause_us, told_of
from tenure.sdk.past import Past
from tenure.sdk.scope import Scope
from tenure.sdk.trying import STOP_SECONDS, ended, frame_of, in_own_thread, left, try_once
from tenure.store.port import Recorded, Waited

SHORT_SECONDS = 5.0
LOOK_SECONDS = 0.5
"""How often waits are looked at while other strands keep the run from suspending."""


class Body:
    """One workflow under one lease; see the laws above."""

    def __init__(self, workflow: Workflow[..., Any], line: Line, past: Past, chance: Rng) -> None:
        self.workflow = workflow
        self.line = line
        self.past = past
        self.run_id = ids.run_text(line.lease.run_id)
        self._chance = chance
        self._pending: list[asyncio.Future[Reply]] = []
        self._over: Signal | None = None
        self._strands = 1
        self._busy = 0
        self._resting = 0
        self.at_work: dict[str, Frame] = {}
        """The steps that are being tried now, by key."""
        self._waiting: dict[int, asyncio.Future[Waited]] = {}
        self._quiet: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None
        self._letting_go: asyncio.Task[None] | None = None
        self._main: asyncio.Task[Any] | None = None
        self._bridged: set[concurrent.futures.Future[Any]] = set()
        """What plain code waits for in its thread."""
        self._loop = asyncio.get_running_loop()
        self.patches: set[str] = set()
        """Patches this run has taken here."""

    # --------------------------------------------------------------------------------------- its life

    async def run(self, input_: bytes | None) -> bytes | None:
        """Run the code to its end. Answers the run's output; raises a `Signal` or what the code raised."""
        task = self._main = asyncio.current_task()
        assert task is not None
        function = self.workflow.function
        scope = Scope(self, "", task, plain=not self.workflow.is_async)
        token = here.enter(scope)
        self.line.body = self
        try:
            if scope.plain:
                value = await self._in_body_thread(lambda: self.workflow.parameters.call(function, input_))
            else:
                value = await self.workflow.parameters.call(function, input_)
        except BaseException as how:
            if self._over is not None:
                raise self._over from None
            if isinstance(how, SystemExit | KeyboardInterrupt):
                raise left(how) from how
            raise
        finally:
            here.leave(token)
            self.line.body = None
            self._close()
        if self._over is not None:
            raise self._over
        self.past.check_end()
        output = self.workflow.codec.encode(value)
        self.workflow.codec.echo(value, output)
        return await self.aside(output)

    async def _in_body_thread(self, function: Callable[[], Any]) -> Any:
        """Plain workflow code has a thread of its own: one of the steps' could be waiting for this very one."""
        work = in_own_thread(function)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self.line.stop.set()
            for waited_for in tuple(self._bridged):
                waited_for.cancel()
            await ended(self.line, work, STOP_SECONDS)
            raise

    def _close(self) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
        if self._watch is not None:
            self._watch.cancel()

    def end(self, signal: Signal) -> None:
        """The body is over, whatever its code does; see law 4."""
        if self._over is None:
            self._over = signal
            for waiter in self._waiting.values():
                if not waiter.done():
                    waiter.cancel()
            main = self._main
            if main is not None and not main.done() and main is not asyncio.current_task():
                main.cancel()

    def check(self) -> None:
        """Raise when the body is over."""
        if self._over is not None:
            raise self._over

    def bridge(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something durable for plain code in its thread, and wait for it there."""
        if self.line.stop.is_set():
            work.close()
            raise self._over or LeaseLost("told to stop")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._bridged.add(future)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._over or LeaseLost("canceled") from None
        finally:
            self._bridged.discard(future)

    # -------------------------------------------------------------------------------------- recording

    async def barrier(self) -> None:
        """Wait until everything recorded is durable."""
        while self._pending:
            pending, self._pending = self._pending, []
            for recorded in pending:
                await self._heard(recorded)

    async def _heard(self, recorded: asyncio.Future[Reply]) -> None:
        try:
            await recorded
        except TenureError as refused:
            raise self._trouble(refused) from refused

    def _trouble(self, refused: TenureError) -> BaseException:
        """What a refusal of something durable means: the body is over, unless it is about the content alone."""
        if refused.code in LOST:
            self.end(LeaseLost(refused.code))
        elif refused.retryable:
            self.end(Interrupted(refused.code))
        return self._over or refused

    def record(self, key: str, **fields: Any) -> None:
        """Record a checkpoint; durable at the next barrier."""
        self._pending.append(self.line.record(RecordCheckpoint(**self.line.head(), name=key, **fields)))

    async def aside(self, body: bytes | None) -> bytes | None:
        """A payload as it is stored: a large one goes to the artifacts."""
        if body is not None and (len(body) > codec.INLINE_BYTES_MAX or body.startswith(codec.RESERVED)):
            return await self.line.put_aside(body)
        return body

    async def fetched(self, body: bytes | None) -> bytes | None:
        """A stored payload as it was."""
        if body is not None and body.startswith(codec.RESERVED):
            return await self.line.fetch(body)
        return body

    async def recall(self, key: str, make: Callable[[], Any]) -> Any:
        """A value that is made once and is the same in every replay."""
        self.check()
        known = self.past.checkpoints.get(key)
        if known is not None:
            return msgspec.json.decode(await self.fetched(known.output) or b"null")
        self.past.check_new(key)
        value = make()
        body = codec.encode(value, key) or b"null"
        self.record(key, output=body)
        return msgspec.json.decode(body)

    # ------------------------------------------------------------------------------------------ steps

    async def call(
        self, key: str, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """One durable call of a step; see laws 1 and 2."""
        if self._over is not None:
            raise self._over
        digest = codec.digest(args, kwargs)
        limit = step.timeout_seconds or self.workflow.profile.timing.step_timeout_seconds
        tries = 0
        if self.past:
            known = self.past.checkpoints.get(key)
            if known is None:
                self._fit(self.past.check_new, key)
            else:
                if known.arguments != digest:
                    self._misfit(f"step {key!r} was recorded with other arguments")
                if known.state == "done" and known.resumable:
                    return step.codec.decode(await self.fetched(known.output))
                tries = await self._tried(key, known)
        while True:
            if self._pending:
                await self.barrier()
            tries += 1
            if not step.idempotent:
                self.record(
                    key,
                    state="started",
                    arguments=digest,
                    idempotent=False,
                    resumable=step.resumable,
                    tries=tries,
                )
                await self.barrier()
            frame = frame_of(self.line, self.run_id, self.workflow.name, key, tries)
            begun = time.perf_counter_ns()
            failed: Exception | None = None
            value = output = None
            self._busy += 1
            self.at_work[key] = frame
            try:
                value = await try_once(self.line, step, frame, args, kwargs, limit)
                output = step.codec.encode(value)
                if output is not None:
                    value = step.codec.echo(value, output)
                    output = await self.aside(output)
            except Exception as fault:
                failed = fault
            finally:
                self._busy -= 1
                del self.at_work[key]
                if self._waiting:
                    self._poke()
            if self._over is not None:
                raise self._over
            meta = told_of(step, frame, begun)
            if failed is not None:
                await self._failed(key, step, digest, tries, failed, meta)
                continue
            self.record(
                key,
                output=output,
                arguments=digest,
                resumable=step.resumable,
                idempotent=step.idempotent,
                tries=tries,
                meta=meta,
            )
            return value

    def _fit(self, check: Callable[[str], None], key: str) -> None:
        try:
            check(key)
        except Misfit as misfit:
            self.end(misfit)
            raise

    def _misfit(self, why: str) -> None:
        misfit = Misfit(why)
        self.end(misfit)
        raise misfit

    async def _tried(self, key: str, known: Recorded) -> int:
        """How often a recorded step was tried, once its next try is due; raises what it came to, if it is over."""
        if known.state == "started":
            raise TenureError("RUN_RESUME_FAILED", f"step {key!r} was begun, and nobody knows how it ended")
        if known.state == "done":
            return 0  # not resumable: it is done again
        if known.next_at is None:
            message = (await self.fetched(known.output) or b"").decode(errors="replace")
            raise StepFailed(key, known.error or "STEP_FAILED", message, known.tries)
        await self._pause(key, known.tries, known.next_at)
        return known.tries

    async def _failed(
        self,
        key: str,
        step: Step[..., Any],
        digest: bytes,
        tries: int,
        fault: Exception,
        meta: str,
    ) -> None:
        """Record a failed try; pause before the next one, or raise what it came to."""
        code, message, retryable = failure_of(fault)
        delay = pause_us(step, self.workflow.profile, code, retryable, tries, self._chance)
        next_at = None if delay is None else self.line.now_us() + delay
        self.record(
            key,
            state="failed",
            error=code,
            message=message[:MESSAGE_CHARS_MAX].encode(errors="replace") or None,
            arguments=digest,
            resumable=step.resumable,
            idempotent=step.idempotent,
            tries=tries,
            next_at=next_at,
            meta=meta,
        )
        if next_at is None:
            raise StepFailed(key, code, message, tries) from fault
        await self.barrier()
        await self._pause(key, tries, next_at)

    async def _pause(self, key: str, tries: int, until: int) -> None:
        """Let a backoff pass: here, or suspended when it is long."""
        left = (until - self.line.now_us()) / 1e6
        if left <= 0:
            return
        label = f"{key}!{tries}"
        if left < SHORT_SECONDS and label not in self.past.waits:
            await self.busy(self.line.sleep(left))
            return
        await self.wait(label, until=until)

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

    # ------------------------------------------------------------------------------------------ waits

    async def wait(self, label: str, *, check: bool = False, **what: Any) -> Waited:
        """Open a wait and be told how it was settled; suspends when there is nothing else to do."""
        self.check()
        known = self.past.waits.get(label)
        if known is None:
            if check:
                self._fit(self.past.check_new, label)
            no = await self._open(label, **what)
            if isinstance(no, Waited):
                return no
        elif known.state == "settled":
            return known
        else:
            no = known.no
        return await self._settled(no)

    async def wait_for(self, no: int) -> Waited:
        """How a wait that is open was settled, or will be."""
        self.check()
        known = next((row for row in self.past.waits.values() if row.no == no), None)
        if known is not None and known.state == "settled":
            return known
        return await self._settled(no)

    async def _settled(self, no: int) -> Waited:
        waiter: asyncio.Future[Waited] = self._loop.create_future()
        self._waiting[no] = waiter
        self.strand_ends()
        try:
            return await waiter
        finally:
            self._waiting.pop(no, None)
            self.strand_begins()

    async def open(self, label: str, **what: Any) -> int:
        """Open a wait that nobody waits for yet (a child, a proposal); its number."""
        self.check()
        known = self.past.waits.get(label)
        if known is not None:
            return known.no
        self._fit(self.past.check_new, label)
        no = await self._open(label, **what)
        return no.no if isinstance(no, Waited) else no

    async def _open(self, label: str, **what: Any) -> int | Waited:
        self._busy += 1
        try:
            # Recorded before it in the same conversation, so committed before it or together with it.
            pending, self._pending = self._pending, []
            opening = asyncio.ensure_future(self.line.open_wait(label, **what))
            for recorded in pending:
                await self._heard(recorded)
            try:
                reply = await opening
                assert reply.no is not None
                return await self._answer(reply.no) if reply.state == "go_on" else reply.no
            except TenureError as refused:
                if refused.code == "RUN_CANCELING":
                    self.end(LeaseLost(refused.code))
                raise self._trouble(refused) from refused
        finally:
            self._busy -= 1

    async def _answer(self, no: int) -> Waited:
        return next(row for row in await self.line.waited() if row.no == no)

    def rest(self, at_work: int) -> Literal["resting", "unseen", "working"]:
        """`resting` where every strand only lets time pass, but for so many that are in their steps; `unseen` where
        a strand besides does something we cannot see."""
        if self._letting_go is not None or self._busy != self._resting + at_work:
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
        """Something changed: perhaps everything waits now; see law 3."""
        if not self._waiting or self._over is not None or self._letting_go is not None:
            return
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        if self._busy:
            if self._watch is None or self._watch.done():
                self._watch = self._loop.create_task(self._look_again())
        elif self._strands <= 0:
            self._let_go()
        else:
            self._quiet = self._loop.call_later(self.line.quiet_seconds, self._let_go)

    async def _look_again(self) -> None:
        """While a step keeps the run from suspending, waits may settle all the same."""
        while self._waiting and self._busy and self._over is None:
            await self.line.sleep(LOOK_SECONDS)
            if self._waiting and self._over is None:
                with suppress(TenureError):  # the store cannot be asked now: there is a next time
                    self._settle(await self.line.waited())

    def _let_go(self) -> None:
        if self._busy == 0 and self._waiting and self._over is None and self._letting_go is None:
            self._letting_go = self._loop.create_task(self._suspend())

    async def _suspend(self) -> None:
        try:
            await self.barrier()
            reply = await self.line.suspend(tuple(self._waiting))
            rows = await self.line.waited() if reply.state == "go_on" else []
        except Signal:
            return
        except TenureError as refused:
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

    def _settle(self, rows: list[Waited]) -> None:
        for row in rows:
            waiter = self._waiting.get(row.no)
            if waiter is not None and row.state == "settled" and not waiter.done():
                waiter.set_result(row)

    def restart(self, input_: bytes) -> None:
        """End here and go on as a new run."""
        signal = Restart(input_)
        self.end(signal)
        raise signal
