"""A run as the document of a profile: today that of git-with-intent, letter for letter (its section 6.2).

Laws:
1. Nothing is stored for it: a document is made from the same rows as every other view.
2. A field without a value is left out if the seed marks it as optional; else it is empty.
3. The parts of a document have paths: `steps/NAME`, `checkpoints/NAME`, `idempotency/KEY`.
4. Fields that Tenure has no column for (pull request, correlation) are read from the run's metadata, under the document's own
   names.
5. The compensation log comes from the runs that undo the run: from their receipts while they work, and from their results
   afterwards. Nobody can write it.
6. The key of a hook's run contains the id that the sender gave to the delivery, and that is the document's `webhookEventId`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from tenure import ids
from tenure.clock import to_datetime, to_optional_datetime
from tenure.errors import TenureError
from tenure.kernel import history, profiles
from tenure.kernel.act_rows import ReceiptRow
from tenure.kernel.machines import LIVE_LEASE
from tenure.kernel.run_rows import (
    CONDITION_FALSE,
    AttemptRow,
    CheckpointRow,
    EventRow,
    IdempotencyRow,
    RunRow,
    RunSpecRow,
    StepRow,
    WaitRow,
)
from tenure.reads.payloads import decode_payload, read_bodies, read_payload
from tenure.reads.run_words import run_word
from tenure.reads.runs import RunReader, step_word
from tenure.reads.steps import parse_meta, read_shown_steps, reused_result, wait_label
from tenure.shapes.documents import (
    CancellationDocument,
    CheckpointDocument,
    CompensationDocument,
    IdempotencyDocument,
    RunDocument,
    StepDocument,
    TokensDocument,
    TriggerDocument,
)
from tenure.shapes.receipts import UndoLine, UndoResult
from tenure.store.idempotency import decode_response
from tenure.store.port import Store
from tenure.store.transactions import read_first, read_rows

PROFILE = "git-with-intent"
SCHEMA_VERSION = 1
_SOURCES = ("ui", "cli", "webhook", "scheduled", "api")
_REPLAY = re.compile(r"(:replay:\d+)+$")
_UNDO_OUTCOMES = {"succeeded": "undone", "intent": "undoing", "unknown": "unsettled", "failed": "failed"}
"""The state of a reversal's receipt -> the outcome in the compensation log."""


class _Rows(msgspec.Struct, frozen=True):
    run: RunRow
    spec: RunSpecRow
    steps: list[StepRow]
    attempts: list[AttemptRow]
    checkpoints: list[CheckpointRow]
    waits: list[WaitRow]
    events: list[EventRow]
    bodies: dict[int, bytes]
    record: IdempotencyRow | None
    compensations: list[CompensationDocument] | None

    def body(self, ref: int | None) -> Any:
        return decode_payload(self.bodies.get(ref or 0))


async def read_document(
    views: RunReader, store: Store, run_id: int, profile: str, at: str | None = None
) -> Any:
    """The run's document in a profile's form, or the part of it at a path."""
    if profile != PROFILE:
        raise TenureError("INVALID_INPUT", f"{profile or 'no profile'!r} has no document; {PROFILE} has one")
    run = await views.row(run_id)
    read = store.read
    spec = await views.spec(run_id)
    records: list[IdempotencyRow] = []
    if at is not None and spec.idempotency_key is not None:
        records = await read("key_record", run.tenant, spec.source, spec.idempotency_key)
    rows = _Rows(
        run,
        spec,
        await read_shown_steps(store, run_id),
        await read("attempts_of", run_id),
        await read("checkpoints_of", run_id),
        await read("waits_of", run_id),
        await read("events_of", run_id),
        await read_bodies(store, run_id),
        next((record for record in records if record.run_id in (None, run_id)), None),
        await _read_compensations(store, run) if at is None else None,
    )
    return _run(rows) if at is None else _make_part(rows, at)


def _make_part(rows: _Rows, path: str) -> Any:
    kind, slash, name = path.partition("/")
    checkpoints, key = sorted(rows.checkpoints, key=lambda c: c.no), rows.spec.idempotency_key
    makers: dict[str, dict[str, Callable[[], Any]]] = {
        "steps": {s.name: partial(_step, rows, s) for s in rows.steps},
        "checkpoints": {c.name: partial(_checkpoint, rows, c) for c in checkpoints},
        "idempotency": {key: partial(_idempotency, rows)} if key else {},
    }
    if kind not in makers:
        raise TenureError(
            "INVALID_INPUT", f"below a run there are {', '.join(makers)}, not {kind!r}: steps/NAME, or steps"
        )
    known = makers[kind]
    if not slash:
        return [make() for make in known.values()]
    if name not in known:
        listed = ", ".join(known) or "none"
        raise TenureError("STEP_NOT_FOUND", f"{ids.run_text(rows.run.id)} has no {path}; there are: {listed}")
    return known[name]()


