"""The execution of a workflow's code under one lease: replay, durable calls and the end of the run.

An execution is composed of four parts. `journal` has what was recorded, records more, and ends the execution. `waits` waits for
events, people, children and time, and suspends the run. `steps` and `acts` make the durable calls.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel.retry import Rng
from tenure.sdk import codec, context
from tenure.sdk.acts import ActCalls
from tenure.sdk.attempts import (
    OUTCOME_SECONDS,
    STOP_SECONDS,
    ExitFailure,
    exit_failure,
    run_in_own_thread,
    wait_until_stopped,
)
from tenure.sdk.definitions import Workflow
from tenure.sdk.errors import Failure, StepFailed
from tenure.sdk.execution_waits import ExecutionWaits
from tenure.sdk.exits import LeaseLost, Restart, StartRefused
from tenure.sdk.journal import ExecutionJournal
from tenure.sdk.lease_port import LeasePort
from tenure.sdk.outcomes import describe_failure, log_traceback
from tenure.sdk.replay_log import ReplayLog
from tenure.sdk.scope import CallScope
from tenure.sdk.step_calls import StepCalls


class WorkflowExecution:
    def __init__(
        self, workflow: Workflow[..., Any], lease_port: LeasePort, replay_log: ReplayLog, chance: Rng
    ) -> None:
        self.workflow = workflow
        self.run_id = ids.run_text(lease_port.lease.run_id)
        self.journal = ExecutionJournal(lease_port, replay_log, workflow.steps_max)
        self.waits = ExecutionWaits(self.journal)
        self.steps = StepCalls(workflow, self.run_id, self.journal, self.waits, chance)
        self.acts = ActCalls(workflow, self.journal, self.waits, self.steps, chance)
        self.patches: dict[str, bool] = {}
        """The answers of `tenure.patched` in this run."""
        self._bridged: dict[concurrent.futures.Future[Any], CallScope] = {}
        """Durable calls that plain code waits for in its threads."""

    async def run(self, input_: bytes | None) -> bytes | None:
        """Run the code to its end and return the run's output. Raises an `ExecutionExit`, or what the code raised."""
        task = self.journal.main_task = asyncio.current_task()
        assert task is not None
        scope = CallScope(self, "", task, plain=not self.workflow.is_async)
        token = context.enter(scope)
        self.journal.lease_port.execution = self
        code = partial(self.workflow.parameters.call, self.workflow.function, input_)
        try:
            value = await (self.run_in_thread(scope, code) if scope.plain else code())
            if self.journal.openings:  # a run does not succeed before the children it started are durable
                await self.waits.barrier()
        except BaseException as how:
            self.journal.unawaited.clear()
            reason = self.journal.exit
            if isinstance(reason, Restart):
                reason.input = await self.waits.store_payload(reason.input) or b"{}"
            if reason is not None:
                raise (reason.refused if isinstance(reason, StartRefused) else reason) from None
            if isinstance(how, SystemExit | KeyboardInterrupt):
                how = exit_failure(how).with_traceback(how.__traceback__)
            if isinstance(how, Exception) and (fault := self._classify(how)) is not how:
                raise fault from how
            raise
        finally:
            context.leave(token)
            self.journal.lease_port.execution = None
            self.waits.close()
        self.journal.check()
        self.journal.replay_log.check_end()
        if self.journal.unawaited:
            check_awaited(self.journal.unawaited, value)
        output = self.workflow.codec.encode(value)
        self.workflow.codec.echo(value, output)
        output = await self.waits.store_payload(output)
        # A record that was not sent yet goes with the end of the run.
        self.journal.lease_port.last_checkpoint, self.journal.unsent = self.journal.unsent, None
        return output

    def _classify(self, fault: Exception) -> Exception:
        """The error of a run: WORKFLOW_FAILED if the workflow's own code failed, else the error of its step or primitive."""
        if isinstance(fault, StepFailed):
            return fault  # its traceback was logged when the step failed
        log_traceback(self.journal.lease_port, "", fault)
        if isinstance(fault, TenureError | Failure) and not isinstance(fault, ExitFailure):
            return fault
        if isinstance(fault, ExceptionGroup) and fault.subgroup(StepFailed) is not None:
            return fault  # of an `asyncio.TaskGroup`
        return Failure("WORKFLOW_FAILED", describe_failure(fault)[1], retryable=False)

    async def record_once(self, key: str, make: Callable[[], Any]) -> Any:
        """A value that is made once and is the same in every replay."""
        journal = self.journal
        journal.unawaited.pop(key, None)
        journal.check()
        known = journal.replay_log.checkpoints.get(key)
        if known is not None:
            await journal.replay_order.take((known.at, known.no))
            return msgspec.json.decode(await self.waits.load_payload(known.output) or b"null")
        journal.begin_step(key)
        body = codec.encode(make(), key) or b"null"
        journal.record(key, output=body)
        return msgspec.json.decode(body)

    # -------------------------------------------------------------------------------------- plain workflows

    async def run_in_thread(self, scope: CallScope, function: Callable[[], Any]) -> Any:
        """Run plain workflow code in its own thread: a thread of the steps' pool could wait for this very code."""
        lease_port = self.journal.lease_port
        work = run_in_own_thread(function)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            scope.stopped = True
            if not scope.path:
                lease_port.stop.set()
            for waited_for, mine in tuple(self._bridged.items()):
                if mine.path.startswith(scope.path):
                    waited_for.cancel()
            if lease_port.draining:
                await self._wait_for_steps()
            await wait_until_stopped(lease_port, work, 0.0 if lease_port.draining else STOP_SECONDS)
            raise

    async def _wait_for_steps(self) -> None:
        """Wait up to OUTCOME_SECONDS for steps that are cut because the worker stops: their outcome is recorded."""
        with suppress(TimeoutError):
            async with asyncio.timeout(OUTCOME_SECONDS):
                await self.steps.all_ended.wait()
        self.journal.flush()

    def bridge(self, work: Coroutine[Any, Any, Any], scope: CallScope) -> Any:
        """Make a durable call for plain code, and wait for it in the code's thread."""
        if self.journal.lease_port.stop.is_set() or scope.stopped:
            work.close()
            raise self.journal.exit or LeaseLost("stopped")
        future = asyncio.run_coroutine_threadsafe(work, self.journal.loop)
        self._bridged[future] = scope
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise self.journal.exit or LeaseLost("canceled") from None
        finally:
            self._bridged.pop(future, None)


_OWN_REFERENCES = 2
"""References of `check_awaited` itself to a coroutine: its variable, and the argument of `getrefcount`."""


def check_awaited(unawaited: dict[str, Coroutine[Any, Any, Any]], value: Any) -> None:
    """Fail a workflow that returned `value` and never awaited one of its durable calls: that would pass as success.

    Only a coroutine without other references counts, because no code can await it any more. One that a gather or a task closed was canceled
    by the code, and one that a pending task holds ends with the execution.
    """
    forgotten = None
    while unawaited:
        key, call = unawaited.popitem()  # last first: the error names the first one
        if not inspect.iscoroutine(call) or inspect.getcoroutinestate(call) != inspect.CORO_CREATED:
            continue
        if call is value or sys.getrefcount(call) <= _OWN_REFERENCES:
            forgotten = _describe_call(key, call.cr_code.co_name)
            call.close()
    if forgotten is not None:
        raise Failure("WORKFLOW_FAILED", f"{forgotten} was called and never awaited", retryable=False)


def _describe_call(key: str, function: str) -> str:
    name = key.rpartition("/")[2].partition("#")[0]
    if function == "call":
        return f"step {name!r}"
    return "child.result()" if function == "_result" else f"tenure.{name.partition(':')[0]}"
