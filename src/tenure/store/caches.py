"""Caches of repositories.

Laws:
1. The first complete cache of a key is kept and never changes.
2. The caches of a repository have a total size and number. The least recently used are deleted first. A cache of an untrusted
   scope never makes room by deleting a trusted one.
"""

from __future__ import annotations

import msgspec

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import upload_folder
from tenure.kernel.ci_rows import CacheEntryRow, UploadPartRow, UploadRow
from tenure.limits import CACHE_BYTES_PER_REPOSITORY_MAX, CACHES_PER_REPOSITORY_MAX
from tenure.store.port import Query, RowType, Store, Transaction
from tenure.store.remote_leases import lock_lease
from tenure.store.transactions import run_transaction, write_rows
from tenure.store.uploads import UploadSummary, check_parts, drop_upload, upload_not_found

EVICT_MAX = 50
"""Caches that are looked at for deletion at once."""
TOUCH_SECONDS = 60.0
"""A cache that was used so recently is not marked as used again."""


class CacheTotal(msgspec.Struct, gc=False):
    size: int
    count: int


READS: dict[str, RowType] = {
    "cache_named": CacheEntryRow,  # () ; tenant, scope, key
    "cache_newest": CacheEntryRow,  # () ; tenant, scope, prefix -> at most one
    "cache_total": CacheTotal,  # () ; tenant, repository
    "caches_least_used": CacheEntryRow,  # () ; tenant, repository, also trusted ones, limit
}
WRITES: dict[str, RowType] = {
    "save_cache": CacheEntryRow,
    "touch_cache": CacheEntryRow,
    "end_cache": CacheEntryRow,
}


async def complete_cache(
    store: Store, upload: tuple[int, int, int, str], row: CacheEntryRow, expected: UploadSummary
) -> bool:
    """Make an upload (run, step, attempt, id) a cache. False: the key has one already, or there is no room."""
    run_id, idx, n, upload_id = upload

    def work() -> Transaction[bool]:
        lease = yield from lock_lease(run_id, idx, n, late_seconds=0)
        if lease.late:
            raise TenureError("LEASE_STALE", f"the lease of attempt {n} has ended: its caches are not kept")
        uploads: list[UploadRow] = yield Query("upload_of", scalars=upload)
        known: list[CacheEntryRow] = yield Query("cache_named", scalars=(row.tenant, row.scope, row.name))
        if not uploads or uploads[0].kind != "cache" or uploads[0].name != row.name:
            if not known:
                raise upload_not_found(upload_id)
            return known[0].upload == upload_id  # the completion was repeated
        parts: list[UploadPartRow] = yield Query("upload_parts_of", scalars=(run_id, upload_id))
        check_parts(parts, expected)
        filled = msgspec.structs.replace(
            row,
            upload=upload_id,
            parts=msgspec.json.encode([(part.size, part.digest) for part in parts]).decode(),
            size=expected.size,
            digest=expected.digest,
            created_at=lease.now_us,
            used_at=lease.now_us,
        )
        if (
            known
            or not (yield from _make_room(filled, lease.now_us))
            or not (yield Query("save_cache", scalars=msgspec.structs.astuple(filled)))
        ):
            yield from drop_upload(uploads[0], lease.now_us)
            return False
        yield Query("end_upload", scalars=upload)
        yield Query("end_upload_parts", scalars=(run_id, upload_id))
        return True

    return await run_transaction(store, work)


def _make_room(row: CacheEntryRow, now_us: int) -> Transaction[bool]:
    """Delete caches until another one fits. False: it does not fit."""
    if row.size > CACHE_BYTES_PER_REPOSITORY_MAX:
        return False
    while True:
        total: CacheTotal = (yield Query("cache_total", scalars=(row.tenant, row.repository)))[0]
        size, count = total.size + row.size, total.count + 1
        if size <= CACHE_BYTES_PER_REPOSITORY_MAX and count <= CACHES_PER_REPOSITORY_MAX:
            return True
        scalars = (row.tenant, row.repository, row.trusted, EVICT_MAX)
        oldest: list[CacheEntryRow] = yield Query("caches_least_used", scalars=scalars)
        if not oldest:
            return False
        for old in oldest:
            if size <= CACHE_BYTES_PER_REPOSITORY_MAX and count <= CACHES_PER_REPOSITORY_MAX:
                break
            yield Query("end_cache", scalars=(old.tenant, old.scope, old.name, old.upload))
            folder = upload_folder("cache", "", old.upload)
            yield Query("save_file_deletion", scalars=(folder, None, now_us, now_us, 0))
            size, count = size - old.size, count - 1


async def touch_cache(store: Store, row: CacheEntryRow, now_us: int) -> None:
    """Mark a cache as used."""
    if row.used_at < now_us - us(TOUCH_SECONDS):
        await write_rows(store, "touch_cache", row.tenant, row.scope, row.name, now_us)
