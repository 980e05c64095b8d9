"""What a resumed step gets: its checkpoints, waits and acts, with their results."""

from __future__ import annotations

import msgspec

from tenure.store.port import RowType, RunId


class ReplayCheckpoint(msgspec.Struct, gc=False):
    """A checkpoint with its output, for the next attempt of its step."""

    name: str
    no: int
    state: str
    n: int
    resumable: bool
    idempotent: bool
    arguments: bytes
    at: int
    tries: int
    next_at: int | None
    error: str | None
    meta: str | None
    output_ref: int | None
    output: bytes | None
    """None also if it was erased (there is an output_ref). For a failed checkpoint: its message."""


class ReplayWait(msgspec.Struct, gc=False):
    """A wait with its answer, for the next attempt of its step."""

    no: int
    label: str
    kind: str
    name: str
    state: str
    outcome: str | None
    opened_at: int
    expires_at: int | None
    settled_at: int | None
    result: bytes | None
    """The payload of the event."""
    revision: int | None
    decided_by: str | None
    reason: bytes | None
    """For an approval or a proposal: which revision was decided, by whom and why."""
    child_id: int | None
    child_outcome: str | None
    child_code: str | None
    child_output: bytes | None
    child_error: bytes | None
    """For a child: how it ended, why (a code, or `done`), its output and its error message."""


class ReplayAct(msgspec.Struct, gc=False):
    """A receipt with its request and its result."""

    label: str
    no: int
    try_no: int
    own: bool
    """Whether it is this run's receipt; else it is the receipt of a run that this one resumes."""
    connector: str
    operation: str
    name: str
    digest: bytes
    state: str
    n: int
    repeats: str
    intent_at: int
    call_by: int
    settled_at: int | None
    by_person: bool
    """Whether a person has settled it; for an intended act, whether a person asked for another call."""
    eligible_at: int | None
    error: str | None
    wait_no: int | None
    request: bytes | None
    """Target and fields; None also if they were erased."""
    result: bytes | None
    """For a failed act: its message."""

    @property
    def action(self) -> str:
        return f"{self.connector}.{self.operation}"


READS: dict[str, RowType] = {
    "resume_checkpoints": ReplayCheckpoint,  # () ; run_id, idx -> all of a step with their outputs, in order of `no`
    "resume_waits": ReplayWait,  # () ; run_id, idx, first_no, last_no -> those of a step with their answers, in order of `no`
    "resume_acts": ReplayAct,  # () ; run_id, idx -> in order, those of runs that it resumes first
    "acts_of": ReplayAct,  # () ; run_id, idx, label -> this run's alone, in order
    "undos_of": RunId,  # () ; run_id -> the runs that undo what it did, oldest first
}
