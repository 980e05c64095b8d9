"""A step of a plan under its lease: a tool that is registered here, an action, a child, or a command of a workflow file.

Laws:
1. An input is data, whatever it looks like: what a workflow file says of it was evaluated before the step was handed out
   (`tenure.declared.resolution`).
2. A tool gets named arguments, checked against its signature; a command gets an argv list and a clean environment,
   and runs in the worker's confinement.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.artifacts import is_reference
from tenure.declared import Resolved, command_of
from tenure.declared.commands import run_command
from tenure.declared.confinement import Confinement
from tenure.kernel import capability
from tenure.kernel.commands import StartChild
from tenure.orchestrator import spans
from tenure.orchestrator.resuming import ALL_WAITS
from tenure.sdk import codec, here
from tenure.sdk.definitions import Registry, Tool
from tenure.sdk.faults import ChildFailed, Failure, Misfit, Suspended
from tenure.sdk.frame import Frame
from tenure.sdk.outcomes import told_of_tool
from tenure.sdk.trying import begun, left, within
from tenure.worker.governed import Governed

if TYPE_CHECKING:
    from tenure.worker.held import Held
    from tenure.worker.station import Station


CHILD = "workflow:"
"""How the tool of a step begins that starts another workflow."""
LABEL = "child"


class Declared:
    """One try of a step of a plan."""

    def __init__(self, known: Registry, station: Station, held: Held, confinement: Confinement) -> None:
        self._known = known
        self._station = station
        self._held = held
        self._confinement = confinement

    async def run(self) -> bytes | None:
        """Do it; the output as a payload."""
        lease = self._held.lease
        key, body = lease.idempotency_key, await self._whole(lease.input)
        if lease.tool == capability.RUN and lease.tool not in self._known.tools:
            return await self._command(command_of(body))
        if lease.tool.startswith(CHILD):
            return await self._child(lease.tool.removeprefix(CHILD), body)
        tool = self._known.tools.get(lease.tool)
        if tool is not None:
            return await self._call(tool, body, key)
        if lease.tool not in await self._station.actions():
            raise Misfit(f"step {lease.name!r} uses the tool {lease.tool!r}, which is not here")
        return await self._kept(await Governed(self._held).run(body, key))

    async def _child(self, name: str, body: bytes | None) -> bytes | None:
        """Start another workflow, and let go until it has ended."""
        held = self._held
        waits = await held.waited(*ALL_WAITS) if held.lease.n > 1 else []
        known = next((row for row in waits if row.label == LABEL), None)
        if known is None or known.state == "open":
            no = known.no if known is not None else await self._start(name, body)
            reply = await held.suspend((no,))
            if reply.state == "suspended":
                raise Suspended("its child runs")
            [known] = await held.waited(no, no)
        if known.child_outcome != "succeeded":
            error = None if known.child_error is None else known.child_error.decode(errors="replace")
            raise ChildFailed(known.name, known.child_outcome or "ended", known.child_code or "?", error)
        return known.child_output

    async def _start(self, name: str, body: bytes | None) -> int:
        workflow = self._known.workflows.get(name)
        if workflow is None:
            raise Misfit(f"step {self._held.lease.name!r} starts the workflow {name!r}, which is not here")
        workflow.parameters.check(body)
        child = StartChild(
            run_id=self._held.new_run_id(),
            workflow=workflow.name,
            code_version=workflow.version,
            profile=workflow.profile.name,
            input=await self._kept(body),
            plan=workflow.plan,
            timeout_seconds=workflow.timeout_seconds,
            terms=workflow.terms,
        )
        reply = await self._held.open_wait(LABEL, child=child)
        assert reply.no is not None
        return reply.no

    async def _command(self, resolved: Resolved) -> bytes | None:
        """A command; one that is told to stop has its grace, unless it is somebody else's by now."""
        held = self._held
        cancel = asyncio.Event()
        if (trace := spans.current() or held.lease.trace) is not None:
            resolved = msgspec.structs.replace(resolved, env={"TRACEPARENT": trace, **resolved.env})
        held.check_begin()
        running = asyncio.ensure_future(
            run_command(resolved, cancel=cancel, on_line=self._line, confinement=self._confinement)
        )
        try:
            result = await asyncio.shield(running)
        except asyncio.CancelledError:
            cancel.set()
            if held.lost:
                running.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait((running,))
            running.cancel()
            raise
        if not result.ok:
            raise Failure(result.code or "COMMAND_FAILED", result.message)
        return await self._kept(codec.encode(result.output(), f"the output of {held.lease.name!r}"))

    async def _call(self, tool: Tool, body: bytes | None, key: str) -> bytes | None:
        held, lease = self._held, self._held.lease
        frame = Frame(held.run_id, lease.workflow, lease.name, lease.n, key, held, lease.trace)
        here.enter(frame)  # in this lease's own task
        work = asyncio.ensure_future(self._tried(tool, body))
        begun = time.perf_counter_ns()
        try:
            value = await within(
                held, work, frame, f"tool {tool.name!r}", None, tool.progress_seconds, tool.is_async
            )
        finally:
            held.cost = told_of_tool(frame.costs, begun)
        return await self._kept(tool.codec.encode(value))

    async def _tried(self, tool: Tool, body: bytes | None) -> Any:
        if not tool.is_async:
            call = partial(tool.parameters.call, tool.function, body)
            return await self._held.in_thread(lambda: begun(self._held, call))
        self._held.check_begin()
        try:
            return await tool.parameters.call(tool.function, body)
        except (SystemExit, KeyboardInterrupt) as how:
            raise left(how) from how

    async def _whole(self, body: bytes | None) -> bytes | None:
        if body is not None and is_reference(body):
            return await self._held.fetch(body)
        return body

    async def _kept(self, body: bytes | None) -> bytes | None:
        if body is not None and (len(body) > codec.INLINE_BYTES_MAX or body.startswith(codec.RESERVED)):
            return await self._held.put_aside(body)
        return body

    def _line(self, stream: str, text: str) -> None:
        self._held.log(self._held.lease.name, "info" if stream == "stdout" else "warning", text, {})
