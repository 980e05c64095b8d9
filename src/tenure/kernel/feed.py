"""The feed: the news of a commit, one line for each event that subscribers may want to know.

Laws:
1. The commit writes its lines in one row: they exist if and only if the commit happened (I39).
2. There is a line if the run is new, its status changed, a step was done, people are asked or reminded, or the
   outcome was reported. Other events (such as the claim of a running run) have no line.
3. A line has no payload and no personal name: only ids, states and numbers, like the history, and the names of
   skipped steps.
4. Lines are made from the rows before and after a decision; nothing is decoded for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tenure.kernel.draft import Decision
from tenure.kernel.run_rows import (
    CONDITION_FALSE,
    ApprovalRow,
    AttemptRow,
    CheckpointRow,
    EventRow,
    RunRow,
    RunSpecRow,
    StepRow,
)
from tenure.kernel.server_rows import FeedRow
from tenure.kernel.snapshot import Snapshot

REVISED = "revise_approval"
REMINDED = "approval_reminder"
"""The kind of the event that reminds people of an approval."""
REPORTED = "reported"
"""The kind of the event that records the report of an outcome. Some profiles have a word for it."""
EXPIRED = "lease_expired"


class FeedItem(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One event in the feed. It is stored as a JSON array, so the order of the fields is fixed."""

    run_id: int
    seq: int
    tenant: str
    workflow: str
    profile: str
    kind: str
    before: str | None
    """The run's status before, in the kernel's words. None: the run is new."""
    status: str
    """The run's status now, in the kernel's words."""
    steps: int
    """How many steps are done."""
    grew: bool
    """Whether more steps are done than before."""
    asked: tuple[int, ...] = ()
    """The numbers of the approvals that are requested now."""
    proposed: tuple[int, ...] = ()
    """The numbers of the proposals that are made now."""
    reminded: tuple[int, ...] = ()
    """The numbers of the approvals that people are reminded of."""
    skipped: tuple[str, ...] = ()
    """The names of the steps that a condition skipped."""


class ObservedEvent(FeedItem, frozen=True, gc=False, kw_only=True):
    """An event with what only the committing process knows, for metrics and logs (`Orchestrator.watch`). Every
    event is observed, also one without a feed line."""

    at: int
    actor: str
    initiator: str
    reason: str | None = None
    """For a finished run: why it ended."""
    duration_us: int | None = None
    """For a finished run: the time since it started."""
    source: str | None = None
    trigger_type: str | None = None
    key: str | None = None
    """For a new run, like `source` and `trigger_type`: its idempotency key."""
    checkpoint: str | None = None
    resumable: bool = False
    """For a recorded checkpoint, like its name: whether it can be reused."""
    checkpoint_done: bool = False
    """Whether the checkpoint is done (and neither started nor failed)."""
    orphaned: bool = False
    """Whether a lease has expired."""
    beat_at: int | None = None
    """For an expired lease: the time of its last heartbeat."""

    @property
    def created(self) -> bool:
        return self.before is None

    @property
    def changed(self) -> bool:
        return self.before != self.status


FeedLine = tuple[Any, ...]
"""The fields of a `FeedItem`, in order."""

_encode_lines = msgspec.json.Encoder().encode_lines
_decode_lines = msgspec.json.Decoder(FeedItem).decode_lines


def build_feed_line(snap: Snapshot, before: RunRow | None, decision: Decision) -> FeedLine | None:
    """The line of a decision, or None. `snap` has the new rows."""
    run, event = decision.run, decision.event
    if run is None or event is None:
        return None
    steps = run.steps_done
    if decision.light:  # neither the status nor a question has changed
        if before is not None and steps == before.steps_done:
            return None
        return (
            run.id, event.seq, run.tenant, run.workflow, run.profile, event.kind, run.status, run.status, steps, True,
        )  # fmt: skip
    asked, proposed, reminded = _questions(snap, decision, event)
    grew = steps > (0 if before is None else before.steps_done)
    was = None if before is None else before.status
    if was == run.status and not grew and event.kind != REPORTED and not (asked or proposed or reminded):
        return None
    line = (
        run.id,
        event.seq,
        run.tenant,
        run.workflow,
        run.profile,
        event.kind,
        was,
        run.status,
        steps,
        grew,
    )
    if run.steps_skipped > (0 if before is None else before.steps_skipped):
        skipped = tuple(
            row.name
            for row in decision.rows.values()
            if isinstance(row, StepRow) and row.reason == CONDITION_FALSE and row.finished_at == event.at
        )
        return (*line, asked, proposed, reminded, skipped)
    if reminded:
        return (*line, asked, proposed, reminded)
    return (*line, asked, proposed) if asked or proposed else line


def _questions(
    snap: Snapshot, decision: Decision, event: EventRow
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The numbers of the approvals and proposals that this decision asks for, and of those it reminds of."""
    if event.kind == REMINDED:
        return (), (), tuple(key[1] for key in decision.rows if key[0] == "approval")
    asked: tuple[int, ...] = ()
    proposed: tuple[int, ...] = ()
    for row in decision.rows.values():
        if (
            type(row) is ApprovalRow
            and row.status == "requested"
            and (row.requested_at == event.at or event.kind == REVISED)
            and not row.votes
        ):
            wait = snap.waits.get(row.no)
            if wait is not None and wait.kind == "proposal":
                proposed += (row.no,)
            else:
                asked += (row.no,)
    return asked, proposed, ()


def encode_feed_lines(lines: list[FeedLine]) -> bytes:
    """Lines as they are stored: JSON arrays, each with a newline at the end, so that they can be concatenated."""
    return _encode_lines(lines)


def decode_feed_lines(body: bytes) -> list[FeedItem]:
    return _decode_lines(body)


def decode_feed_rows(rows: Iterable[FeedRow]) -> Iterator[FeedItem]:
    """The lines of several commits, in order."""
    for row in rows:
        yield from _decode_lines(row.body)


def build_observed_event(snap: Snapshot, before: RunRow | None, decision: Decision) -> ObservedEvent | None:
    """The event of a decision with all that is known here. None: it has no event."""
    run, event = decision.run, decision.event
    if run is None or event is None:
        return None
    asked, proposed, reminded = _questions(snap, decision, event)
    ended = run.finished_at is not None and (before is None or before.finished_at is None)
    return ObservedEvent(
        run_id=run.id,
        seq=event.seq,
        tenant=run.tenant,
        workflow=run.workflow,
        profile=run.profile,
        kind=event.kind,
        before=None if before is None else before.status,
        status=run.status,
        steps=run.steps_done,
        grew=run.steps_done > (0 if before is None else before.steps_done),
        asked=asked,
        proposed=proposed,
        reminded=reminded,
        reason=run.reason if ended else None,
        duration_us=run.duration_us if ended else None,
        **_about(decision.rows.values(), event),
    )


def _about(rows: Iterable[Any], event: EventRow) -> dict[str, Any]:
    about: dict[str, Any] = {"at": event.at, "actor": event.actor, "initiator": event.initiator}
    for row in rows:
        if isinstance(row, CheckpointRow):
            about |= {
                "checkpoint": row.name,
                "resumable": row.resumable,
                "checkpoint_done": row.state == "done",
            }
        elif isinstance(row, RunSpecRow):
            about |= {"source": row.source, "trigger_type": row.trigger_type, "key": row.idempotency_key}
        elif event.kind == EXPIRED and isinstance(row, AttemptRow):
            about |= {"orphaned": True, "beat_at": row.beat_at}
    return about
