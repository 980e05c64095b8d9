"""Schedules of a server, with the words of an engine's."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from tenure.client.transport import Transport
from tenure.errors import TenureError
from tenure.shapes.schedules import Schedule

_Views = list[Schedule]
_Times = list[datetime]


class RemoteSchedules:
    """The schedules of the key's tenant."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

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
        """Make a schedule of a workflow that is registered there; the options are those of POST /schedules."""
        del owner, by  # whoever owns the key
        if plan is not None:
            raise TenureError("INVALID_INPUT", "a server's schedules start registered workflows, not plans")
        asked = (
            {"workflow": workflow}
            if isinstance(workflow, str)
            else {"workflow": workflow.name, "version": workflow.version}
        )
        body = {"name": name, **asked, "cron": cron, "labels": dict(labels or {}), **options}
        sent = {word: value for word, value in body.items() if value is not None}
        return await self._transport.send("POST", "/schedules", Schedule, sent)

    async def list(self) -> _Views:
        """All schedules, by name."""
        return sorted(await self._transport.pages("/schedules", Schedule), key=lambda one: one.name)

    async def show(self, name: str) -> Schedule:
        """One schedule."""
        return await self._transport.get(_path(name), Schedule)

    async def pause(self, name: str) -> Schedule:
        """Start nothing until it is unpaused."""
        return await self._transport.send("POST", f"{_path(name)}/pause", Schedule)

    async def unpause(self, name: str, *, by: str | None = None) -> Schedule:
        """Go on with the next slot from now."""
        del by  # whoever owns the key
        return await self._transport.send("POST", f"{_path(name)}/unpause", Schedule)

    async def trigger(self, name: str, *, actor: str | None = None) -> str:
        """Start a run now; its id."""
        del actor
        return str((await self._transport.send("POST", f"{_path(name)}/trigger", dict[str, Any]))["id"])

    async def delete(self, name: str) -> None:
        """Delete a schedule; its runs stay."""
        await self._transport.ask("DELETE", _path(name))

    async def next(self, name: str, count: int = 5) -> _Times:
        """The next times it is due, as if it were not paused."""
        found = await self._transport.get(_path(name), dict[str, Any], next=count)
        return [datetime.fromisoformat(text) for text in found["next_times"]]


def _path(name: str) -> str:
    return f"/schedules/{quote(name, safe='')}"
