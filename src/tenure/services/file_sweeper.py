"""The file sweeper: deletes files of the artifact store that nothing refers to any more.

Laws:
1. What is to be deleted is in the database before anything refers to it no more (`store.uploads`). A deletion that fails is tried again, at
   growing intervals, until it succeeds.
2. The files of a run are deleted after the run, never before.
3. Any number of processes may sweep at once.
"""

from __future__ import annotations

from tenure.artifacts import ArtifactStore
from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.ci_rows import FileDeletionRow
from tenure.limits import (
    FILE_DELETION_RETRY_SECONDS_MAX,
    FILE_SWEEP_ROWS_MAX,
    FILE_SWEEP_SECONDS,
    LATE_UPLOAD_SECONDS,
)
from tenure.logs import get_logger
from tenure.orchestrator.periodic_task import PeriodicTask
from tenure.store.artifacts import delete_expired_artifacts
from tenure.store.port import Store
from tenure.store.uploads import (
    RUN_DELETION_SECONDS,
    drop_abandoned_uploads,
    end_deletion,
    postpone_deletion,
)

log = get_logger(__name__)


class FileSweeper(PeriodicTask):
    def __init__(
        self, store: Store, artifacts: ArtifactStore, *, seconds: float = FILE_SWEEP_SECONDS
    ) -> None:
        super().__init__("file-sweeper", self.once, seconds, FILE_SWEEP_ROWS_MAX)
        self._store = store
        self._artifacts = artifacts

    async def once(self) -> int:
        """One round: expired artifacts, abandoned uploads, and files that are to be deleted; the most that one of them found."""
        store, most = self._store, FILE_SWEEP_ROWS_MAX
        expired = await delete_expired_artifacts(store, limit=most)
        abandoned = await drop_abandoned_uploads(store, late_seconds=LATE_UPLOAD_SECONDS, limit=most)
        now = (await store.read("now"))[0].now_us
        due: list[FileDeletionRow] = await store.read("file_deletions_due", now, most)
        for row in due:
            await delete_files(store, self._artifacts, row)
        return max(expired, abandoned, len(due))


async def delete_files(store: Store, artifacts: ArtifactStore, row: FileDeletionRow) -> None:
    """Carry out a deletion, or postpone it. Never raises because of the artifact store."""
    if row.run_id is not None and await store.read("get_run", row.run_id):
        now = (await store.read("now"))[0].now_us
        if now - row.asked_at > us(RUN_DELETION_SECONDS):
            await end_deletion(store, row)
        else:
            await postpone_deletion(store, row, 60.0)
        return
    try:
        await artifacts.delete_files(row.path)
    except TenureError as fault:
        pause = min(2.0**row.tries, FILE_DELETION_RETRY_SECONDS_MAX)
        log.warning("file_deletion_failed", path=row.path, error=fault.message, retry_seconds=pause)
        await postpone_deletion(store, row, pause)
        return
    await end_deletion(store, row)
