"""What is known of one run: its row and the rows beside it that were loaded.

Laws:
1. A snapshot never guesses: asking for what was not loaded raises `Need`, and the caller loads it and
   decides again. So a command's neighbourhood is whatever its decision looks at, and nothing else.
2. "Known" and "there is none" are different things; `known` holds what has been looked up.
3. Rows in a snapshot are never changed; `put` puts the new ones of a decision in their place.
4. A decision that would look at more rows than `rows_max` raises `TooLong`: the caller decides again where that may take its time.
5. Looking for one wait or one event costs the same however many there are: they are indexed by what they are looked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tenure.kernel.behind import Ties
from tenure.kernel.governance import Governance
from tenure.kernel.governed import HELD_RECEIPT, OPEN_RECEIPT, CostLine, Purse, Receipt, Verdict
from tenure.kernel.model import (
    CLOSED_STEP,
    Approval,
    Attempt,
    Cap,
    Checkpoint,
    Child,
    Inbox,
    Payload,
    Row,
    Run,
    RunSpec,
    Step,
    Wait,
)
from tenure.kernel.service import Person

Key = tuple[Any, ...]

STEPS_KEPT_MAX = 512
"""Closed steps and waits, and events that were taken, are dropped from a cached snapshot beyond this many."""
CHECKPOINTS_KEPT_MAX = 512
"""Of more checkpoints only the names are kept."""
RECEIPTS_KEPT_MAX = 64
"""Beyond this many receipts only open ones are kept; of the rest, only which acts they belong to."""


class Need(Exception):
    """The decision looked at something that was not loaded."""

    def __init__(self, *keys: Key) -> None:
        self.keys = keys
        super().__init__(*keys)


class TooLong(Exception):
    """The decision would look at more rows than it may here."""


class Facts:
    """What admission looks at beyond the run: read under the tenant's lock."""

    __slots__ = ("first_waiting_id", "holder_id", "live_ids", "rate_full_until")

    def __init__(
        self,
        holder_id: int | None = None,
        first_waiting_id: int | None = None,
        live_ids: tuple[int, ...] = (),
        rate_full_until: int | None = None,
    ) -> None:
        self.holder_id = holder_id
        self.first_waiting_id = first_waiting_id
        self.live_ids = live_ids
        self.rate_full_until = rate_full_until


class Outside:
    """What governs a tenant's actions beyond the run: read in the transaction that intends one, and never kept."""

    __slots__ = ("caps", "governance", "holder", "people", "request", "result", "ties")

    def __init__(self) -> None:
        self.governance: Governance | None = None
        """What holds for the tenant, under a shared lock: freezing and activating wait for this commit."""
        self.caps: dict[str, Cap] = {}
        """By scope."""
        self.people: dict[str, Person] = {}
        self.ties = Ties()
        """Who counts as one; asked for by itself."""
        self.holder: Receipt | None = None
        """The receipt that holds the key, of whichever run."""
        self.request: bytes | None = None
        self.result: bytes | None = None
        """What it was asked for and what came of it, where it is another run's and was not erased."""


class _Numbers:
    """A set of numbers in ascending order. They nearly always come in that order, so they are sorted only where one did not."""

    __slots__ = ("_numbers", "_sorted")

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}
        self._sorted = True

    def add(self, no: int) -> None:
        """Put a number in."""
        if no not in self._numbers:
            self._sorted = self._sorted and (not self._numbers or next(reversed(self._numbers)) < no)
            self._numbers[no] = None

    def remove(self, no: int) -> None:
        """Take a number out, should it be there."""
        self._numbers.pop(no, None)

    def first(self) -> Iterable[int]:
        """The numbers, lowest first."""
        if not self._sorted:
            self._numbers = dict.fromkeys(sorted(self._numbers))
            self._sorted = True
        return self._numbers


