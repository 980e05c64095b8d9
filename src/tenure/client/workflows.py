"""The registered workflows of a server, and their schedules."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from tenure.client.transport import RemoteGroup, drop_none, join_path
from tenure.errors import TenureError
from tenure.shapes.schedules import Schedule
from tenure.shapes.workflows import RegisteredWorkflow

_List = list  # the method `list` hides the builtin in annotations of a class


class RemoteWorkflows(RemoteGroup):
    """`engine.workflows`, over HTTP."""

    async def list(self) -> _List[RegisteredWorkflow]:
        return await self._transport.pages("/workflows", RegisteredWorkflow)

    async def versions(self, name: str) -> _List[RegisteredWorkflow]:
        """The registered versions of a workflow, newest first."""
        try:
            found = await self._transport.get(join_path("workflows", name), dict[str, Any])
        except TenureError as refused:
            if refused.code != "WORKFLOW_NOT_FOUND":
                raise
            return []
        return msgspec.convert(found["items"], _List[RegisteredWorkflow])

    async def register(self, name: str, text: str) -> RegisteredWorkflow:
        """Register a workflow that is a YAML document."""
        return await self._transport.send(
            "PUT",
            join_path("workflows", name),
            RegisteredWorkflow,
            content=text.encode(),
            content_type="application/yaml",
        )


class RemoteSchedules(RemoteGroup):
    """`engine.schedules`, over HTTP. The owner of the key is the actor: an `owner`, `by` or `actor` that is given is not sent."""

    async def create(
        self,
        name: str,
        workflow: Any,
        cron: str,
        *,
        plan: Any = None,
        owner: str | None = None,
        by: str | None = None,
        labels: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Schedule:
        """Schedule a workflow that is registered at the server; the options are those of POST /schedules."""
        if plan is not None:
            raise TenureError("INVALID_INPUT", "a server's schedules start registered workflows, not plans")
        about = (
            {"workflow": workflow}
            if isinstance(workflow, str)
            else {"workflow": workflow.name, "version": workflow.version}
        )
        body = drop_none(name=name, **about, cron=cron, labels=dict(labels or {}), **options)
        return await self._transport.send("POST", "/schedules", Schedule, body)

    async def list(self) -> _List[Schedule]:
        """All schedules, by name."""
        return sorted(await self._transport.pages("/schedules", Schedule), key=lambda one: one.name)

    async def show(self, name: str) -> Schedule:
        return await self._transport.get(join_path("schedules", name), Schedule)

    async def pause(self, name: str) -> Schedule:
        """Start no runs until the schedule is unpaused."""
        return await self._transport.send("POST", join_path("schedules", name, "pause"), Schedule)

    async def unpause(self, name: str, *, by: str | None = None) -> Schedule:
        """Continue with the next slot from now on."""
        return await self._transport.send("POST", join_path("schedules", name, "unpause"), Schedule)

    async def trigger(self, name: str, *, actor: str | None = None) -> str:
        """Start a run now. Returns its id."""
        return await self._post("id", join_path("schedules", name, "trigger"))

    async def delete(self, name: str) -> None:
        """Delete a schedule. Its runs stay."""
        await self._transport.ask("DELETE", join_path("schedules", name))

    async def next(self, name: str, count: int = 5) -> _List[datetime]:
        """The next times at which the schedule is due, as if it were not paused."""
        found = await self._transport.get(join_path("schedules", name), dict[str, Any], next=count)
        return [datetime.fromisoformat(text) for text in found["next_times"]]
