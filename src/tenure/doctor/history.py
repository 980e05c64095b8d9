"""History: I3, I7, I8, I39 and I51. What the events say is what the rows hold, and nobody changed the events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from tenure.doctor.checked_run import CheckedRun
from tenure.doctor.invariants import Finding, checks
from tenure.doctor.run_dump import RunDump
from tenure.kernel import history
from tenure.kernel.commands import Initiator
from tenure.kernel.run_rows import ROWS, Row

_INITIATORS = frozenset(get_args(Initiator))


@checks("I3")
def rows_equal_their_history(view: CheckedRun) -> Iterator[Finding]:
    """Folding the events gives every history column of every row."""
    for event, problem in view.unreadable:
        yield f"event {event.seq}", f"cannot be read: {problem}"
    bundle = view.bundle
    yield from _compare(view, "run", [bundle.run])
    yield from _compare(view, "run_spec", [] if bundle.spec is None else [bundle.spec])
    for table, rows in (
        ("step", bundle.steps),
        ("attempt", bundle.attempts),
        ("checkpoint", bundle.checkpoints),
        ("wait", bundle.waits),
        ("approval", bundle.approvals),
        ("inbox", bundle.inbox),
        ("child", bundle.children),
        ("verdict", bundle.verdicts),
        ("receipt", bundle.receipts),
        ("run_spend", bundle.run_spends),
        ("cost_line", bundle.cost_lines),
    ):
        if rows or table in view.tables:
            yield from _compare(view, table, rows)
    for table in view.tables.keys() - _FOLDED:
        yield "event", f"the history tells of a table {table!r} that has no history"


_FOLDED = frozenset(
    {"run", "run_spec", "step", "attempt", "checkpoint", "wait", "approval", "inbox", "child"}
    | {"verdict", "receipt", "run_spend", "cost_line"}
)


def _compare(view: CheckedRun, table: str, rows: Sequence[Row]) -> Iterator[Finding]:
    told = view.tables.get(table, {})
    kind = ROWS[table]
    seen = 0
    for row in rows:
        key = history.row_key(row)
        columns = told.get(key)
        if columns is None:
            columns = {}
        else:
            seen += 1
        holds = history.history_columns(row)
        if holds != columns and holds != (says := history.drop_defaults(columns, kind)):
            yield f"{table} {key}".rstrip(), _difference(holds, says)
    if seen != len(told):
        there = {history.row_key(row) for row in rows}
        for key in told.keys() - there:
            yield f"{table} {key}".rstrip(), "is in the history, but there is no such row"


def _difference(holds: dict[str, Any], says: dict[str, Any]) -> str:
    names = sorted(name for name in holds.keys() | says.keys() if holds.get(name) != says.get(name))
    parts = [f"{name} is {holds.get(name)!r}, its history says {says.get(name)!r}" for name in names[:4]]
    return "; ".join(parts) + (f"; and {len(names) - 4} more columns" if len(names) > 4 else "")


@checks("I3")
def payloads_equal_their_digests(view: CheckedRun) -> Iterator[Finding]:
    """A payload that is there is the one the history names; an erased one may be missing."""
    told: dict[str, str] = {}
    about: str | None = None
    for _, body in view.bodies:
        told.update(body.get("payloads", {}))
        about = body.get("context", {}).get("about", about)
    for payload in view.bundle.payloads:
        digest = told.get(str(payload.ref))
        if digest is None:
            yield f"payload {payload.ref}", "the history knows no such payload"
        elif digest != history.digest(payload.salt, payload.body):
            yield f"payload {payload.ref}", "its digest is not the one in the history"
    if view.run.next_ref != len(told) + 1:
        yield "run", f"next_ref is {view.run.next_ref}, but the history tells of {len(told)} payloads"
    spec = view.spec
    if spec is None:
        yield "run", "has no run_spec row"
    elif about != history.digest(spec.salt, (spec.labels + spec.metadata).encode()):
        yield "run_spec", "labels and metadata are not those the history has the digest of"


def missing_payloads(bundle: RunDump) -> int:
    """How many payloads the run has numbered that are not there any more: they were erased."""
    return max(0, bundle.run.next_ref - 1 - len(bundle.payloads))


@checks("I7")
def events_without_gaps(view: CheckedRun) -> Iterator[Finding]:
    """Sequence numbers are 1..n, and the run's version is n."""
    expected = 0
    for event in view.bundle.events:
        expected += 1
        if event.seq != expected:
            yield f"event {event.seq}", f"stands where event {expected} should"
            expected = event.seq
    if view.run.version != expected:
        yield "run", f"its version is {view.run.version}, its last event {expected}"


@checks("I8")
def events_name_their_cause(view: CheckedRun) -> Iterator[Finding]:
    """Who, on whose initiative, because of what, and when: and time never goes back."""
    last = view.run.created_at
    for event in view.bundle.events:
        if not event.actor:
            yield f"event {event.seq}", "has no actor"
        if event.initiator not in _INITIATORS:
            yield f"event {event.seq}", f"the initiator {event.initiator!r} is none"
        if not event.cause:
            yield f"event {event.seq}", "names no cause"
        if not event.kind:
            yield f"event {event.seq}", "has no kind"
        if event.at < last:
            yield f"event {event.seq}", f"is from {event.at}, before the one it follows ({last})"
        last = max(last, event.at)
    if view.bundle.events and view.run.event_at != last:
        yield "run", f"event_at is {view.run.event_at}, its last event is from {last}"


@checks("I39")
def outbox_is_committed(view: CheckedRun) -> Iterator[Finding]:
    """What is owed to another run was committed with the event it names."""
    if not view.bundle.outbox:
        return
    times = {event.seq: event.at for event in view.bundle.events}
    for row in view.bundle.outbox:
        name = f"outbox {row.seq}/{row.part} ({row.topic})"
        if row.seq not in times:
            yield name, f"there is no event {row.seq}"
        elif row.created_at != times[row.seq]:
            yield name, f"was made at {row.created_at}, its event at {times[row.seq]}"


@checks("I51")
def chain_recomputes(view: CheckedRun) -> Iterator[Finding]:
    """Each event's hash follows from the one before it and from its own bytes; the run holds the last."""
    head = b""
    tenant = view.run.tenant
    for event in view.bundle.events:
        if history.rehash(event, head, tenant) != event.hash:
            yield f"event {event.seq}", "its hash does not follow from its content and the event before it"
        head = event.hash
    if view.run.head != head:
        yield "run", "its head is not the hash of its last event"
