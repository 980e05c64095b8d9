"""Approvals and proposals: what people are asked, and their decisions.

Laws:
1. Over a server only a person's own credential decides, whatever roles a client's key has, and never for a run that a client of
   theirs is involved in. (A proposal belongs to the run: whoever asked for the run may decide it.) The kernel checks that the
   person is not involved in the run and belongs to the group that was asked: for HTTP, Slack and the command line alike.
2. If the question binds an action, the decision repeats its digest: nobody decides what they were not shown.
3. The same decision by the same person again is no error, and changes nothing.
4. Another tenant's question looks exactly like a missing one.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tenure import ids
from tenure.clock import to_optional_datetime
from tenure.errors import Detail, TenureError
from tenure.kernel import commands as c
from tenure.kernel.act_commands import WithdrawApproval
from tenure.kernel.identity_rows import ClientRow
from tenure.kernel.run_rows import CLOSED_RUN
from tenure.kernel.separation_of_duties import involved_people
from tenure.reads.approvals import read_approvals
from tenure.reads.steps import wait_label
from tenure.services.identity.principals import Principal
from tenure.services.plans import encode_payload
from tenure.services.scope import Scope
from tenure.shapes.approvals import Approval, InboxStats, pick_question
from tenure.store.approvals import ApprovalDetail, OpenApprovalCount

PROPOSAL, APPROVAL = "proposal", "approval"
_List = list  # `Approvals.list` hides the builtin in annotations of the class


class DecisionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's answer."""

    decision: Literal["approve", "accept", "reject"]
    """`accept` says the same as `approve`."""
    digest: str | None = None
    """Of what was shown; required where the question binds an action."""
    revision: int | None = None
    """Of what was shown: an answer to an older one is refused."""
    reason: str | None = None


class DecisionResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer has led to."""

    advanced: bool
    """Whether this answer has settled the question."""
    id: str | None = None
    run_id: str | None = None
    status: str | None = None
    """The question's: `requested` while more people are needed."""
    again: bool | None = None
    """Whether this person had said the same before."""
    votes: int | None = None
    people: int | None = None


