"""A creation whose idempotency key has been used.

Laws:
1. Never a second run, whatever the key's record says: the run has its key for good (decision 8).
2. Where the request has a record (`recorded`), what was answered is repeated while it is kept, another request is
   refused, and afterwards the run is named. Where it has none (`same_key`), the run itself stands for its answer.
"""

from __future__ import annotations

from tenure import ids
from tenure.clock import us
from tenure.errors import Detail, TenureError
from tenure.kernel.commands import CreateRun
from tenure.kernel.decide.plans import Created
from tenure.kernel.model import CLOSED_RUN, Idempotency, Run, RunSpec
from tenure.limits import IDEMPOTENCY_DONE_SECONDS, IDEMPOTENCY_FAILED_SECONDS


def same_key(c: CreateRun, spec: RunSpec, run: Run | None, now: int) -> Created:
    """The same request gets its run, another one is refused (decision 18), and once the answer is no longer kept the
    run is named instead."""
    if run is None:
        raise expired(spec.run_id, "has been deleted since")
    if run.finished_at is not None:
        kept = IDEMPOTENCY_DONE_SECONDS if run.status == "succeeded" else IDEMPOTENCY_FAILED_SECONDS
        if run.finished_at + us(kept) <= now:
            raise expired(spec.run_id, "finished long ago")
    if spec.request_hash == c.request_hash:
        return Created(run.id, run.status, again=True)
    name = ids.run_text(spec.run_id)
    if run.status in CLOSED_RUN:
        raise TenureError("IDEMPOTENCY_KEY_REUSED", f"the key made {name} from another request", run_id=name)
    raise TenureError("IDEMPOTENCY_CONFLICT", f"the key is in use by {name} for another request", run_id=name)


def recorded(c: CreateRun, spec: RunSpec | None, run: Run | None, record: Idempotency | None) -> Created:
    """What a creation with a record of its own is answered where the key has a run, a record that is still kept, or both."""
    if record is None:
        assert spec is not None, "a key without a run and without a record has not been used"
        raise expired(spec.run_id, "was made long ago" if run is not None else "has been deleted since")
    if spec is None or record.status == "processing" or record.request_hash != c.request_hash:
        raise refused(record)
    return Created(spec.run_id, "" if run is None else run.status, again=True, record=record)


def expired(run_id: int, what: str) -> TenureError:
    """The answer to a key is no longer kept, but the run it made is known."""
    name = ids.run_text(run_id)
    return TenureError(
        "IDEMPOTENCY_EXPIRED", f"the key made {name}, which {what}", (Detail("run_id", name),), run_id=name
    )


def refused(record: Idempotency) -> TenureError:
    """What is said to another request under a key that is taken (decision 18)."""
    run = None if record.run_id is None else ids.run_text(record.run_id)
    named = "" if run is None else f" (about {run})"
    details = () if run is None else (Detail("run_id", run),)
    if record.status == "processing":
        said = f"another request has this key and is in process{named}"
        return TenureError("IDEMPOTENCY_CONFLICT", said, details, run_id=run)
    return TenureError("IDEMPOTENCY_KEY_REUSED", f"another request had this key{named}", details, run_id=run)
