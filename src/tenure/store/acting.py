"""What a step did to the world, for whoever goes on with it."""

from __future__ import annotations

import msgspec

from tenure.store.port import Answer, RunId


class Acted(msgspec.Struct, gc=False):
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


READS: dict[str, Answer] = {
    "resume_acts": Acted,  # () ; run_id, idx -> in order, those of runs that it resumes first
    "undos_of": RunId,  # () ; run_id -> the runs that undo what it did, oldest first
    "acts_of": Acted,  # () ; run_id, idx, label -> this run's alone, in order
}
WRITES: dict[str, Answer] = {}
