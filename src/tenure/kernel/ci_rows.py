"""The rows of what CI jobs store: logs, uploads in parts, caches, test reports, and files that are to be deleted.

Laws:
1. As in `kernel.registry_rows`: none of them is a run's state, and times are whole microseconds by the store's clock.
2. They hold no bytes of users. The artifact store has those; a row says where they are, how many, and their digest.
3. A scope says whose caches and test histories serve whom; see `tenure.ci.storage_scope`.
"""

from __future__ import annotations

from tenure.kernel.row import Row, RunPartRow, table


@table("log_chunk", key=("run_id", "idx", "n", "seq"))
class LogChunkRow(RunPartRow):
    """Bytes of the log of an attempt. Chunks follow each other without a gap."""

    idx: int
    n: int
    seq: int
    """1, 2, 3, …"""
    late: bool
    """Whether it arrived after its lease had ended. All chunks after it did, too."""
    first_byte: int
    size: int
    lines: int
    """How many lines end in it."""
    digest: str
    at: int
    events: int
    """How many events the run had then, as for an artifact."""


@table("upload", key=("run_id", "idx", "n", "kind", "name"))
class UploadRow(RunPartRow):
    """An upload in parts that is not complete yet."""

    idx: int
    n: int
    kind: str
    """artifact or cache."""
    name: str
    """The artifact's name, or the cache's key."""
    id: str
    tenant: str
    retention_us: int | None
    begun_at: int


@table("upload_part", key=("run_id", "upload", "no"))
class UploadPartRow(RunPartRow):
    """A part of an upload, or of the artifact that the upload became."""

    upload: str
    no: int
    """1, 2, 3, …"""
    size: int
    digest: str


@table("cache_entry", key=("tenant", "scope", "name"))
class CacheEntryRow(Row):
    """A cache of a repository. It never changes."""

    tenant: str
    scope: str
    name: str
    """Its key."""
    repository: str
    trusted: bool
    upload: str
    """The upload whose parts are its bytes."""
    parts: str
    """Its parts as a JSON list of [size, digest]."""
    size: int
    digest: str
    run_id: int
    """The run that made it."""
    created_at: int
    used_at: int


@table("test_report", key=("run_id", "idx", "n"))
class TestReportRow(RunPartRow):
    """What the tests of an attempt reported."""

    idx: int
    n: int
    late: bool
    digest: str
    body: bytes
    """A `shapes.test_reports.TestReport` as JSON, without the tests that passed."""
    at: int


@table("test_history", key=("tenant", "scope", "test"))
class TestHistoryRow(Row):
    """A test that has failed in a scope of a repository."""

    tenant: str
    scope: str
    test: str
    failed: int
    passed: int
    changes: int
    same_commit: int
    last_failed: bool
    """Whether it failed the last time."""
    last_commit: str
    """The commit that it was last seen for."""
    last_job: str
    """The job that reported it last."""
    last_failed_at: int
    last_passed_at: int | None


@table("file_deletion", key=("path",))
class FileDeletionRow(Row):
    """Files in the artifact store that are to be deleted."""

    path: str
    """A file, or with a slash at its end a folder."""
    run_id: int | None
    """Set for the folder of a run: it is deleted as soon as the run is."""
    asked_at: int
    due_at: int
    tries: int = 0


CI_ROWS: dict[str, type[Row]] = {
    row.table: row
    for row in (
        LogChunkRow,
        UploadRow,
        UploadPartRow,
        CacheEntryRow,
        TestReportRow,
        TestHistoryRow,
        FileDeletionRow,
    )
}
