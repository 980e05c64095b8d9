"""Receipts: what runs did outside of Tenure, people's statements about unknown actions, and undo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.govern.connector import Connector
from tenure.govern.undo import preview_undo
from tenure.kernel import commands as c
from tenure.kernel.act_commands import SettleReceipt
from tenure.kernel.run_rows import CLOSED_RUN
from tenure.orchestrator.outbox import build_undo_run
from tenure.reads.receipts import read_receipts
from tenure.reads.run_list import FOREVER_US
from tenure.services.plans import encode_payload
from tenure.services.scope import Service
from tenure.shapes.receipts import Receipt, UndoResult, UndoRun
from tenure.store.receipts import ReceiptDetail

LISTED_MAX = 1_000
_List = list  # `Receipts.list` hides the builtin in annotations of the class


class Receipts(Service):
    """The receipts of a scope's tenant."""

    async def list(self, run_id: str | None = None) -> _List[Receipt]:
        """The receipts of a run. Without a run: all receipts whose outcome is unknown, newest first."""
        store = self._scope.store
        if run_id is None:
            return (await self.unknown_page([FOREVER_US, 0, 0], LISTED_MAX))[0]
        run = await self._scope.reader.row(ids.run_int(run_id))
        return await read_receipts(store, await store.read("receipt_details_of", run.id))

    async def unknown_page(self, place: _List[int], limit: int) -> tuple[_List[Receipt], _List[int]]:
        """Receipts whose outcome is unknown after a place, newest first; and the place of the last one if there are more."""
        store = self._scope.store
        found: _List[ReceiptDetail] = await store.read(
            "unknown_receipts", self._scope.tenant, *place, limit + 1
        )
        rows = found[:limit]
        last = [rows[-1].intent_at, rows[-1].run_id, rows[-1].no] if len(found) > limit else []
        return await read_receipts(store, rows), last

    async def get(self, receipt_id: str) -> Receipt:
        [receipt] = await read_receipts(self._scope.store, [await self.find(receipt_id)])
        return receipt

    async def settle(
        self,
        receipt_id: str,
        outcome: Literal["done", "not_done", "retry"],
        *,
        person: str,
        result: Any = None,
        reason: str | None = None,
    ) -> str:
        """State how an unknown action ended (`result` is what it returned), or that it is to be called again. Returns the new state."""
        row = await self.find(receipt_id)
        answer = await self.settle_row(row, outcome, person=person, result=result, reason=reason)
        return str(answer["state"])

    async def settle_row(
        self,
        row: ReceiptDetail,
        outcome: Literal["done", "not_done", "retry"],
        *,
        person: str,
        result: Any,
        reason: str | None,
    ) -> dict[str, Any]:
        """Like `settle`. Returns the new `state`, and whether the person had given the same answer before (`again`)."""
        command = SettleReceipt(
            run_id=row.run_id,
            tenant=self._scope.tenant,
            context=self._scope.context(person, "approval"),
            no=row.no,
            how=outcome,
            person=person,
            result=encode_payload(result),
            reason=encode_payload(reason),
        )
        return await self._scope.send(command)

    async def find(self, receipt_id: str) -> ReceiptDetail:
        """The receipt's row; RECEIPT_NOT_FOUND for another tenant's receipt."""
        run_id, no = ids.receipt_ints(receipt_id)
        rows: _List[ReceiptDetail] = await self._scope.store.read("receipt_details_of", run_id)
        for row in rows:
            is_it = row.no == no and ids.receipt_text(run_id, no) == receipt_id
            if is_it and row.tenant == self._scope.tenant:
                return row
        raise TenureError("RECEIPT_NOT_FOUND", f"there is no receipt {receipt_id[:64]!r}")


class Undos(Service):
    """The undos of a scope's runs. An undo reverses what a finished run did, as far as its receipts allow."""

    async def start(self, run_id: str, *, step: str | None = None, actor: str | None = None) -> str:
        """Start a run that undoes a finished one. Returns its id. `step` limits it to one step's name or one action's label."""
        return await self._scope.create(await self.build(run_id, step=step, actor=actor))

    async def build(self, run_id: str, *, step: str | None = None, actor: str | None = None) -> c.CreateRun:
        """The command that creates the undoing run. Only one undo of a run is active at a time."""
        scope = self._scope
        run = await scope.reader.row(ids.run_int(run_id))
        if run.status not in CLOSED_RUN:
            raise TenureError(
                "RUN_INVALID_TRANSITION",
                f"run {run_id} is {run.status}: cancel it first, or wait until it has ended",
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
        undos = [await scope.reader.run(row.run_id) for row in await scope.store.read("undos_of", run.id)]
        return [
            UndoRun(
                run=undo.id,
                status=undo.status,
                created_at=undo.created_at,
                requester=undo.requester,
                lines=msgspec.convert(undo.output, UndoResult).lines if undo.status == "succeeded" else (),
            )
            for undo in undos
        ]
