"""Rows for tests: `a_run(7, status="running")` has plausible defaults, `filled(Run)` has every field set."""

from __future__ import annotations

from typing import Any, TypeVar, get_args, get_type_hints

from tenure.kernel.act_rows import ReceiptRow, VerdictRow
from tenure.kernel.run_rows import (
    ApprovalRow,
    AttemptRow,
    CheckpointRow,
    ChildRow,
    EventRow,
    IdempotencyRow,
    InboxRow,
    OutboxRow,
    PayloadRow,
    Row,
    RunRow,
    RunSpecRow,
    StepRow,
    WaitRow,
)

R = TypeVar("R", bound=Row)

DONE: dict[str, Any] = {"status": "succeeded", "finished_at": 4000, "duration_us": 3000, "reason": "done"}
"""Columns of a finished run."""
ENDED: dict[str, Any] = {"state": "succeeded", "lease": "completed", "ended_at": 4000}
"""Columns of an ended attempt."""


def _of(row: type[R], *, by_default: dict[str, Any], given: dict[str, Any]) -> R:
    return row(**{**by_default, **given})


def a_run(run_id: int, **given: Any) -> RunRow:
    default: dict[str, Any] = {
        "id": run_id, "tenant": "acme", "workspace": "main", "workflow": "build", "code_version": "1",
        "profile": "agent-runs", "repo": None, "concurrency_key": None, "rated": False, "linked": False,
        "timeout_us": None, "created_at": 1000, "trace": None,
    }  # fmt: skip
    return _of(RunRow, by_default=default, given=given)


def a_spec(run_id: int, **given: Any) -> RunSpecRow:
    default: dict[str, Any] = {
        "run_id": run_id, "tenant": "acme", "source": "api", "idempotency_key": None, "request_hash": b"hash",
        "trigger_type": "api", "trigger_ref": None, "requester": "person_1", "priority": 0,
        "concurrency_mode": "queue", "not_before": None, "wall_clock": False, "input_ref": None, "parent_id": None,
        "parent_no": None, "resumed_from": None, "resume_count": 0, "rerun_of": None, "attempt_no": 1,
        "labels": "{}", "metadata": "{}", "salt": b"salt",
    }  # fmt: skip
    return _of(RunSpecRow, by_default=default, given=given)


def a_step(run_id: int, idx: int, **given: Any) -> StepRow:
    default: dict[str, Any] = {
        "run_id": run_id, "idx": idx, "name": f"step-{idx}", "kind": "work", "tool": "python", "queue": "q1",
        "tenant": "acme", "workspace": "main", "workflow": "build", "priority": 0, "required": True,
        "dependents": "", "max_attempts": 3, "timeout_us": None, "lease_us": 30_000_000, "idempotency_key": "k",
        "input_ref": None, "spec": None, "created_at": 1000,
    }  # fmt: skip
    return _of(StepRow, by_default=default, given=given)


def a_ready_step(run_id: int, idx: int, **given: Any) -> StepRow:
    return a_step(run_id, idx, **{"state": "ready", "claimable": True, "ready_at": 1000, **given})


def an_attempt(run_id: int, idx: int, n: int, **given: Any) -> AttemptRow:
    default: dict[str, Any] = {
        "run_id": run_id, "idx": idx, "n": n, "tenant": "acme", "workflow": "build", "owner": "worker-1",
        "granted_at": 1000, "timeout_at": None, "session": None, "state": "running", "lease": "active", "expires_at": 5000,
        "beat_at": 1000,
    }  # fmt: skip
    return _of(AttemptRow, by_default=default, given=given)


def a_checkpoint(run_id: int, idx: int, name: str, no: int, **given: Any) -> CheckpointRow:
    default: dict[str, Any] = {
        "run_id": run_id, "idx": idx, "name": name, "no": no, "state": "done", "n": 1, "seq": no,
        "resumable": True, "idempotent": False, "arguments": b"digest", "at": 1000,
    }  # fmt: skip
    return _of(CheckpointRow, by_default=default, given=given)


def a_wait(run_id: int, no: int, **given: Any) -> WaitRow:
    default: dict[str, Any] = {
        "run_id": run_id, "no": no, "idx": 0, "kind": "event", "name": "built", "label": f"wait-{no}",
        "gate": False, "fatal": False, "opened_at": 1000, "expires_at": None,
    }  # fmt: skip
    return _of(WaitRow, by_default=default, given=given)


def an_approval(run_id: int, no: int, **given: Any) -> ApprovalRow:
    default: dict[str, Any] = {
        "run_id": run_id, "no": no, "tenant": "acme", "tier": "high", "people": 1, "requester": "person_1",
        "digest": b"", "revision": 1, "requested_at": 1000, "expires_at": None, "question_ref": None,
    }  # fmt: skip
    return _of(ApprovalRow, by_default=default, given=given)


