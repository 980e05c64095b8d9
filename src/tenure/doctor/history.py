"""History: I3, I7, I8, I39, I51 and I52. The rows match the events, and neither events nor sealed evidence were changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from tenure.doctor.checked_run import CheckedRun, RunDump
from tenure.doctor.invariants import Finding, checks
from tenure.kernel import history
from tenure.kernel.commands import Initiator
from tenure.kernel.run_rows import ROWS, Row

_INITIATORS = frozenset(get_args(Initiator))
_TABLES = {
    "step": "steps",
    "attempt": "attempts",
    "checkpoint": "checkpoints",
    "wait": "waits",
    "approval": "approvals",
    "inbox": "inbox",
    "child": "children",
    "verdict": "verdicts",
    "receipt": "receipts",
    "run_spend": "run_spends",
    "cost_line": "cost_lines",
}
"""Table with a history -> its rows in a RunDump."""


@checks("I3")
def rows_equal_their_history(view: CheckedRun) -> Iterator[Finding]:
    """The events, applied in order, give every history column of every row."""
    for event, problem in view.unreadable:
        yield f"event {event.seq}", f"cannot be read: {problem}"
    bundle = view.bundle
    yield from _compare(view, "run", [bundle.run])
    yield from _compare(view, "run_spec", [] if bundle.spec is None else [bundle.spec])
    for table, field in _TABLES.items():
        rows = getattr(bundle, field)
        if rows or table in view.tables:
            yield from _compare(view, table, rows)
    for table in view.tables.keys() - {"run", "run_spec", *_TABLES}:
        yield "event", f"the history has the table {table!r}, which has no history"


def _compare(view: CheckedRun, table: str, rows: Sequence[Row]) -> Iterator[Finding]:
    missing = dict(view.tables.get(table, {}))
    for row in rows:
        key = history.row_key(row)
        columns = missing.pop(key, {})
        holds = history.history_columns(row)
        if holds != columns and holds != (says := history.drop_defaults(columns, ROWS[table])):
            yield f"{table} {key}".rstrip(), _difference(holds, says)
    for key in missing:
        yield f"{table} {key}".rstrip(), "is in the history, but there is no such row"


def _difference(holds: dict[str, Any], says: dict[str, Any]) -> str:
    names = sorted(name for name in holds.keys() | says.keys() if holds.get(name) != says.get(name))
    parts = [f"{name} is {holds.get(name)!r}, its history says {says.get(name)!r}" for name in names[:4]]
    return "; ".join(parts) + (f"; and {len(names) - 4} more columns" if len(names) > 4 else "")


@checks("I3")
def payloads_equal_their_digests(view: CheckedRun) -> Iterator[Finding]:
    """A payload has the digest that is in the history. An erased payload may be missing."""
    digests: dict[str, str] = {}
    about: str | None = None
    for _, body in view.bodies:
        digests.update(body.get("payloads", {}))
        about = body.get("context", {}).get("about", about)
    for payload in view.bundle.payloads:
        digest = digests.get(str(payload.ref))
        if digest is None:
            yield f"payload {payload.ref}", "is not in the history"
        elif digest != history.digest(payload.salt, payload.body):
            yield f"payload {payload.ref}", "its digest is not the one in the history"
    if view.run.next_ref != len(digests) + 1:
        yield "run", f"next_ref is {view.run.next_ref}, but the history has {len(digests)} payloads"
    spec = view.spec
    if spec is None:
        yield "run", "has no run_spec row"
    elif about != history.digest(spec.salt, (spec.labels + spec.metadata).encode()):
        yield "run_spec", "labels and metadata do not have the digest that is in the history"


def missing_payloads(bundle: RunDump) -> int:
    """How many of the run's payloads were erased."""
    return max(0, bundle.run.next_ref - 1 - len(bundle.payloads))


@checks("I7")
def events_without_gaps(view: CheckedRun) -> Iterator[Finding]:
    """Sequence numbers are 1..n, and the run's version is n."""
    expected = 0
    for event in view.bundle.events:
        expected += 1
        if event.seq != expected:
            yield f"event {event.seq}", f"is in the place of event {expected}"
            expected = event.seq
    if view.run.version != expected:
        yield "run", f"its version is {view.run.version}, its last event {expected}"


@checks("I8")
def events_name_their_cause(view: CheckedRun) -> Iterator[Finding]:
    """Every event has an actor, an initiator, a cause, a kind and a time that is not before the last event's."""
    last = view.run.created_at
    for event in view.bundle.events:
        for name in ("actor", "cause", "kind"):
            if not getattr(event, name):
                yield f"event {event.seq}", f"has no {name}"
        if event.initiator not in _INITIATORS:
            yield f"event {event.seq}", f"the initiator {event.initiator!r} is unknown"
        if event.at < last:
            yield f"event {event.seq}", f"is from {event.at}, before the one it follows ({last})"
        last = max(last, event.at)
    if view.bundle.events and view.run.event_at != last:
        yield "run", f"event_at is {view.run.event_at}, its last event is from {last}"


@checks("I39")
def outbox_is_committed(view: CheckedRun) -> Iterator[Finding]:
    """Every outbox row was committed with the event that it names."""
    times = {event.seq: event.at for event in view.bundle.events} if view.bundle.outbox else {}
    for row in view.bundle.outbox:
        name = f"outbox {row.seq}/{row.part} ({row.topic})"
        if row.seq not in times:
            yield name, f"there is no event {row.seq}"
        elif row.created_at != times[row.seq]:
            yield name, f"was created at {row.created_at}, its event at {times[row.seq]}"


@checks("I51")
def chain_recomputes(view: CheckedRun) -> Iterator[Finding]:
    """Each event's hash follows from the hash before it and from its own content. The run has the last hash."""
    head = b""
    for event in view.bundle.events:
        if history.rehash(event, head, view.run.tenant) != event.hash:
            yield f"event {event.seq}", "its hash does not follow from its content and the event before it"
        head = event.hash
    if view.run.head != head:
        yield "run", "its head is not the hash of its last event"


@checks("I52")
def parts_are_those_that_were_sealed(view: CheckedRun) -> Iterator[Finding]:
    """The evidence rows are exactly the parts that the seals name (number, events, head, SHA-256). The first part ends with the event that
    ended the run. (A run that was sealed while evidence was turned off has no parts.)"""
    named: dict[int, list[Any]] = {}
    for _, body in view.bodies:
        for part in body.get("context", {}).get("evidence", ()):
            if part[0] in named:
                yield f"evidence {part[0]}", "was sealed twice"
            named[part[0]] = part
    kept = {row.no: row for row in view.bundle.evidence}
    if sorted(named) != list(range(len(named))):
        yield "evidence", f"the sealed parts are {sorted(named)}: one between them is missing"
    hashes = {event.seq: event.hash for event in view.bundle.events}
    for no in sorted(named.keys() | kept.keys()):
        place, row = f"evidence {no}", kept.get(no)
        if row is None:
            yield place, "was sealed, but has no row"
            continue
        if row.tenant != view.run.tenant:
            yield place, "belongs to another tenant"
        if no not in named:
            yield place, "has a row, but no seal names it"
        elif named[no] != [no, row.events, row.head.hex(), row.sha256.hex()]:
            yield place, "differs from what the seal names"
        if hashes.get(row.events) != row.head:
            yield place, f"its event {row.events} is not that of the history"
        if no == 0 and row.events != view.ended_seq:
            yield place, f"has {row.events} events; the run ended with event {view.ended_seq}"