class Snapshot:
    """One run as far as it is known. See the laws above."""

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
        "purse",
        "receipts",
        "recorded",
        "rows_max",
        "run",
        "run_id",
        "spec",
        "steps",
        "verdicts",
        "waits",
    )

    def __init__(self, run_id: int, run: Run | None = None) -> None:
        self.run_id = run_id
        self.run = run
        self.spec: RunSpec | None = None
        self.steps: dict[int, Step] = {}
        self.attempts: dict[tuple[int, int], Attempt] = {}
        self.checkpoints: dict[tuple[int, str], Checkpoint] = {}
        self.waits: dict[int, Wait] = {}
        self.approvals: dict[int, Approval] = {}
        self.inbox: dict[int, Inbox] = {}
        self.children: dict[int, Child] = {}
        self.receipts: dict[int, Receipt] = {}
        self.verdicts: dict[int, Verdict] = {}
        """Those written since it was loaded; none is ever asked for."""
        self.purse: Purse | None = None
        self.cost_lines: dict[int, CostLine] = {}
        self.outside: dict[Key, Outside] = {}
        """By what was asked for; of this transaction only."""
        self.payloads: dict[int, Payload] = {}
        """Only those that a decision asked for."""
        self.known: set[Key] = set()
        self.facts: Facts | None = None
        self.caps: dict[str, Cap] = {}
        """The caps of the run's tenant by scope, where it has any."""
        self.recorded: set[tuple[int, str]] = set()
        """Checkpoints known to exist whose rows are no longer kept."""
        self.rows_max: int | None = None
        """How many rows of a kind the decision under way may look at; None: as many as there are."""
        self.forgotten_acts: set[tuple[int, str]] = set()
        """Acts, by step and label, whose receipts are no longer kept."""
        self._forgotten_receipt_max = 0
        """The highest number of a receipt that is no longer kept."""
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
        """A run that does not exist yet: everything about it is known to be absent."""
        snap = cls(run_id)
        snap.known = {
            ("spec",),
            ("open_steps",),
            ("open_waits",),
            ("all_waits",),
            ("open_children",),
            ("all_checkpoints",),
            ("all_receipts",),
            ("purse",),
            ("cost_lines",),
        }
        return snap

    def add(self, row: Row) -> None:
        """Put a loaded row in its place. One that is there stays: an earlier command of the same batch may have
        decided on it, and the database does not know that yet."""
        key = tuple(getattr(row, name) for name in row.key[1:])
        place = self.place.get(row.table)
        if isinstance(row, Payload):
            self.payloads[row.ref] = row
        elif isinstance(row, Purse):
            self.purse = self.purse or row
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
        elif isinstance(row, Purse):
            self.purse = row

    def _index(self, row: Row) -> None:
        """Know a wait or an event by what it is looked for (law 5)."""
        if type(row) is Wait:
            self._labels.setdefault((row.idx, row.label), row.no)
            if row.kind == "event":
                _keep(self._event_waits, row.name, row.no, there=row.state == "open")
        elif type(row) is Inbox:
            self._events_by_id[row.event_id] = row.no
            _keep(self._events_buffered, row.name, row.no, there=row.wait_no is None)

    def know(self, key: Key) -> None:
        """Note that this was looked up."""
        self.known.add(key)
        if key[0] == "attempt":
            self._attempts_known.append(key)

    def forget_attempts(self) -> None:
        """Look attempts up again: their expiry and sequence change without the run's version."""
        self.attempts.clear()
        self.known.difference_update(self._attempts_known)
        self._attempts_known.clear()

    def trim(self) -> None:
        """Forget what a long run no longer needs, so that a cached snapshot stays small.

        What is looked at grows before the next look, so that a commit's share of this does not.
        """
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

    # ------------------------------------------------------------------------------------- questions

    def check_room(self, rows: int) -> None:
        """Refuse to look at so many rows where that may not take long."""
        if self.rows_max is not None and rows > self.rows_max:
            raise TooLong

    def the_spec(self) -> RunSpec:
        """What the run was asked to be."""
        if self.spec is None:
            raise Need(("spec",))
        return self.spec

    def find_step(self, idx: int) -> Step | None:
        """A step by its index."""
        step = self.steps.get(idx)
        if step is None and ("step", idx) not in self.known:
            raise Need(("step", idx))
        return step

    def find_named_step(self, name: str) -> Step | None:
        """A step by its name."""
        for step in self.steps.values():
            if step.name == name:
                return step
        if ("named", name) not in self.known:
            raise Need(("named", name))
        return None

    def open_steps(self) -> list[Step]:
        """Every step that is not closed, in order."""
        if ("open_steps",) not in self.known:
            raise Need(("open_steps",))
        self.check_room(len(self.steps))
        return sorted((s for s in self.steps.values() if s.state not in CLOSED_STEP), key=lambda s: s.idx)

    def find_attempt(self, idx: int, n: int) -> Attempt | None:
        """One try of a step."""
        attempt = self.attempts.get((idx, n))
        if attempt is None and ("attempt", idx, n) not in self.known:
            raise Need(("attempt", idx, n))
        return attempt

    def find_checkpoint(self, idx: int, name: str) -> Checkpoint | None:
        """A sub-result of a step."""
        found = self.checkpoints.get((idx, name))
        if found is None:
            known = self.known
            if ((idx, name) in self.recorded and ("checkpoint", idx, name) not in known) or (
                ("all_checkpoints",) not in known
                and ("checkpoints", idx) not in known
                and ("checkpoint", idx, name) not in known
            ):
                raise Need(("checkpoint", idx, name))
        return found

    def open_waits(self) -> list[Wait]:
        """Everything the run's steps wait for, oldest first."""
        if ("open_waits",) not in self.known:
            raise Need(("open_waits",))
        self.check_room(len(self.waits))
        return sorted((w for w in self.waits.values() if w.state == "open"), key=lambda w: w.no)

    def find_wait(self, no: int) -> Wait | None:
        """One wait, open or not."""
        wait = self.waits.get(no)
        if wait is None and ("wait", no) not in self.known:
            raise Need(("wait", no))
        return wait

    def find_labeled_wait(self, idx: int, label: str) -> Wait | None:
        """The wait a step opened under this label."""
        no = self._labels.get((idx, label))
        if no is not None:
            return self.waits[no]
        if ("all_waits",) not in self.known and ("label", idx, label) not in self.known:
            raise Need(("label", idx, label))
        return None

    def open_event_waits(self, name: str) -> Iterable[Wait]:
        """Waits for events of this name, oldest first."""
        if ("open_waits",) not in self.known and ("event_waits", name) not in self.known:
            raise Need(("event_waits", name))
        waiting = self._event_waits.get(name)
        return () if waiting is None else (self.waits[no] for no in waiting.first())

    def find_approval(self, no: int) -> Approval | None:
        """The question behind a wait."""
        approval = self.approvals.get(no)
        if approval is None and ("approval", no) not in self.known:
            raise Need(("approval", no))
        return approval

    def first_buffered(self, name: str, taken: set[int]) -> Inbox | None:
        """The oldest event of this name that no wait has taken (`taken`: in the decision under way)."""
        if ("buffered", name) not in self.known:
            raise Need(("buffered", name))
        waiting = self._events_buffered.get(name)
        return (
            None
            if waiting is None
            else next((self.inbox[no] for no in waiting.first() if no not in taken), None)
        )

    def find_event_id(self, event_id: str) -> Inbox | None:
        """The delivery with this id, if there was one."""
        no = self._events_by_id.get(event_id)
        if no is None and ("inbox_id", event_id) not in self.known:
            raise Need(("inbox_id", event_id))
        return None if no is None else self.inbox[no]

    def open_children(self) -> list[Child]:
        """Children that have not ended."""
        if ("open_children",) not in self.known:
            raise Need(("open_children",))
        self.check_room(len(self.children))
        return sorted((c for c in self.children.values() if c.state == "open"), key=lambda c: c.child_id)

    def find_child(self, child_id: int) -> Child | None:
        """One child."""
        child = self.children.get(child_id)
        if child is None and ("child", child_id) not in self.known:
            raise Need(("child", child_id))
        return child

    def receipts_of(self, idx: int, label: str) -> list[Receipt]:
        """The receipts of one act, oldest first."""
        if ("act", idx, label) not in self.known and (
            ("all_receipts",) not in self.known or (idx, label) in self.forgotten_acts
        ):
            raise Need(("act", idx, label))
        mine = (row for row in self.receipts.values() if row.idx == idx and row.label == label)
        return sorted(mine, key=lambda row: row.no)

    def find_receipt(self, no: int) -> Receipt | None:
        """One receipt."""
        found = self.receipts.get(no)
        if (
            found is None
            and ("receipt", no) not in self.known
            and (("all_receipts",) not in self.known or no <= self._forgotten_receipt_max)
        ):
            raise Need(("receipt", no))
        return found

    def open_receipts(self) -> list[Receipt]:
        """Those of which it is not known how they ended, oldest first."""
        if ("all_receipts",) not in self.known and ("open_receipts",) not in self.known:
            raise Need(("open_receipts",))
        is_open = (row for row in self.receipts.values() if row.state in OPEN_RECEIPT)
        return sorted(is_open, key=lambda row: row.no)

    def the_purse(self) -> Purse:
        """What the run has spent and written."""
        if self.purse is None and ("purse",) not in self.known:
            raise Need(("purse",))
        return self.purse or Purse(self.run_id)

    def all_cost_lines(self) -> list[CostLine]:
        """What the run has spent, line by line."""
        if ("cost_lines",) not in self.known:
            raise Need(("cost_lines",))
        return list(self.cost_lines.values())

    def look_outside(self, tenant: str, name: str | None, people: tuple[str, ...]) -> Outside:
        """What governs an action beyond the run: what holds for the tenant, its caps, who holds the key `name`, and these
        people."""
        key = ("outside", tenant, name, people)
        found = self.outside.get(key)
        if found is None:
            raise Need(key)
        return found

    def ties(self, tenant: str) -> Ties:
        """Which people of a tenant count as one."""
        key = ("ties", tenant)
        found = self.outside.get(key)
        if found is None:
            raise Need(key)
        return found.ties

    def own_holder(self, name: str) -> Receipt | None:
        """The receipt of this run that holds a key, as far as it is known here: one that was decided in this transaction."""
        return next((r for r in self.receipts.values() if r.name == name and r.state in HELD_RECEIPT), None)

    def find_payload(self, ref: int) -> Payload | None:
        """The bytes behind a reference; None where they were erased."""
        payload = self.payloads.get(ref)
        if payload is None and ("payload", ref) not in self.known:
            raise Need(("payload", ref))
        return payload

    def admission(self, tenant: str, key: str | None, workflow: str) -> Facts:
        """What admission looks at; only a transaction that took the tenant's lock has it."""
        if self.facts is None:
            raise Need(("admission", tenant, key, workflow))
        return self.facts


def _keep(index: dict[str, _Numbers], name: str, no: int, *, there: bool) -> None:
    """Have a number in an index under a name, or not."""
    if there:
        index.setdefault(name, _Numbers()).add(no)
    elif name in index:
        index[name].remove(no)
