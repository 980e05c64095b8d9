"""Durable calls of steps.

Laws:
1. A step that was recorded is not run again. A step's function begins only when everything its run recorded before is durable. Between
   steps the code may run ahead of the commit: a replay would repeat that part anyway.
2. Each failed try is recorded with its number and the time of the next try. A pause below SHORT_SECONDS is spent in memory; a longer one
   suspends the run.
3. If a step that must not be repeated was begun and its end is unknown, the run ends, whatever its code catches.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tenure.kernel.retry import Rng
from tenure.sdk import codec
from tenure.sdk.attempts import try_once
from tenure.sdk.definitions import StepFunction, Workflow
from tenure.sdk.errors import StepFailed
from tenure.sdk.execution_waits import CANCELED_BY_CODE, ExecutionWaits
from tenure.sdk.exits import LeaseLost, NotBegun, ResumeFailed
from tenure.sdk.frame import Frame
from tenure.sdk.journal import ExecutionJournal
from tenure.sdk.outcomes import MESSAGE_CHARS_MAX, describe_failure, log_traceback, retry_pause_us, step_meta
from tenure.sdk.replay_log import INNER_KEY_MARK
from tenure.sdk.replay_order import NEW
from tenure.store.replay import ReplayCheckpoint


class StepCalls:
    def __init__(
        self,
        workflow: Workflow[..., Any],
        run_id: str,
        journal: ExecutionJournal,
        waits: ExecutionWaits,
        chance: Rng,
    ) -> None:
        self._workflow = workflow
        self._run_id = run_id
        self._journal = journal
        self._waits = waits
        self._lease_port = journal.lease_port
        self._chance = chance
        self.running: dict[str, Frame] = {}
        self.all_ended = asyncio.Event()
        """Set while no step is running."""
        self.all_ended.set()

    async def call(
        self, key: str, step: StepFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        journal, waits = self._journal, self._waits
        journal.unawaited.pop(key, None)
        if journal.exit is not None:
            raise journal.exit
        if journal.closed:
            raise asyncio.CancelledError  # the call of a task that has outlived its workflow
        digest = codec.digest_arguments(args, kwargs)
        limit = step.timeout_seconds or self._workflow.profile.timing.step_timeout_seconds
        tries = 0
        if journal.replay_log:
            known = journal.replay_log.checkpoints.get(key)
            if known is None:
                journal.begin_step(key)
            else:
                if known.arguments != digest:
                    journal.fail_replay(f"step {key!r} was recorded with other arguments")
                if known.state == "done" and known.resumable:
                    await journal.replay_order.take((known.at, known.no))
                    return step.codec.decode(await waits.load_payload(known.output))
                tries = await self._wait_for_next_try(key, known)
        else:
            journal.begin_step(key)
        try:
            value = await self._run(key, step, digest, tries, limit, args, kwargs)
        except asyncio.CancelledError:
            if journal.is_active():
                journal.record(key, state="failed", error=CANCELED_BY_CODE, arguments=digest, tries=0)
            raise
        except StepFailed:
            if self.running or journal.replay_order.awaited:
                await journal.replay_order.take(NEW)
            raise
        if self.running or journal.replay_order.awaited:
            await journal.replay_order.take(
                NEW
            )  # several branches get their results one by one, as in a replay
        return value

    async def _run(
        self,
        key: str,
        step: StepFunction[..., Any],
        digest: bytes,
        tries: int,
        limit: float | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        journal, waits = self._journal, self._waits
        recorded_input = None
        if self._workflow.profile.checkpoint_inputs:
            recorded_input = await waits.store_payload(codec.describe_arguments(args, kwargs))
        while True:
            if journal.pending or journal.unsent is not None or journal.collecting:
                await waits.barrier()
            if waits.suspending is not None:
                await waits.wait_while_suspending()
            if self._lease_port.draining:
                await waits.park()
            tries += 1
            if not step.idempotent:
                journal.record(
                    key,
                    state="started",
                    input=recorded_input if tries == 1 else None,
                    arguments=digest,
                    idempotent=False,
                    resumable=step.resumable,
                    tries=tries,
                )
                await waits.barrier()
            run_id, port = self._run_id, self._lease_port
            frame = Frame(run_id, self._workflow.name, key, tries, f"{run_id}/{key}", port, port.lease.trace)
            begun = time.perf_counter_ns()
            failed: Exception | NotBegun | None = None
            value = output = None
            waits.busy += 1
            self.running[key] = frame
            self.all_ended.clear()
            try:
                value = await try_once(self._lease_port, step, frame, args, kwargs, limit)
                output = step.codec.encode(value)
                if output is not None:
                    value = step.codec.echo(value, output)
                    output = await waits.store_payload(output)
            except LeaseLost as lost:
                journal.leave(lost)
            except (Exception, NotBegun) as fault:
                failed = fault
            finally:
                waits.busy -= 1
                del self.running[key]
                if not self.running:
                    self.all_ended.set()
                if journal.waiters or self._lease_port.draining:
                    waits.reconsider()
            if journal.exit is not None:
                raise journal.exit
            if failed is None:
                journal.record(
                    key,
                    # An earlier record has the input of a later try, or of a step that is not idempotent.
                    input=recorded_input if tries == 1 and step.idempotent else None,
                    output=output,
                    arguments=digest,
                    resumable=step.resumable,
                    idempotent=step.idempotent,
                    tries=tries,
                    meta=step_meta(step, frame, begun),
                )
                return value
            if not isinstance(failed, NotBegun):
                await self._failed(
                    key, step, digest, tries, failed, step_meta(step, frame, begun), recorded_input
                )
            else:
                tries -= 1
                if not step.idempotent:
                    await self._undo_begin(key, step, digest, tries)

    async def _undo_begin(self, key: str, step: StepFunction[..., Any], digest: bytes, tries: int) -> None:
        """Record that a step did not begin after all, so that another worker may begin it."""
        self._journal.record(
            key,
            state="failed",
            error="STEP_NOT_BEGUN",
            arguments=digest,
            resumable=step.resumable,
            idempotent=False,
            tries=tries,
            next_at=self._lease_port.now_us(),
        )
        await self._waits.barrier()

    async def _wait_for_next_try(self, key: str, known: ReplayCheckpoint) -> int:
        """Wait until a recorded step may be tried again, and return its tries so far. Raises its error if it has finally failed."""
        journal, waits = self._journal, self._waits
        if known.state == "started":
            journal.leave(ResumeFailed(f"step {key!r} has started, and its outcome is not known"))
        if known.state == "done":
            if not known.idempotent:
                journal.leave(ResumeFailed(f"step {key!r} was done, and can be neither reused nor repeated"))
            return 0  # not resumable: it runs again
        if known.error == CANCELED_BY_CODE and not known.tries:
            await waits.block()
        if known.next_at is None:
            await journal.replay_order.take((known.at, known.no))
            message = (await waits.load_payload(known.output) or b"").decode(errors="replace")
            raise StepFailed(key, known.error or "STEP_FAILED", message, known.tries)
        await waits.pause(f"{key}{INNER_KEY_MARK}{known.tries}", known.next_at)
        return known.tries

    async def _failed(
        self,
        key: str,
        step: StepFunction[..., Any],
        digest: bytes,
        tries: int,
        fault: Exception,
        meta: str,
        recorded_input: bytes | None,
    ) -> None:
        """Record a failed try. Pause before the next one, or raise StepFailed if there is none."""
        journal, waits = self._journal, self._waits
        code, message, retryable = describe_failure(fault)
        delay = retry_pause_us(step, self._workflow.profile, code, retryable, tries, self._chance)
        next_at = None if delay is None else self._lease_port.now_us() + delay
        journal.record(
            key,
            state="failed",
            input=recorded_input if tries == 1 and step.idempotent else None,
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
            log_traceback(self._lease_port, key, fault)
            raise StepFailed(key, code, message, tries) from fault
        await waits.barrier()
        await waits.pause(f"{key}{INNER_KEY_MARK}{tries}", next_at)
