"""A client: a server's runs as methods, with the same words and answers as an engine's.

Laws:
1. Who asks is the owner of the key; an `actor` or `approver` that is given all the same is not sent.
2. Answers are the same structs that an engine answers with, so that code written for one works with the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import datetime
from typing import Any, Self
from urllib.parse import quote

import msgspec

from tenure.client.confirmations import RemoteConfirmations
from tenure.client.costs import RemoteCosts
from tenure.client.evidence import RemoteEvidence
from tenure.client.receipts import RemoteReceipts
from tenure.client.schedules import RemoteSchedules
from tenure.client.transport import PATIENCE_SECONDS, Transport
from tenure.client.undoing import RemoteUndoing
from tenure.embedded import ApprovalView, EventView, RunLine, RunPage, RunView, StepView, Why
from tenure.embedded.looking import Delivered, LogView, WorkflowView
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import name_problem
from tenure.orchestrator.artifact_views import ArtifactView
from tenure.orchestrator.tries import TryView
from tenure.orchestrator.views import Statement

WAIT_SECONDS = 25.0
"""How long one request waits for a run's end; then the next one does."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A frame of the stream of events."""

    id: str
    type: str
    data: dict[str, Any]


class Client(RemoteConfirmations, RemoteCosts, RemoteEvidence, RemoteReceipts, RemoteUndoing):
    """See the laws above. An async context manager."""

    def __init__(
        self,
        server: str,
        key: str | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        verify: bool | str = True,
    ) -> None:
        """`key` is a credential `tn_...`, else what TENURE_KEY holds."""
        self._to = Transport(server, key, patience_seconds=patience_seconds, verify=verify)
        self.server = self._to.server

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._to.close()

    # -------------------------------------------------------------------------------------- beginnings

    async def submit(
        self,
        workflow: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word users know it by
        *,
        key: str | None = None,
        **options: Any,
    ) -> str:
        """Start a run of a registered workflow; its id. The options are those of POST /runs: version, labels, metadata,
        priority, profile, workspace, trigger, concurrency_key, supersede, not_before, timeout.

        With a `key`, the same request again answers the same run.
        """
        if isinstance(options.get("not_before"), datetime):
            options["not_before"] = options["not_before"].isoformat()
        body = {"workflow": workflow, "input": dict(input or {})}
        body |= {name: value for name, value in options.items() if value is not None}
        made = await self._to.send("POST", "/runs", dict[str, Any], body, key=key)
        return str(made["id"])

    # ----------------------------------------------------------------------------------------- reading

    async def get(self, run_id: str, profile: str | None = None) -> RunView:
        """The run, with its input, output and error; in the words of its own profile, unless another is named."""
        return await self._to.get(_run(run_id), RunView, profile=profile)

    async def version(self, run_id: str) -> int:
        """How long its history is: whether there is something new."""
        found = await self._to.get(f"{_run(run_id)}/status", dict[str, Any])
        return int(found["events"])

    async def list_runs(
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
        lines, next_cursor = await self._to.part(
            "/runs",
            RunLine,
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

    async def steps(self, run_id: str, profile: str | None = None) -> list[StepView]:
        """Its steps and checkpoints."""
        return await self._to.pages(f"{_run(run_id)}/steps", StepView, profile=profile)

    async def events(self, run_id: str, *, after: int = 0) -> list[EventView]:
        """Its history."""
        return await self._to.pages(f"{_run(run_id)}/events", EventView, after=after)

    async def tries(self, run_id: str) -> list[TryView]:
        """The tries of it that did not succeed."""
        return await self._to.pages(f"{_run(run_id)}/tries", TryView)

    async def logs(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogView]:
        """What its code has logged."""
        return await self._to.pages(f"{_run(run_id)}/logs", LogView, limit=limit, after=after)

    async def document(self, run_id: str, profile: str, at: str | None = None) -> Any:
        """It as the document of a profile, or what lies below that."""
        return await self._to.get(_run(run_id), dict[str, Any], profile=profile, at=at)

    async def approvals(self, run_id: str | None = None) -> list[ApprovalView]:
        """The questions of a run, or all that are open now."""
        return await self._to.pages("/approvals", ApprovalView, run=run_id, kind="any")

    async def why(self, run_id: str) -> Why:
        """Why it is not moving, in one reason."""
        return await self._to.get(f"{_run(run_id)}/why", Why)

    async def result(self, run_id: str, *, wait: float | None = 0.0) -> Any:
        """What it came to: its output, or its error raised. `wait` seconds for it to end; None: for ever."""
        loop = asyncio.get_running_loop()
        until = None if wait is None else loop.time() + wait
        while True:
            left = WAIT_SECONDS if until is None else max(min(until - loop.time(), WAIT_SECONDS), 0)
            # What a run failed with may look like trouble of the server's: it is not asked again.
            asked = {"wait": round(left, 3)}
            answer = await self._to.ask("GET", f"{_run(run_id)}/result", params=asked, again=False)
            found = msgspec.json.decode(answer.content, type=dict[str, Any])
            if answer.status_code == 200:
                return found["output"]
            if until is not None and loop.time() >= until:
                raise TenureError("COMMAND_DEADLINE", f"{run_id} is still {found.get('status')}")

    async def list_artifacts(self, run_id: str) -> list[ArtifactView]:
        """The files that its runners have uploaded, by name, step and attempt; those that came late too."""
        return await self._to.pages(f"{_run(run_id)}/artifacts", ArtifactView)

    async def artifact(
        self,
        run_id: str,
        name: str,
        *,
        step: str | None = None,
        attempt: int | None = None,
        late: bool | None = None,
    ) -> bytes:
        """The accepted file of this name; ARTIFACT_AMBIGUOUS where several steps have one: name the step, and the attempt."""
        problem = name_problem(name)
        if problem is not None:  # as it stands it would be another path
            raise TenureError("ARTIFACT_NOT_FOUND", problem)
        asked = {"step": step, "attempt": attempt, "late": None if late is None else str(late).lower()}
        params = {key: value for key, value in asked.items() if value is not None}
        path = f"{_run(run_id)}/artifacts/{quote(name, safe='')}"
        return (await self._to.ask("GET", path, params=params)).content

    async def stream(
        self, *, run: str | None = None, types: Collection[str] = (), after: str | None = None
    ) -> AsyncIterator[Told]:
        """What happens, as it happens, and on from `after` (a frame's id) without a gap."""
        headers = {"Accept": "text/event-stream", **({} if after is None else {"Last-Event-ID": after})}
        params = {name: value for name, value in (("run", run), ("type", list(types))) if value}
        number = ""
        async for line in self._to.lines("/events/stream", headers, **params):
            name, _, value = line.partition(": ")
            if name == "id":
                number = value
            elif name == "data":
                data = msgspec.json.decode(value, type=dict[str, Any])
                yield Told(id=number, type=str(data["type"]), data=data)

    # ---------------------------------------------------------------------------------------- steering

    async def cancel(self, run_id: str, *, reason: str = "RUN_CANCELED", actor: str | None = None) -> str:
        """Request its cancellation; its status then."""
        del actor
        found = await self._to.send("POST", f"{_run(run_id)}/cancel", dict[str, Any], {"reason": reason})
        return str(found["status"])

    async def cancel_step(self, run_id: str, name: str, *, actor: str | None = None) -> str:
        """Cancel one step; its state then."""
        del actor
        path = f"{_run(run_id)}/steps/{quote(name, safe='')}/cancel"
        return str((await self._to.send("POST", path, dict[str, Any]))["state"])

    async def pause(self, run_id: str, *, actor: str | None = None) -> None:
        """Give out no step of it."""
        del actor
        await self._to.ask("POST", f"{_run(run_id)}/pause")

    async def unpause(self, run_id: str, *, actor: str | None = None) -> None:
        """Give out steps again."""
        del actor
        await self._to.ask("POST", f"{_run(run_id)}/unpause")

    async def approve(self, run_id: str, *, approver: str = "", **answer: Any) -> str:
        """Say yes to a question; the approval's status then. `no` names it where the run has several."""
        del approver
        return await self._decide(run_id, "approve", **answer)

    async def reject(self, run_id: str, *, approver: str = "", **answer: Any) -> str:
        """Say no."""
        del approver
        return await self._decide(run_id, "reject", **answer)

    async def _decide(self, run_id: str, decision: str, *, no: int | None = None, **said: Any) -> str:
        asked = [a for a in await self.approvals(run_id) if no in (None, a.no)]
        is_open = [a for a in asked if a.status == "requested"]
        if not asked:
            raise TenureError("APPROVAL_NOT_FOUND", f"{run_id} asks nobody anything")
        if len(is_open) > 1:
            listed = ", ".join(f"{a.no} ({a.step})" for a in is_open)
            raise TenureError("INVALID_INPUT", f"the run asks several questions; name one of {listed}")
        chosen = is_open[0] if is_open else asked[-1]
        body = {"decision": decision, **{name: value for name, value in said.items() if value}}
        path = f"/approvals/{chosen.id}/decision"
        return str((await self._to.send("POST", path, dict[str, Any], body))["status"])

    async def signal(
        self,
        run_id: str,
        event: str,
        data: Any = None,
        *,
        event_id: str | None = None,
        source: str = "",
        actor: str | None = None,
    ) -> Delivered:
        """Deliver an event, and say what became of it."""
        del actor
        body = {"data": data, "event_id": event_id, "source": source or None}
        path = f"{_run(run_id)}/signals/{quote(event, safe='')}"
        return await self._to.send(
            "POST", path, Delivered, {name: value for name, value in body.items() if value is not None}
        )

    async def resume(
        self, run_id: str, *, actor: str | None = None, happened: Mapping[str, Any] | None = None,
        repeat: Collection[str] = (),
    ) -> str:  # fmt: skip
        """Go on; the run that goes on."""
        del actor
        body = {"happened": dict(happened or {}), "repeat": list(repeat)}
        return str((await self._to.send("POST", f"{_run(run_id)}/resume", dict[str, Any], body))["id"])

    async def rerun(self, run_id: str, *, actor: str | None = None) -> str:
        """A fresh run of the same; its id."""
        del actor
        return str((await self._to.send("POST", f"{_run(run_id)}/rerun", dict[str, Any]))["id"])

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
        await self._to.ask("PATCH", _run(run_id), body=sent)

    async def revoke(self, run_id: str, step: str | None = None, *, actor: str | None = None) -> str:
        """Take a step from the worker that has it; its state then."""
        del actor
        found = await self._to.send("POST", f"{_run(run_id)}/revoke", dict[str, Any], {"step": step})
        return str(found["state"])

    async def mark_reported(self, run_id: str, *, actor: str | None = None) -> Statement:
        """Record your word that the world was told how it ended. The run's status does not follow it."""
        del actor
        found = await self._to.send("POST", f"{_run(run_id)}/reported", dict[str, Any])
        return msgspec.convert(found["statement"], Statement)

    async def delete(self, run_id: str, *, actor: str | None = None) -> None:
        """Runs of a server end by its retention, not by hand."""
        del actor
        raise TenureError(
            "INVALID_INPUT", f"{run_id}: a server deletes no runs by hand; use --db where its database is"
        )

    # ----------------------------------------------------------------------------- workflows, schedules

    async def workflows(self) -> list[WorkflowView]:
        """What is registered."""
        return await self._to.pages("/workflows", WorkflowView)

    async def workflow(self, name: str) -> list[WorkflowView]:
        """All registered versions of a workflow, newest first."""
        try:
            found = await self._to.get(f"/workflows/{quote(name, safe='')}", dict[str, Any])
        except TenureError as refused:
            if refused.code != "WORKFLOW_NOT_FOUND":
                raise
            return []
        return msgspec.convert(found["items"], list[WorkflowView])

    async def register(self, name: str, text: str) -> WorkflowView:
        """Register a workflow that is a YAML document."""
        return await self._to.send(
            "PUT",
            f"/workflows/{quote(name, safe='')}",
            WorkflowView,
            content=text.encode(),
            content_type="application/yaml",
        )

    @property
    def schedules(self) -> RemoteSchedules:
        """What starts runs by the clock."""
        return RemoteSchedules(self._to)


def _run(run_id: str) -> str:
    return f"/runs/{quote(run_id, safe='')}"
