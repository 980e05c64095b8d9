"""Undos over a server; another part of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from tenure.embedded.undoing import Undone, UndoView

if TYPE_CHECKING:
    from tenure.client.transport import Transport


class _Log(msgspec.Struct, frozen=True):
    items: list[UndoView]


class RemoteUndoing:
    """With the words of an engine's."""

    _to: Transport

    async def undo(self, run_id: str, *, step: str | None = None, actor: str | None = None) -> str:
        """Take back what a finished run did; the run that does it. The key says who."""
        del actor
        body = {} if step is None else {"step": step}
        return str((await self._to.send("POST", _path(run_id), dict[str, Any], body))["id"])

    async def foresee_undo(self, run_id: str, *, step: str | None = None) -> Undone:
        """What an undo would do; nothing is called."""
        body = {"dry_run": True} | ({} if step is None else {"step": step})
        return await self._to.send("POST", _path(run_id), Undone, body)

    async def undos(self, run_id: str) -> list[UndoView]:
        """The runs that undo what a run did: its compensation log."""
        return (await self._to.get(_path(run_id), _Log)).items


def _path(run_id: str) -> str:
    return f"/runs/{quote(run_id, safe='')}/undo"
