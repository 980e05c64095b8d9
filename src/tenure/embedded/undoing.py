"""Undoing what a finished run did: foreseen, started, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, cast

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.govern.connector import Connector
from tenure.govern.undo import UndoLine, Undone, foresee
from tenure.kernel import commands as c
from tenure.kernel.model import CLOSED_RUN
from tenure.orchestrator.outbox import undoing

if TYPE_CHECKING:
    from tenure.embedded.engine import Engine


class UndoView(msgspec.Struct, frozen=True, kw_only=True):
    """A run that undoes, or has undone, what another one did: a part of that run's compensation log."""

    run: str
    status: str
    created_at: datetime
    requester: str
    lines: tuple[UndoLine, ...]
    """What became of each action, once it has ended."""


class Undoing:
    """What an engine does about effects; another part of it."""

    async def undo(self, run_id: str, *, step: str | None = None, actor: str | None = None) -> str:
        """Take back what a finished run did, as far as its receipts say how: a run of its own, whose id this is. `step` is a
        step's name or an act's label."""
        command = await self.reversal(run_id, step=step, actor=actor)
        return ids.run_text((await self._all.orchestrator.create(command)).run_id)

    async def reversal(
        self, run_id: str, *, step: str | None = None, actor: str | None = None
    ) -> c.CreateRun:
        """The run that undoes a finished one, to be made. Of several, one works at a time."""
        engine = self._all
        run = await engine.views.row(ids.run_int(run_id))
        if run.status not in CLOSED_RUN:
            raise TenureError(
                "RUN_INVALID_TRANSITION", f"{run_id} is {run.status}: cancel it first, or wait for its end"
            )
        spec = await engine.views.spec(run.id)
        context = engine.context(actor)
        return undoing(
            run,
            spec,
            engine.orchestrator.new_id(run.tenant),
            context,
            requester=context.actor,
            behind=" ".join(dict.fromkeys([spec.requester, *spec.behind.split()])),
            input=msgspec.json.encode({"run": run_id, "step": step}),
            trigger=c.Trigger("api", run_id),
            source="api",
            concurrency_key=f"tenure.undo/{run_id}",
        )

    async def foresee_undo(
        self, run_id: str, *, step: str | None = None, connectors: Mapping[str, Connector] | None = None
    ) -> Undone:
        """What an undo would do, with the engine's connectors or others; nothing is called."""
        engine = self._all
        run = await engine.views.row(ids.run_int(run_id))
        known = engine.connectors if connectors is None else connectors
        return await foresee(engine.store, engine.artifacts, known, run.id, step)

    async def undos(self, run_id: str) -> list[UndoView]:
        """The runs that undo what a run did, oldest first: its compensation log."""
        engine = self._all
        run = await engine.views.row(ids.run_int(run_id))
        found = []
        for row in await engine.store.read("undos_of", run.id):
            other = await engine.views.run(row.run_id)
            lines: tuple[UndoLine, ...] = ()
            if other.status == "succeeded":
                lines = msgspec.convert(other.output, Undone).lines
            found.append(
                UndoView(
                    run=other.id,
                    status=other.status,
                    created_at=other.created_at,
                    requester=other.requester,
                    lines=lines,
                )
            )
        return found

    @property
    def _all(self) -> Engine:
        return cast("Engine", self)


__all__ = ["UndoLine", "UndoView", "Undoing", "Undone"]
