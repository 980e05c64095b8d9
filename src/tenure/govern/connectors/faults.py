"""What went wrong with a call, and what it means (decision 24).

Laws:
1. Nothing has left, 429, and 503 with Retry-After: not done, and it may be tried again. Other 4xx: not done, for good.
2. A timeout or reset after sending, other 5xx, and whatever is not understood: unknown.
3. Redirects are not followed: one that repeats the method says that nothing was done, the others do not say.
4. Retry-After is honoured, as seconds or as a date, up to a day.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Literal

from tenure.clock import SECOND_US, HostClock
from tenure.errors import CODES, TenureError
from tenure.govern.answers import Answer, AnswerLost, NotSent
from tenure.govern.connector import Fault
from tenure.govern.redacting import Redactor
from tenure.govern.wording import bounded, visible
from tenure.secrets import heard_so_far

UNREACHABLE = "CONNECTOR_UNREACHABLE"
REFUSED = "OUTGOING_REFUSED"
LATE = "ACTION_LATE"
LIMITED = "CONNECTOR_RATE_LIMITED"
REJECTED = "CONNECTOR_REJECTED"
LOST = "CONNECTOR_ANSWER_LOST"

RETRY_AFTER_SECONDS_MAX = 86_400.0
MESSAGE_CHARS_MAX = 500
_SAYS_NOT_DONE = frozenset({304, 305, 306, 307, 308})


class CallFailed(Exception):
    """A call that failed, with what that means."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def failed(
    outcome: Literal["not_done", "unknown"],
    code: str,
    message: str,
    *,
    retryable: bool = False,
    retry_after_seconds: float | None = None,
) -> CallFailed:
    """A failure, in words that fit. Secrets are taken out before they are cut in two."""
    said = bounded(visible(Redactor(heard_so_far()).text(message)), MESSAGE_CHARS_MAX)
    return CallFailed(
        Fault(
            outcome=outcome,
            code=code,
            message=said,
            retryable=retryable,
            retry_after_seconds=retry_after_seconds,
        )
    )


def fault_of(raised: BaseException) -> Fault:
    """What an exception of a call means."""
    if isinstance(raised, CallFailed):
        return raised.fault
    if isinstance(raised, NotSent):
        if raised.refused:
            return failed("not_done", REFUSED, str(raised)).fault
        return failed("not_done", LATE if raised.late else UNREACHABLE, str(raised), retryable=True).fault
    if isinstance(raised, AnswerLost):
        return failed("unknown", LOST, str(raised)).fault
    if isinstance(raised, TenureError) and raised.code in _BEFORE:
        return failed("not_done", raised.code, raised.message, retryable=CODES[raised.code].retryable).fault
    return failed("unknown", LOST, f"{type(raised).__name__}: {raised}").fault


_BEFORE = frozenset({"SECRET_UNAVAILABLE", "SECRET_NOT_A_REFERENCE", "INVALID_INPUT", "UNKNOWN_OPERATION"})
"""Codes of what is refused before anything is sent."""


def raise_for(answer: Answer, said: str = "") -> None:
    """Raise what an answer means that is no success; `said` is what the service says about it."""
    status = answer.status
    if 200 <= status < 300:
        return
    text = f"answered {status}" + (f": {said}" if said else "")
    after = retry_after_seconds(answer)
    if status == 429 or (status == 503 and "retry-after" in answer.headers):
        raise failed("not_done", LIMITED, text, retryable=True, retry_after_seconds=after)
    if status in _SAYS_NOT_DONE or 400 <= status < 500:
        if 300 <= status < 400:
            text += "; redirects are not followed, name the address it leads to"
        raise failed("not_done", REJECTED, text)
    raise failed("unknown", LOST, text)


def retry_after_seconds(answer: Answer) -> float | None:
    """What Retry-After asks for; a date is measured by the service's own clock where it says what that is."""
    given = answer.headers.get("retry-after", "").strip()
    if not given:
        return None
    if given.isascii() and given.isdigit():
        return min(float(given[:9]), RETRY_AFTER_SECONDS_MAX)
    until = _moment(given)
    if until is None:
        return None
    now = _moment(answer.headers.get("date", ""))
    now = HostClock().now_us() / SECOND_US if now is None else now
    return min(max(until - now, 0.0), RETRY_AFTER_SECONDS_MAX)


def _moment(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
