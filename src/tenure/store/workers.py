"""Workers, and the processes they run in."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import astuple, replace

from tenure.clock import us
from tenure.kernel.registry_rows import WorkerProcessRow, WorkerRow
from tenure.limits import NAME_CHARS_MAX, WORKER_FORGOTTEN_SECONDS, WORKER_SILENT_SECONDS
from tenure.store.port import Query, RowType, Store, Transaction
from tenure.store.transactions import check_name, run_transaction, write_rows


class SessionLease(msgspec.Struct, gc=False):
    run_id: int
    idx: int
    n: int


READS: dict[str, RowType] = {
    "workers_seen_since": WorkerRow,  # () ; since -> by name
    "worker_processes_at": WorkerProcessRow,  # () ; boot_id, namespaces
    "leases_of_session": SessionLease,  # () ; session, tenant ('' is all) -> the live ones
    "worker_named": WorkerRow,  # () ; name
}
WRITES: dict[str, RowType] = {
    "save_worker": WorkerRow,
    "delete_worker": WorkerRow,
    "delete_silent_workers": WorkerRow,
    "save_worker_process": WorkerProcessRow,
    "delete_worker_process": WorkerProcessRow,
    "delete_silent_worker_processes": WorkerProcessRow,
}


async def register_worker(
    store: Store,
    name: str,
    queues: Sequence[str],
    slots: int,
    version: str,
    process: WorkerProcessRow | None = None,
) -> None:
    """Record that a worker is alive: when it starts, and every `limits.WORKER_BEAT_SECONDS`. `process`: its process, if a
    watcher on the same host can prove that it died."""
    check_name("a worker's name", name)
    listed = msgspec.json.encode(sorted(set(queues))).decode()

    def work() -> Transaction[None]:
        now = (yield Query("now"))[0].now_us
        values = (name, listed, max(slots, 1), version[:NAME_CHARS_MAX], us(WORKER_SILENT_SECONDS), now)
        [seen] = yield Query("save_worker", scalars=values)
        if seen.started_at == seen.seen_at:  # it has just started: a good moment to delete dead workers
            silent_since = (now - us(WORKER_FORGOTTEN_SECONDS),)
            yield Query("delete_silent_workers", scalars=silent_since)
            yield Query("delete_silent_worker_processes", scalars=silent_since)
        if process is not None:
            yield Query("save_worker_process", scalars=astuple(replace(process, seen_at=now)))

    await run_transaction(store, work)


async def delete_worker(store: Store, name: str) -> None:
    """Forget a worker that has stopped by itself."""
    await write_rows(store, "delete_worker", name)


async def delete_worker_process(store: Store, session: int) -> None:
    """Stop watching a process."""
    await write_rows(store, "delete_worker_process", session)
