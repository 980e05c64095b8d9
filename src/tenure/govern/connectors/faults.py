"""What a failed call means (rule 24).

Laws:
1. Not sent, 429, and 503 with Retry-After: not done, retryable. Other 4xx: not done, permanently.
2. A timeout or reset after sending, other 5xx, and everything else: unknown.
3. Redirects are not followed. A redirect that preserves the method means not done; other redirects mean unknown.
4. Retry-After is honoured, as seconds or as a date, up to one day.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Literal

from tenure.clock import SECOND_US, HostClock
from tenure.errors import CODES, TenureError
from tenure.govern.connector import CallFault, Connector
from tenure.govern.display_text import escape_invisible, truncate_text
from tenure.govern.redaction import Redactor
from tenure.logs import get_logger
from tenure.outbound.responses import HttpResponse, RequestNotSent, ResponseLost
from tenure.secrets import resolved_so_far

log = get_logger(__name__)

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
    def __init__(self, fault: CallFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def call_failed(
    outcome: Literal["not_done", "unknown"],
    code: str,
    message: str,
    *,
    retryable: bool = False,
    retry_after_seconds: float | None = None,
) -> CallFailed:
    """A failure with a limited message. Secrets are removed before the message is truncated."""
    text = truncate_text(escape_invisible(Redactor(resolved_so_far()).text(message)), MESSAGE_CHARS_MAX)
    return CallFailed(
        CallFault(
            outcome=outcome,
            code=code,
            message=text,
            retryable=retryable,
            retry_after_seconds=retry_after_seconds,
        )
    )


def classify_exception(raised: BaseException) -> CallFault:
    if isinstance(raised, CallFailed):
        return raised.fault
    if isinstance(raised, RequestNotSent):
        if raised.refused:
            return call_failed("not_done", REFUSED, str(raised)).fault
        return call_failed(
            "not_done", LATE if raised.late else UNREACHABLE, str(raised), retryable=True
        ).fault
    if isinstance(raised, ResponseLost):
        return call_failed("unknown", LOST, str(raised)).fault
    if isinstance(raised, TenureError) and raised.code in _BEFORE:
        return call_failed(
            "not_done", raised.code, raised.message, retryable=CODES[raised.code].retryable
        ).fault
    return call_failed("unknown", LOST, f"{type(raised).__name__}: {raised}").fault


_BEFORE = frozenset({"SECRET_UNAVAILABLE", "SECRET_NOT_A_REFERENCE", "INVALID_INPUT", "UNKNOWN_OPERATION"})
"""Codes of refusals before anything is sent."""


def classify_safely(connector: Connector, raised: Exception) -> CallFault:
    """What an exception of a connector means. If the connector fails to classify it, the outcome is unknown."""
    try:
        return connector.classify(raised)
    except Exception as broken:
        log.error("classify_failed", connector=connector.name, error=type(broken).__name__)
        return CallFault(outcome="unknown", code=LOST, message=type(raised).__name__)


def raise_for_response(answer: HttpResponse, message: str = "") -> None:
    """Raise the meaning of a response that is not a success. `message` is the service's own message."""
    status = answer.status
    if 200 <= status < 300:
        return
    text = f"answered {status}" + (f": {message}" if message else "")
    if status == 429 or (status == 503 and "retry-after" in answer.headers):
        raise rate_limited(text, retry_after_seconds(answer))
    if status in _SAYS_NOT_DONE or 400 <= status < 500:
        if 300 <= status < 400:
            text += "; redirects are not followed: use the address that it leads to"
        raise call_failed("not_done", REJECTED, text)
    raise call_failed("unknown", LOST, text)


def rate_limited(message: str, after: float | None) -> CallFailed:
    return call_failed("not_done", LIMITED, message, retryable=True, retry_after_seconds=after)


def retry_after_seconds(answer: HttpResponse) -> float | None:
    """The delay that Retry-After asks for. A date is compared with the service's own clock if the response has one."""
    given = answer.headers.get("retry-after", "").strip()
    if not given:
        return None
    if given.isascii() and given.isdigit():
        return min(float(given[:9]), RETRY_AFTER_SECONDS_MAX)
    until = _parse_date(given)
    return None if until is None else seconds_until(until, _parse_date(answer.headers.get("date", "")))


def seconds_until(moment: float, now: float | None = None) -> float:
    """The delay until a Unix time. `now` is the service's time; by default that of this host."""
    now = HostClock().now_us() / SECOND_US if now is None else now
    return min(max(moment - now, 0.0), RETRY_AFTER_SECONDS_MAX)


def _parse_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
