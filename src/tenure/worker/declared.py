"""A step of a declared workflow under its lease: a tool that is registered here, or a command.

Laws:
1. What a step is given is made from its template now: from the run's input and the outputs of steps before it.
2. A tool gets named arguments, checked against its signature; a command gets an argv list and a clean environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.artifacts import is_reference
from tenure.declared import Resolved, needed_steps, resolve
from tenure.declared.commands import run_command
from tenure.kernel import capability
from tenure.sdk import codec, here
from tenure.sdk.definitions import Tool
from tenure.sdk.faults import Misfit
from tenure.sdk.frame import Frame

if TYPE_CHECKING:
    from tenure.worker.held import Held
    from tenure.worker.station import Station


class Declared:
    """One try of a declared step."""

    def __init__(self, tools: Mapping[str, Tool], station: Station, held: Held) -> None:
        self._tools = tools
        self._station = station
        self._held = held

    async def run(self) -> bytes | None:
        """Do it; the output as a payload."""
        lease = self._held.lease
        given = await self._whole(lease.input)
        resolved = resolve(given or b"{}", await self._scope(given))
        if resolved.skipped:
            return None
        if lease.tool == capability.RUN:
            result = await run_command(resolved, on_line=self._line)
            return await self._kept(codec.encode(result, f"the output of {lease.name!r}"))
        tool = self._tools.get(lease.tool)
        if tool is None:
            raise Misfit(f"step {lease.name!r} uses the tool {lease.tool!r}, which is not here")
        return await self._call(tool, resolved)

    async def _call(self, tool: Tool, resolved: Resolved) -> bytes | None:
        held, lease = self._held, self._held.lease
        frame = Frame(
            held.run_id,
            lease.workflow,
            lease.name,
            lease.n,
            lease.idempotency_key,
            lambda level, text, fields: held.log(lease.name, level, text, fields),
            held.stop,
        )
        body = codec.encode(resolved.arguments, f"the input of tool {tool.name!r}")
        here.enter(frame)  # in this lease's own task
        if tool.is_async:
            value = await tool.parameters.call(tool.function, body)
        else:
            value = await held.in_thread(lambda: tool.parameters.call(tool.function, body))
        return await self._kept(tool.codec.encode(value))

    async def _scope(self, given: bytes | None) -> dict[str, Any]:
        """What templates may look at."""
        held, lease = self._held, self._held.lease
        run: dict[str, Any] = {"id": held.run_id, "workflow": lease.workflow, "attempt": lease.n}
        wanted = needed_steps(given or b"{}")
        input_, outputs, facts = await self._station.outputs(lease)
        run |= {name: facts[name] for name in ("version", "tenant", "repo")}
        steps = {
            name: {"output": await self._decoded(body)} for name, body in outputs.items() if name in wanted
        }
        return {
            "inputs": await self._decoded(input_) or {},
            "steps": steps,
            "run": run,
            "trigger": facts["trigger"],
        }

    async def _whole(self, body: bytes | None) -> bytes | None:
        if body is not None and is_reference(body):
            return await self._station.artifacts.get(body)
        return body

    async def _decoded(self, body: bytes | None) -> Any:
        whole = await self._whole(body)
        if whole is None:
            return None
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(whole)
        return whole.decode(errors="replace")

    async def _kept(self, body: bytes | None) -> bytes | None:
        if body is not None and (len(body) > codec.INLINE_BYTES_MAX or body.startswith(codec.RESERVED)):
            return await self._held.put_aside(body)
        return body

    def _line(self, stream: str, text: str) -> None:
        self._held.log(self._held.lease.name, "info" if stream == "stdout" else "warning", text, {})
