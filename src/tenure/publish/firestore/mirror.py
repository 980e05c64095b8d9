"""Keeps a copy of the runs of Git With Intent in Firestore.

Laws:
1. It may run in every process, and one of them writes: the holder of the lease, which is a document in Firestore. Every commit also
   writes the lease, on the condition that nobody else has written it. So a process that has lost the lease writes nothing at all.
2. Nothing goes backwards: a document is written on the condition that it is as it was read, and never over a higher version.
3. The lease holds the position in the feed, and moves with the documents: after a crash, the next holder continues there. If the feed no
   longer has that position (STREAM_RESET), all runs are written from their rows.
4. A run that does not exist any more is deleted from the copy: when the feed names it, and by a sweep over the whole copy, which begins
   again when it has ended. A deletion that fails is tried again.
5. An outage delays the copy and loses nothing. A run that Firestore refuses is logged, counted and left out, so that it does not stop
   the others; its next change tries again.
6. Several changes of a run may become one write. `lastHeartbeatAt` is that of the last change. Some changes are not in the feed (a
   record of a key is completed after its run is created, a receipt is marked as reversed after the undo): a run that the feed has named
   is looked at once more.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel.feed import decode_feed_rows
from tenure.kernel.run_rows import RunRow
from tenure.logs import get_logger
from tenure.processes import make_process_name
from tenure.publish.firestore.client import (
    FirestoreClient,
    FirestoreConflict,
    FirestoreRefused,
    FirestoreUnavailable,
)
from tenure.publish.firestore.documents import (
    BELOW,
    DIGEST,
    KEY_DOCUMENT,
    RUNS,
    VERSION,
    MirrorDocument,
    read_mirror_documents,
    run_path,
)
from tenure.publish.firestore.values import decode_fields, document_id, encode_fields
from tenure.publish.pauses import delay_after, wait_until_set
from tenure.reads.run_documents import PROFILE
from tenure.reads.run_list import FOREVER_US
from tenure.store.feed import FeedRepository
from tenure.store.port import Store

log = get_logger(__name__)

LEASES = "gwi_mirror"
LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0
ROUND_SECONDS = 0.5
"""The shortest time between two rounds: Firestore recommends about one write of a document (here the lease) per second."""
REFRESH_SECONDS = 2.0
"""When a run that the feed has named is looked at once more."""
REFRESHED_MAX = 10_000
SWEEP_SECONDS = 60.0
PAGE_ROWS = 200
RUNS_PAGE = 100
WRITES_MAX = 300
"""Writes of one commit. Firestore accepts 500."""
COMMIT_BYTES_MAX = 700_000
READS_MAX = 300
KNOWN_MAX = 50_000
DELAYS_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
_RUN_ID_MAX = (1 << 63) - 1


class _KnownDocument(msgspec.Struct, frozen=True):
    """A document as it was last read or written."""

    update_time: str | None
    """None: it does not exist."""
    version: int = -1
    digest: str = ""


class _DocumentWrite(msgspec.Struct, frozen=True):
    """A write of a document in Firestore's form, and the document as it is afterwards."""

    write: dict[str, Any]
    path: str
    after: _KnownDocument


class _Lease(msgspec.Struct, frozen=True):
    update_time: str
    fence: int
    position: int | None


