"""`ActStory`: a story whose run acts on other systems, in a tenant with a policy and people.

Laws:
1. Version 1 of a policy is active, nothing is frozen, and bob, carol and dave are people (`person:bob`). A test may change
   `governance`, `caps` and `people` at any time.
2. `held` has receipts of other runs that hold their keys.
3. The test chooses the rulings. Acts with the same label and fields have the same digest.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenure import ids
from tenure.kernel import act_commands as a
from tenure.kernel import commands as c
from tenure.kernel.act_commands import ActReply, ProposedAct, Ruling
from tenure.kernel.act_rows import ReceiptRow, RunSpendRow, VerdictRow
from tenure.kernel.governance_rows import GovernanceRow
from tenure.kernel.identity_rows import PersonRow, UnconfirmedPerson
from tenure.kernel.run_rows import Cap
from tenure.kernel.separation_of_duties import LinkedPeople
from tenure.kernel.snapshot import GovernanceFacts
from tests.kernel.story import CompleteSnapshot, Story

ALLOW = Ruling(version=1, outcome="allow", rules='[["writes","allow"]]')
ASK = Ruling(version=1, outcome="needs_approval", tier="med", people=1)
DENY = Ruling(version=1, outcome="deny", rules='[["never","deny"]]', why="a rule says no")


def governance(version: int = 1, frozen: tuple[str, ...] = ()) -> GovernanceRow:
    """The tenant's policy version and freezes."""
    held = msgspec.json.encode(dict.fromkeys(frozen, "person:cyd")).decode()
    return GovernanceRow("acme", version, None, None, held, "{}", 1, 0)


def person(name: str, *groups: str, closed_at: int | None = None) -> PersonRow:
    """A person of the tenant."""
    encoded = msgspec.json.encode(groups).decode()
    return PersonRow("acme", name, name, '["approver"]', encoded, None, None, None, 0, closed_at=closed_at)


class _World(CompleteSnapshot):
    """A snapshot with the governance facts of a story."""

    __slots__ = ("story",)
    story: ActStory

    def governance_facts(self, tenant: str, name: str | None, people: tuple[str, ...]) -> GovernanceFacts:
        story = self.story
        outside = GovernanceFacts()
        outside.governance = story.governance
        outside.caps = {cap.scope: cap for cap in story.caps}
        outside.people = {one: story.people[one] for one in people if one in story.people}
        outside.holder = next((row for row in story.held if row.name == name), None)
        outside.request, outside.result = story.held_request, story.held_result
        return outside

    def ties(self, tenant: str) -> LinkedPeople:
        del tenant
        return LinkedPeople(UnconfirmedPerson(row.id, row.unconfirmed) for row in self.story.people.values())


class ActStory(Story):
    """See the laws above."""

    def __init__(self, **how: Any) -> None:
        self.governance: GovernanceRow | None = governance()
        self.caps: list[Cap] = []
        self.people = {name: person(name, "release") for name in ("bob", "carol", "dave")}
        self.held: list[ReceiptRow] = []
        self.held_request: bytes | None = None
        self.held_result: bytes | None = None
        super().__init__(**how)
        world = _World(self.run_id)
        world.story = self
        for table, rows in self.snap.place.items():
            world.place[table].update(rows)
        world.run, world.spec, world.payloads = self.snap.run, self.snap.spec, self.payloads
        self.snap = world

    # -------------------------------------------------------------------------------------------- acts

    def act(self, label: str = "label.add#1", **how: Any) -> ProposedAct:
        """An action of this run."""
        given: dict[str, Any] = {
            "label": label,
            "connector": "github",
            "operation": "label.add",
            "name": f"{ids.run_text(self.run_id)}:main:{label}",
            "repeats": "none",
            "reversible": True,
        }
        fields = how.pop("fields", {"label": "bug"})
        given |= how
        digest = a.action_digest(
            tenant="acme",
            run=ids.run_text(self.run_id),
            step="main",
            ordinal=label,
            connector=given["connector"],
            operation=given["operation"],
            target={},
            fields=fields,
            key=given["name"],
            tier=given.get("tier", "low"),
        )
        return ProposedAct(**{"digest": digest, **given})

    def _speak(self, message: type[a.ActCommand], step: str, n: int | None, **fields: Any) -> ActReply:
        row = self.step(step)
        n = row.attempt if n is None else n
        self._causes += 1
        context = c.Context("governor", "system", f"act-{self._causes}")
        reply: ActReply = self.do(message(run_id=self.run_id, idx=row.idx, n=n, context=context, **fields))
        return reply

    def propose(
        self,
        act: ProposedAct | None = None,
        ruling: Ruling = ASK,
        *,
        step: str = "main",
        n: int | None = None,
        **how: Any,
    ) -> ActReply:
        """Record a ruling that does not allow the act."""
        return self._speak(a.ProposeAct, step, n, act=act or self.act(), ruling=ruling, **how)

    def intend(
        self,
        act: ProposedAct | None = None,
        ruling: Ruling = ALLOW,
        *,
        step: str = "main",
        n: int | None = None,
        call_seconds: float = 10.0,
        **how: Any,
    ) -> ActReply:
        how.setdefault("request", b'{"target":{},"fields":{"label":"bug"}}')
        return self._speak(
            a.IntendAct, step, n, act=act or self.act(), ruling=ruling, call_seconds=call_seconds, **how
        )

    def repeat(
        self, no: int, *, step: str = "main", n: int | None = None, call_seconds: float = 10.0
    ) -> ActReply:
        """Intend an open call again."""
        return self._speak(a.RepeatAct, step, n, no=no, call_seconds=call_seconds)

    def settle(
        self, no: int, state: str, *, step: str = "main", n: int | None = None, **how: Any
    ) -> ActReply:
        """Record the outcome of a call."""
        return self._speak(a.SettleAct, step, n, no=no, state=state, **how)

    def settle_by(self, person: str, no: int, how: str, **more: Any) -> Any:
        """Settle a receipt as a person."""
        context = self._by(person)
        return self.do(
            a.SettleReceipt(run_id=self.run_id, no=no, how=how, person=person, context=context, **more)  # type: ignore[arg-type]  # the kernel's words
        )

    def reversed_by(self, no: int, run: int, by: int = 1) -> Any:
        """Report that another run has reversed the act."""
        context = self._by("system:outbox", "system")
        return self.do(a.MarkReversed(run_id=self.run_id, no=no, by_run=run, by_no=by, context=context))

    # -------------------------------------------------------------------------------------- questions

    def receipt(self, no: int) -> ReceiptRow:
        return self.snap.receipts[no]

    @property
    def verdicts(self) -> list[VerdictRow]:
        """All verdicts, in order."""
        return [self.snap.verdicts[no] for no in sorted(self.snap.verdicts)]

    @property
    def run_spend(self) -> RunSpendRow:
        """The run's costs and number of writes."""
        return self.snap.find_run_spend()
