"""What the runs of a server have done to other systems: receipts, undos and costs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from tenure.client.transport import RemoteGroup, drop_none, join_path
from tenure.shapes.costs import CostGrouping, CostReport, RunCosts
from tenure.shapes.pages import Page
from tenure.shapes.receipts import Receipt, UndoResult, UndoRun

_List = list  # the method `list` hides the builtin in annotations of a class


class RemoteReceipts(RemoteGroup):
    """`engine.receipts`, over HTTP."""

    async def list(self, run_id: str | None = None) -> _List[Receipt]:
        """The receipts of a run; without a run, those of all runs whose outcome is unknown, newest first."""
        path = "/receipts" if run_id is None else join_path("runs", run_id, "receipts")
        return await self._transport.pages(path, Receipt)

    async def get(self, receipt_id: str) -> Receipt:
        return await self._transport.get(join_path("receipts", receipt_id), Receipt)

    async def settle(
        self,
        receipt_id: str,
        outcome: Literal["done", "not_done", "retry"],
        *,
        person: str = "",
        result: Any = None,
        reason: str | None = None,
    ) -> str:
        """Settle an action of unknown outcome, or have it called again. Returns its state. The owner of the key settles it: a `person`
        that is given is not sent."""
        body = drop_none(outcome=outcome, result=result, reason=reason)
        return await self._post("state", join_path("receipts", receipt_id, "settle"), body)


class RemoteUndos(RemoteGroup):
    """`engine.undos`, over HTTP. The owner of the key is the actor: an `actor` that is given is not sent."""

    async def start(self, run_id: str, *, step: str | None = None, actor: str | None = None) -> str:
        """Undo what a finished run did. Returns the id of the run that undoes it."""
        return await self._post("id", join_path("runs", run_id, "undo"), drop_none(step=step))

    async def preview(self, run_id: str, *, step: str | None = None) -> UndoResult:
        """What an undo would do. Nothing is called."""
        return await self._transport.send(
            "POST", join_path("runs", run_id, "undo"), UndoResult, drop_none(dry_run=True, step=step)
        )

    async def list(self, run_id: str) -> _List[UndoRun]:
        """The runs that undo what a run did: its compensation log."""
        return (await self._transport.get(join_path("runs", run_id, "undo"), Page[UndoRun])).items


class RemoteCosts(RemoteGroup):
    """`engine.costs`, over HTTP."""

    async def get(self, run_id: str) -> RunCosts:
        """What a run has spent by provider and model, and what it may spend."""
        return await self._transport.get(join_path("runs", run_id, "costs"), RunCosts)

    async def report(
        self, *, by: CostGrouping = "workflow", since: datetime | None = None, until: datetime | None = None
    ) -> CostReport:
        """What all runs of the tenant have spent, in groups; without `since`, in the last thirty days."""
        times = {name: at.isoformat() for name, at in (("since", since), ("until", until)) if at}
        return await self._transport.get("/costs", CostReport, by=by, **times)
