"""The body of a workflow while it runs: replay, durable calls, and when to let go.

Laws:
1. What was recorded is not done again. A step's function begins only when everything its run recorded before is
   durable; between steps the code may run ahead of the commit, which a replay would repeat anyway.
2. Each failed try is recorded with its count and the next moment. A pause under SHORT_SECONDS is waited for here; a
   longer one suspends the run.
3. What was begun and must not be repeated ends the run, whatever its code catches.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from tenure.errors import TenureError
from tenure.kernel.retry import Rng
from tenure.sdk import codec, here
from tenure.sdk.acts import Acting
from tenure.sdk.awaited import check_awaited
from tenure.sdk.definitions import Step, Workflow
from tenure.sdk.faults import Failure, LeaseLost, NotBegun, Restart, ResumeFailed, StartRefused, StepFailed
from tenure.sdk.line import Line
from tenure.sdk.outcomes import MESSAGE_CHARS_MAX, failure_of, pause_us, told_of
from tenure.sdk.past import BESIDE, Past
from tenure.sdk.scope import Scope
from tenure.sdk.traces import of_steps, traceback_of
from tenure.sdk.trying import (
    OUTCOME_SECONDS,
    STOP_SECONDS,
    Left,
    ended,
    frame_of,
    in_own_thread,
    left,
    try_once,
)
from tenure.sdk.turns import NEW
from tenure.sdk.waiting import STOPPED
from tenure.store.port import Recorded


class Body(Acting):
    """One workflow under one lease; see the laws above."""

    def __init__(self, workflow: Workflow[..., Any], line: Line, past: Past, chance: Rng) -> None:
        super().__init__(workflow, line, past, chance)
        self.patches: dict[str, bool] = {}
        """Patches this run has taken here."""
        self._no_step = asyncio.Event()
        """Set while no step is at work."""
        self._no_step.set()
        self._bridged: dict[concurrent.futures.Future[Any], Scope] = {}
        """What plain code waits for in its threads."""

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
                code = partial(self.workflow.parameters.call, function, input_)
                value = await self.in_thread_of(scope, code)
            else:
                value = await self.workflow.parameters.call(function, input_)
            if self._openings:  # the run does not succeed without a child that it has started
                await self.barrier()
        except BaseException as how:
            self.unbegun.clear()
            if isinstance(self._over, Restart):
                self._over.input = await self.aside(self._over.input) or b"{}"
            if isinstance(self._over, StartRefused):
                raise self._over.refused from None
            if self._over is not None:
                raise self._over from None
            if isinstance(how, SystemExit | KeyboardInterrupt):
                how = left(how).with_traceback(how.__traceback__)
            if isinstance(how, Exception) and (own := self._own_fault(how)) is not how:
                raise own from how
            raise
        finally:
            here.leave(token)
            self.line.body = None
            self._close()
        self.check()
        self.past.check_end()
        if self.unbegun:
            check_awaited(self.unbegun, value)
        output = self.workflow.codec.encode(value)
        self.workflow.codec.echo(value, output)
        output = await self.aside(output)
        self.line.last = self.last()
        return output

    def _own_fault(self, fault: Exception) -> Exception:
        """What the workflow's own code failed with: told apart from what its steps and words came to."""
        if isinstance(fault, StepFailed):
            return fault  # its own traceback was kept when it failed
        self._keep_traceback("", fault)
        if (isinstance(fault, TenureError | Failure) and not isinstance(fault, Left)) or of_steps(fault):
            return fault
        return Failure("WORKFLOW_FAILED", failure_of(fault)[1], retryable=False)

    def _keep_traceback(self, key: str, fault: Exception) -> None:
        told = traceback_of(fault)
        if told:
            self.line.log(key, "error", told, {})

    async def in_thread_of(self, scope: Scope, function: Callable[[], Any]) -> Any:
        """Plain workflow code has a thread of its own: one of the steps' could be waiting for this very one."""
        work = in_own_thread(function)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            scope.stopped = True
            if not scope.path:
                self.line.stop.set()
            for waited_for, mine in tuple(self._bridged.items()):
                if mine.path.startswith(scope.path):
                    waited_for.cancel()
            if self.line.draining:
                await self._steps_end()
            await ended(self.line, work, 0.0 if self.line.draining else STOP_SECONDS)
            raise

    async def _steps_end(self) -> None:
        """Wait a while for steps that were cut because the worker ends: what they come to is recorded."""
        with suppress(TimeoutError):
            async with asyncio.timeout(OUTCOME_SECONDS):
                await self._no_step.wait()
        self.flush()

    def bridge(self, work: Coroutine[Any, Any, Any], scope: Scope) -> Any:
        """Do something durable for plain code in its thread, and wait for it there."""
        if self.line.stop.is_set() or scope.stopped:
            work.close()
            raise self._over or LeaseLost("told to stop")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._bridged[future] = scope
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._over or LeaseLost("canceled") from None
        finally:
            self._bridged.pop(future, None)

    # ------------------------------------------------------------------------------------------ steps

    async def call(
        self, key: str, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """One durable call of a step; see laws 1 and 2."""
        self.unbegun.pop(key, None)
        if self._over is not None:
            raise self._over
        if self.closed:
            raise asyncio.CancelledError  # a task that comes to it when the workflow has ended
        digest = codec.digest(args, kwargs)
        limit = step.timeout_seconds or self.workflow.profile.timing.step_timeout_seconds
        tries = 0
        if self.past:
            known = self.past.checkpoints.get(key)
            if known is None:
                self.begin_step(key)
            else:
                if known.arguments != digest:
                    self.misfit(f"step {key!r} was recorded with other arguments")
                if known.state == "done" and known.resumable:
                    await self.turns.take((known.at, known.no))
                    return step.codec.decode(await self.fetched(known.output))
                tries = await self._tried(key, known)
        else:
            self.begin_step(key)
        try:
            value = await self._carry_out(key, step, digest, tries, limit, args, kwargs)
        except asyncio.CancelledError:
            if self.goes_on():
                self.record(key, state="failed", error=STOPPED, arguments=digest, tries=0)
            raise
        except StepFailed:
            if self.at_work or self.turns.awaited:
                await self.turns.take(NEW)
            raise
        if self.at_work or self.turns.awaited:  # several strands: as a replay will give them, one by one
            await self.turns.take(NEW)
        return value

    async def _carry_out(
        self,
        key: str,
        step: Step[..., Any],
        digest: bytes,
        tries: int,
        limit: float | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Try a step until it is done or has failed for good."""
        given = None
        if self.workflow.profile.checkpoint_inputs:
            given = await self.aside(codec.arguments(args, kwargs))
        while True:
            if self._pending or self._unsent is not None or self._collects:
                await self.barrier()
            if self._letting_go is not None:
                await self.undecided()
            if self.line.draining:
                await self.park()
            tries += 1
            if not step.idempotent:
                self.record(
                    key,
                    state="started",
                    input=given if tries == 1 else None,
                    arguments=digest,
                    idempotent=False,
                    resumable=step.resumable,
                    tries=tries,
                )
                await self.barrier()
            frame = frame_of(self.line, self.run_id, self.workflow.name, key, tries)
            begun = time.perf_counter_ns()
            failed: Exception | None = None
            not_begun = False
            value = output = None
            self._busy += 1
            self.at_work[key] = frame
            self._no_step.clear()
            try:
                value = await try_once(self.line, step, frame, args, kwargs, limit)
                output = step.codec.encode(value)
                if output is not None:
                    value = step.codec.echo(value, output)
                    output = await self.aside(output)
            except NotBegun:
                not_begun = True
            except LeaseLost as lost:
                self.end(lost)
                raise
            except Exception as fault:
                failed = fault
            finally:
                self._busy -= 1
                del self.at_work[key]
                if not self.at_work:
                    self._no_step.set()
                if self._waiting or self.line.draining:
                    self._poke()
            if self._over is not None:
                raise self._over
            if not_begun:
                tries -= 1
                if not step.idempotent:
                    await self._did_not_begin(key, step, digest, tries)
                continue
            meta = told_of(step, frame, begun)
            if failed is not None:
                await self._failed(key, step, digest, tries, failed, meta, given)
                continue
            self.record(
                key,
                input=given if tries == 1 and step.idempotent else None,  # else an earlier record has it
                output=output,
                arguments=digest,
                resumable=step.resumable,
                idempotent=step.idempotent,
                tries=tries,
                meta=meta,
            )
            return value

    async def _did_not_begin(self, key: str, step: Step[..., Any], digest: bytes, tries: int) -> None:
        """Take back that a step has begun, so that another worker may begin it."""
        self.record(
            key,
            state="failed",
            error="STEP_NOT_BEGUN",
            arguments=digest,
            resumable=step.resumable,
            idempotent=False,
            tries=tries,
            next_at=self.line.now_us(),
        )
        await self.barrier()

    async def _tried(self, key: str, known: Recorded) -> int:
        """How often a recorded step was tried, once its next try is due; raises what it came to, if it is over."""
        if known.state == "started":
            self.end(ResumeFailed(f"step {key!r} was begun, and nobody knows how it ended"))
            self.check()
        if known.state == "done":
            if not known.idempotent:
                self.end(ResumeFailed(f"step {key!r} was done, and can be neither reused nor repeated"))
                self.check()
            return 0  # not resumable: it is done again
        if known.error == STOPPED and not known.tries:
            await self.never()
        if known.next_at is None:
            await self.turns.take((known.at, known.no))
            message = (await self.fetched(known.output) or b"").decode(errors="replace")
            raise StepFailed(key, known.error or "STEP_FAILED", message, known.tries)
        await self.pause(f"{key}{BESIDE}{known.tries}", known.next_at)
        return known.tries

    async def _failed(
        self,
        key: str,
        step: Step[..., Any],
        digest: bytes,
        tries: int,
        fault: Exception,
        meta: str,
        given: bytes | None,
    ) -> None:
        """Record a failed try; pause before the next one, or raise what it came to."""
        code, message, retryable = failure_of(fault)
        delay = pause_us(step, self.workflow.profile, code, retryable, tries, self._chance)
        next_at = None if delay is None else self.line.now_us() + delay
        self.record(
            key,
            state="failed",
            input=given if tries == 1 and step.idempotent else None,
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
            self._keep_traceback(key, fault)
            raise StepFailed(key, code, message, tries) from fault
        await self.barrier()
        await self.pause(f"{key}{BESIDE}{tries}", next_at)

    def restart(self, input_: bytes) -> NoReturn:
        """End here and go on as a new run."""
        signal = Restart(input_)
        self.end(signal)
        raise signal