class Approvals:
    """The approvals and proposals of a scope's tenant."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def list(self, run_id: str | None = None) -> _List[Approval]:
        """The questions of a run; without a run, all that are open."""
        reader = self._scope.reader
        if run_id is None:
            return await reader.open_approvals(self._scope.tenant)
        return await reader.approvals(ids.run_int(run_id))

    async def open_page(self, kind: str, place: _List[int], limit: int) -> tuple[_List[Approval], _List[int]]:
        """Open questions of a kind, newest first, after a place; and the place of the last one if there are more."""
        store = self._scope.store
        found: _List[ApprovalDetail] = await store.read(
            "approvals_page", self._scope.tenant, kind, *place, limit + 1
        )
        rows = found[:limit]
        last = [rows[-1].requested_at, rows[-1].run_id, rows[-1].no] if len(found) > limit else []
        return await read_approvals(store, rows), last

    async def inbox(self) -> InboxStats:
        """How many questions and unknown receipts wait for people, and since when."""
        store, tenant = self._scope.store, self._scope.tenant
        counts: _List[OpenApprovalCount] = await store.read("open_approval_counts", tenant)
        [unknown] = await store.read("unknown_receipts_count", tenant)
        by_kind = {row.kind: row for row in counts}
        approvals, proposals = by_kind.get(APPROVAL), by_kind.get(PROPOSAL)
        return InboxStats(
            pending_approvals=0 if approvals is None else approvals.open,
            pending_proposals=0 if proposals is None else proposals.open,
            oldest_approval_at=to_optional_datetime(None if approvals is None else approvals.oldest_at),
            oldest_proposal_at=to_optional_datetime(None if proposals is None else proposals.oldest_at),
            unknown_receipts=unknown.open,
            oldest_receipt_at=to_optional_datetime(unknown.oldest_at),
        )

    async def approve(self, run_id: str, *, approver: str, **answer: Any) -> str:
        """Approve a question. Returns its status: `requested` while more people are needed.

        `no` names the question if the run has several; `digest` and `revision` name what was shown; `reason` says why.
        """
        return await self._decide_of_run(run_id, approver, approve=True, **answer)

    async def reject(self, run_id: str, *, approver: str, **answer: Any) -> str:
        """Reject a question; the arguments are those of `approve`."""
        return await self._decide_of_run(run_id, approver, approve=False, **answer)

    async def _decide_of_run(
        self,
        run_id: str,
        approver: str,
        *,
        approve: bool,
        no: int | None = None,
        digest: str = "",
        revision: int | None = None,
        reason: str | None = None,
    ) -> str:
        command = c.DecideApproval(
            **self._scope.address(run_id, approver, "approval"),
            no=no if no is not None else pick_question(run_id, await self.list(run_id)).no,
            approver=approver,
            approve=approve,
            revision=revision,
            digest=digest,
            reason=encode_payload(reason),
        )
        return str((await self._scope.send(command))["status"])

    # ------------------------------------------------------------------------- decisions by a credential

    async def find(self, question_id: str, kind: str | None = None) -> ApprovalDetail:
        """The question's row; `kind` if only an approval or only a proposal will do."""
        scope = self._scope
        run_id, no = ids.question_ints(question_id)
        rows: _List[ApprovalDetail] = (
            [] if no >= 1 << 31 else await scope.store.read("approval_detail", run_id, no)
        )
        for row in rows:
            is_it = ids.question_text(row.kind, run_id, no) == question_id
            if is_it and row.tenant == scope.tenant and kind in (None, row.kind):
                return row
        raise TenureError("APPROVAL_NOT_FOUND", f"there is no approval or proposal {question_id!r}")

    async def show(self, row: ApprovalDetail) -> Approval:
        [approval] = await read_approvals(self._scope.store, [row])
        return approval

    async def decide(self, who: Principal, row: ApprovalDetail, answer: DecisionRequest) -> DecisionResult:
        """Decide a question; see the laws above."""
        check_person(who)
        if row.kind == APPROVAL:
            await self.check_not_involved(who, row.run_id)
        if row.digest and answer.digest is None:
            raise TenureError(
                "INVALID_INPUT",
                "this approval binds an action: repeat the digest of what you were shown",
                (Detail("digest", "is required here; the approval shows it"),),
            )
        command = c.DecideApproval(
            run_id=row.run_id,
            tenant=who.tenant,
            context=self._scope.context(who.actor, "approval"),
            no=row.no,
            approver=who.actor,
            approve=answer.decision != "reject",
            revision=answer.revision,
            digest=answer.digest or "",
            reason=encode_payload(answer.reason),
        )
        done = await self._scope.send(command)
        return DecisionResult(
            advanced=not done["again"] and done["status"] != "requested",
            id=ids.question_text(row.kind, row.run_id, row.no),
            run_id=ids.run_text(row.run_id),
            status=done["status"],
            again=done["again"],
            votes=done.get("votes"),
            people=done.get("people"),
        )

    async def withdraw(self, who: Principal, row: ApprovalDetail) -> DecisionResult:
        """Take one's own approval back."""
        check_person(who)
        command = WithdrawApproval(
            run_id=row.run_id,
            tenant=who.tenant,
            context=self._scope.context(who.actor, "approval"),
            no=row.no,
            approver=who.actor,
        )
        done = await self._scope.send(command)
        return DecisionResult(
            advanced=False,
            id=ids.question_text(row.kind, row.run_id, row.no),
            run_id=ids.run_text(row.run_id),
            status=done["status"],
            votes=done["votes"],
            people=done["people"],
        )

    async def decide_only(self, who: Principal, run_id: str, answer: DecisionRequest) -> DecisionResult:
        """Decide the one approval that a run waits for."""
        check_person(who)
        run = await self._scope.reader.row(ids.run_int(run_id))
        if run.status in CLOSED_RUN:
            raise TenureError("RUN_TERMINAL_STATE", f"the run is {run.status} already")
        rows: _List[ApprovalDetail] = await self._scope.store.read("approval_details_of", run.id)
        is_open = [row for row in rows if row.kind == APPROVAL and row.status == "requested"]
        if not is_open:
            return DecisionResult(advanced=False)
        if len(is_open) > 1:
            named = [
                (ids.question_text(row.kind, row.run_id, row.no), wait_label(row.label)) for row in is_open
            ]
            raise TenureError(
                "INVALID_INPUT",
                "the run waits for several approvals; decide one of them by its id",
                tuple(Detail(name, f"is open, at {label!r}") for name, label in named),
            )
        return await self.decide(who, is_open[0], answer)

    async def check_not_involved(self, who: Principal, run_id: int) -> None:
        """Refuse the person who answers for a client that is involved in the run; the kernel refuses involved people."""
        spec = await self._scope.reader.spec(run_id)
        for actor in sorted(involved_people(spec)):
            kind, _, client = actor.partition(":")
            if kind != "client":
                continue
            found: _List[ClientRow] = await self._scope.store.read("client_named", who.tenant, client)
            if found and found[0].owner == who.id:
                raise TenureError("APPROVER_IS_REQUESTER", "a client you answer for stands behind this run")


def check_person(who: Principal) -> None:
    """Refuse whoever is not a person."""
    if who.kind != "person":
        raise TenureError("APPROVER_NOT_ELIGIBLE", "only a person decides; this is a service's key")
