"""People decide: what is checked of who answers, before the kernel decides what the answer means.

Laws:
1. Only a person's credential decides, whatever roles a client's key has; and never for a run that this person stands behind,
   by themselves or by a client they answer for. (A proposal is the run's own: whoever asked for the run may decide it.) That the
   person is none of those behind the run, and in the group that was asked, the kernel sees to: for HTTP, Slack and the command line.
2. Where the question binds an action, its digest is repeated: nobody decides what they were not shown.
3. The same answer by the same person again is no error, and changes nothing.
4. Another tenant's question looks exactly like none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tenure import ids
from tenure.embedded.plan import payload
from tenure.errors import Detail, TenureError
from tenure.kernel import commands as c
from tenure.kernel.actions import WithdrawApproval
from tenure.kernel.behind import people_behind
from tenure.kernel.model import CLOSED_RUN
from tenure.kernel.service import Client
from tenure.orchestrator.questions import ApprovalView, views_of
from tenure.orchestrator.step_views import label_of
from tenure.store.listing import Question

if TYPE_CHECKING:
    from tenure.server.call import Call

PROPOSAL, APPROVAL = "proposal", "approval"


class Decision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's answer."""

    decision: Literal["approve", "accept", "reject"]
    """`accept` says the same as `approve`."""
    digest: str | None = None
    """Of what was shown; required where the question binds an action."""
    revision: int | None = None
    """Of what was shown: an answer to an older one is refused."""
    reason: str | None = None


class Decided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


async def question(call: Call, question_id: str, kind: str | None = None) -> Question:
    """A question by its id; `kind` where only one will do."""
    run_id, no = ids.question_ints(question_id)
    found: list[Question] = (
        [] if no >= 1 << 31 else await call.service.engine.store.read("question_at", run_id, no)
    )
    for row in found:
        named = ids.question_text(row.kind, run_id, no) == question_id
        if named and row.tenant == call.who.tenant and kind in (None, row.kind):
            return row
    raise TenureError("APPROVAL_NOT_FOUND", f"there is no approval or proposal {question_id!r}")


async def shown(call: Call, row: Question) -> ApprovalView:
    """A question as people see it."""
    [view] = await views_of(call.service.engine.store, [row])
    return view


async def decide(call: Call, row: Question, answer: Decision) -> Decided:
    """Answer a question; see the laws above."""
    check_person(call)
    if row.kind == APPROVAL:
        await check_apart(call, row.run_id)
    if row.digest and answer.digest is None:
        raise TenureError(
            "INVALID_INPUT",
            "this approval binds an action: repeat the digest of what you were shown",
            (Detail("digest", "is required here; the approval shows it"),),
        )
    engine, who = call.engine, call.who
    command = c.DecideApproval(
        run_id=row.run_id,
        tenant=who.tenant,
        context=engine.context(who.actor, "approval"),
        no=row.no,
        approver=who.actor,
        approve=answer.decision != "reject",
        revision=answer.revision,
        digest=answer.digest or "",
        reason=payload(answer.reason),
    )
    told: dict[str, Any] = await engine.orchestrator.send(command)
    return Decided(
        advanced=not told["again"] and told["status"] != "requested",
        id=ids.question_text(row.kind, row.run_id, row.no),
        run_id=ids.run_text(row.run_id),
        status=told["status"],
        again=told["again"],
        votes=told.get("votes"),
        people=told.get("people"),
    )


async def withdraw(call: Call, row: Question) -> Decided:
    """Take one's own yes back."""
    check_person(call)
    engine, who = call.engine, call.who
    command = WithdrawApproval(
        run_id=row.run_id,
        tenant=who.tenant,
        context=engine.context(who.actor, "approval"),
        no=row.no,
        approver=who.actor,
    )
    told: dict[str, Any] = await engine.orchestrator.send(command)
    return Decided(
        advanced=False,
        id=ids.question_text(row.kind, row.run_id, row.no),
        run_id=ids.run_text(row.run_id),
        status=told["status"],
        votes=told["votes"],
        people=told["people"],
    )


async def decide_only_gate(call: Call, run_id: str, answer: Decision) -> Decided:
    """Answer the one approval that a run waits for."""
    check_person(call)
    number = ids.run_int(run_id)
    run = await call.engine.views.row(number)
    if run.status in CLOSED_RUN:
        raise TenureError("RUN_TERMINAL_STATE", f"the run is {run.status} already")
    rows: list[Question] = await call.service.engine.store.read("questions_of", number)
    gates = [row for row in rows if row.kind == APPROVAL and row.status == "requested"]
    if not gates:
        return Decided(advanced=False)
    if len(gates) > 1:
        named = [(ids.question_text(row.kind, row.run_id, row.no), label_of(row.label)) for row in gates]
        raise TenureError(
            "INVALID_INPUT",
            "the run waits for several approvals; decide one of them by its id",
            tuple(Detail(name, f"is open, at {label!r}") for name, label in named),
        )
    return await decide(call, gates[0], answer)


def check_person(call: Call) -> None:
    """Refuse whoever is not a person."""
    if call.who.kind != "person":
        raise TenureError("APPROVER_NOT_ELIGIBLE", "only a person decides; this is a service's key")


async def check_apart(call: Call, run_id: int) -> None:
    """Refuse the person who answers for a client that stands behind the run; the kernel refuses those who do themselves."""
    store = call.service.engine.store
    spec = await call.engine.views.spec(run_id)
    for actor in sorted(people_behind(spec)):
        kind, _, client = actor.partition(":")
        if kind != "client":
            continue
        found: list[Client] = await store.read("client_named", call.who.tenant, client)
        if found and found[0].owner == call.who.id:
            raise TenureError("APPROVER_IS_REQUESTER", "a client you answer for stands behind this run")