class FirestoreMirror:
    def __init__(
        self,
        store: Store,
        feed: FeedRepository,
        client: FirestoreClient,
        *,
        tenants: Sequence[str],
        name: str = "tenure",
        lease_seconds: float = LEASE_SECONDS,
        round_seconds: float = ROUND_SECONDS,
        refresh_seconds: float = REFRESH_SECONDS,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        """`tenants`: whose runs are mirrored. `name`: mirrors of different databases into one project need different names."""
        self._store = store
        self._feed = feed
        self._client = client
        self._tenants = frozenset(tenants)
        self._lease_path = f"{LEASES}/{document_id(name)}"
        self._lease_seconds = lease_seconds
        self._round_seconds = round_seconds
        self._standby_seconds = lease_seconds / 3
        """How often a process without the lease asks for it."""
        self._refresh_seconds = refresh_seconds
        self._sweep_seconds = sweep_seconds
        self._holder = make_process_name()
        self._lease: _Lease | None = None
        self._renewed_at = 0.0
        self._known: OrderedDict[str, _KnownDocument] = OrderedDict()
        self._named_at: OrderedDict[int, float] = OrderedDict()
        """Runs that the feed has named lately, oldest first."""
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._swept_at = 0.0
        self._sweep_page = ""
        self.refused = 0
        """Runs that Firestore has refused."""

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="tenure-firestore")

    async def stop(self) -> None:
        """Stop, and give the lease back, so that another process need not wait for it to expire."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._lease is not None:
            with suppress(FirestoreConflict, FirestoreUnavailable, FirestoreRefused):
                async with asyncio.timeout(2.0):
                    await self._commit([], self._lease.position, holder="")
            self._lease = None

    def wake(self) -> None:
        """Look at the feed now, because this process has just committed."""
        self._woken.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self.look()
                failures = 0
                pause = self._round_seconds
            except (FirestoreConflict, FirestoreUnavailable, FirestoreRefused, TenureError) as fault:
                failures += 1
                pause = delay_after(failures, DELAYS_SECONDS)
                log.warning("firestore_mirror_failed", error=type(fault).__name__, message=str(fault)[:300])
            except Exception:
                pause = DELAYS_SECONDS[-1]
                log.error("firestore_mirror_failed", traceback=traceback.format_exc())
            await asyncio.sleep(pause if self._lease is not None else max(pause, self._standby_seconds))
            await wait_until_set(self._woken, self._round_seconds)
            self._woken.clear()

    # ---------------------------------------------------------------------------------------------- rounds

    async def look(self) -> bool:
        """One round: take or renew the lease, write what the feed names, and sweep. False if another process has the lease."""
        try:
            if self._lease is None and not await self._take_lease():
                return False
            while await self._follow_feed():
                pass
            await self._refresh()
            await self._commit([], self._held.position)  # renews the lease when that is due
            if time.monotonic() - self._swept_at >= self._sweep_seconds:
                await self.sweep()
        except FirestoreConflict:
            self._lease = None
            self._known.clear()  # somebody else may have written: read again
            raise
        return True

    async def _take_lease(self) -> bool:
        """Take the lease if it is free, expired or given back, by Firestore's clock."""
        read = await self._client.get([self._lease_path], ("holder", "fence", "position"))
        found = read.found.get(self._lease_path)
        fence, position, known = 1, None, None
        if found is not None:
            fields = decode_fields(found.fields)
            age = (read.read_at - datetime.fromisoformat(found.update_time)).total_seconds()
            if fields.get("holder") not in ("", self._holder) and age < self._lease_seconds:
                return False
            fence, position, known = int(fields["fence"]) + 1, fields.get("position"), found.update_time
        fields = self._lease_fields(self._holder, fence, position)
        [update_time] = await self._client.commit([self._client.update(self._lease_path, fields, known)])
        self._lease = _Lease(update_time, fence, position)
        self._renewed_at = time.monotonic()
        self._known.clear()
        log.info("firestore_lease_taken", fence=fence)
        return True

    def _lease_fields(self, holder: str, fence: int, position: int | None) -> dict[str, Any]:
        return encode_fields({"holder": holder, "fence": fence, "position": position})

    @property
    def _held(self) -> _Lease:
        """The lease, which this process must hold to write."""
        assert self._lease is not None
        return self._lease

    async def _follow_feed(self) -> bool:
        """Write the runs that the next page of the feed names. True if there may be more."""
        position = self._held.position
        bounds = await self._feed.bounds()
        if position is None or not bounds.has_all_after(position):
            await self._write_everything()
            await self._commit([], bounds.head)
            return True
        rows = await self._feed.after(position, PAGE_ROWS)
        if not rows:
            return False
        named = {
            item.run_id: None
            for item in decode_feed_rows(rows)
            if item.tenant in self._tenants and item.profile == PROFILE
        }
        await self._write_runs(list(named), rows[-1].pos)
        for run_id in named:
            self._named_at[run_id] = time.monotonic()
            self._named_at.move_to_end(run_id)
        while len(self._named_at) > REFRESHED_MAX:
            self._named_at.popitem(last=False)
        return len(rows) == PAGE_ROWS

    async def _refresh(self) -> None:
        """Write what has changed since the feed named a run (law 6)."""
        due = time.monotonic() - self._refresh_seconds
        named = [run_id for run_id, at in self._named_at.items() if at <= due]
        if named:
            await self._write_runs(named, self._held.position)
        for run_id in named:
            self._named_at.pop(run_id, None)

    async def _write_everything(self) -> None:
        """Write all runs from their rows (law 3)."""
        for tenant in sorted(self._tenants):
            at, last = FOREVER_US, _RUN_ID_MAX
            while rows := await self._store.read("runs_page", tenant, at, last, RUNS_PAGE):
                found: list[RunRow] = rows
                await self._write_runs(
                    [run.id for run in found if run.profile == PROFILE], self._held.position
                )
                at, last = found[-1].created_at, found[-1].id

    async def _write_runs(self, run_ids: list[int], position: int | None) -> None:
        """Write the current state of runs. The position moves with the last commit."""
        writes: list[_DocumentWrite] = []
        named = {each: None for run_id in run_ids for each in await self._with_undone(run_id)}
        for run_id in named:
            found = await read_mirror_documents(self._store, run_id)
            if found is None:
                await self._delete_run(run_path(run_id))
            else:
                writes += await self._prepare(found)
        for chunk in _split_writes(writes):
            await self._write_chunk(chunk)
        await self._commit([], position)

    async def _with_undone(self, run_id: int) -> list[int]:
        """A run, and before it the run that it undoes: that one's document has the compensation log."""
        specs = await self._store.read("get_spec", run_id)
        undone = specs[0].undo_of if specs else None
        return [run_id] if undone is None else [undone, run_id]

    async def _prepare(self, documents: list[MirrorDocument]) -> list[_DocumentWrite]:
        """The writes of a run: its documents that are new or have changed (law 2)."""
        paths = [document.path for document in documents]
        await self._read_known([path for path in paths if path not in self._known])
        writes = []
        for document in documents:
            known = self._known[document.path]
            if known.version > document.version or known.digest == document.digest:
                continue
            write = self._client.update(document.path, document.fields, known.update_time)
            after = _KnownDocument(None, document.version, document.digest)
            writes.append(_DocumentWrite(write, document.path, after))
        return writes

    async def _read_known(self, paths: list[str]) -> None:
        for start in range(0, len(paths), READS_MAX):
            some = paths[start : start + READS_MAX]
            found = (await self._client.get(some, (VERSION, DIGEST))).found
            for path in some:
                stored = found.get(path)
                fields = {} if stored is None else decode_fields(stored.fields)
                self._remember(
                    path,
                    _KnownDocument(
                        None if stored is None else stored.update_time,
                        int(fields.get(VERSION, -1)),
                        str(fields.get(DIGEST, "")),
                    ),
                )

    def _remember(self, path: str, known: _KnownDocument) -> None:
        self._known[path] = known
        self._known.move_to_end(path)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    async def _write_chunk(self, chunk: list[_DocumentWrite]) -> None:
        try:
            times = await self._commit([one.write for one in chunk], self._held.position)
        except FirestoreRefused as refused:
            if len(chunk) > 1:  # find the one that is refused
                middle = len(chunk) // 2
                await self._write_chunk(chunk[:middle])
                await self._write_chunk(chunk[middle:])
                return
            self.refused += 1
            log.error("firestore_document_refused", document=chunk[0].path, message=str(refused)[:300])
            return
        for one, update_time in zip(chunk, times, strict=True):
            self._remember(one.path, msgspec.structs.replace(one.after, update_time=update_time))

    async def _commit(
        self, writes: list[dict[str, Any]], position: int | None, *, holder: str | None = None
    ) -> list[str]:
        """Commit writes together with the lease (law 1)."""
        lease = self._held
        fields = self._lease_fields(self._holder if holder is None else holder, lease.fence, position)
        if not writes and position == lease.position and holder is None and not self._is_due():
            return []
        renewal = self._client.update(self._lease_path, fields, lease.update_time)
        *times, renewed = await self._client.commit([*writes, renewal])
        self._lease = _Lease(renewed, lease.fence, position)
        self._renewed_at = time.monotonic()
        return times

    def _is_due(self) -> bool:
        return time.monotonic() - self._renewed_at >= min(RENEW_SECONDS, self._lease_seconds / 3)

    # -------------------------------------------------------------------------------------------- deletions

    async def sweep(self) -> int:
        """Delete the copies of runs that do not exist any more, one page of the copy at a time. Returns their number."""
        found, self._sweep_page = await self._client.list_page(
            RUNS, ("tenantId", KEY_DOCUMENT), self._sweep_page
        )
        if not self._sweep_page:
            self._swept_at = time.monotonic()
        gone = 0
        for document in found:
            if decode_fields(document.fields).get("tenantId") not in self._tenants:
                continue
            try:
                run_id = ids.run_int(document.path.rpartition("/")[2])
            except TenureError:
                continue  # somebody else's document
            if not await self._store.read("get_run", run_id):
                await self._delete_run(document.path)
                gone += 1
        return gone

    async def _delete_run(self, path: str) -> None:
        """Delete a run's documents, its own last: until then, the sweep finds it again."""
        paths: list[str] = []
        for kind in BELOW:
            page = ""
            while True:
                found, page = await self._client.list_page(f"{path}/{kind}", (VERSION,), page)
                paths += [document.path for document in found]
                if not page:
                    break
        stored = (await self._client.get([path], (KEY_DOCUMENT,))).found.get(path)
        if stored is None and not paths:
            return
        key = None if stored is None else decode_fields(stored.fields).get(KEY_DOCUMENT)
        paths += [*([] if key is None else [str(key)]), path]
        for start in range(0, len(paths), WRITES_MAX):
            some = paths[start : start + WRITES_MAX]
            await self._commit([self._client.delete(one) for one in some], self._held.position)
        for one in paths:
            self._known.pop(one, None)
        log.info("firestore_run_deleted", document=path)


def _split_writes(writes: Iterable[_DocumentWrite]) -> Iterator[list[_DocumentWrite]]:
    """Writes in order, in parts that fit into one commit."""
    chunk: list[_DocumentWrite] = []
    size = 0
    for write in writes:
        length = len(msgspec.json.encode(write.write))
        if chunk and (len(chunk) >= WRITES_MAX or size + length > COMMIT_BYTES_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(write)
        size += length
    if chunk:
        yield chunk
