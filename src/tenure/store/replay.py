"""What a step is handed when it resumes: its checkpoints, waits and acts, with their results."""

from __future__ import annotations

import msgspec

from tenure.store.port import RowType, RunId


class ReplayCheckpoint(msgspec.Struct, gc=False):
    """A checkpoint with what it put aside, for whoever goes on with its step."""

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
    """None also where it has been erased (there is an output_ref). Of a failed one: its message."""


class ReplayWait(msgspec.Struct, gc=False):
    """A wait with its answer, for whoever goes on with its step."""

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
    """What the event brought."""
    revision: int | None
    decided_by: str | None
    reason: bytes | None
    """Of an approval or a proposal: which revision was decided, by whom and why."""
    child_id: int | None
    child_outcome: str | None
    child_code: str | None
    child_output: bytes | None
    child_error: bytes | None
    """Of a child: how it ended, why (a code, or `done`), what it returned and what it said went wrong."""


class ReplayAct(msgspec.Struct, gc=False):
    """A receipt with what was asked and answered."""

    label: str
    no: int
    try_no: int
    own: bool
    """Whether it is this run's; else that of a run which this one resumes."""
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
    """Whether a person has said how it ended; of an intended one, that it is to be called again."""
    eligible_at: int | None
    error: str | None
    wait_no: int | None
    request: bytes | None
    """Target and fields; None also where they have been erased."""
    result: bytes | None
    """Of a failed one: its message."""

    @property
    def action(self) -> str:
        """What was done."""
        return f"{self.connector}.{self.operation}"


READS: dict[str, RowType] = {
    "resume_checkpoints": ReplayCheckpoint,  # () ; run_id, idx -> all of a step with their outputs, in order of `no`
    "resume_waits": ReplayWait,  # () ; run_id, idx, first_no, last_no -> those of a step with their answers, in order of `no`
    "resume_acts": ReplayAct,  # () ; run_id, idx -> in order, those of runs that it resumes first
    "acts_of": ReplayAct,  # () ; run_id, idx, label -> this run's alone, in order
    "undos_of": RunId,  # () ; run_id -> the runs that undo what it did, oldest first
}
WRITES: dict[str, RowType] = {}
