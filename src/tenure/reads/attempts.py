"""The parts of a run that have lists of their own: the tries of a step, and checkpoints.

Law: a step's key is its name in the list of steps; what was recorded in a body has tries too, though no leases of its own.
"""

from __future__ import annotations

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.errors import TenureError
from tenure.kernel.run_rows import AttemptRow, CheckpointRow, EventRow, PayloadRow, StepRow, WaitRow
from tenure.reads.failed_attempts import find_failed_attempts
from tenure.reads.payloads import decode_payload
from tenure.reads.steps import meta_costs, parse_meta, wait_label
from tenure.shapes.steps import Attempt, Checkpoint
from tenure.store.port import Store


async def read_attempts(store: Store, run_id: int, key: str) -> list[Attempt]:
    """The tries of a step, first one first."""
    steps: list[StepRow] = await store.read("steps_of", run_id)
    step = next((one for one in steps if one.name == key), None)
    if step is not None:
        rows: list[AttemptRow] = await store.read("attempts_of", run_id)
        return [_attempt(row) for row in rows if row.idx == step.idx]
    checkpoints: list[CheckpointRow] = await store.read("checkpoints_of", run_id)
    recorded = [row for row in checkpoints if row.name == key]
    if recorded:
        return await _recorded_tries(store, run_id, steps, recorded[-1])
    waits: list[WaitRow] = await store.read("waits_of", run_id)
    if not any(wait_label(wait.label) == key for wait in waits):
        raise TenureError("STEP_NOT_FOUND", f"{ids.run_text(run_id)} has no step {key!r}")
    return []  # nobody tries a wait


async def check_step_exists(store: Store, run_id: int, key: str) -> None:
    """STEP_NOT_FOUND for a key that is no step's."""
    for query in ("steps_of", "checkpoints_of"):
        if any(row.name == key for row in await store.read(query, run_id)):
            return
    if any(wait_label(wait.label) == key for wait in await store.read("waits_of", run_id)):
        return
    raise TenureError("STEP_NOT_FOUND", f"{ids.run_text(run_id)} has no step {key!r}")


def _attempt(row: AttemptRow) -> Attempt:
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
        costs=meta_costs(parse_meta(row.cost)),
    )


async def _recorded_tries(
    store: Store, run_id: int, steps: list[StepRow], row: CheckpointRow
) -> list[Attempt]:
    """The tries of what was recorded in a body: those that failed from the history, the last from its row."""
    events: list[EventRow] = await store.read("events_of", run_id) if row.tries > 1 else []
    payloads: list[PayloadRow] = await store.read("payloads_of", run_id)
    bodies = {one.ref: one.body for one in payloads}
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
        costs=meta_costs(meta),
    )
    return [*tried, last]


async def read_checkpoints(store: Store, run_id: int) -> list[Checkpoint]:
    """Every checkpoint of a run, in the order of recording."""
    steps: list[StepRow] = await store.read("steps_of", run_id)
    names = {step.idx: step.name for step in steps}
    rows: list[CheckpointRow] = await store.read("checkpoints_of", run_id)
    payloads: list[PayloadRow] = await store.read("payloads_of", run_id)
    bodies = {one.ref: one.body for one in payloads}
    return [_checkpoint(row, names, bodies) for row in sorted(rows, key=lambda row: (row.idx, row.no))]


def _checkpoint(row: CheckpointRow, names: dict[int, str], bodies: dict[int, bytes]) -> Checkpoint:
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
        costs=meta_costs(meta),
        code=row.error,
        input=decode_payload(bodies.get(row.input_ref or 0)),
        output=None if failed else said,
        error=said if failed else None,
    )
