"""A snapshot: one run's row and those of its other rows that were loaded.
Laws:
1. A snapshot never guesses: access to a row that was not loaded raises `NotLoaded`. The caller loads it and decides
   again, so a decision loads only what it uses.
2. "Known to be absent" differs from "not loaded": `known` has what was looked up.
3. Rows in a snapshot never change; `put` replaces them with the rows of a decision.
4. A decision that would look at more rows than `rows_max` raises `DecisionTooLong`. The caller decides again in a
   thread.
5. Finding one wait or one event takes the same time however many there are: they are indexed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tenure.kernel.act_rows import (
    KEY_HOLDING_RECEIPT,
    OPEN_RECEIPT,
    CostLineRow,
    ReceiptRow,
    RunSpendRow,
    VerdictRow,
)
from tenure.kernel.governance_rows import GovernanceRow
from tenure.kernel.identity_rows import PersonRow
from tenure.kernel.run_rows import (
    CLOSED_STEP,
    ApprovalRow,
    AttemptRow,
    Cap,
    CheckpointRow,
    ChildRow,
    InboxRow,
    PayloadRow,
    Row,
    RunRow,
    RunSpecRow,
    StepRow,
    WaitRow,
)
from tenure.kernel.separation_of_duties import LinkedPeople

Key = tuple[Any, ...]

STEPS_KEPT_MAX = 512
"""Beyond this number, closed steps and waits and taken events are dropped from a cached snapshot."""
CHECKPOINTS_KEPT_MAX = 512
"""Beyond this number, only the names of checkpoints are kept."""
RECEIPTS_KEPT_MAX = 64
"""Beyond this number, only open receipts are kept, and for the others only which acts they belong to."""


class NotLoaded(Exception):
    def __init__(self, *keys: Key) -> None:
        self.keys = keys
        super().__init__(*keys)


class DecisionTooLong(Exception):
    """A decision would look at more rows than is allowed here."""


class AdmissionFacts(msgspec.Struct):
    """What admission knows of other runs. It is read under the tenant's lock."""

    holder_id: int | None = None
    first_waiting_id: int | None = None
    live_ids: tuple[int, ...] = ()
    rate_full_until: int | None = None


class GovernanceFacts(msgspec.Struct):
    """What governs a tenant's acts. The transaction that intends an act reads it, and it is never cached."""

    governance: GovernanceRow | None = None
    """Read under a shared lock: freezing and activating a policy wait for this commit."""
    caps: dict[str, Cap] = {}
    """By scope."""
    people: dict[str, PersonRow] = {}
    ties: LinkedPeople = msgspec.field(default_factory=LinkedPeople)
    """Which people count as one; loaded separately."""
    holder: ReceiptRow | None = None
    """The receipt that holds the key, of any run."""
    request: bytes | None = None
    result: bytes | None = None
    """The request and result of the holder, if it is another run's and was not erased."""


class _Numbers:
    """A set of numbers in ascending order. They nearly always come in order, so they are sorted only if one did
    not."""

    __slots__ = ("_numbers", "_sorted")

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}
        self._sorted = True

    def add(self, no: int) -> None:
        if no not in self._numbers:
            self._sorted = self._sorted and (not self._numbers or next(reversed(self._numbers)) < no)
            self._numbers[no] = None

    def remove(self, no: int) -> None:
        self._numbers.pop(no, None)

    def first(self) -> Iterable[int]:
        """The numbers, lowest first."""
        if not self._sorted:
            self._numbers = dict.fromkeys(sorted(self._numbers))
            self._sorted = True
        return self._numbers


