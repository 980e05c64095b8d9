"""A step of a plan under its lease: a tool, an action, a child, or a command of a workflow file.

Laws:
1. An input is data and is never evaluated: the expressions of a workflow file were evaluated before the step was leased
   (`tenure.declared.step_resolver`).
2. A tool gets named arguments, checked against its signature. A command gets an argv list and a clean environment, and runs in the
   worker's confinement.
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
from tenure.kernel import capability
from tenure.reads.resume_state import ALL_WAITS
from tenure.sdk import codec, context
from tenure.sdk.attempts import call_if_held, exit_failure, wait_within
from tenure.sdk.definitions import Registry, Tool
from tenure.sdk.errors import Failure
from tenure.sdk.exits import ReplayMismatch, Suspended
from tenure.sdk.frame import Frame
from tenure.sdk.outcomes import check_child, tool_meta
from tenure.worker.action_step import ActionStepAttempt

if TYPE_CHECKING:
    from tenure.worker.lease_session import LeaseSession
    from tenure.worker.work_source import WorkSource


CHILD = "workflow:"
"""Prefix of the tool of a step that starts another workflow."""
LABEL = "child"


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

    async def _run_child(self, name: str, body: bytes | None) -> bytes | None:
        session = self._session
        waits = await session.load_waits(*ALL_WAITS) if session.lease.n > 1 else []
        known = next((row for row in waits if row.label == LABEL), None)
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
        reply = await self._session.open_wait(LABEL, child=child)
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
        session, lease = self._session, self._session.lease
        frame = Frame(session.run_id, lease.workflow, lease.name, lease.n, key, session, lease.trace)
        context.enter(frame)  # in this lease's own task
        work = asyncio.ensure_future(self._call_function(tool, body))
        begun = time.perf_counter_ns()
        try:
            value = await wait_within(
                session, work, frame, f"tool {tool.name!r}", None, tool.progress_seconds, tool.is_async
            )
        finally:
            session.cost = tool_meta(frame.costs, begun)
        return await self._store(tool.codec.encode(value))

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
