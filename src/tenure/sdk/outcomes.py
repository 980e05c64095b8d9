"""What something came to, in the words that are recorded: failures, refusals, and what is told beside a result."""

from __future__ import annotations

import time
import traceback
from typing import Any

import msgspec

from tenure.errors import CODES, TenureError
from tenure.kernel import retry
from tenure.kernel.costs import Cost, added_up
from tenure.kernel.decide.checks import is_name
from tenure.kernel.profile import Profile
from tenure.kernel.retry import Rng
from tenure.limits import CODE_CHARS_MAX, LABEL_CHARS_MAX, META_BYTES_MAX
from tenure.sdk.definitions import Step
from tenure.sdk.faults import ActionLate, ApprovalExpired, ApprovalRejected, Failure, ResumeFailed, StepFailed
from tenure.sdk.frame import Frame
from tenure.store.port import Waited

MESSAGE_CHARS_MAX = 4_000
WORD_CHARS_MAX = 100

LOST = frozenset({"LEASE_STALE", "LEASE_NOT_FOUND", "RUN_NOT_FOUND", "RUN_TERMINAL_STATE"})
"""Refusals that mean: this lease is over."""

_encode_meta = msgspec.json.Encoder().encode


class _Meta(msgspec.Struct, omit_defaults=True):
    """What is told of a checkpoint beside its result (GWI-17)."""

    us: int
    agent: str | None = None
    costs: list[Cost] = []
    tokens_in: int = 0
    tokens_out: int = 0


def told_of(step: Step[..., Any], frame: Frame, begun: int) -> str:
    """What is recorded of a try beside its result, as a JSON object."""
    spent = (time.perf_counter_ns() - begun) // 1000
    if step.agent is None and not frame.costs:
        return f'{{"us":{spent}}}'
    return _told(spent, step.agent, frame.costs, META_BYTES_MAX)


def told_of_tool(costs: list[Cost], begun: int) -> str | None:
    """What is kept of a try of a tool that has told of costs."""
    if not costs:
        return None
    return _told((time.perf_counter_ns() - begun) // 1000, None, costs, LABEL_CHARS_MAX)


def _told(spent: int, agent: str | None, costs: list[Cost], bytes_max: int) -> str:
    tokens_in = sum(cost.tokens_in for cost in costs)
    tokens_out = sum(cost.tokens_out for cost in costs)
    told = _Meta(spent, agent and agent[:WORD_CHARS_MAX], added_up(costs), tokens_in, tokens_out)
    most = len(told.costs)
    while len(encoded := _encode_meta(told)) > bytes_max and most > 1:
        most //= 2
        told.costs = added_up(told.costs, most)
    return encoded.decode()


def failure_of(fault: BaseException) -> tuple[str, str, bool | None]:
    """Code, message and whether it may be tried again (None: the profile says) of something that went wrong."""
    if isinstance(fault, Failure):
        code = fault.code if is_name(fault.code, 1, CODE_CHARS_MAX) else "STEP_FAILED"
        return code, fault.message, fault.retryable
    if isinstance(fault, StepFailed):
        return fault.code, fault.told() if fault.code in CODES else str(fault), False
    if isinstance(fault, TenureError):
        return fault.code, fault.message, fault.retryable
    if isinstance(fault, ActionLate):
        return "ACTION_LATE", str(fault), True
    if isinstance(fault, ResumeFailed):
        return "RUN_RESUME_FAILED", str(fault), False
    try:
        text = str(fault)
    except Exception:
        text = "(it has no text)"
    if isinstance(fault, TimeoutError):
        return "STEP_TIMED_OUT", text or "it took too long", None
    where = traceback.extract_tb(fault.__traceback__)
    at = f" ({where[-1].filename.rpartition('/')[2]}:{where[-1].lineno})" if where else ""
    return "STEP_FAILED", f"{type(fault).__name__}: {text}{at}"[:MESSAGE_CHARS_MAX], None


def pause_us(
    step: Step[..., Any], profile: Profile, code: str, retryable: bool | None, tries: int, chance: Rng
) -> int | None:
    """How long to wait before the next try of a step that has failed; None: there is none."""
    if retryable is None:
        retryable = profile.retryable(code)
    retries = step.retries
    if retries is None:  # what must not be done twice is tried again only where that was asked for
        retries = profile.timing.retries if step.idempotent else 0
    if not retryable or tries > retries:
        return None
    jitter = step.jitter if step.jitter is not None else profile.timing.jitter
    return retry.delay_us(step.backoff or profile.timing.backoff, tries, jitter, chance, None)


def refusal(row: Waited, action: str) -> TenureError | None:
    """What an approval that was not given raises."""
    if row.outcome == "rejected":
        reason = None if row.reason is None else msgspec.json.decode(row.reason)
        return ApprovalRejected(action, reason)
    if row.outcome == "expired":
        return ApprovalExpired(action)
    return None
