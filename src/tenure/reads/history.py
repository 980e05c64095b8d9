"""A run's history as people see it: its events, the attempts of its steps, and its checkpoints.

Laws:
1. An event is shown from its own contents, except the names of steps and waits: an event has only their numbers.
2. A failed attempt is read from events and their payloads, because a step's row knows only its last attempt. The last attempt
   of a step that has finally failed is not included: the step itself shows it.
3. A step's key is its name in the list of steps. A checkpoint has attempts too, but no leases of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.errors import TenureError
from tenure.kernel import history
from tenure.kernel.run_rows import AttemptRow, CheckpointRow, EventRow, StepRow, WaitRow
from tenure.reads.payloads import decode_payload, read_bodies
from tenure.reads.steps import parse_meta, total_step_costs, wait_label
from tenure.shapes.events import Event, Transition
from tenure.shapes.steps import Attempt, Checkpoint, FailedAttempt
from tenure.store.port import Store
from tenure.store.transactions import read_rows

RUN = "run"
"""The name of the body of a code-first run: it is the run itself."""
_OVER = frozenset({"failed", "timed_out", "canceled"})


def _notes(changed: dict[str, Any], labels: Mapping[str, str], context: Mapping[str, Any]) -> Iterator[str]:
    """What an event changed, as lines of text."""
    for key, row in changed.get("checkpoint", {}).items():
        name = key.partition("/")[2]
        tries = f", try {row['tries']}" if row.get("tries", 1) > 1 else ""
        error = f" ({row['error']})" if row.get("error") else ""
        yield f"{name}: {row.get('state', 'recorded')}{error}{tries}"
    for key, row in changed.get("wait", {}).items():
        name = wait_label(row.get("label") or labels.get(key, key))
        yield f"{name}: {row.get('outcome') or row.get('state', 'waits')}"
    for one in context.get("skipped", ()):
        yield f"{one['name']}: skipped ({one['reason']}: {one['condition']})"
    for one in context.get("reused", ()):
        yield f"{one['name']}: reused from {ids.run_text(one['run'])} step {one['of']}"
    for key, row in changed.get("receipt", {}).items():
        if "state" in row:
            yield f"{row.get('label') or f'receipt {key}'}: {row['state']}"


def to_event(row: EventRow, names: Mapping[int, str], labels: Mapping[str, str] | None = None) -> Event:
    """An event with its edges. `names` has the steps by index, `labels` the waits by number."""
    body = history.decode_body(row)
    edges = [
        Transition(
            machine,
            before,
            after,
            owner,
            names.get(entry["step"], str(entry["step"])) if "step" in entry else None,
            entry.get("attempt"),
        )
        for entry in body.get("edges", ())
        for machine, before, after, owner in entry["edges"]
    ]
    return Event(
        seq=row.seq,
        at=to_datetime(row.at),
        kind=row.kind,
        actor=row.actor,
        initiator=row.initiator,
        cause=row.cause,
        edges=tuple(edges),
        notes=tuple(_notes(body.get("set", {}), labels or {}, body.get("context", {}))),
        context=body.get("context", {}),
        hash=row.hash.hex(),
    )


def find_failed_attempts(
    events: Iterable[EventRow], steps: Iterable[StepRow], bodies: Mapping[int, bytes]
) -> list[FailedAttempt]:
    """The failed attempts in order of time (law 2)."""
    fold = _AttemptFold({str(s.idx): RUN if s.kind == "body" else s.name for s in steps}, bodies)
    return [failed for event in events for failed in fold.apply(event)]


class _AttemptFold:
    def __init__(self, names: Mapping[str, str], bodies: Mapping[int, bytes]) -> None:
        self._names = names
        self._bodies = bodies
        self._checkpoints: dict[str, dict[str, Any]] = {}
        self._owners: dict[str, str] = {}
        self._lost: set[str] = set()
        """The steps whose last attempt was lost."""

    def apply(self, event: EventRow) -> Iterator[FailedAttempt]:
        changed: dict[str, Any] = history.decode_body(event).get("set", {})
        for key, row in changed.get("checkpoint", {}).items():
            yield from self._checkpoint(event, key, row)
        for key, row in changed.get("attempt", {}).items():
            yield from self._attempt(event, key, row, changed.get("step", {}))

    def _checkpoint(self, event: EventRow, key: str, row: dict[str, Any]) -> Iterator[FailedAttempt]:
        known = self._checkpoints.setdefault(key, {})
        known |= row
        if known.get("state") != "failed" or known.get("next_at") is None or "output_ref" not in row:
            return
        yield FailedAttempt(
            step=key.partition("/")[2],
            at=to_datetime(event.at),
            state="failed",
            attempt=known.get("tries", 1),
            worker=event.actor.removeprefix("worker:"),
            code=known.get("error") or "",
            message=self._message(known["output_ref"]),
        )

    def _attempt(
        self, event: EventRow, key: str, row: dict[str, Any], steps: dict[str, Any]
    ) -> Iterator[FailedAttempt]:
        idx, _, n = key.partition("/")
        if idx not in self._names:
            return  # the plan step
        common: dict[str, Any] = {
            "step": self._names[idx],
            "at": to_datetime(event.at),
            "attempt": int(n),
        }
        if "owner" in row:
            self._owners[key] = row["owner"]
            if idx in self._lost:
                self._lost.discard(idx)
                yield FailedAttempt(**common, state="taken over", worker=row["owner"])
        step = steps.get(idx, {})
        if row.get("state") not in ("failed", "stale", "timed_out") or step.get("state") in _OVER:
            return
        lost = row["state"] == "stale"
        if lost:
            self._lost.add(idx)
        yield FailedAttempt(
            **common,
            state="lost" if lost else "failed",
            worker=self._owners.get(key, ""),
            code=row.get("reason") or step.get("last_error") or "",
            message="" if lost else self._message(step.get("error_ref")),
        )

    def _message(self, ref: int | None) -> str:
        value = decode_payload(self._bodies.get(ref or 0))
        return "" if value is None else str(value)


# -------------------------------------------------------------------------- attempts and checkpoints


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
    body = decode_payload(bodies.get(row.output_ref or 0)) if row.state == "failed" else None
    last = Attempt(
        n=row.tries,
        state={"started": "running", "done": "succeeded"}.get(row.state, "failed"),
        started_at=to_datetime(row.at - (meta.us or 0)),
        ended_at=None if row.state == "started" else to_datetime(row.at),
        reason="done" if row.state == "done" else row.error,
        message="" if body is None else str(body),
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
    meta, body = parse_meta(row.meta), decode_payload(bodies.get(row.output_ref or 0))
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
        output=None if failed else body,
        error=body if failed else None,
    )
