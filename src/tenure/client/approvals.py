"""What people decide over a server: approvals, and the confirmation of others' changes."""

from __future__ import annotations

from typing import Any

from tenure.client.transport import RemoteGroup, drop_none, join_path
from tenure.shapes.approvals import Approval, pick_question
from tenure.shapes.identity import Confirmable, ConfirmationResult, check_version_named

_List = list  # `RemoteApprovals.list` hides the builtin in annotations of the class
_PATHS = {
    "hook": "hooks",
    "schedule": "schedules",
    "workflow": "workflows",
    "client": "clients",
    "key": "keys",
    "person": "people",
}


class RemoteApprovals(RemoteGroup):
    """`engine.approvals`, over HTTP. The owner of the key decides: an `approver` that is given is not sent."""

    async def list(self, run_id: str | None = None) -> _List[Approval]:
        """The questions of a run; without a run, all that are open. The oldest come first."""
        found = await self._transport.pages("/approvals", Approval, run=run_id, kind="any")
        return sorted(found, key=lambda one: (one.requested_at, one.run_id, one.no))

    async def approve(self, run_id: str, *, approver: str = "", **answer: Any) -> str:
        """Approve a question. Returns its status. `no` names the question if the run has several."""
        return await self._decide(run_id, "approve", **answer)

    async def reject(self, run_id: str, *, approver: str = "", **answer: Any) -> str:
        """Reject a question; the arguments are those of `approve`."""
        return await self._decide(run_id, "reject", **answer)

    async def _decide(self, run_id: str, decision: str, *, no: int | None = None, **answer: Any) -> str:
        question = pick_question(run_id, await self.list(run_id), no)
        body = {"decision": decision, **{name: value for name, value in answer.items() if value}}
        return await self._post("status", f"/approvals/{question.id}/decision", body)


class RemoteConfirmations(RemoteGroup):
    """`engine.confirmations`, over HTTP."""

    async def confirm(
        self,
        kind: Confirmable,
        name: str,
        *,
        revision: int | None = None,
        version: str | None = None,
        digest: str | None = None,
    ) -> ConfirmationResult:
        """Confirm what others have created or changed, as the owner of the key."""
        check_version_named(kind, revision, version, digest)
        return await self._confirm(
            join_path(_PATHS[kind], name, "confirm"),
            kind,
            name,
            drop_none(revision=revision, version=version, digest=digest),
        )

    async def confirm_as_operator(
        self, tenant: str, person: str, *, revision: int | None
    ) -> ConfirmationResult:
        """Confirm a person of a tenant that has no second administrator, with the installation operator's key."""
        check_version_named("person", revision, None, None)
        return await self._confirm(
            join_path("admin", "tenants", tenant, "people", person, "confirm"),
            "person",
            person,
            drop_none(revision=revision),
        )

    async def _confirm(self, path: str, kind: str, name: str, body: dict[str, Any]) -> ConfirmationResult:
        made = await self._transport.send("POST", path, dict[str, Any], body or None)
        return ConfirmationResult(
            kind=kind, name=name, confirmed=made["confirmed"], unconfirmed=made["unconfirmed"]
        )
