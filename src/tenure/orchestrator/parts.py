"""The parts of a run that have lists of their own: the tries of a step, and checkpoints.

Law: a step's key is its name in the list of steps; what was recorded in a body has tries too, though no leases of its own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.kernel.model import Attempt, Checkpoint, Event, Payload, Step, Wait
from tenure.orchestrator.step_views import CostView, costs_of, decoded, label_of, maybe, meta_of, moment
from tenure.orchestrator.tries import tries_of
from tenure.store.port import Store


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One try of a step."""

    n: int
    state: str
    worker: str | None = None
    lease: str | None = None
    """The state of its lease; what was recorded in a body has none of its own."""
    lease_until: datetime | None = None
    heartbeat_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str | None = None
    message: str = ""
    """What went wrong, where that was told."""
    progress: str = ""
    costs: tuple[CostView, ...] = ()


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """A durable sub-result of a step."""

    key: str
    step: str
    """The step it was recorded in."""
    no: int
    state: str
    """started, done or failed."""
    attempt: int
    """The try of its step that recorded it."""
    tries: int
    retry_at: datetime | None
    resumable: bool
    idempotent: bool
    recorded_at: datetime
    seconds: float | None
    agent: str | None
    costs: tuple[CostView, ...]
    code: str | None
    """Of a failed one."""
    input: Any = None
    output: Any = None
    error: Any = None


async def attempts_of(store: Store, run_id: int, key: str) -> list[AttemptView]:
    """The tries of a step, first one first."""
    steps: list[Step] = await store.read("steps_of", run_id)
    step = next((one for one in steps if one.name == key), None)
    if step is not None:
        rows: list[Attempt] = await store.read("attempts_of", run_id)
        return [_attempt(row) for row in rows if row.idx == step.idx]
    checkpoints: list[Checkpoint] = await store.read("checkpoints_of", run_id)
    recorded = [row for row in checkpoints if row.name == key]
    if recorded:
        return await _recorded_tries(store, run_id, steps, recorded[-1])
    waits: list[Wait] = await store.read("waits_of", run_id)
    if not any(label_of(wait.label) == key for wait in waits):
        raise TenureError("STEP_NOT_FOUND", f"{ids.run_text(run_id)} has no step {key!r}")
    return []  # nobody tries a wait


async def known_step(store: Store, run_id: int, key: str) -> None:
    """STEP_NOT_FOUND for a key that is no step's."""
    for query in ("steps_of", "checkpoints_of"):
        if any(row.name == key for row in await store.read(query, run_id)):
            return
    if any(label_of(wait.label) == key for wait in await store.read("waits_of", run_id)):
        return
    raise TenureError("STEP_NOT_FOUND", f"{ids.run_text(run_id)} has no step {key!r}")


def _attempt(row: Attempt) -> AttemptView:
    return AttemptView(
        n=row.n,
        state=row.state,
        worker=row.owner,
        lease=row.lease,
        lease_until=moment(row.expires_at),
        heartbeat_at=moment(row.beat_at),
        started_at=moment(row.granted_at),
        ended_at=maybe(row.ended_at),
        reason=row.reason,
        progress=row.progress,
        costs=costs_of(meta_of(row.cost)),
    )


async def _recorded_tries(store: Store, run_id: int, steps: list[Step], row: Checkpoint) -> list[AttemptView]:
    """The tries of what was recorded in a body: those that failed from the history, the last from its row."""
    events: list[Event] = await store.read("events_of", run_id) if row.tries > 1 else []
    payloads: list[Payload] = await store.read("payloads_of", run_id)
    bodies = {one.ref: one.body for one in payloads}
    tried = [
        AttemptView(
            n=one.attempt,
            state=one.state,
            worker=one.worker,
            ended_at=one.at,
            reason=one.code or None,
            message=one.message,
        )
        for one in tries_of(events, steps, bodies)
        if one.step == row.name and one.attempt < row.tries
    ]
    meta = meta_of(row.meta)
    said = decoded(bodies.get(row.output_ref or 0)) if row.state == "failed" else None
    last = AttemptView(
        n=row.tries,
        state={"started": "running", "done": "succeeded"}.get(row.state, "failed"),
        started_at=moment(row.at - (meta.us or 0)),
        ended_at=None if row.state == "started" else moment(row.at),
        reason="done" if row.state == "done" else row.error,
        message="" if said is None else str(said),
        costs=costs_of(meta),
    )
    return [*tried, last]


async def checkpoints_of(store: Store, run_id: int) -> list[CheckpointView]:
    """Every checkpoint of a run, in the order of recording."""
    steps: list[Step] = await store.read("steps_of", run_id)
    names = {step.idx: step.name for step in steps}
    rows: list[Checkpoint] = await store.read("checkpoints_of", run_id)
    payloads: list[Payload] = await store.read("payloads_of", run_id)
    bodies = {one.ref: one.body for one in payloads}
    return [_checkpoint(row, names, bodies) for row in sorted(rows, key=lambda row: (row.idx, row.no))]


def _checkpoint(row: Checkpoint, names: dict[int, str], bodies: dict[int, bytes]) -> CheckpointView:
    meta, said = meta_of(row.meta), decoded(bodies.get(row.output_ref or 0))
    failed = row.state == "failed"
    return CheckpointView(
        key=row.name,
        step=names.get(row.idx, str(row.idx)),
        no=row.no,
        state=row.state,
        attempt=row.n,
        tries=row.tries,
        retry_at=maybe(row.next_at),
        resumable=row.resumable,
        idempotent=row.idempotent,
        recorded_at=moment(row.at),
        seconds=None if meta.us is None else meta.us / 1e6,
        agent=meta.agent,
        costs=costs_of(meta),
        code=row.error,
        input=decoded(bodies.get(row.input_ref or 0)),
        output=None if failed else said,
        error=said if failed else None,
    )
