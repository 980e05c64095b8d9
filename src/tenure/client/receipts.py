"""A server's receipts; another part of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from tenure.orchestrator.receipts import ReceiptView

if TYPE_CHECKING:
    from tenure.client.transport import Transport


class RemoteReceipts:
    """With the words of an engine's."""

    _to: Transport

    async def receipts(self, run_id: str | None = None) -> list[ReceiptView]:
        """The receipts of a run, or of all runs those that nobody knows the end of, newest first."""
        path = "/receipts" if run_id is None else f"/runs/{quote(run_id, safe='')}/receipts"
        return await self._to.pages(path, ReceiptView)

    async def receipt(self, receipt_id: str) -> ReceiptView:
        """One of them."""
        return await self._to.get(f"/receipts/{quote(receipt_id, safe='')}", ReceiptView)

    async def settle_receipt(
        self,
        receipt_id: str,
        outcome: Literal["done", "not_done", "retry"],
        *,
        person: str = "",
        result: Any = None,
        reason: str | None = None,
    ) -> str:
        """Say how an unknown one ended, or that it is to be called again; its state then. The key says who."""
        del person
        body = {"outcome": outcome, "result": result, "reason": reason}
        said = {name: value for name, value in body.items() if value is not None}
        path = f"/receipts/{quote(receipt_id, safe='')}/settle"
        return str((await self._to.send("POST", path, dict[str, Any], said))["state"])
