"""Uploads in parts, and files of the artifact store that are to be deleted.

Laws:
1. An upload belongs to an attempt and a name. Another upload of the same name replaces one that is under way.
2. The row of a part is written after its bytes are stored. A part never changes.
3. Nobody sees an upload before it is complete. It becomes an artifact or a cache in one commit, which ends it.
4. A file is deleted after the commit that made it useless, again and again until that succeeds. The commit writes what is to
   be deleted, so that a crash loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tenure import ids
from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import digest_of_parts, upload_folder
from tenure.kernel.ci_rows import FileDeletionRow, UploadPartRow, UploadRow
from tenure.kernel.server_rows import ArtifactRow
from tenure.limits import UPLOADS_PER_ATTEMPT_MAX
from tenure.store.artifacts import write_artifact
from tenure.store.port import Query, RowType, Store, Transaction
from tenure.store.remote_leases import lock_lease
from tenure.store.transactions import run_transaction, write_rows

RUN_DELETION_SECONDS = 3_600.0
"""A run that still exists so long after the deletion of its files was asked for is not going to be deleted."""


class UploadCount(msgspec.Struct, gc=False):
    count: int


READS: dict[str, RowType] = {
    "upload_named": UploadRow,  # () ; run_id, idx, n, kind, name
    "upload_of": UploadRow,  # () ; run_id, idx, n, id
    "uploads_of_run": UploadRow,  # () ; run_id
    "upload_count": UploadCount,  # () ; run_id, idx, n
    "uploads_abandoned": UploadRow,  # () ; ended before, limit -> oldest first
    "upload_parts_of": UploadPartRow,  # () ; run_id, upload -> in order
    "upload_part_rows_of": UploadPartRow,  # () ; run_id -> all of them
    "file_deletions_due": FileDeletionRow,  # () ; now, limit -> the longest due first
}
WRITES: dict[str, RowType] = {
    "save_upload": UploadRow,
    "end_upload": UploadRow,
    "save_upload_part": UploadPartRow,
    "end_upload_parts": UploadPartRow,
    "save_file_deletion": FileDeletionRow,
    "end_file_deletion": FileDeletionRow,
}


class UploadSummary(NamedTuple):
    """What the sender of a complete upload has sent."""

    parts: int
    size: int
    digest: str
    """See `digest_of_parts`."""


def upload_not_found(upload: str) -> TenureError:
    return TenureError("UPLOAD_NOT_FOUND", f"the lease has no upload {upload[:60]!r}")


async def begin_upload(store: Store, row: UploadRow, *, late_seconds: float) -> UploadRow:
    """Begin an upload, or find it if it was begun before."""

    def work() -> Transaction[UploadRow]:
        attempt = (row.run_id, row.idx, row.n)
        lease = yield from lock_lease(*attempt, late_seconds=late_seconds)
        found: list[UploadRow] = yield Query("upload_named", scalars=(*attempt, row.kind, row.name))
        if found and found[0].id == row.id:
            return found[0]
        if found:
            yield from drop_upload(found[0], lease.now_us)
        if (yield Query("upload_count", scalars=attempt))[0].count >= UPLOADS_PER_ATTEMPT_MAX:
            raise TenureError(
                "LIMIT_EXCEEDED", f"an attempt has at most {UPLOADS_PER_ATTEMPT_MAX} uploads at once"
            )
        begun = msgspec.structs.replace(row, begun_at=lease.now_us)
        written: list[UploadRow] = yield Query("save_upload", scalars=msgspec.structs.astuple(begun))
        return written[0]

    return await run_transaction(store, work)


async def save_part(store: Store, upload: UploadRow, part: UploadPartRow, *, late_seconds: float) -> None:
    """Record a part whose bytes are stored."""
    attempt = (upload.run_id, upload.idx, upload.n)

    def work() -> Transaction[None]:
        yield from lock_lease(*attempt, late_seconds=late_seconds)
        if not (yield Query("upload_of", scalars=(*attempt, upload.id))):
            raise upload_not_found(upload.id)
        parts: list[UploadPartRow] = yield Query("upload_parts_of", scalars=(upload.run_id, upload.id))
        before = next((one for one in parts if one.no == part.no), None)
        if before is not None and before.digest != part.digest:
            raise TenureError(
                "INVALID_INPUT",
                f"part {part.no} was uploaded with the digest {before.digest}: begin another upload to replace it",
            )
        yield Query("save_upload_part", scalars=msgspec.structs.astuple(part))

    await run_transaction(store, work)


def check_parts(parts: Sequence[UploadPartRow], expected: UploadSummary) -> None:
    """Refuse an upload whose parts are not those that its sender has sent (INVALID_INPUT)."""
    found = UploadSummary(
        len(parts), sum(part.size for part in parts), digest_of_parts([part.digest for part in parts])
    )
    if [part.no for part in parts] != list(range(1, expected.parts + 1)) or found != expected:
        raise TenureError(
            "INVALID_INPUT",
            f"the upload has {found.parts} parts of {found.size} bytes with the digest {found.digest}; {expected.parts} parts of"
            f" {expected.size} bytes with the digest {expected.digest} were stated: upload the missing parts",
        )


async def complete_artifact(
    store: Store, upload_id: str, row: ArtifactRow, expected: UploadSummary, *, late_seconds: float
) -> ArtifactRow:
    """Make an upload an artifact. `row` has everything that is not known from the upload."""
    attempt = (row.run_id, row.idx, row.n)

    def work() -> Transaction[ArtifactRow]:
        lease = yield from lock_lease(*attempt, late_seconds=late_seconds)
        uploads: list[UploadRow] = yield Query("upload_of", scalars=(*attempt, upload_id))
        if not uploads or uploads[0].kind != "artifact":
            return (yield from _find_completed(row, upload_id))
        parts: list[UploadPartRow] = yield Query("upload_parts_of", scalars=(row.run_id, upload_id))
        check_parts(parts, expected)
        retention = uploads[0].retention_us
        filled = msgspec.structs.replace(
            row,
            name=uploads[0].name,
            size=expected.size,
            digest=expected.digest,
            upload=upload_id,
            expires_at=None if retention is None else lease.now_us + retention,
        )
        written = yield from write_artifact(filled, lease)
        yield Query("end_upload", scalars=(*attempt, upload_id))
        return written

    return await run_transaction(store, work)


def _find_completed(row: ArtifactRow, upload_id: str) -> Transaction[ArtifactRow]:
    """The artifact that an upload became: its completion was repeated."""
    rows: list[ArtifactRow] = yield Query("artifact_rows_of", scalars=(row.run_id,))
    for found in rows:
        if (found.idx, found.n, found.upload) == (row.idx, row.n, upload_id):
            return found
    raise upload_not_found(upload_id)


def drop_upload(upload: UploadRow, now_us: int) -> Transaction[None]:
    """End an upload without a result: its rows now, its files later."""
    yield Query("end_upload", scalars=(upload.run_id, upload.idx, upload.n, upload.id))
    yield Query("end_upload_parts", scalars=(upload.run_id, upload.id))
    folder = upload_folder(upload.kind, ids.run_text(upload.run_id), upload.id)
    yield Query("save_file_deletion", scalars=(folder, None, now_us, now_us, 0))


async def drop_abandoned_uploads(store: Store, *, late_seconds: float, limit: int) -> int:
    """Delete uploads whose lease ended so long ago that nothing can complete them; how many."""

    def work() -> Transaction[int]:
        now: int = (yield Query("now"))[0].now_us
        found: list[UploadRow] = yield Query("uploads_abandoned", scalars=(now - us(late_seconds), limit))
        for upload in found:
            yield from drop_upload(upload, now)
        return len(found)

    return await run_transaction(store, work)


# ------------------------------------------------------------------------------------------- deletions


async def ask_run_deletion(store: Store, run_id: int) -> FileDeletionRow:
    """Record that the files of a run are to be deleted once the run is. Caches that were never complete are dropped now: they are not in
    the run's folder."""

    def work() -> Transaction[FileDeletionRow]:
        now: int = (yield Query("now"))[0].now_us
        uploads: list[UploadRow] = yield Query("uploads_of_run", scalars=(run_id,))
        for upload in uploads:
            if upload.kind == "cache":
                yield from drop_upload(upload, now)
        row = (f"{ids.run_text(run_id)}/", run_id, now, now + us(60), 0)
        written: list[FileDeletionRow] = yield Query("save_file_deletion", scalars=row)
        return written[0]

    return await run_transaction(store, work)


async def postpone_deletion(store: Store, row: FileDeletionRow, seconds: float) -> None:
    """Try a deletion again later."""

    def work() -> Transaction[None]:
        now: int = (yield Query("now"))[0].now_us
        later = msgspec.structs.replace(row, due_at=now + us(seconds), tries=row.tries + 1)
        yield Query("save_file_deletion", scalars=msgspec.structs.astuple(later))

    await run_transaction(store, work)


async def end_deletion(store: Store, row: FileDeletionRow) -> None:
    await write_rows(store, "end_file_deletion", row.path, row.asked_at)
