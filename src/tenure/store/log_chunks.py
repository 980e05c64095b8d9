"""The logs of jobs as chunks of bytes.

Laws:
1. A chunk's row is written after its bytes are stored, under its run's lock, as the artifacts' rows are (I56).
2. Chunks are numbered 1, 2, 3 … and follow each other without a gap. The same chunk again changes nothing.
3. After the first late chunk all are late.
"""

from __future__ import annotations

import msgspec

from tenure.errors import TenureError
from tenure.kernel.ci_rows import LogChunkRow
from tenure.limits import LOG_BYTES_PER_ATTEMPT_MAX, LOG_CHUNKS_PER_ATTEMPT_MAX
from tenure.store.port import Query, RowType, Store, Transaction
from tenure.store.remote_leases import lock_lease
from tenure.store.transactions import run_transaction


class AttemptLease(msgspec.Struct, gc=False):
    lease: str


READS: dict[str, RowType] = {
    "attempt_lease": AttemptLease,  # () ; run_id, idx, n
    "log_chunk_last": LogChunkRow,  # () ; run_id, idx, n
    "log_chunk_numbered": LogChunkRow,  # () ; run_id, idx, n, seq
    "log_chunks_from": LogChunkRow,  # () ; run_id, idx, n, byte, limit -> in order
    "log_chunks_before": LogChunkRow,  # () ; run_id, idx, n, seq, limit -> newest first
    "log_chunk_first_late": LogChunkRow,  # () ; run_id, idx, n
    "log_chunk_rows_of": LogChunkRow,  # () ; run_id -> all of them
}
WRITES: dict[str, RowType] = {"save_log_chunk": LogChunkRow}


async def append_log_chunk(store: Store, row: LogChunkRow, *, late_seconds: float) -> LogChunkRow:
    """Write a chunk's row, and record whether its lease had ended (the store sets `late`, `at` and `events`).
    MESSAGE_OUT_OF_ORDER if it does not follow the last chunk."""
    attempt = (row.run_id, row.idx, row.n)

    def work() -> Transaction[LogChunkRow]:
        lease = yield from lock_lease(*attempt, late_seconds=late_seconds)
        same: list[LogChunkRow] = yield Query("log_chunk_numbered", scalars=(*attempt, row.seq))
        if same and (same[0].digest, same[0].first_byte) == (row.digest, row.first_byte):
            return same[0]
        last: list[LogChunkRow] = yield Query("log_chunk_last", scalars=attempt)
        seq, end = (last[0].seq + 1, last[0].first_byte + last[0].size) if last else (1, 0)
        if same or (row.seq, row.first_byte) != (seq, end):
            raise TenureError(
                "MESSAGE_OUT_OF_ORDER",
                f"the next chunk of this log is {seq} and begins at byte {end}; chunk {row.seq} at byte {row.first_byte} was sent",
            )
        if end + row.size > LOG_BYTES_PER_ATTEMPT_MAX or seq > LOG_CHUNKS_PER_ATTEMPT_MAX:
            raise TenureError(
                "LIMIT_EXCEEDED",
                f"the log of an attempt has at most {LOG_BYTES_PER_ATTEMPT_MAX} bytes in {LOG_CHUNKS_PER_ATTEMPT_MAX} chunks",
            )
        filled = msgspec.structs.replace(row, late=lease.late, at=lease.now_us, events=lease.run.version)
        written: list[LogChunkRow] = yield Query("save_log_chunk", scalars=msgspec.structs.astuple(filled))
        return written[0]

    return await run_transaction(store, work)
