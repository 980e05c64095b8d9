"""The runs of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from tenure.client.transport import Transport
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import artifact_name_problem
from tenure.shapes.events import Event
from tenure.shapes.runs import (
    Artifact,
    Explanation,
    ReportStatement,
    Run,
    RunLogLine,
    RunPage,
    RunSummary,
    SignalResult,
)
from tenure.shapes.steps import FailedAttempt, Step

WAIT_SECONDS = 25.0
"""How long one request waits for a run to end; then the next request does."""
_List = list  # `RemoteRuns.list` hides the builtin in annotations of the class


class RemoteRuns:
    """`engine.runs`, over HTTP. The owner of the key is the actor: an `actor` that is given is not sent."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, run_id: str, profile: str | None = None) -> Run:
        """The run, with its input, output and error; in the words of its own profile, unless another is named."""
        return await self._transport.get(_run(run_id), Run, profile=profile)

    async def version(self, run_id: str) -> int:
        """How long its history is: whether there is something new."""
        found = await self._transport.get(f"{_run(run_id)}/status", dict[str, Any])
        return int(found["events"])

    async def list(
        self,
        *,
        status: str | None = None,
        repo: str | None = None,
        workflow: str | None = None,
        labels: Mapping[str, str] | None = None,
        parked: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        """The newest runs that fulfil all conditions; with the `next_cursor` of a list, those that follow it."""
        lines, next_cursor = await self._transport.part(
            "/runs",
            RunSummary,
            limit=limit,
            cursor=cursor,
            status=status,
            repo=repo,
            workflow=workflow,
            label=[f"{name}={value}" for name, value in (labels or {}).items()],
            parked="true" if parked else None,
        )
        listed = RunPage(lines)
        listed.next_cursor = next_cursor
        return listed

    async def steps(self, run_id: str, profile: str | None = None) -> _List[Step]:
        """Its steps and checkpoints."""
        return await self._transport.pages(f"{_run(run_id)}/steps", Step, profile=profile)

    async def events(self, run_id: str, *, after: int = 0) -> _List[Event]:
        """Its history."""
        return await self._transport.pages(f"{_run(run_id)}/events", Event, after=after)

    async def failed_attempts(self, run_id: str) -> _List[FailedAttempt]:
        """The tries of it that did not succeed."""
        return await self._transport.pages(f"{_run(run_id)}/tries", FailedAttempt)

    async def logs(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> _List[RunLogLine]:
        """What its code has logged."""
        return await self._transport.pages(f"{_run(run_id)}/logs", RunLogLine, limit=limit, after=after)

    async def document(self, run_id: str, profile: str, at: str | None = None) -> Any:
        """It as the document of a profile, or what lies below that."""
        return await self._transport.get(_run(run_id), dict[str, Any], profile=profile, at=at)

    async def explain(self, run_id: str) -> Explanation:
        """Why it is not moving, in one reason."""
        return await self._transport.get(f"{_run(run_id)}/why", Explanation)

    async def result(self, run_id: str, *, wait: float | None = 0.0) -> Any:
        """What it came to: its output, or its error raised. `wait` seconds for it to end; None: for ever."""
        loop = asyncio.get_running_loop()
        until = None if wait is None else loop.time() + wait
        while True:
            left = WAIT_SECONDS if until is None else max(min(until - loop.time(), WAIT_SECONDS), 0)
            # What a run failed with may look like trouble of the server's: it is not asked again.
            asked = {"wait": round(left, 3)}
            answer = await self._transport.ask("GET", f"{_run(run_id)}/result", params=asked, again=False)
            found = msgspec.json.decode(answer.content, type=dict[str, Any])
            if answer.status_code == 200:
                return found["output"]
            if until is not None and loop.time() >= until:
                raise TenureError("COMMAND_DEADLINE", f"{run_id} is still {found.get('status')}")

    async def list_artifacts(self, run_id: str) -> _List[Artifact]:
        """The files that its runners have uploaded, by name, step and attempt; those that came late too."""
        return await self._transport.pages(f"{_run(run_id)}/artifacts", Artifact)

    async def read_artifact(
        self,
        run_id: str,
        name: str,
        *,
        step: str | None = None,
        attempt: int | None = None,
        late: bool | None = None,
    ) -> bytes:
        """The accepted file of this name; ARTIFACT_AMBIGUOUS where several steps have one: name the step, and the attempt."""
        problem = artifact_name_problem(name)
        if problem is not None:  # as it stands it would be another path
            raise TenureError("ARTIFACT_NOT_FOUND", problem)
        asked = {"step": step, "attempt": attempt, "late": None if late is None else str(late).lower()}
        params = {key: value for key, value in asked.items() if value is not None}
        path = f"{_run(run_id)}/artifacts/{quote(name, safe='')}"
        return (await self._transport.ask("GET", path, params=params)).content

    async def cancel(self, run_id: str, *, reason: str = "RUN_CANCELED", actor: str | None = None) -> str:
        """Request its cancellation; its status then."""
        del actor
        found = await self._transport.send(
            "POST", f"{_run(run_id)}/cancel", dict[str, Any], {"reason": reason}
        )
        return str(found["status"])

    async def cancel_step(self, run_id: str, name: str, *, actor: str | None = None) -> str:
        """Cancel one step; its state then."""
        del actor
        path = f"{_run(run_id)}/steps/{quote(name, safe='')}/cancel"
        return str((await self._transport.send("POST", path, dict[str, Any]))["state"])

    async def pause(self, run_id: str, *, actor: str | None = None) -> None:
        """Give out no step of it."""
        del actor
        await self._transport.ask("POST", f"{_run(run_id)}/pause")

    async def unpause(self, run_id: str, *, actor: str | None = None) -> None:
        """Give out steps again."""
        del actor
        await self._transport.ask("POST", f"{_run(run_id)}/unpause")

    async def signal(
        self,
        run_id: str,
        event: str,
        data: Any = None,
        *,
        event_id: str | None = None,
        source: str = "",
        actor: str | None = None,
    ) -> SignalResult:
        """Deliver an event, and say what became of it."""
        del actor
        body = {"data": data, "event_id": event_id, "source": source or None}
        path = f"{_run(run_id)}/signals/{quote(event, safe='')}"
        return await self._transport.send(
            "POST", path, SignalResult, {name: value for name, value in body.items() if value is not None}
        )

    async def resume(
        self, run_id: str, *, actor: str | None = None, happened: Mapping[str, Any] | None = None,
        repeat: Collection[str] = (),
    ) -> str:  # fmt: skip
        """Go on; the run that goes on."""
        del actor
        body = {"happened": dict(happened or {}), "repeat": list(repeat)}
        return str((await self._transport.send("POST", f"{_run(run_id)}/resume", dict[str, Any], body))["id"])

    async def rerun(self, run_id: str, *, actor: str | None = None) -> str:
        """A fresh run of the same; its id."""
        del actor
        return str((await self._transport.send("POST", f"{_run(run_id)}/rerun", dict[str, Any]))["id"])

    async def update(
        self,
        run_id: str,
        *,
        labels: Mapping[str, str | None] | None = None,
        metadata: Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> None:
        """Change its labels and metadata, also when it has ended; None takes a name away."""
        del actor
        body = {"labels": labels, "metadata": metadata}
        sent = {name: value for name, value in body.items() if value is not None}
        await self._transport.ask("PATCH", _run(run_id), body=sent)

    async def revoke_lease(self, run_id: str, step: str | None = None, *, actor: str | None = None) -> str:
        """Take a step from the worker that has it; its state then."""
        del actor
        found = await self._transport.send("POST", f"{_run(run_id)}/revoke", dict[str, Any], {"step": step})
        return str(found["state"])

    async def mark_reported(self, run_id: str, *, actor: str | None = None) -> ReportStatement:
        """Record your word that the world was told how it ended. The run's status does not follow it."""
        del actor
        found = await self._transport.send("POST", f"{_run(run_id)}/reported", dict[str, Any])
        return msgspec.convert(found["statement"], ReportStatement)

    async def delete(self, run_id: str, *, actor: str | None = None) -> None:
        """Runs of a server end by its retention, not by hand."""
        del actor
        raise TenureError(
            "INVALID_INPUT", f"{run_id}: a server deletes no runs by hand; use --db where its database is"
        )


def _run(run_id: str) -> str:
    return f"/runs/{quote(run_id, safe='')}"
