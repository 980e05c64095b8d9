"""Undos over a server; another part of a client."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from tenure.client.transport import Transport
from tenure.shapes.receipts import UndoResult, UndoRun


class _Log(msgspec.Struct, frozen=True):
    items: list[UndoRun]


_List = list  # `RemoteUndos.list` hides the builtin in annotations of the class


class RemoteUndos:
    """`engine.undos`, over HTTP."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def start(self, run_id: str, *, step: str | None = None, actor: str | None = None) -> str:
        """Take back what a finished run did; the run that does it. The key says who."""
        del actor
        body = {} if step is None else {"step": step}
        return str((await self._transport.send("POST", _path(run_id), dict[str, Any], body))["id"])

    async def preview(self, run_id: str, *, step: str | None = None) -> UndoResult:
        """What an undo would do; nothing is called."""
        body = {"dry_run": True} | ({} if step is None else {"step": step})
        return await self._transport.send("POST", _path(run_id), UndoResult, body)

    async def list(self, run_id: str) -> _List[UndoRun]:
        """The runs that undo what a run did: its compensation log."""
        return (await self._transport.get(_path(run_id), _Log)).items


def _path(run_id: str) -> str:
    return f"/runs/{quote(run_id, safe='')}/undo"
