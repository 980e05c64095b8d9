"""Receipts: what runs did to the world, and a person's word on how an unknown action ended."""

from __future__ import annotations

from typing import Any, Literal

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel.act_commands import SettleReceipt
from tenure.reads.receipts import read_receipts
from tenure.reads.run_list import FOREVER_US
from tenure.services.plans import encode_payload
from tenure.services.scope import Scope
from tenure.shapes.receipts import Receipt
from tenure.store.receipts import ReceiptDetail

LISTED_MAX = 1_000
_List = list  # `Receipts.list` hides the builtin in annotations of the class


class Receipts:
    """The receipts of a scope's tenant."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def list(self, run_id: str | None = None) -> _List[Receipt]:
        """The receipts of a run; without a run, all whose outcome is unknown, newest first."""
        scope, store = self._scope, self._scope.store
        if run_id is None:
            place = (scope.tenant, FOREVER_US, 0, 0, LISTED_MAX)
            return await read_receipts(store, await store.read("unknown_receipts", *place))
        run = await scope.reader.row(ids.run_int(run_id))
        return await read_receipts(store, await store.read("receipt_details_of", run.id))

    async def unknown_page(self, place: _List[int], limit: int) -> tuple[_List[Receipt], _List[int]]:
        """Receipts whose outcome is unknown, newest first, after a place; and the place of the last one if there are more."""
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
        """Say how an unknown action ended (`result`: what it returned), or that it is called again. Returns its state."""
        row = await self.find(receipt_id)
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
        return str((await self._scope.send(command))["state"])

    async def find(self, receipt_id: str) -> ReceiptDetail:
        """The receipt's row; RECEIPT_NOT_FOUND for another tenant's receipt."""
        run_id, no = ids.receipt_ints(receipt_id)
        rows: _List[ReceiptDetail] = await self._scope.store.read("receipt_details_of", run_id)
        for row in rows:
            is_it = row.no == no and ids.receipt_text(run_id, no) == receipt_id
            if is_it and row.tenant == self._scope.tenant:
                return row
        raise TenureError("RECEIPT_NOT_FOUND", f"there is no receipt {receipt_id[:64]!r}")
