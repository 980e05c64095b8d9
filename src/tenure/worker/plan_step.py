"""A step under its lease: a tool, an action, a child, a command of a workflow file, or the planner of its run.

Laws:
1. An input is data and is never evaluated: the expressions of a workflow file were evaluated before the step was leased
   (`tenure.declared.step_resolver`).
2. A tool gets named arguments, checked against its signature. A command gets an argv list and a clean environment, and runs in the
   worker's confinement.
3. An action is one act with one series of receipts, so that no later attempt does it again.
4. If the act is known not to have happened and may be tried again, the attempt fails, and the step's own retries count.
5. While people decide, and until the act may be tried again, the step gives up its lease.
6. A plan step calls a tool, whose result is the plan: a list of steps (`StepSpec`, or dictionaries).
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tenure import ids, tracing
from tenure.artifacts import is_reference
from tenure.commands.confinement import Confinement
from tenure.commands.process import ResolvedCommand, decode_command, run_command
from tenure.errors import TenureError
from tenure.kernel import capability
from tenure.reads.resume_state import ALL_WAITS
from tenure.sdk import codec, context
from tenure.sdk.act_request import ActRequest, ActResult
from tenure.sdk.acts import BUSY_SECONDS
from tenure.sdk.attempts import call_if_held, exit_failure, wait_within
from tenure.sdk.definitions import Registry, Tool
from tenure.sdk.errors import Failure
from tenure.sdk.execution_waits import SHORT_SECONDS
from tenure.sdk.exits import Interrupted, LeaseLost, ReplayMismatch, Suspended
from tenure.sdk.frame import Frame
from tenure.sdk.outcomes import LEASE_OVER_CODES, check_child, tool_meta
from tenure.services.plans import read_steps

if TYPE_CHECKING:
    from tenure.worker.lease_session import LeaseSession
    from tenure.worker.work_source import WorkSource


CHILD = "workflow:"
"""Prefix of the tool of a step that starts another workflow."""
CHILD_LABEL = "child"
ACT_LABEL = "act"


class PlanStepAttempt:
    def __init__(
        self, registry: Registry, work_source: WorkSource, session: LeaseSession, confinement: Confinement
    ) -> None:
        self._registry = registry
        self._work_source = work_source
        self._session = session
        self._confinement = confinement

    async def run(self) -> bytes | None:
        lease = self._session.lease
        key, body = lease.idempotency_key, lease.input
        if body is not None and is_reference(body):
            body = await self._session.load_artifact(body)
        if lease.kind == "plan":
            return await self._plan(body, key)
        if lease.tool == capability.RUN and lease.tool not in self._registry.tools:
            return await self._run_command(decode_command(body))
        if lease.tool.startswith(CHILD):
            return await self._run_child(lease.tool.removeprefix(CHILD), body)
        if (tool := self._registry.tools.get(lease.tool)) is not None:
            return await self._call_tool(tool, body, key)
        if lease.tool not in await self._work_source.actions():
            raise ReplayMismatch(
                f"step {lease.name!r} uses the tool {lease.tool!r}, which this worker does not have"
            )
        return await self._store(await ActionStepAttempt(self._session).run(body, key))

    async def _plan(self, body: bytes | None, key: str) -> bytes | None:
        lease = self._session.lease
        tool = self._registry.tools.get(lease.tool)
        if tool is None:
            raise ReplayMismatch(
                f"the tool {lease.tool!r}, which plans the run, is not among this worker's tools"
            )
        made = await self._call(tool, body, key)
        if not isinstance(made, list | tuple):
            problem = f"the planner {tool.name!r} must return a list of steps, not {type(made).__name__}"
            raise Failure("PLAN_INVALID", problem, retryable=False)
        try:
            self._session.plan = read_steps(made)
        except TenureError as wrong:
            raise Failure(
                wrong.code, f"the plan of {tool.name!r}: {wrong.message}", retryable=False
            ) from wrong
        return None

    async def _run_child(self, name: str, body: bytes | None) -> bytes | None:
        session = self._session
        waits = await session.load_waits(*ALL_WAITS) if session.lease.n > 1 else []
        known = next((row for row in waits if row.label == CHILD_LABEL), None)
        if known is None or known.state == "open":
            no = known.no if known is not None else await self._start_child(name, body)
            reply = await session.suspend((no,))
            if reply.state == "suspended":
                raise Suspended("its child is running")
            [known] = await session.load_waits(no, no)
        check_child(known, ids.run_text(int(known.name)))
        return known.child_output

    async def _start_child(self, name: str, body: bytes | None) -> int:
        workflow = self._registry.workflows.get(name)
        if workflow is None:
            raise ReplayMismatch(
                f"step {self._session.lease.name!r} starts the workflow {name!r}, which this worker does not have"
            )
        workflow.parameters.check(body)
        child = workflow.child(self._session.new_run_id(), await self._store(body))
        reply = await self._session.open_wait(CHILD_LABEL, child=child)
        assert reply.no is not None
        return reply.no

    async def _run_command(self, resolved: ResolvedCommand) -> bytes | None:
        """Run a command. If it is canceled, it has its grace period, unless the lease is lost."""
        session = self._session
        cancel = asyncio.Event()
        if (trace := tracing.current_traceparent() or session.lease.trace) is not None:
            resolved = msgspec.structs.replace(resolved, env={"TRACEPARENT": trace, **resolved.env})
        session.check_begin()
        running = asyncio.ensure_future(
            run_command(resolved, cancel=cancel, on_line=self._log_line, confinement=self._confinement)
        )
        try:
            result = await asyncio.shield(running)
        except asyncio.CancelledError:
            cancel.set()
            if session.lost:
                running.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait((running,))
            running.cancel()
            raise
        if not result.ok:
            raise Failure(result.code or "COMMAND_FAILED", result.message)
        return await self._store(codec.encode(result.output(), f"the output of {session.lease.name!r}"))

    async def _call_tool(self, tool: Tool, body: bytes | None, key: str) -> bytes | None:
        return await self._store(tool.codec.encode(await self._call(tool, body, key)))

    async def _call(self, tool: Tool, body: bytes | None, key: str) -> Any:
        session, lease = self._session, self._session.lease
        frame = Frame(session.run_id, lease.workflow, lease.name, lease.n, key, session, lease.trace)
        context.enter(frame)  # in this lease's own task
        work = asyncio.ensure_future(self._call_function(tool, body))
        begun = time.perf_counter_ns()
        try:
            return await wait_within(
                session, work, frame, f"tool {tool.name!r}", None, tool.progress_seconds, tool.is_async
            )
        finally:
            session.cost = tool_meta(frame.costs, begun)

    async def _call_function(self, tool: Tool, body: bytes | None) -> Any:
        if not tool.is_async:
            call = partial(tool.parameters.call, tool.function, body)
            return await self._session.run_in_thread(lambda: call_if_held(self._session, call))
        self._session.check_begin()
        try:
            return await tool.parameters.call(tool.function, body)
        except (SystemExit, KeyboardInterrupt) as how:
            raise exit_failure(how) from how

    async def _store(self, body: bytes | None) -> bytes | None:
        if body is not None and (len(body) > codec.INLINE_BYTES_MAX or body.startswith(codec.RESERVED)):
            return await self._session.store_artifact(body)
        return body

    def _log_line(self, stream: str, text: str) -> None:
        self._session.log(self._session.lease.name, "info" if stream == "stdout" else "warning", text, {})


# --------------------------------------------------------------------------------------- actions


class _With(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    target: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    key: str = ""
    why: str = ""


class ActionStepAttempt:
    def __init__(self, session: LeaseSession) -> None:
        self._session = session
        self._busy = 0

    async def run(self, body: bytes | None, key: str) -> bytes | None:
        lease = self._session.lease
        try:
            options = msgspec.json.decode(body or b"{}", type=_With)
        except msgspec.DecodeError as wrong:
            problem = f"step {lease.name!r}: with: {wrong}; {lease.tool} takes target, fields, key and why"
            raise Failure("INVALID_INPUT", problem, retryable=False) from wrong
        request = ActRequest(
            label=ACT_LABEL,
            action=lease.tool,
            target=options.target,
            fields=options.fields,
            key=options.key or key,
            why=options.why,
            fresh=lease.n == 1,
        )
        while True:
            self._session.check_begin()
            result = await self._act(request)
            if result.state == "done":
                return codec.encode(result.result, f"the output of {lease.name!r}")
            await self._wait_to_repeat(result)
            request = msgspec.structs.replace(request, fresh=False)

    async def _act(self, request: ActRequest) -> ActResult:
        try:
            return await self._session.act(request)
        except TenureError as refused:
            if refused.code in LEASE_OVER_CODES:
                raise LeaseLost(refused.code) from refused
            if refused.retryable:
                raise Interrupted(refused.code) from refused
            if refused.code != "RUN_CANCELING":
                raise
        return ActResult(state="cancel")

    async def _wait_to_repeat(self, result: ActResult) -> None:
        """Wait until the act may be requested again. Raises if it will not be."""
        match result.state:
            case "wait":
                await self._suspend(result.no)
            case "failed" if result.code == "ACTION_BUSY" or (result.retry_at and not result.tried):
                await self._pause(result)
            case "failed" | "conflict":
                raise Failure(
                    result.code or "ACTION_FAILED", result.message, retryable=result.retry_at is not None
                )
            case "misfit":
                raise ReplayMismatch(result.message)
            case "refused":
                raise LeaseLost(result.code or "refused")
            case _:
                self._session.heartbeat_now()
                await asyncio.get_running_loop().create_future()  # until the cancellation arrives

    async def _suspend(self, no: int | None) -> None:
        assert no is not None
        reply = await self._session.suspend((no,))
        if reply.state == "suspended":
            raise Suspended("waiting")
        if reply.state != "go_on":  # refused, or canceled
            raise LeaseLost(reply.state)

    async def _pause(self, result: ActResult) -> None:
        """Pause until the act may be tried: in memory if the pause is short, else suspended."""
        session = self._session
        until = result.retry_at
        if result.code == "ACTION_BUSY":
            until = session.now_us() + round(BUSY_SECONDS[min(self._busy, len(BUSY_SECONDS) - 1)] * 1e6)
            self._busy += 1
        assert until is not None
        left = (until - session.now_us()) / 1e6
        if left < SHORT_SECONDS:
            await session.pause(max(left, 0.0))
            return
        await self._suspend((await session.open_wait(f"{ACT_LABEL}!{until}", until=until)).no)
