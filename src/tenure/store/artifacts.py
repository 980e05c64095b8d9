"""Artifacts that runners upload.

Law: an artifact's row is written after its bytes are stored, under its run's lock: the commit that writes the row decides
whether its lease is still live (I56). A repeated name replaces the row of the same attempt, and of no other. A file that came
in parts has an upload (`store.uploads`).
"""

from __future__ import annotations

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import artifact_state, upload_folder
from tenure.kernel.server_rows import ArtifactRow
from tenure.limits import ARTIFACTS_PER_RUN_MAX
from tenure.shapes.runs import ArtifactState
from tenure.store.port import Query, RowType, Store, Transaction
from tenure.store.remote_leases import LockedLease, lock_lease
from tenure.store.transactions import run_transaction


class ArtifactDetail(ArtifactRow, gc=False):
    """An artifact with what its state is derived from."""

    kind: str = ""
    """The kind of its step."""
    step_state: str = ""
    attempt_state: str = ""

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
    "artifact_at": ArtifactRow,  # () ; run_id, name, idx, n, late
    "artifacts_expired": ArtifactRow,  # () ; now, limit -> oldest first
}
WRITES: dict[str, RowType] = {"save_artifact": ArtifactRow, "mark_artifact_deleted": ArtifactRow}


async def put_artifact(store: Store, row: ArtifactRow, *, late_seconds: float) -> ArtifactRow:
    """Write an artifact's row, and record whether its lease had ended (the store sets `late`, `at` and `events`).
    LEASE_STALE when the lease ended more than `late_seconds` ago: nothing is written then."""

    def work() -> Transaction[ArtifactRow]:
        lease = yield from lock_lease(row.run_id, row.idx, row.n, late_seconds=late_seconds)
        return (yield from write_artifact(row, lease))

    return await run_transaction(store, work)


def write_artifact(row: ArtifactRow, lease: LockedLease) -> Transaction[ArtifactRow]:
    """Write an artifact's row as a part of a transaction. The parts of a file that it replaces are deleted later."""
    if (yield Query("artifact_count", scalars=(row.run_id,)))[0].count >= ARTIFACTS_PER_RUN_MAX:
        raise TenureError("LIMIT_EXCEEDED", f"a run has at most {ARTIFACTS_PER_RUN_MAX} artifacts")
    filled = msgspec.structs.replace(row, late=lease.late, at=lease.now_us, events=lease.run.version)
    key = (filled.run_id, filled.name, filled.idx, filled.n, filled.late)
    before: list[ArtifactRow] = yield Query("artifact_at", scalars=key)
    if before:
        yield from delete_parts(before[0], lease.now_us)
    written: list[ArtifactRow] = yield Query("save_artifact", scalars=msgspec.structs.astuple(filled))
    return written[0]


def delete_parts(row: ArtifactRow, now_us: int) -> Transaction[None]:
    """Delete the parts of an artifact, if it has any: the rows now, the files later."""
    if row.upload:
        yield Query("end_upload_parts", scalars=(row.run_id, row.upload))
        folder = upload_folder("artifact", ids.run_text(row.run_id), row.upload)
        yield Query("save_file_deletion", scalars=(folder, None, now_us, now_us, 0))


async def delete_expired_artifacts(store: Store, *, limit: int) -> int:
    """Delete files whose retention has ended; how many. The row stays and says when."""

    def work() -> Transaction[int]:
        now: int = (yield Query("now"))[0].now_us
        expired: list[ArtifactRow] = yield Query("artifacts_expired", scalars=(now, limit))
        for row in expired:
            key = (row.run_id, row.name, row.idx, row.n, row.late, row.upload, now)
            if (yield Query("mark_artifact_deleted", scalars=key)):
                yield from delete_parts(row, now)
        return len(expired)

    return await run_transaction(store, work)
