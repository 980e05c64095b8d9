"""The logs and test reports of jobs.

Laws:
1. A reader sees the bytes of one attempt, in order. Without `late`, it sees those that arrived while the lease was live.
2. A response is bounded. The next one begins where it ended.
3. Every chunk is checked against its digest.
4. A step that has the result of an earlier step has its log and its tests, as long as that step's run exists.
"""

from __future__ import annotations

import msgspec

from tenure import ids
from tenure.artifacts import ArtifactStore
from tenure.clock import to_datetime
from tenure.errors import TenureError
from tenure.kernel.artifact_rules import log_chunk_path
from tenure.kernel.ci_rows import LogChunkRow, TestReportRow
from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.run_rows import StepRow
from tenure.limits import LOG_READ_BYTES_MAX
from tenure.reads.history import check_step_exists
from tenure.shapes.job_logs import JobLog
from tenure.shapes.test_reports import StepTests, TestReport
from tenure.store.log_chunks import AttemptLease
from tenure.store.port import Store
from tenure.store.transactions import read_rows

CHUNKS_AT_ONCE = 256
REPORTS_MAX = 10_000


async def read_job_log(
    store: Store,
    artifacts: ArtifactStore,
    run_id: int,
    step: str,
    *,
    attempt: int | None = None,
    offset: int = 0,
    limit: int = LOG_READ_BYTES_MAX,
    tail: int | None = None,
    late: bool = False,
) -> JobLog:
    """Bytes of a job's log from `offset`, at most `limit`; or the last `tail` lines. Without an `attempt`, of the newest one."""
    found = await _find_step(store, run_id, step)
    n = found.attempt if attempt is None else attempt
    if n > found.attempt or n < 0:
        raise TenureError("LOG_NOT_FOUND", f"step {step!r} of {ids.run_text(run_id)} has no attempt {n}")
    run_id = found.run_id
    key = (run_id, found.idx, n)
    # The attempt before the chunks, so that no chunk before its end is missed.
    attempts = await read_rows(store, AttemptLease, "attempt_lease", *key)
    last = await read_rows(store, LogChunkRow, "log_chunk_last", *key)
    end = last[0].first_byte + last[0].size if last else 0
    first_late = (
        await read_rows(store, LogChunkRow, "log_chunk_first_late", *key) if last and last[0].late else []
    )
    size = first_late[0].first_byte if first_late else end
    stop = end if late else size
    if tail is not None:
        after = first_late[0].seq if first_late and not late else last[0].seq + 1 if last else 1
        data = await _read_tail(store, artifacts, key, after, tail)
        offset = stop - len(data)
    else:
        data = await _read_bytes(
            store, artifacts, key, offset, min(stop, offset + min(limit, LOG_READ_BYTES_MAX))
        )
    return JobLog(
        step=step,
        attempt=n,
        offset=min(offset, stop) if not data else offset,
        size=size,
        late_size=end - size,
        ended=bool(attempts) and attempts[0].lease not in LIVE_LEASE,
        data=data,
    )


async def _find_step(store: Store, run_id: int, name: str) -> StepRow:
    found: list[StepRow] = await store.read("load_named_steps", rows=[(run_id, name)])
    if not found:
        await check_step_exists(store, run_id, name)
        raise TenureError("LOG_NOT_FOUND", f"{name!r} is not a step that a runner executes")
    return await _find_original(store, found[0])


async def _find_original(store: Store, step: StepRow) -> StepRow:
    """The step whose result a step has: an earlier one, or the step itself (law 4)."""
    if step.reused_run is None:
        return step
    originals: list[StepRow] = await store.read(
        "load_named_steps", rows=[(step.reused_run, step.reused_step)]
    )
    return originals[0] if originals else step


async def _read_chunk(artifacts: ArtifactStore, row: LogChunkRow) -> bytes:
    path = log_chunk_path(ids.run_text(row.run_id), row.idx, row.n, row.seq, row.digest)
    return await artifacts.get_file(path, row.digest)


async def _read_bytes(
    store: Store, artifacts: ArtifactStore, key: tuple[int, int, int], begin: int, end: int
) -> bytes:
    """The bytes from number `begin` up to, but without, `end`."""
    pieces: list[bytes] = []
    while begin < end:
        chunks = await read_rows(store, LogChunkRow, "log_chunks_from", *key, begin, CHUNKS_AT_ONCE)
        for row in chunks:
            if begin >= end:
                break
            body = await _read_chunk(artifacts, row)
            pieces.append(body[begin - row.first_byte : end - row.first_byte])
            begin = row.first_byte + row.size
        if not chunks:
            break
    return b"".join(pieces)


async def _read_tail(
    store: Store, artifacts: ArtifactStore, key: tuple[int, int, int], before: int, lines: int
) -> bytes:
    """The last lines before a chunk."""
    pieces: list[bytes] = []
    ends = size = 0
    while ends <= lines and size < LOG_READ_BYTES_MAX:
        chunks = await read_rows(store, LogChunkRow, "log_chunks_before", *key, before, CHUNKS_AT_ONCE)
        for row in chunks:
            pieces.append(await _read_chunk(artifacts, row))
            ends, size, before = ends + row.lines, size + row.size, row.seq
            if ends > lines or size >= LOG_READ_BYTES_MAX:
                break
        if not chunks:
            break
    data = b"".join(reversed(pieces))[-LOG_READ_BYTES_MAX:]
    at = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return data
    return data[at + 1 :]


async def read_step_tests(store: Store, run_id: int, step: str | None = None) -> list[StepTests]:
    """The test reports of a run, by step and attempt."""
    steps = await read_rows(store, StepRow, "steps_of", run_id)
    if step is not None and step not in {one.name for one in steps}:
        await check_step_exists(store, run_id, step)
    names = {one.idx: one.name for one in steps}
    own = await read_rows(store, TestReportRow, "test_reports_of", run_id, REPORTS_MAX)
    found = [(names.get(row.idx, str(row.idx)), row) for row in own]
    for reused in (one for one in steps if one.reused_run is not None):
        original = await _find_original(store, reused)
        key = (original.run_id, original.idx, original.attempt)
        rows = await read_rows(store, TestReportRow, "test_report_of", *key)
        found += [(reused.name, row) for row in rows]
    return [
        StepTests(
            step=name,
            attempt=row.n,
            late=row.late,
            reported_at=to_datetime(row.at),
            report=msgspec.json.decode(row.body, type=TestReport),
        )
        for name, row in found
        if step in (None, name)
    ]
