"""Short stories about two people: who has a hand in a run does not approve it, whoever they say they are."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import tenure
from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.kernel.decide import acts, waits
from tenure.kernel.separation_of_duties import LinkedPeople
from tenure.orchestrator import scheduler
from tenure.sdk import Workflow
from tenure.services.identity.principals import OPERATOR, Principal
from tenure.store.confirmations import ConfirmationRecords
from tenure.store.identity import AdminActor, Identity
from tenure.store.policies import PolicyRegistry
from tenure.testing.doubles import ServiceDouble
from tests.govern.act_service import keyed, lab_of
from tests.simulation.planted_bugs import Change

WAIT = {"name": "news", "kind": "wait", "wait": {"event": "news"}}
GATE = {"name": "gate", "kind": "approval", "approval": {"action": "do it"}}
ROLES = ("admin", "approver", "operator")


def _engine(folder: Path) -> Engine:
    return Engine(f"sqlite:{folder / 'story.db'}", actor="client:ci")


async def _refused(engine: Engine, run: str, person: str, code: str, digest: str = "") -> None:
    found = await _code(engine.approve(run, approver=person, digest=digest))
    assert found == code, f"{person} was answered {found}, not {code}"


async def _code(asked: Awaitable[Any]) -> str | None:
    """The code of a refusal; None: it was done."""
    try:
        await asked
    except TenureError as refused:
        return refused.code
    return None


async def whoever_sent_the_signal_does_not_approve(folder: Path) -> None:
    """Ada sends what decides what is proposed, and would approve it."""
    async with _engine(folder) as engine:
        run = await engine.create("w", [WAIT, GATE])
        await engine.signal(run, "news", {"amount": 1}, actor="person:ada")
        await _refused(engine, run, "person:ada", "APPROVER_IS_REQUESTER")
        assert await engine.approve(run, approver="person:bob") == "approved"


async def whoever_edited_the_schedule_does_not_approve(folder: Path) -> None:
    """Bob's schedule, which Ada has changed."""
    async with _engine(folder) as engine:
        await engine.schedules.create("s", "w", "0 3 * * *", plan=[GATE], owner="person:bob", by="person:bob")
        await engine.schedules.edit("s", labels={"a": "b"}, by="person:ada")
        run = await engine.schedules.trigger("s")
        await _refused(engine, run, "person:ada", "APPROVER_IS_REQUESTER")
        assert await engine.approve(run, approver="person:carol") == "approved"


async def nobody_confirms_their_own_edit(folder: Path) -> None:
    """Ada changes Bob's schedule and confirms that herself."""
    async with _engine(folder) as engine:
        await engine.schedules.create("s", "w", "0 3 * * *", plan=[GATE], owner="person:bob", by="person:bob")
        shown = await engine.schedules.edit("s", labels={"a": "b"}, by="person:ada")
        ada = AdminActor(actor="person:ada", people="person:ada")
        records = ConfirmationRecords(Identity(engine.store), engine.tenant, ada)
        made = await records.confirm("schedule", "s", shown.revision)
        assert made.row.unconfirmed == "person:ada", "hers is left"
        assert await _code(records.confirm("schedule", "s", shown.revision)) == "SECOND_PERSON_NEEDED"


async def an_administrator_is_one_person_under_any_name(folder: Path) -> None:
    """Ada makes X, who makes Y: Y would approve what Ada asks for."""
    async with _engine(folder) as engine:
        identity = Identity(engine.store)
        operator = engine.scoped(tenant=engine.tenant, caller=OPERATOR)
        await operator.tenants.create(engine.tenant, name="T")
        for name in ("ada", "bob"):
            await operator.people.create(person=name, name=name, roles=ROLES)
        for maker, made in (("ada", "x"), ("x", "y")):
            who = Principal(kind="person", tenant=engine.tenant, id=maker, roles=frozenset(ROLES), key_id="k")
            people = engine.scoped(tenant=engine.tenant, caller=who).people
            await people.create(person=made, name=made, roles=ROLES)
            await people.enrol((await people.invite(made)).code)
        run = await engine.create("w", [GATE], actor="person:ada")
        await _refused(engine, run, "person:x", "APPROVER_IS_REQUESTER")
        await _refused(engine, run, "person:y", "APPROVER_IS_REQUESTER")
        bob = AdminActor(actor="person:bob", people="person:bob")
        [row] = await identity.read("person_named", engine.tenant, "y")
        await ConfirmationRecords(identity, engine.tenant, bob).confirm("person", "y", row.revision)
        assert await engine.approve(run, approver="person:y") == "approved"


