"""What a commit tells the world: a line per event that has something to tell.

Laws:
1. The lines of a commit are written in that commit, one row for all of them: they exist if and only if what they tell
   of happened (I39).
2. A line is told by what changed: the run is new, its status is another one, a step of it was done, somebody is asked
   something or reminded of it, or it was reported. An event that changes none of these (a claim of a running run) tells nothing.
3. A line holds no payload and nobody's name: ids, states and numbers, like the history, and the names of skipped steps.
4. Lines are made from the rows a decision has before and after; nothing is decoded for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tenure.kernel.draft import Decision
from tenure.kernel.model import CONDITION_FALSE, Approval, Attempt, Checkpoint, Event, Run, RunSpec, Step
from tenure.kernel.snapshot import Snapshot

REVISED = "revise_approval"
REMINDED = "approval_reminder"
"""The kind of the event by which people are reminded of an approval."""
REPORTED = "reported"
"""The kind of the event by which a run's outcome was reported: some profiles have a word for that."""
EXPIRED = "lease_expired"


class Told(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One event, as far as it is told. (On the wire it is a JSON array: the order of the fields is for good.)"""

    run_id: int
    seq: int
    """The event's number in its run."""
    tenant: str
    workflow: str
    profile: str
    kind: str
    """The event's."""
    before: str | None
    """The run's status before, in the kernel's words; None: the run is new."""
    status: str
    """The run's status now, in the kernel's words."""
    steps: int
    """How many steps are done by now."""
    grew: bool
    """Whether there are more than before."""
    asked: tuple[int, ...] = ()
    """Approvals that are requested now, by their numbers in the run."""
    proposed: tuple[int, ...] = ()
    """Proposals likewise."""
    reminded: tuple[int, ...] = ()
    """Approvals that people are reminded of."""
    skipped: tuple[str, ...] = ()
    """Steps that their condition skipped, by their names in the workflow."""


class Seen(Told, frozen=True, gc=False, kw_only=True):
    """The same with what only the process that committed it knows: for metrics and logs (`Orchestrator.watch`). Here
    every event is seen, also one that tells others nothing."""

    at: int
    """When, in microseconds."""
    actor: str
    initiator: str
    reason: str | None = None
    """Of a run that has ended: why."""
    duration_us: int | None = None
    """Of a run that has ended: how long it took since it began."""
    source: str | None = None
    trigger_type: str | None = None
    key: str | None = None
    """Of a new run: where it comes from, what set it off, and its idempotency key."""
    checkpoint: str | None = None
    resumable: bool = False
    """Of a checkpoint that was recorded: its name, and whether it can be reused."""
    checkpoint_done: bool = False
    """Whether it is done (not begun or failed)."""
    orphaned: bool = False
    """Whether a lease has expired."""
    beat_at: int | None = None
    """Of an expired lease: when it was last heard of."""

    @property
    def created(self) -> bool:
        """Whether this is the run's first event."""
        return self.before is None

    @property
    def changed(self) -> bool:
        """Whether the run's status is another one than before."""
        return self.before != self.status


Line = tuple[Any, ...]
"""A `Told` in the making: its fields, in order."""

_encode_lines = msgspec.json.Encoder().encode_lines
_decode_lines = msgspec.json.Decoder(Told).decode_lines


def line_of(snap: Snapshot, before: Run | None, decision: Decision) -> Line | None:
    """What a decision tells, or None. `snap` has its rows already."""
    run, event = decision.run, decision.event
    if run is None or event is None:
        return None
    steps = run.steps_done
    if decision.light:  # the columns of status and questions are not among those
        if before is not None and steps == before.steps_done:
            return None
        return (
            run.id, event.seq, run.tenant, run.workflow, run.profile, event.kind, run.status, run.status, steps, True,
        )  # fmt: skip
    asked, proposed, reminded = _questions(snap, decision)
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
    if (before is not None and run.steps_skipped > before.steps_skipped) or (
        before is None and run.steps_skipped
    ):
        return (*line, asked, proposed, reminded, _skipped(decision))
    if reminded:
        return (*line, asked, proposed, reminded)
    return (*line, asked, proposed) if asked or proposed else line


def _skipped(decision: Decision) -> tuple[str, ...]:
    """The steps that this decision has skipped."""
    assert decision.event is not None
    return tuple(
        row.name
        for row in decision.rows.values()
        if isinstance(row, Step) and row.reason == CONDITION_FALSE and row.finished_at == decision.event.at
    )


def _questions(
    snap: Snapshot, decision: Decision
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The numbers of the approvals and the proposals that are asked for by this decision, and of those it reminds of."""
    asked: tuple[int, ...] = ()
    proposed: tuple[int, ...] = ()
    if decision.event is not None and decision.event.kind == REMINDED:
        return asked, proposed, tuple(key[1] for key in decision.rows if key[0] == "approval")
    for key, row in decision.rows.items():
        if (
            key[0] == "approval"
            and isinstance(row, Approval)
            and row.status == "requested"
            and decision.event is not None
            and (row.requested_at == decision.event.at or decision.event.kind == REVISED)
            and not row.votes
        ):
            wait = snap.waits.get(row.no)
            if wait is not None and wait.kind == "proposal":
                proposed += (row.no,)
            else:
                asked += (row.no,)
    return asked, proposed, ()


def encoded(lines: list[Line]) -> bytes:
    """Lines as they are kept: one JSON array each, each with a newline behind it, so that they can be strung together."""
    return _encode_lines(lines)


def decoded(body: bytes) -> list[Told]:
    """What a commit told, in order."""
    return _decode_lines(body)


def seen(snap: Snapshot, before: Run | None, decision: Decision) -> Seen | None:
    """A decision's event with all that is known of it here; None: it has none."""
    run, event = decision.run, decision.event
    if run is None or event is None:
        return None
    asked, proposed, reminded = _questions(snap, decision)
    ended = run.finished_at is not None and (before is None or before.finished_at is None)
    return Seen(
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


def _about(rows: Iterable[Any], event: Event) -> dict[str, Any]:
    """What the rows beneath the run say."""
    about: dict[str, Any] = {"at": event.at, "actor": event.actor, "initiator": event.initiator}
    for row in rows:
        if isinstance(row, Checkpoint):
            about |= {
                "checkpoint": row.name,
                "resumable": row.resumable,
                "checkpoint_done": row.state == "done",
            }
        elif isinstance(row, RunSpec):
            about |= {"source": row.source, "trigger_type": row.trigger_type, "key": row.idempotency_key}
        elif event.kind == EXPIRED and isinstance(row, Attempt):
            about |= {"orphaned": True, "beat_at": row.beat_at}
    return about
