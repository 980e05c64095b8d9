"""Evidence: I52. One bundle per sealed run, numbered supplements, each as the run's own history names it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tenure.doctor.checked_run import CheckedRun
from tenure.doctor.invariants import Finding, checks


@checks("I52")
def parts_are_those_that_were_sealed(view: CheckedRun) -> Iterator[Finding]:
    """A seal names its parts (number, events, head, SHA-256), and those are on record, no others; the first reaches up to the
    event that ended the run. (A run that was sealed where evidence is off has none.)"""
    named: dict[int, list[Any]] = {}
    for _, body in view.bodies:
        for part in body.get("context", {}).get("evidence", ()):
            if part[0] in named:
                yield f"evidence {part[0]}", "was sealed twice"
            named[part[0]] = part
    kept = {row.no: row for row in view.bundle.evidence}
    if sorted(named) != list(range(len(named))):
        yield "evidence", f"the parts that were sealed are {sorted(named)}: one is missing between them"
    hashes = {event.seq: event.hash for event in view.bundle.events}
    for no in sorted(named.keys() | kept.keys()):
        place, row = f"evidence {no}", kept.get(no)
        if row is None:
            yield place, "was sealed, and is not on record"
            continue
        if row.tenant != view.run.tenant:
            yield place, "is on record for another tenant"
        if no not in named:
            yield place, "is on record, and no seal names it"
        elif named[no] != [no, row.events, row.head.hex(), row.sha256.hex()]:
            yield place, "is not what the seal names"
        if hashes.get(row.events) != row.head:
            yield place, f"ends with another event {row.events} than the history has"
        if no == 0 and row.events != view.ended_seq:
            yield place, f"has {row.events} events; the run had ended with event {view.ended_seq}"