def _run(rows: _Rows) -> RunDocument:
    run, spec = rows.run, rows.spec
    profile = profiles.get(PROFILE)
    extra: dict[str, Any] = msgspec.json.decode(spec.metadata)
    beats = [a.beat_at for a in rows.attempts]
    ended_well = run.status == "succeeded"
    source = spec.trigger_type if spec.trigger_type in _SOURCES else "api"
    return RunDocument(
        id=ids.run_text(run.id),
        schema_version=SCHEMA_VERSION,
        tenant_id=run.tenant,
        repo_id=run.repo or "",
        pr_id=str(extra.get("prId", "")),
        pr_url=str(extra.get("prUrl", "")),
        type=str(extra.get("type", run.workflow)),
        status=run_word(profile, run, rows.events),
        current_step=_current(rows),
        trigger=TriggerDocument(
            source=source,
            user_id=spec.requester or None,
            webhook_event_id=_webhook_event_id(spec) if source == "webhook" else None,
        ),
        idempotency_key=spec.idempotency_key,
        a2a_correlation_id=extra.get("a2aCorrelationId"),
        last_heartbeat_at=to_datetime(max(beats)) if beats else None,
        result=rows.body(run.output_ref) if ended_well else None,
        error=_error(run, rows.body(run.error_ref)),
        cancellation=_cancellation(rows),
        compensation_log=rows.compensations,
        resumed_from=None if spec.resumed_from is None else ids.run_text(spec.resumed_from),
        resume_count=spec.resume_count or None,
        created_at=to_datetime(run.created_at),
        updated_at=to_datetime(run.event_at),
        completed_at=to_optional_datetime(run.finished_at),
        duration_ms=None if run.duration_us is None else run.duration_us // 1000,
    )


def _webhook_event_id(spec: RunSpecRow) -> str | None:
    """The id of the delivery, as its sender gave it (law 6). A program that receives webhooks itself gives it as the trigger's ref."""
    key = spec.idempotency_key
    if key is None or spec.source not in _EVENT_ID_PARTS:
        return spec.trigger_ref
    event = key.split(":", _EVENT_ID_PARTS[spec.source])[-1]
    if (
        key.startswith("cloudevents:") and " " in event
    ):  # the source of a CloudEvent, which has no blank, and its id
        event = event.partition(" ")[2]
    return _REPLAY.sub("", event)


_EVENT_ID_PARTS = {"github_webhook": 1, "slack": 2, "webhook": 2}
"""Source of a hook's key -> how many parts precede the event's id: `github:ID`, `slack:TEAM:ID`, `webhook:HOOK:ID`."""


async def _read_compensations(store: Store, run: RunRow) -> list[CompensationDocument] | None:
    """The compensation log (law 5): empty for a cancelled run that was not undone, None for any other."""
    log: list[CompensationDocument] = []
    if run.receipts:
        steps = {step.idx: step.name for step in await read_rows(store, StepRow, "steps_of", run.id)}
        done = {row.no: row for row in await read_rows(store, ReceiptRow, "receipts_of", run.id)}
        for found in await store.read("undos_of", run.id):
            log += await _read_undo(store, run, found.run_id, done, steps)
    return log if log or run.status == "canceled" else None


async def _read_undo(
    store: Store, run: RunRow, undo_id: int, done: dict[int, ReceiptRow], steps: dict[int, str]
) -> list[CompensationDocument]:
    """The entries of one undo, oldest first. Its result knows what was not tried, and why."""
    undo = await read_first(store, RunRow, "get_run", undo_id)
    spec = await read_first(store, RunSpecRow, "get_spec", undo_id)
    if undo is None or spec is None:
        return []
    receipts = await read_rows(store, ReceiptRow, "receipts_of", undo_id)
    reversals = {row.reverses_no: row for row in sorted(receipts, key=lambda row: row.no)}
    lines: dict[int, UndoLine] = {}
    if undo.status == "succeeded":
        try:
            result = msgspec.convert(await read_payload(store, undo_id, undo.output_ref), UndoResult)
            lines = {line.receipt: line for line in result.lines}
        except msgspec.ValidationError:
            pass  # the result was erased, or is stored as an artifact: the receipts say what was done
    log = []
    for no in [*lines, *(no for no in reversals if no in done and no not in lines)]:
        row, line, by = done.get(no), lines.get(no), reversals.get(no)
        if row is None:
            continue
        at = (None if by is None else by.settled_at or by.intent_at) or undo.finished_at or undo.event_at
        log.append(
            CompensationDocument(
                receipt=ids.receipt_text(run.id, no),
                step=steps.get(row.idx, str(row.idx)),
                action=f"{row.connector}.{row.operation}",
                outcome=line.outcome
                if line is not None
                else _UNDO_OUTCOMES.get(by.state if by else "", "failed"),
                undo_run=ids.run_text(undo_id),
                requested_by=spec.requester,
                compensated_by=None if by is None else f"{by.connector}.{by.operation}",
                compensation_receipt=None if by is None else ids.receipt_text(undo_id, by.no),
                at=to_datetime(at),
                note=(line.note if line is not None else "" if by is None else by.error) or None,
            )
        )
    return log


