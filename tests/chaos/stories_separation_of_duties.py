"""Stories about separation of duties: a person involved in a run cannot approve it. For the bugs of `story_bugs.py`."""

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
    assert found == code, f"{person} got {found}, not {code}"


async def _code(request: Awaitable[Any]) -> str | None:
    """Return the code of the refusal, or None if the request succeeded."""
    try:
        await request
    except TenureError as refused:
        return refused.code
    return None


async def the_sender_of_a_signal_cannot_approve(folder: Path) -> None:
    """Ada sends a signal that the run waits for, then tries to approve the run."""
    async with _engine(folder) as engine:
        run = await engine.create("w", [WAIT, GATE])
        await engine.signal(run, "news", {"amount": 1}, actor="person:ada")
        await _refused(engine, run, "person:ada", "APPROVER_IS_REQUESTER")
        assert await engine.approve(run, approver="person:bob") == "approved"


async def the_editor_of_a_schedule_cannot_approve(folder: Path) -> None:
    """Ada changes Bob's schedule, then tries to approve a run that it started."""
    async with _engine(folder) as engine:
        await engine.schedules.create("s", "w", "0 3 * * *", plan=[GATE], owner="person:bob", by="person:bob")
        await engine.schedules.edit("s", labels={"a": "b"}, by="person:ada")
        run = await engine.schedules.trigger("s")
        await _refused(engine, run, "person:ada", "APPROVER_IS_REQUESTER")
        assert await engine.approve(run, approver="person:carol") == "approved"


async def an_editor_cannot_confirm_their_own_edit(folder: Path) -> None:
    """Ada changes Bob's schedule, then tries to confirm the change."""
    async with _engine(folder) as engine:
        await engine.schedules.create("s", "w", "0 3 * * *", plan=[GATE], owner="person:bob", by="person:bob")
        shown = await engine.schedules.edit("s", labels={"a": "b"}, by="person:ada")
        ada = AdminActor(actor="person:ada", people="person:ada")
        records = ConfirmationRecords(Identity(engine.store), engine.tenant, ada)
        made = await records.confirm("schedule", "s", shown.revision)
        assert made.row.unconfirmed == "person:ada", "Ada confirmed her own edit"
        assert await _code(records.confirm("schedule", "s", shown.revision)) == "SECOND_PERSON_NEEDED"


async def an_administrator_cannot_approve_through_other_accounts(folder: Path) -> None:
    """Ada creates X, and X creates Y. Y tries to approve a run of Ada's."""
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


async def a_decision_with_a_wrong_digest_is_stale(folder: Path) -> None:
    """Ada approves a gate that has no digest, and names a digest."""
    async with _engine(folder) as engine:
        run = await engine.create("w", [GATE])
        await _refused(engine, run, "person:ada", "APPROVAL_STALE", digest="ab" * 32)
        assert await engine.approve(run, approver="person:ada") == "approved"


async def a_decided_approval_is_reported_as_decided(folder: Path) -> None:
    """Bob decides an approval that Ada has decided, after the run has ended."""
    async with _engine(folder) as engine:
        run = await engine.create("w", [GATE])
        [asked] = await engine.approvals.list(run)
        assert await engine.approve(run, approver="person:ada") == "approved"
        again = engine.approve(run, approver="person:bob", no=asked.no)
        found = await _code(again)
        assert found == "APPROVAL_DECIDED", f"bob got {found}"


async def _with_fallback() -> str:
    try:
        await (await tenure.start(keyed, "one")).result()
    except tenure.ChildFailed:
        await tenure.approve("do it otherwise?")
    return "done"


with_fallback = Workflow(_with_fallback, name="with_fallback")


async def a_person_who_froze_an_action_cannot_approve(folder: Path) -> None:
    """Ada freezes the action of a child run, then tries to approve the fallback of the parent run."""
    del folder  # the lab has its own folder
    with ServiceDouble() as service:
        async with lab_of(service, keyed, with_fallback) as lab:
            await PolicyRegistry(lab.engine.store, "default").freeze("*", "person:ada")
            run = await lab.start(with_fallback)
            assert await run.reaches("waiting_approval") == "waiting_approval"
            (asked,) = await lab.engine.approvals.list(run.id)
            await _refused(lab.engine, run.id, "person:ada", "APPROVER_IS_REQUESTER", asked.digest or "")


BUGS: dict[str, tuple[Any, ...]] = {
    "signal-senders-uncounted": (
        "the sender of a signal can approve the run that took the signal",
        (Change(waits.deliver_event, "        add_involved_people(d, SYSTEM, row.senders)\n", ""),),
        the_sender_of_a_signal_cannot_approve,
        "person:ada got None, not APPROVER_IS_REQUESTER",
    ),
    "schedule-editors-uncounted": (
        "a person who changed a colleague's schedule can approve its runs",
        (Change(scheduler.build_scheduled_run, "        involved=schedule.unconfirmed,\n", ""),),
        the_editor_of_a_schedule_cannot_approve,
        "person:ada got None, not APPROVER_IS_REQUESTER",
    ),
    "freezers-uncounted": (
        "a person who froze an action of a run can approve the fallback",
        (Change(acts._involve_freezers, "add_involved_people(d, SYSTEM, people)", "pass"),),
        a_person_who_froze_an_action_cannot_approve,
        "person:ada got None, not APPROVER_IS_REQUESTER",
    ),
    "own-edit-confirmed": (
        "the author of an edit can confirm it",
        (Change(ConfirmationRecords._left, "concerned or ties.linked_with(one) & mine", "concerned"),),
        an_editor_cannot_confirm_their_own_edit,
        "Ada confirmed her own edit",
    ),
    "second-name-is-a-second-person": (
        "an administrator can approve through an account that was created by an account they created",
        (Change(LinkedPeople.linked_with, "left += new", "left += []"),),
        an_administrator_cannot_approve_through_other_accounts,
        "person:y got None, not APPROVER_IS_REQUESTER",
    ),
    "digest-of-nothing-ignored": (
        "a decision that names a digest is accepted for an approval without a digest",
        (Change(waits._check_shown, "(approval.digest or c.digest) and", "approval.digest and"),),
        a_decision_with_a_wrong_digest_is_stale,
        "person:ada got None, not APPROVAL_STALE",
    ),
    "decided-called-terminal": (
        "a second decision on an approval gets the error that the run has ended",
        (Change(waits.decide_approval, 'approval.status == "canceled" and d.run', "d.run"),),
        a_decided_approval_is_reported_as_decided,
        "bob got RUN_TERMINAL",
    ),
}
"""Name -> the fields of a `PlantedBug`. Registered in `story_bugs.py`."""
