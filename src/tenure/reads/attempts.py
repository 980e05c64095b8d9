"""The attempts of a step, and the checkpoints of a run.

Law: a step's key is its name in the list of steps. A checkpoint has attempts too, but no leases of its own.
"""

from __future__ import annotations

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.errors import TenureError
from tenure.kernel.run_rows import AttemptRow, CheckpointRow, EventRow, StepRow, WaitRow
from tenure.reads.history import find_failed_attempts
from tenure.reads.payloads import decode_payload, read_bodies
from tenure.reads.steps import parse_meta, total_step_costs, wait_label
from tenure.shapes.steps import Attempt, Checkpoint
from tenure.store.port import Store
from tenure.store.transactions import read_rows


async def read_attempts(store: Store, run_id: int, key: str) -> list[Attempt]:
    """The attempts of a step, in order."""
    steps: list[StepRow] = await store.read("steps_of", run_id)
    step = next((one for one in steps if one.name == key), None)
    if step is not None:
        attempts = await read_rows(store, AttemptRow, "attempts_of", run_id)
        return [_to_attempt(row) for row in attempts if row.idx == step.idx]
    checkpoints = await read_rows(store, CheckpointRow, "checkpoints_of", run_id)
    recorded = [row for row in checkpoints if row.name == key]
    if recorded:
        return await _checkpoint_attempts(store, run_id, steps, recorded[-1])
    await _check_wait_exists(store, run_id, key)
    return []  # a wait has no attempts


async def check_step_exists(store: Store, run_id: int, key: str) -> None:
    """Refuse a key that no step has (STEP_NOT_FOUND)."""
    for query in ("steps_of", "checkpoints_of"):
        if any(row.name == key for row in await store.read(query, run_id)):
            return
    await _check_wait_exists(store, run_id, key)


async def _check_wait_exists(store: Store, run_id: int, key: str) -> None:
    waits = await read_rows(store, WaitRow, "waits_of", run_id)
    if not any(wait_label(wait.label) == key for wait in waits):
        raise TenureError("STEP_NOT_FOUND", f"{ids.run_text(run_id)} has no step {key!r}")


def _to_attempt(row: AttemptRow) -> Attempt:
    return Attempt(
        n=row.n,
        state=row.state,
        worker=row.owner,
        lease=row.lease,
        lease_until=to_datetime(row.expires_at),
        heartbeat_at=to_datetime(row.beat_at),
        started_at=to_datetime(row.granted_at),
        ended_at=to_optional_datetime(row.ended_at),
        reason=row.reason,
        progress=row.progress,
        costs=total_step_costs(parse_meta(row.cost).costs),
    )


async def _checkpoint_attempts(
    store: Store, run_id: int, steps: list[StepRow], row: CheckpointRow
) -> list[Attempt]:
    """The attempts of a checkpoint: the failed ones from the history, the last one from its row."""
    events: list[EventRow] = await store.read("events_of", run_id) if row.tries > 1 else []
    bodies = await read_bodies(store, run_id)
    tried = [
        Attempt(
            n=one.attempt,
            state=one.state,
            worker=one.worker,
            ended_at=one.at,
            reason=one.code or None,
            message=one.message,
        )
        for one in find_failed_attempts(events, steps, bodies)
        if one.step == row.name and one.attempt < row.tries
    ]
    meta = parse_meta(row.meta)
    said = decode_payload(bodies.get(row.output_ref or 0)) if row.state == "failed" else None
    last = Attempt(
        n=row.tries,
        state={"started": "running", "done": "succeeded"}.get(row.state, "failed"),
        started_at=to_datetime(row.at - (meta.us or 0)),
        ended_at=None if row.state == "started" else to_datetime(row.at),
        reason="done" if row.state == "done" else row.error,
        message="" if said is None else str(said),
        costs=total_step_costs(meta.costs),
    )
    return [*tried, last]


async def read_checkpoints(store: Store, run_id: int) -> list[Checkpoint]:
    """Every checkpoint of a run, in the order of recording."""
    names = {step.idx: step.name for step in await read_rows(store, StepRow, "steps_of", run_id)}
    rows = await read_rows(store, CheckpointRow, "checkpoints_of", run_id)
    bodies = await read_bodies(store, run_id)
    return [_to_checkpoint(row, names, bodies) for row in sorted(rows, key=lambda row: (row.idx, row.no))]


def _to_checkpoint(row: CheckpointRow, names: dict[int, str], bodies: dict[int, bytes]) -> Checkpoint:
    meta, said = parse_meta(row.meta), decode_payload(bodies.get(row.output_ref or 0))
    failed = row.state == "failed"
    return Checkpoint(
        key=row.name,
        step=names.get(row.idx, str(row.idx)),
        no=row.no,
        state=row.state,
        attempt=row.n,
        tries=row.tries,
        retry_at=to_optional_datetime(row.next_at),
        resumable=row.resumable,
        idempotent=row.idempotent,
        recorded_at=to_datetime(row.at),
        seconds=None if meta.us is None else meta.us / 1e6,
        agent=meta.agent,
        costs=total_step_costs(meta.costs),
        code=row.error,
        input=decode_payload(bodies.get(row.input_ref or 0)),
        output=None if failed else said,
        error=said if failed else None,
    )