def _error(run: RunRow, body: Any) -> str | None:
    """The code of a run that has failed, and its message if there is one."""
    if run.finished_at is None or run.status == "succeeded":
        return None
    return str(run.reason) if body is None else f"{run.reason}: {body}"


def _current(rows: _Rows) -> str | None:
    """The step that the run is at: the live step, else what it waits for; inside a body, its newest checkpoint."""
    if rows.run.finished_at is not None:
        return None
    live = {a.idx for a in rows.attempts if a.lease in LIVE_LEASE}
    waiting = next(
        (wait_label(w.label) for w in rows.waits if w.state == "open" and w.kind != "proposal"), None
    )
    at_work = next((s for s in rows.steps if s.idx in live), None)
    if at_work is None:
        return waiting or next((s.name for s in rows.steps if s.finished_at is None), None)
    if at_work.kind != "body":
        return at_work.name
    newest = max(rows.checkpoints, key=lambda c: c.no, default=None)
    return waiting or (None if newest is None else newest.name)


def _cancellation(rows: _Rows) -> CancellationDocument | None:
    run = rows.run
    if run.cancel_at is None:
        return None
    changes = ((e, history.decode_body(e).get("set", {}).get("run", {}).get("", {})) for e in rows.events)
    asked = next((event for event, columns in changes if "cancel_at" in columns), None)
    return CancellationDocument(
        requested_at=to_datetime(run.cancel_at),
        requested_by=None if asked is None else asked.actor,
        reason=run.cancel_reason,
    )


def _step(rows: _Rows, step: StepRow) -> StepDocument:
    of_step = [a for a in rows.attempts if a.idx == step.idx]
    newest = next((a for a in of_step if a.n == step.attempt), None)
    error = rows.body(step.error_ref)
    code = step.last_error or (None if step.state == "succeeded" else step.reason)
    return StepDocument(
        id=step.name,
        run_id=ids.run_text(rows.run.id),
        type=step.kind,
        status=step_word(profiles.get(PROFILE), step, newest, rows.events),
        attempt=step.attempt,
        max_attempts=step.max_attempts,
        input=rows.body(step.input_ref),
        output=rows.body(step.output_ref),
        error=code if error is None else f"{code}: {error}",
        skip_reason=f"{step.reason}: {step.condition}" if step.reason == CONDITION_FALSE else None,
        reused_from=None if (found := reused_result(step)) is None else f"{found.run}/{found.step}",
        started_at=to_datetime(min(a.granted_at for a in of_step)) if of_step else None,
        completed_at=to_optional_datetime(step.finished_at),
    )


def _checkpoint(rows: _Rows, row: CheckpointRow) -> CheckpointDocument:
    meta = parse_meta(row.meta)
    body = rows.body(row.output_ref)
    failed = row.state == "failed"
    tokens = TokensDocument(meta.tokens_in, meta.tokens_out) if meta.tokens_in or meta.tokens_out else None
    return CheckpointDocument(
        step_id=row.name,
        agent=meta.agent or "",
        status={"started": "running", "done": "completed", "failed": "failed"}[row.state],
        input=rows.body(row.input_ref),
        output=None if failed else body,
        error=None if not failed else str(row.error) if body is None else f"{row.error}: {body}",
        timestamp=to_datetime(row.at),
        resumable=row.resumable,
        idempotent=row.idempotent,
        tokens_used=tokens,
        duration_ms=None if meta.us is None else meta.us / 1000,
    )


def _idempotency(rows: _Rows) -> IdempotencyDocument:
    run, spec, record = rows.run, rows.spec, rows.record
    assert spec.idempotency_key is not None
    known = IdempotencyDocument(
        key=spec.idempotency_key,
        source=spec.source,
        tenant_id=run.tenant,
        run_id=ids.run_text(run.id),
        status="completed",
        request_hash=spec.request_hash.hex(),
        response={"id": ids.run_text(run.id)},
        created_at=to_datetime(run.created_at),
        updated_at=to_datetime(run.created_at),
        attempts=1,
    )
    if record is None:
        return known
    return msgspec.structs.replace(
        known,
        status=record.status,
        request_hash=record.request_hash.hex(),
        response=decode_payload(decode_response(record.response)[2]) if record.response else None,
        error=record.error,
        created_at=to_datetime(record.created_at),
        updated_at=to_datetime(record.updated_at),
        expires_at=to_datetime(record.expires_at),
        lock_expires_at=to_optional_datetime(record.lock_expires_at),
        attempts=record.attempts,
    )
