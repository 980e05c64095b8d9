"""Approvals and proposals: questions to people, and their decisions.

Laws:
1. At a server only a person's own credential can decide, whatever roles a client's key has, and never about a run that a client of
   theirs is involved in. (The requester of a run may decide its proposals.) The kernel checks that the person is not involved in the
   run and belongs to the approval's group, for HTTP, Slack and the command line alike.
2. If the question binds an action, the decision repeats its digest, so that nobody decides about something they were not shown.
3. Repeating a decision is not an error, and changes nothing.
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
from tenure.limits import INTEGER_MAX
from tenure.reads.approvals import read_approvals
from tenure.reads.steps import wait_label
from tenure.services.identity.principals import Principal
from tenure.services.plans import encode_payload
from tenure.services.scope import Service
from tenure.shapes.approvals import Approval, InboxStats, pick_question
from tenure.store.approvals import ApprovalDetail, OpenApprovalCount

PROPOSAL, APPROVAL = "proposal", "approval"
_List = list  # `Approvals.list` hides the builtin in annotations of the class


class DecisionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's decision."""

    decision: Literal["approve", "accept", "reject"]
    """`accept` means `approve`."""
    digest: str | None = None
    """The digest that was shown. Required if the question binds an action."""
    revision: int | None = None
    """The revision that was shown. A decision about an older revision is refused."""
    reason: str | None = None


class DecisionResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a decision."""

    advanced: bool
    """Whether this decision settled the question."""
    id: str | None = None
    run_id: str | None = None
    status: str | None = None
    """The status of the question: `requested` while more people must approve."""
    again: bool | None = None
    """Whether this person had decided the same before."""
    votes: int | None = None
    people: int | None = None


class Approvals(Service):
    """The approvals and proposals of a scope's tenant."""

    async def list(self, run_id: str | None = None) -> _List[Approval]:
        """The questions of a run; without a run, all that are open. The oldest come first."""
        reader = self._scope.reader
        if run_id is None:
            return await reader.open_approvals(self._scope.tenant)
        return await reader.approvals(ids.run_int(run_id))

    async def open_page(self, kind: str, place: _List[int], limit: int) -> tuple[_List[Approval], _List[int]]:
        """Open questions of a kind after a place, newest first; and the place of the last one if there are more."""
        store = self._scope.store
        found: _List[ApprovalDetail] = await store.read(
            "approvals_page", self._scope.tenant, kind, *place, limit + 1
        )
        rows = found[:limit]
        last = [rows[-1].requested_at, rows[-1].run_id, rows[-1].no] if len(found) > limit else []
        return await read_approvals(store, rows), last

    async def inbox(self) -> InboxStats:
        store, tenant = self._scope.store, self._scope.tenant
        counts: _List[OpenApprovalCount] = await store.read("open_approval_counts", tenant)
        [unknown] = await store.read("unknown_receipts_count", tenant)
        by_kind = {row.kind: (row.open, to_optional_datetime(row.oldest_at)) for row in counts}
        approvals, proposals = by_kind.get(APPROVAL, (0, None)), by_kind.get(PROPOSAL, (0, None))
        return InboxStats(
            pending_approvals=approvals[0],
            pending_proposals=proposals[0],
            oldest_approval_at=approvals[1],
            oldest_proposal_at=proposals[1],
            unknown_receipts=unknown.open,
            oldest_receipt_at=to_optional_datetime(unknown.oldest_at),
        )

    async def approve(self, run_id: str, *, approver: str, **answer: Any) -> str:
        """Approve a question. Returns its status: `requested` while more people must approve.

        `no` is the number of the question if the run has several; `digest` and `revision` are what was shown; `reason` says why.
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
        """The row of a question, of any kind or of one kind only."""
        run_id, no = ids.question_ints(question_id)
        rows: _List[ApprovalDetail] = []
        if no <= INTEGER_MAX:
            rows = await self._scope.store.read("approval_detail", run_id, no)
        for row in rows:
            is_it = ids.question_text(row.kind, run_id, no) == question_id
            if is_it and row.tenant == self._scope.tenant and kind in (None, row.kind):
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
            question = ids.question_text(row.kind, row.run_id, row.no)
            raise TenureError(
                "INVALID_INPUT",
                f"{question} binds an action: look at it, and repeat the digest of what you were shown together with your decision",
                (Detail("digest", f"is required here; the approval {question} shows it"),),
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
        return await self._send(command, row)

    async def withdraw(self, who: Principal, row: ApprovalDetail) -> DecisionResult:
        """Withdraw one's own approval."""
        check_person(who)
        command = WithdrawApproval(
            run_id=row.run_id,
            tenant=who.tenant,
            context=self._scope.context(who.actor, "approval"),
            no=row.no,
            approver=who.actor,
        )
        return await self._send(command, row)

    async def _send(
        self, command: c.DecideApproval | WithdrawApproval, row: ApprovalDetail
    ) -> DecisionResult:
        done = await self._scope.send(command)
        again = done.get("again")
        return DecisionResult(
            advanced=again is False and done["status"] != "requested",
            id=ids.question_text(row.kind, row.run_id, row.no),
            run_id=ids.run_text(row.run_id),
            status=done["status"],
            again=again,
            votes=done.get("votes"),
            people=done.get("people"),
        )

    async def decide_only(self, who: Principal, run_id: str, answer: DecisionRequest) -> DecisionResult:
        """Decide the only approval that a run waits for. If it binds no action, `DecisionRequest(decision="approve")` suffices."""
        check_person(who)
        run = await self._scope.reader.row(ids.run_int(run_id))
        if run.status in CLOSED_RUN:
            raise TenureError("RUN_TERMINAL_STATE", f"run {run_id} is already {run.status}")
        rows: _List[ApprovalDetail] = await self._scope.store.read("approval_details_of", run.id)
        is_open = [row for row in rows if row.kind == APPROVAL and row.status == "requested"]
        if not is_open:
            return DecisionResult(advanced=False)
        if len(is_open) > 1:
            raise TenureError(
                "INVALID_INPUT",
                f"run {run_id} waits for several approvals; decide one of them by its id",
                tuple(
                    Detail(
                        ids.question_text(row.kind, row.run_id, row.no),
                        f"is open, at {wait_label(row.label)!r}",
                    )
                    for row in is_open
                ),
            )
        return await self.decide(who, is_open[0], answer)

    async def check_not_involved(self, who: Principal, run_id: int) -> None:
        """Refuse a person who owns a client that is involved in the run. (The kernel refuses involved people.)"""
        for actor in sorted(involved_people(await self._scope.reader.spec(run_id))):
            kind, _, client = actor.partition(":")
            if kind == "client":
                found: _List[ClientRow] = await self._scope.store.read("client_named", who.tenant, client)
                if found and found[0].owner == who.id:
                    raise TenureError(
                        "APPROVER_IS_REQUESTER", "a client that you own is involved in this run"
                    )


def check_person(who: Principal) -> None:
    if who.kind != "person":
        raise TenureError("APPROVER_NOT_ELIGIBLE", "only a person can decide; this is the key of a client")
