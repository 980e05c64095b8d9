"""Undo: take back what a finished run did to the world, as far as its receipts say how."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.govern.connector import Connector
from tenure.govern.undo import preview_undo
from tenure.kernel import commands as c
from tenure.kernel.run_rows import CLOSED_RUN
from tenure.orchestrator.outbox import build_undo_run
from tenure.services.scope import Scope
from tenure.shapes.receipts import UndoLine, UndoResult, UndoRun

_List = list  # `Undos.list` hides the builtin in annotations of the class


class Undos:
    """The undos of a scope's runs."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def start(self, run_id: str, *, step: str | None = None, actor: str | None = None) -> str:
        """Start a run that undoes a finished one. Returns its id. `step` limits it to one step's name or one action's label."""
        command = await self.build(run_id, step=step, actor=actor)
        return ids.run_text((await self._scope.orchestrator.create(command)).run_id)

    async def build(self, run_id: str, *, step: str | None = None, actor: str | None = None) -> c.CreateRun:
        """The command that creates the undoing run. Of several undos of one run, one works at a time."""
        scope = self._scope
        run = await scope.reader.row(ids.run_int(run_id))
        if run.status not in CLOSED_RUN:
            raise TenureError(
                "RUN_INVALID_TRANSITION", f"{run_id} is {run.status}: cancel it first, or wait for its end"
            )
        spec = await scope.reader.spec(run.id)
        context = scope.context(actor)
        return build_undo_run(
            run,
            spec,
            scope.orchestrator.new_id(run.tenant),
            context,
            requester=context.actor,
            involved=" ".join(dict.fromkeys([spec.requester, *spec.involved.split()])),
            input=msgspec.json.encode({"run": run_id, "step": step}),
            trigger=c.Trigger("api", run_id),
            source="api",
            concurrency_key=f"tenure.undo/{run_id}",
        )

    async def preview(
        self, run_id: str, *, step: str | None = None, connectors: Mapping[str, Connector] | None = None
    ) -> UndoResult:
        """What an undo would do; nothing is called. `connectors` default to those of the process."""
        scope = self._scope
        run = await scope.reader.row(ids.run_int(run_id))
        known = scope.runtime.connectors if connectors is None else connectors
        return await preview_undo(scope.store, scope.artifacts, known, run.id, step)

    async def list(self, run_id: str) -> _List[UndoRun]:
        """The runs that undo a run, oldest first: its compensation log."""
        scope = self._scope
        run = await scope.reader.row(ids.run_int(run_id))
        found = []
        for row in await scope.store.read("undos_of", run.id):
            other = await scope.reader.run(row.run_id)
            lines: tuple[UndoLine, ...] = ()
            if other.status == "succeeded":
                lines = msgspec.convert(other.output, UndoResult).lines
            found.append(
                UndoRun(
                    run=other.id,
                    status=other.status,
                    created_at=other.created_at,
                    requester=other.requester,
                    lines=lines,
                )
            )
        return found
