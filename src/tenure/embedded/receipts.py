"""What runs did to the world, and how a person says how it ended; another part of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from tenure import ids
from tenure.embedded.plan import payload
from tenure.errors import TenureError
from tenure.kernel.actions import SettleReceipt
from tenure.orchestrator.listing import FOREVER_US
from tenure.orchestrator.receipts import ReceiptView, receipt_views
from tenure.store.filing import Filed

if TYPE_CHECKING:
    from tenure.embedded.engine import Engine

LISTED_MAX = 1_000


class Receipts:
    """See above."""

    async def receipts(self, run_id: str | None = None) -> list[ReceiptView]:
        """The receipts of a run, or of all runs those that nobody knows the end of, newest first."""
        engine = cast("Engine", self)
        store = engine.store
        if run_id is None:
            place = (engine.tenant, FOREVER_US, 0, 0, LISTED_MAX)
            return await receipt_views(store, await store.read("receipts_unknown", *place))
        run = await engine.views.row(ids.run_int(run_id))
        return await receipt_views(store, await store.read("receipts_filed", run.id))

    async def receipt(self, receipt_id: str) -> ReceiptView:
        """One of them."""
        engine = cast("Engine", self)
        [view] = await receipt_views(engine.store, [await self.filed(receipt_id)])
        return view

    async def settle_receipt(
        self,
        receipt_id: str,
        outcome: Literal["done", "not_done", "retry"],
        *,
        person: str,
        result: Any = None,
        reason: str | None = None,
    ) -> str:
        """Say how an unknown one ended (`result`: what was answered), or that it is to be called again; its state then."""
        engine = cast("Engine", self)
        row = await self.filed(receipt_id)
        command = SettleReceipt(
            run_id=row.run_id,
            tenant=engine.tenant,
            context=engine.context(person, "approval"),
            no=row.no,
            how=outcome,
            person=person,
            result=payload(result),
            reason=payload(reason),
        )
        return str((await engine.orchestrator.send(command))["state"])

    async def filed(self, receipt_id: str) -> Filed:
        """One of this tenant's by its id; another's looks exactly like none."""
        engine = cast("Engine", self)
        run_id, no = ids.receipt_ints(receipt_id)
        for row in await engine.store.read("receipts_filed", run_id):
            if row.no == no and row.tenant == engine.tenant and ids.receipt_text(run_id, no) == receipt_id:
                return cast("Filed", row)
        raise TenureError("RECEIPT_NOT_FOUND", f"there is no receipt {receipt_id[:64]!r}")
