"""The approvals of a server."""

from __future__ import annotations

from typing import Any

from tenure.client.transport import Transport
from tenure.shapes.approvals import Approval, pick_question

_List = list  # `RemoteApprovals.list` hides the builtin in annotations of the class


class RemoteApprovals:
    """`engine.approvals`, over HTTP. The owner of the key decides: an `approver` that is given is not sent."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self, run_id: str | None = None) -> _List[Approval]:
        """The questions of a run; without a run, all that are open."""
        return await self._transport.pages("/approvals", Approval, run=run_id, kind="any")

    async def approve(self, run_id: str, *, approver: str = "", **answer: Any) -> str:
        """Approve a question. Returns its status. `no` names the question if the run has several."""
        del approver
        return await self._decide(run_id, "approve", **answer)

    async def reject(self, run_id: str, *, approver: str = "", **answer: Any) -> str:
        """Reject a question; the arguments are those of `approve`."""
        del approver
        return await self._decide(run_id, "reject", **answer)

    async def _decide(self, run_id: str, decision: str, *, no: int | None = None, **answer: Any) -> str:
        question = pick_question(run_id, await self.list(run_id), no)
        body = {"decision": decision, **{name: value for name, value in answer.items() if value}}
        path = f"/approvals/{question.id}/decision"
        return str((await self._transport.send("POST", path, dict[str, Any], body))["status"])
