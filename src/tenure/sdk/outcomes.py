"""Outcomes of tries as they are recorded: failures, pauses, costs, tracebacks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
import traceback
from pathlib import Path
from traceback import TracebackException
from typing import Any

import msgspec

from tenure.errors import CODES, TenureError
from tenure.kernel import retry
from tenure.kernel.costs import Cost, sum_costs
from tenure.kernel.decide.validation import is_name
from tenure.kernel.profile import Profile
from tenure.kernel.retry import Rng
from tenure.limits import CODE_CHARS_MAX, LABEL_CHARS_MAX, META_BYTES_MAX
from tenure.sdk.definitions import StepFunction
from tenure.sdk.errors import ChildFailed, Failure, StepFailed
from tenure.sdk.exits import ActionLate, ResumeFailed
from tenure.sdk.frame import Frame
from tenure.sdk.lease_port import LeasePort
from tenure.store.replay import ReplayWait

MESSAGE_CHARS_MAX = 4_000
WORD_CHARS_MAX = 100

LEASE_OVER_CODES = frozenset({"LEASE_STALE", "LEASE_NOT_FOUND", "RUN_NOT_FOUND", "RUN_TERMINAL_STATE"})
"""Refusals that mean that the lease has ended."""


class _Meta(msgspec.Struct, omit_defaults=True):
    """What is recorded of a try in addition to its result (GWI-17)."""

    us: int
    agent: str | None = None
    costs: list[Cost] = []
    tokens_in: int = 0
    tokens_out: int = 0


def step_meta(step: StepFunction[..., Any], frame: Frame, begun: int) -> str:
    spent = (time.perf_counter_ns() - begun) // 1000
    if step.agent is None and not frame.costs:
        return f'{{"us":{spent}}}'
    return _encode(spent, step.agent, frame.costs, META_BYTES_MAX)


def tool_meta(costs: list[Cost], begun: int) -> str | None:
    if not costs:
        return None
    return _encode((time.perf_counter_ns() - begun) // 1000, None, costs, LABEL_CHARS_MAX)


def _encode(spent: int, agent: str | None, costs: list[Cost], bytes_max: int) -> str:
    meta = _Meta(
        spent,
        agent and agent[:WORD_CHARS_MAX],
        sum_costs(costs),
        tokens_in=sum(cost.tokens_in for cost in costs),
        tokens_out=sum(cost.tokens_out for cost in costs),
    )
    most = len(meta.costs)
    while len(encoded := msgspec.json.encode(meta)) > bytes_max and most > 1:
        most //= 2
        meta.costs = sum_costs(meta.costs, most)
    return encoded.decode()


def describe_failure(fault: BaseException) -> tuple[str, str, bool | None]:
    """The code and message of an error, and whether it is retryable (None: the profile decides)."""
    match fault:
        case Failure():
            code = fault.code if is_name(fault.code, 1, CODE_CHARS_MAX) else "STEP_FAILED"
            return code, fault.message, fault.retryable
        case StepFailed():
            return fault.code, fault.describe() if fault.code in CODES else str(fault), False
        case TenureError():
            return fault.code, fault.message, fault.retryable
        case ActionLate():
            return "ACTION_LATE", str(fault), True
        case ResumeFailed():
            return "RUN_RESUME_FAILED", str(fault), False
        case _:
            pass
    try:
        text = str(fault)
    except Exception:
        text = "(its str() failed)"
    if isinstance(fault, TimeoutError):
        return "STEP_TIMED_OUT", text or "timed out", None
    where = traceback.extract_tb(fault.__traceback__)
    at = f" ({where[-1].filename.rpartition('/')[2]}:{where[-1].lineno})" if where else ""
    return "STEP_FAILED", f"{type(fault).__name__}: {text}{at}"[:MESSAGE_CHARS_MAX], None


def retry_pause_us(
    step: StepFunction[..., Any], profile: Profile, code: str, retryable: bool | None, tries: int, chance: Rng
) -> int | None:
    """The pause before the next try of a failed step; None if there is no next try."""
    if retryable is None:
        retryable = profile.retryable(code)
    retries = step.retries
    if retries is None:  # a step that is not idempotent is retried only if its author asked for it
        retries = profile.timing.retries if step.idempotent else 0
    if not retryable or tries > retries:
        return None
    jitter = step.jitter if step.jitter is not None else profile.timing.jitter
    return retry.delay_us(step.backoff or profile.timing.backoff, tries, jitter, chance, None)


def check_child(row: ReplayWait, run_id: str) -> None:
    if row.child_outcome != "succeeded":
        error = None if row.child_error is None else row.child_error.decode(errors="replace")
        raise ChildFailed(run_id, row.child_outcome or "ended", row.child_code or "?", error)


# ------------------------------------------------------- tracebacks of the user's own code, for the run's log

TRACE_CHARS_MAX = 4_000
_OUR_FOLDERS = (
    *(str(Path(__file__).parent.parent / each) for each in ("sdk", "worker", "testing")),
    *(str(Path(each.__file__ or "").parent) for each in (asyncio, concurrent.futures)),
)


def user_traceback(fault: BaseException) -> str:
    """The end of an error's traceback with the user's frames only; empty if there are none. It never raises."""
    try:
        found = TracebackException.from_exception(fault)
        if not _drop_our_frames(found):
            return ""
        text = "".join(found.format()).strip()
    except Exception:  # str(error) is user code too
        return ""
    return text if len(text) <= TRACE_CHARS_MAX else f"...{text[3 - TRACE_CHARS_MAX :]}"


def _drop_our_frames(found: TracebackException) -> bool:
    """Drop our frames from a traceback and everything it chains. Returns whether frames are left."""
    frames_left = 0
    tracebacks = [found]
    for each in tracebacks:
        each.stack[:] = [frame for frame in each.stack if not frame.filename.startswith(_OUR_FOLDERS)]
        frames_left += len(each.stack)
        tracebacks += [more for more in (each.__cause__, each.__context__, *(each.exceptions or ())) if more]
    return frames_left > 0


def log_traceback(lease_port: LeasePort, key: str, fault: Exception) -> None:
    if text := user_traceback(fault):
        lease_port.log(key, "error", text, {})
