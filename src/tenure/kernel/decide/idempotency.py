"""Answers a creation whose idempotency key was used before.

Laws:
1. There is never a second run, whatever the key's record says: the run keeps its key forever (rule 8).
2. With a record (`answer_recorded_key`), the stored answer is repeated until it expires, a different request is
   refused, and after expiry the run is named. Without a record (`answer_same_key`), the run itself is the answer.
"""

from __future__ import annotations

from tenure import ids
from tenure.clock import us
from tenure.errors import Detail, TenureError
from tenure.kernel.commands import CreateRun
from tenure.kernel.decide.creation import CreatedRun
from tenure.kernel.run_rows import CLOSED_RUN, IdempotencyRow, RunRow, RunSpecRow
from tenure.limits import IDEMPOTENCY_DONE_SECONDS, IDEMPOTENCY_FAILED_SECONDS


def answer_same_key(c: CreateRun, spec: RunSpecRow, run: RunRow | None, now: int) -> CreatedRun:
    """The same request gets its run, and a different one is refused (rule 18). After expiry the run is named
    instead."""
    if run is None:
        raise key_expired_error(spec.run_id, "has been deleted since")
    if run.finished_at is not None:
        kept = IDEMPOTENCY_DONE_SECONDS if run.status == "succeeded" else IDEMPOTENCY_FAILED_SECONDS
        if run.finished_at + us(kept) <= now:
            raise key_expired_error(spec.run_id, "finished long ago")
    if spec.request_hash == c.request_hash:
        return CreatedRun(run.id, run.status, again=True)
    name = ids.run_text(spec.run_id)
    if run.status in CLOSED_RUN:
        raise TenureError(
            "IDEMPOTENCY_KEY_REUSED", f"the key created {name} from another request", run_id=name
        )
    raise TenureError("IDEMPOTENCY_CONFLICT", f"the key is in use by {name} for another request", run_id=name)


def answer_recorded_key(
    c: CreateRun, spec: RunSpecRow | None, run: RunRow | None, record: IdempotencyRow | None
) -> CreatedRun:
    """The answer if the key has a run, a stored record, or both."""
    if record is None:
        assert spec is not None, "a key without a run and without a record has not been used"
        raise key_expired_error(
            spec.run_id, "was created long ago" if run is not None else "has been deleted since"
        )
    if spec is None or record.status == "processing" or record.request_hash != c.request_hash:
        raise key_refused_error(record)
    return CreatedRun(spec.run_id, "" if run is None else run.status, again=True, record=record)


def key_expired_error(run_id: int, what: str) -> TenureError:
    """The stored answer has expired, but the run is known."""
    name = ids.run_text(run_id)
    return TenureError(
        "IDEMPOTENCY_EXPIRED", f"the key created {name}, which {what}", (Detail("run_id", name),), run_id=name
    )


def key_refused_error(record: IdempotencyRow) -> TenureError:
    """The refusal of a different request under a used key (rule 18)."""
    run = None if record.run_id is None else ids.run_text(record.run_id)
    named = "" if run is None else f" (about {run})"
    details = () if run is None else (Detail("run_id", run),)
    if record.status == "processing":
        message = f"another request with this key is being processed{named}"
        return TenureError("IDEMPOTENCY_CONFLICT", message, details, run_id=run)
    return TenureError(
        "IDEMPOTENCY_KEY_REUSED", f"the key was used for another request{named}", details, run_id=run
    )
