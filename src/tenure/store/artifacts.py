"""Artifacts that runners upload.

Law: an artifact's row is written after its bytes are stored, under its run's lock: the commit that writes the row decides
whether its lease is still live (I56). A repeated name replaces the row of the same attempt, and of no other.
"""

from __future__ import annotations

import msgspec

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import artifact_state, lease_ended_at
from tenure.kernel.run_rows import AttemptRow, RunRow
from tenure.kernel.server_rows import ArtifactRow
from tenure.limits import ARTIFACTS_PER_RUN_MAX
from tenure.shapes.runs import ArtifactState
from tenure.store.port import Query, RowType, Store, Transaction
from tenure.store.transactions import run_transaction


class ArtifactDetail(ArtifactRow, gc=False):
    """An artifact with what its state is derived from."""

    kind: str
    """The kind of its step."""
    step_state: str
    attempt_state: str

    @property
    def state(self) -> ArtifactState:
        return artifact_state(
            late=self.late, kind=self.kind, step=self.step_state, attempt=self.attempt_state
        )


class ArtifactCount(msgspec.Struct, gc=False):
    count: int


READS: dict[str, RowType] = {
    "artifacts_of": ArtifactDetail,  # () ; run_id, after name, idx, n and late, limit -> by name
    "artifacts_named": ArtifactDetail,  # () ; run_id, name -> by step and attempt
    "artifacts_of_step": ArtifactDetail,  # () ; run_id, idx, n -> those of one attempt, by name
    "artifact_rows_of": ArtifactRow,  # () ; run_id -> all of them
    "artifact_count": ArtifactCount,  # () ; run_id
}
WRITES: dict[str, RowType] = {"save_artifact": ArtifactRow}


async def put_artifact(store: Store, row: ArtifactRow, *, late_seconds: float) -> ArtifactRow:
    """Write an artifact's row, and record whether its lease had ended (the store sets `late`, `at` and `events`).
    LEASE_STALE when the lease ended more than `late_seconds` ago: nothing is written then."""

    def work() -> Transaction[ArtifactRow]:
        runs: list[RunRow] = yield Query("lock_runs", [(row.run_id,)])
        attempts: list[AttemptRow] = yield Query("load_attempts", [(row.run_id, row.idx, row.n)])
        if not runs or not attempts:
            raise TenureError("LEASE_STALE", "the run of this lease is deleted")
        now: int = (yield Query("now"))[0].now_us
        ended = lease_ended_at(attempts[0], now)
        if ended is not None and now - ended > us(late_seconds):
            raise TenureError(
                "LEASE_STALE",
                f"the lease of attempt {row.n} ended over {late_seconds:g} s ago: its files are no longer accepted",
            )
        if (yield Query("artifact_count", scalars=(row.run_id,)))[0].count >= ARTIFACTS_PER_RUN_MAX:
            raise TenureError("LIMIT_EXCEEDED", f"a run has at most {ARTIFACTS_PER_RUN_MAX} artifacts")
        filled = msgspec.structs.replace(row, late=ended is not None, at=now, events=runs[0].version)
        written: list[ArtifactRow] = yield Query("save_artifact", scalars=msgspec.structs.astuple(filled))
        return written[0]

    return await run_transaction(store, work)