def a_message(run_id: int, no: int, event_id: str, **given: Any) -> InboxRow:
    default: dict[str, Any] = {
        "run_id": run_id, "no": no, "name": "built", "event_id": event_id, "source": "api", "payload_ref": None,
        "received_at": 1000,
    }  # fmt: skip
    return _of(InboxRow, by_default=default, given=given)


def a_child(run_id: int, child_id: int, **given: Any) -> ChildRow:
    default: dict[str, Any] = {
        "run_id": run_id,
        "child_id": child_id,
        "idx": 0,
        "on_close": "cancel",
        "wait_no": 1,
    }
    return _of(ChildRow, by_default=default, given=given)


def a_payload(run_id: int, ref: int) -> PayloadRow:
    return PayloadRow(run_id, ref, b"salt", b"\x00body")


def an_event(run_id: int, seq: int, **given: Any) -> EventRow:
    default: dict[str, Any] = {
        "run_id": run_id, "seq": seq, "kind": "step", "at": 1000 + seq, "actor": "worker-1", "initiator": "person_1",
        "cause": "command_1", "body": b"{}", "hash": b"hash-%d" % seq,
    }  # fmt: skip
    return _of(EventRow, by_default=default, given=given)


def an_outbox_row(run_id: int, seq: int, part: int = 0, **given: Any) -> OutboxRow:
    default: dict[str, Any] = {
        "run_id": run_id, "seq": seq, "part": part, "topic": "child_finished", "target_id": None, "body": b"{}",
        "created_at": 1000,
    }  # fmt: skip
    return _of(OutboxRow, by_default=default, given=given)


def a_verdict(run_id: int, no: int, **given: Any) -> VerdictRow:
    default: dict[str, Any] = {
        "run_id": run_id, "no": no, "tenant": "acme", "idx": 0, "label": "label.add#1", "connector": "github",
        "operation": "label.add", "digest": b"d" * 32, "version": 1, "outcome": "allow", "rules": "[]", "at": 1000,
    }  # fmt: skip
    return _of(VerdictRow, by_default=default, given=given)


def a_receipt(run_id: int, no: int, **given: Any) -> ReceiptRow:
    default: dict[str, Any] = {
        "run_id": run_id, "no": no, "tenant": "acme", "idx": 0, "label": "label.add#1", "try_no": 1,
        "connector": "github", "operation": "label.add", "tier": "low", "name": f"key {run_id}/{no}",
        "digest": b"d" * 32, "repeats": "none", "reversible": True, "verdict_no": 1, "approval_no": None, "n": 1,
        "intent_at": 1000, "call_by": 2000, "request_ref": None, "before_ref": None,
    }  # fmt: skip
    return _of(ReceiptRow, by_default=default, given=given)


def an_idempotency_record(name: str, **given: Any) -> IdempotencyRow:
    default: dict[str, Any] = {
        "tenant": "acme", "source": "api", "name": name, "run_id": None, "status": "completed",
        "request_hash": b"hash", "response": b"ok", "error": None, "created_at": 1000, "updated_at": 1000,
        "expires_at": 5000, "lock_expires_at": None,
    }  # fmt: skip
    return _of(IdempotencyRow, by_default=default, given=given)


_KNOWN: dict[type[Row], dict[str, Any]] = {
    RunRow: {
        "status": "running",
        "finished_at": None,
        "duration_us": None,
        "reason": None,
        "sealed_at": None,
    },
    RunSpecRow: {"concurrency_mode": "supersede"},
    StepRow: {
        "kind": "work",
        "state": "ready",
        "finished_at": None,
        "reason": None,
        "resolution": "each",
        "reused_run": None,
        "reused_step": None,
    },
    AttemptRow: {"state": "failed", "lease": "completed"},
    CheckpointRow: {"state": "failed"},
    WaitRow: {"state": "settled", "wake_at": None},
    ApprovalRow: {"status": "approved", "people": 2, "votes": "u_ada u_bob"},
    ChildRow: {"on_close": "wait"},
    IdempotencyRow: {"status": "failed"},
    VerdictRow: {"outcome": "deny"},
    ReceiptRow: {"state": "reversed", "repeats": "marker"},
}
"""Values that the schema requires of a row with every field set."""


def filled(row: type[R], start: int = 1000, **given: Any) -> R:
    """A row with every field set to a different value, numbered from `start` in column order."""
    values: dict[str, Any] = {}
    hints = get_type_hints(row)
    for number, name in enumerate(row.__struct_fields__, start=start):
        plain = next((hint for hint in get_args(hints[name]) if hint is not type(None)), hints[name])
        values[name] = {
            int: number, str: f"{name} {number}", bytes: b"%s %d" % (name.encode(), number), bool: True
        }[plain]  # fmt: skip
    return row(**{**values, **_KNOWN.get(row, {}), **given})