async def an_answer_to_something_else_is_stale(folder: Path) -> None:
    """A gate without a digest is answered with one, and a decided proposal once more."""
    async with _engine(folder) as engine:
        run = await engine.create("w", [GATE])
        await _refused(engine, run, "person:ada", "APPROVAL_STALE", digest="ab" * 32)
        assert await engine.approve(run, approver="person:ada") == "approved"


async def a_decided_question_says_so(folder: Path) -> None:
    """It has been approved, and its run has ended since."""
    async with _engine(folder) as engine:
        run = await engine.create("w", [GATE])
        [asked] = await engine.approvals.list(run)
        assert await engine.approve(run, approver="person:ada") == "approved"
        again = engine.approve(run, approver="person:bob", no=asked.no)
        found = await _code(again)
        assert found == "APPROVAL_DECIDED", f"bob was answered {found}"


async def _with_another_way() -> str:
    try:
        await (await tenure.start(keyed, "one")).result()
    except tenure.ChildFailed:
        await tenure.approve("do it otherwise?")
    return "done"


with_another_way = Workflow(_with_another_way, name="with_another_way")


async def whoever_froze_an_action_does_not_approve(folder: Path) -> None:
    """Ada freezes what a child run was to do, so that its parent goes another way, and would approve that."""
    del folder  # a lab has its own
    with ServiceDouble() as service:
        async with lab_of(service, keyed, with_another_way) as lab:
            await PolicyRegistry(lab.engine.store, "default").freeze("*", "person:ada")
            run = await lab.start(with_another_way)
            assert await run.reaches("waiting_approval") == "waiting_approval"
            (asked,) = await lab.engine.approvals.list(run.id)
            await _refused(lab.engine, run.id, "person:ada", "APPROVER_IS_REQUESTER", asked.digest or "")


BUGS: dict[str, tuple[Any, ...]] = {
    "signal-senders-uncounted": (
        "whoever sends the signal that decides what is proposed approves it",
        (Change(waits.deliver_event, "        add_involved_people(d, SYSTEM, row.senders)\n", ""),),
        whoever_sent_the_signal_does_not_approve,
        "person:ada was answered None, not APPROVER_IS_REQUESTER",
    ),
    "schedule-editors-uncounted": (
        "whoever has changed a colleague's schedule approves its runs",
        (Change(scheduler.build_scheduled_run, "        involved=schedule.unconfirmed,\n", ""),),
        whoever_edited_the_schedule_does_not_approve,
        "person:ada was answered None, not APPROVER_IS_REQUESTER",
    ),
    "freezers-uncounted": (
        "whoever freezes an action of a run approves what is done instead",
        (Change(acts._involve_freezers, "add_involved_people(d, SYSTEM, people)", "pass"),),
        whoever_froze_an_action_does_not_approve,
        "person:ada was answered None, not APPROVER_IS_REQUESTER",
    ),
    "own-edit-confirmed": (
        "whoever has made an edit confirms it",
        (Change(ConfirmationRecords._left, "concerned or ties.linked_with(one) & mine", "concerned"),),
        nobody_confirms_their_own_edit,
        "hers is left",
    ),
    "second-name-is-a-second-person": (
        "an administrator approves as somebody made by somebody they made",
        (Change(LinkedPeople.linked_with, "left += new", "left += []"),),
        an_administrator_is_one_person_under_any_name,
        "person:y was answered None, not APPROVER_IS_REQUESTER",
    ),
    "digest-of-nothing-ignored": (
        "an answer that names a digest is taken for a question that has none",
        (Change(waits._check_shown, "(approval.digest or c.digest) and", "approval.digest and"),),
        an_answer_to_something_else_is_stale,
        "person:ada was answered None, not APPROVAL_STALE",
    ),
    "decided-called-terminal": (
        "a second answer to a decided question is told that the run has ended",
        (Change(waits.decide_approval, 'approval.status == "canceled" and d.run', "d.run"),),
        a_decided_question_says_so,
        "bob was answered RUN_TERMINAL",
    ),
}
"""By name: what it breaks, how, the story that notices it, and what that then says."""
