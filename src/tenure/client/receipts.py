"""A server's receipts; another part of a client."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import quote

from tenure.client.transport import Transport
from tenure.shapes.receipts import Receipt

_List = list  # `RemoteReceipts.list` hides the builtin in annotations of the class


class RemoteReceipts:
    """`engine.receipts`, over HTTP."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self, run_id: str | None = None) -> _List[Receipt]:
        """The receipts of a run, or of all runs those that nobody knows the end of, newest first."""
        path = "/receipts" if run_id is None else f"/runs/{quote(run_id, safe='')}/receipts"
        return await self._transport.pages(path, Receipt)

    async def get(self, receipt_id: str) -> Receipt:
        """One of them."""
        return await self._transport.get(f"/receipts/{quote(receipt_id, safe='')}", Receipt)

    async def settle(
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
        return str((await self._transport.send("POST", path, dict[str, Any], said))["state"])