class Snapshot:
    __slots__ = (
        "_attempts_known",
        "_event_waits",
        "_events_buffered",
        "_events_by_id",
        "_forgotten_receipt_max",
        "_inbox_max",
        "_labels",
        "_receipts_max",
        "_steps_max",
        "_waits_max",
        "approvals",
        "attempts",
        "caps",
        "checkpoints",
        "children",
        "cost_lines",
        "facts",
        "forgotten_acts",
        "inbox",
        "known",
        "outside",
        "payloads",
        "place",
        "receipts",
        "recorded",
        "rows_max",
        "run",
        "run_id",
        "run_spend",
        "spec",
        "steps",
        "verdicts",
        "waits",
    )

    def __init__(self, run_id: int, run: RunRow | None = None) -> None:
        self.run_id = run_id
        self.run = run
        self.spec: RunSpecRow | None = None
        self.steps: dict[int, StepRow] = {}
        self.attempts: dict[tuple[int, int], AttemptRow] = {}
        self.checkpoints: dict[tuple[int, str], CheckpointRow] = {}
        self.waits: dict[int, WaitRow] = {}
        self.approvals: dict[int, ApprovalRow] = {}
        self.inbox: dict[int, InboxRow] = {}
        self.children: dict[int, ChildRow] = {}
        self.receipts: dict[int, ReceiptRow] = {}
        self.verdicts: dict[int, VerdictRow] = {}
        """Those written since the snapshot was loaded. Decisions never read verdicts."""
        self.run_spend: RunSpendRow | None = None
        self.cost_lines: dict[int, CostLineRow] = {}
        self.outside: dict[Key, GovernanceFacts] = {}
        """By what was asked for; valid in this transaction only."""
        self.payloads: dict[int, PayloadRow] = {}
        """Only those that a decision asked for."""
        self.known: set[Key] = set()
        self.facts: AdmissionFacts | None = None
        self.caps: dict[str, Cap] = {}
        """The caps of the run's tenant, by scope."""
        self.recorded: set[tuple[int, str]] = set()
        """Checkpoints that exist and whose rows were dropped."""
        self.rows_max: int | None = None
        """How many rows of a kind the current decision may look at. None: any number."""
        self.forgotten_acts: set[tuple[int, str]] = set()
        """Acts, by step and label, whose receipts were dropped."""
        self._forgotten_receipt_max = 0
        """The highest number of a dropped receipt."""
        self._attempts_known: list[Key] = []
        self._steps_max = self._waits_max = self._inbox_max = STEPS_KEPT_MAX
        self._receipts_max = RECEIPTS_KEPT_MAX
        self._labels: dict[tuple[int, str], int] = {}
        """Waits by step and label."""
        self._event_waits: dict[str, _Numbers] = {}
        """Open waits for events, by the event's name."""
        self._events_by_id: dict[str, int] = {}
        self._events_buffered: dict[str, _Numbers] = {}
        """Events that no wait has taken, by name."""
        self.place: dict[str, dict[Any, Any]] = {}
        self._find_places()

    def _find_places(self) -> None:
        self.place = {
            "step": self.steps,
            "attempt": self.attempts,
            "checkpoint": self.checkpoints,
            "wait": self.waits,
            "approval": self.approvals,
            "inbox": self.inbox,
            "child": self.children,
            "receipt": self.receipts,
            "verdict": self.verdicts,
            "cost_line": self.cost_lines,
        }

    @classmethod
    def of_new_run(cls, run_id: int) -> Snapshot:
        """A run that does not exist yet: all of its rows are known to be absent."""
        snap = cls(run_id)
        snap.known = {
            ("spec",),
            ("open_steps",),
            ("open_waits",),
            ("all_waits",),
            ("open_children",),
            ("all_checkpoints",),
            ("all_receipts",),
            ("run_spend",),
            ("cost_lines",),
        }
        return snap

    def add(self, row: Row) -> None:
        """Put a loaded row in its place. One that is there stays: an earlier command of the same batch may have
        decided on it, and the database does not know that yet."""
        key = tuple(getattr(row, name) for name in row.key[1:])
        place = self.place.get(row.table)
        if isinstance(row, PayloadRow):
            self.payloads[row.ref] = row
        elif isinstance(row, RunSpendRow):
            self.run_spend = self.run_spend or row
        elif place is None:
            self.spec = self.spec or row  # type: ignore[assignment]  # only a spec has no place of its own
        elif place.setdefault(key if len(key) > 1 else key[0], row) is row:
            self._index(row)

    def put(self, key: Key, row: Row) -> None:
        """Put a row in its place, by (table, *key within the run)."""
        place = self.place.get(key[0])
        if place is not None:
            place[key[1:] if len(key) > 2 else key[1]] = row
            self._index(row)
        elif key[0] == "run_spec":
            self.spec = row  # type: ignore[assignment]  # the key says which type it is
        elif isinstance(row, RunSpendRow):
            self.run_spend = row

    def _index(self, row: Row) -> None:
        if type(row) is WaitRow:
            self._labels.setdefault((row.idx, row.label), row.no)
            if row.kind == "event":
                _keep(self._event_waits, row.name, row.no, there=row.state == "open")
        elif type(row) is InboxRow:
            self._events_by_id[row.event_id] = row.no
            _keep(self._events_buffered, row.name, row.no, there=row.wait_no is None)

    def know(self, key: Key) -> None:
        self.known.add(key)
        if key[0] == "attempt":
            self._attempts_known.append(key)

    def forget_attempts(self) -> None:
        """Load attempts again: their expiry and sequence number change without a new version of the run."""
        self.attempts.clear()
        self.known.difference_update(self._attempts_known)
        self._attempts_known.clear()

    def trim(self) -> None:
        """Drop what a long run no longer needs, so that a cached snapshot stays small. The next trim happens only
        after much has been added, so that each commit pays little for it."""
        if len(self.steps) > self._steps_max:
            for step in [step for step in self.steps.values() if step.state in CLOSED_STEP]:
                del self.steps[step.idx]
                self.known -= {("named", step.name), ("step", step.idx)}
            self.attempts = {key: row for key, row in self.attempts.items() if key[0] in self.steps}
            self._steps_max = max(STEPS_KEPT_MAX, 2 * len(self.steps))
            self._find_places()
        if len(self.checkpoints) > CHECKPOINTS_KEPT_MAX:
            self.recorded.update(self.checkpoints)
            self.checkpoints.clear()
            self.known = {key for key in self.known if key[0] != "checkpoint"}
        self.outside.clear()
        self.verdicts.clear()
        if self.payloads:
            self.payloads.clear()
            self.known = {key for key in self.known if key[0] != "payload"}
        if len(self.waits) > self._waits_max:
            self.waits = {no: wait for no, wait in self.waits.items() if wait.state == "open"}
            self.known = {key for key in self.known if key[0] not in ("all_waits", "label", "wait")}
            self._waits_max = max(STEPS_KEPT_MAX, 2 * len(self.waits))
            self._labels = {key: no for key, no in self._labels.items() if no in self.waits}
            self._find_places()
        if len(self.inbox) > self._inbox_max:
            for event in [event for event in self.inbox.values() if event.wait_no is not None]:
                del self.inbox[event.no]
                del self._events_by_id[event.event_id]
            self.known = {key for key in self.known if key[0] != "inbox_id"}
            self._inbox_max = max(STEPS_KEPT_MAX, 2 * len(self.inbox))
        if len(self.receipts) > self._receipts_max:
            for row in [row for row in self.receipts.values() if row.state not in OPEN_RECEIPT]:
                del self.receipts[row.no]
                self.forgotten_acts.add((row.idx, row.label))
                self._forgotten_receipt_max = max(self._forgotten_receipt_max, row.no)
            self.known = {key for key in self.known if key[0] not in ("act", "receipt")}
            self._receipts_max = max(RECEIPTS_KEPT_MAX, 2 * len(self.receipts))

    # --------------------------------------------------------------------------------------- queries

    def check_room(self, rows: int) -> None:
        """Raise `DecisionTooLong` if this many rows are too many here."""
        if self.rows_max is not None and rows > self.rows_max:
            raise DecisionTooLong

    def find_spec(self) -> RunSpecRow:
        if self.spec is None:
            raise NotLoaded(("spec",))
        return self.spec

    def find_step(self, idx: int) -> StepRow | None:
        step = self.steps.get(idx)
        if step is None and ("step", idx) not in self.known:
            raise NotLoaded(("step", idx))
        return step

    def find_named_step(self, name: str) -> StepRow | None:
        step = next((step for step in self.steps.values() if step.name == name), None)
        if step is None and ("named", name) not in self.known:
            raise NotLoaded(("named", name))
        return step

    def open_steps(self) -> list[StepRow]:
        """Every step that is not closed, in order."""
        if ("open_steps",) not in self.known:
            raise NotLoaded(("open_steps",))
        self.check_room(len(self.steps))
        return sorted((s for s in self.steps.values() if s.state not in CLOSED_STEP), key=lambda s: s.idx)

    def find_attempt(self, idx: int, n: int) -> AttemptRow | None:
        attempt = self.attempts.get((idx, n))
        if attempt is None and ("attempt", idx, n) not in self.known:
            raise NotLoaded(("attempt", idx, n))
        return attempt

    def find_checkpoint(self, idx: int, name: str) -> CheckpointRow | None:
        found = self.checkpoints.get((idx, name))
        if found is None:
            known = self.known
            if ((idx, name) in self.recorded and ("checkpoint", idx, name) not in known) or (
                ("all_checkpoints",) not in known
                and ("checkpoints", idx) not in known
                and ("checkpoint", idx, name) not in known
            ):
                raise NotLoaded(("checkpoint", idx, name))
        return found

    def open_waits(self) -> list[WaitRow]:
        """All open waits, oldest first."""
        if ("open_waits",) not in self.known:
            raise NotLoaded(("open_waits",))
        self.check_room(len(self.waits))
        return sorted((w for w in self.waits.values() if w.state == "open"), key=lambda w: w.no)

    def find_wait(self, no: int) -> WaitRow | None:
        wait = self.waits.get(no)
        if wait is None and ("wait", no) not in self.known:
            raise NotLoaded(("wait", no))
        return wait

    def find_labeled_wait(self, idx: int, label: str) -> WaitRow | None:
        no = self._labels.get((idx, label))
        if no is None and ("all_waits",) not in self.known and ("label", idx, label) not in self.known:
            raise NotLoaded(("label", idx, label))
        return None if no is None else self.waits[no]

    def open_event_waits(self, name: str) -> Iterable[WaitRow]:
        """Waits for events of this name, oldest first."""
        if ("open_waits",) not in self.known and ("event_waits", name) not in self.known:
            raise NotLoaded(("event_waits", name))
        waiting = self._event_waits.get(name)
        return () if waiting is None else (self.waits[no] for no in waiting.first())

    def find_approval(self, no: int) -> ApprovalRow | None:
        approval = self.approvals.get(no)
        if approval is None and ("approval", no) not in self.known:
            raise NotLoaded(("approval", no))
        return approval

    def first_buffered_event(self, name: str, taken: set[int]) -> InboxRow | None:
        """The oldest event of this name that no wait has taken. `taken` are those taken in this decision."""
        if ("buffered", name) not in self.known:
            raise NotLoaded(("buffered", name))
        waiting = self._events_buffered.get(name)
        numbers = () if waiting is None else waiting.first()
        return next((self.inbox[no] for no in numbers if no not in taken), None)

    def find_event_id(self, event_id: str) -> InboxRow | None:
        no = self._events_by_id.get(event_id)
        if no is None and ("inbox_id", event_id) not in self.known:
            raise NotLoaded(("inbox_id", event_id))
        return None if no is None else self.inbox[no]

    def open_children(self) -> list[ChildRow]:
        if ("open_children",) not in self.known:
            raise NotLoaded(("open_children",))
        self.check_room(len(self.children))
        return sorted((c for c in self.children.values() if c.state == "open"), key=lambda c: c.child_id)

    def find_child(self, child_id: int) -> ChildRow | None:
        child = self.children.get(child_id)
        if child is None and ("child", child_id) not in self.known:
            raise NotLoaded(("child", child_id))
        return child

    def receipts_of(self, idx: int, label: str) -> list[ReceiptRow]:
        """The receipts of one act, oldest first."""
        if ("act", idx, label) not in self.known and (
            ("all_receipts",) not in self.known or (idx, label) in self.forgotten_acts
        ):
            raise NotLoaded(("act", idx, label))
        mine = (row for row in self.receipts.values() if row.idx == idx and row.label == label)
        return sorted(mine, key=lambda row: row.no)

    def find_receipt(self, no: int) -> ReceiptRow | None:
        found = self.receipts.get(no)
        if (
            found is None
            and ("receipt", no) not in self.known
            and (("all_receipts",) not in self.known or no <= self._forgotten_receipt_max)
        ):
            raise NotLoaded(("receipt", no))
        return found

    def open_receipts(self) -> list[ReceiptRow]:
        """Receipts whose outcome is unknown, oldest first."""
        if ("all_receipts",) not in self.known and ("open_receipts",) not in self.known:
            raise NotLoaded(("open_receipts",))
        is_open = (row for row in self.receipts.values() if row.state in OPEN_RECEIPT)
        return sorted(is_open, key=lambda row: row.no)

    def find_run_spend(self) -> RunSpendRow:
        if self.run_spend is None and ("run_spend",) not in self.known:
            raise NotLoaded(("run_spend",))
        return self.run_spend or RunSpendRow(self.run_id)

    def all_cost_lines(self) -> list[CostLineRow]:
        if ("cost_lines",) not in self.known:
            raise NotLoaded(("cost_lines",))
        return list(self.cost_lines.values())

    def governance_facts(self, tenant: str, name: str | None, people: tuple[str, ...]) -> GovernanceFacts:
        """What governs an act: the tenant's governance row and caps, the holder of the key `name`, and these
        people."""
        return self._find_outside(("outside", tenant, name, people))

    def ties(self, tenant: str) -> LinkedPeople:
        return self._find_outside(("ties", tenant)).ties

    def _find_outside(self, key: Key) -> GovernanceFacts:
        found = self.outside.get(key)
        if found is None:
            raise NotLoaded(key)
        return found

    def find_own_key_holder(self, name: str) -> ReceiptRow | None:
        """The receipt of this run that holds a key, if it was written in this transaction."""
        return next(
            (r for r in self.receipts.values() if r.name == name and r.state in KEY_HOLDING_RECEIPT), None
        )

    def find_payload(self, ref: int) -> PayloadRow | None:
        """The payload of a reference; None if it was erased."""
        payload = self.payloads.get(ref)
        if payload is None and ("payload", ref) not in self.known:
            raise NotLoaded(("payload", ref))
        return payload


def _keep(index: dict[str, _Numbers], name: str, no: int, *, there: bool) -> None:
    if there:
        index.setdefault(name, _Numbers()).add(no)
    elif name in index:
        index[name].remove(no)
