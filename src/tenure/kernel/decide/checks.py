"""What is wrong with what somebody asks for, before anything is taken of it.

Law: whatever would break a later decision (a backoff without delays, a wait that nothing ends, a digest that is
none) is refused here, where somebody can still correct it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from tenure.errors import Detail, TenureError
from tenure.kernel.commands import ApprovalSpec, OpenWait, StepSpec, WaitSpec
from tenure.kernel.profile import Profile
from tenure.limits import LEASE_SECONDS_MAX, LEASE_SECONDS_MIN, NAME_CHARS_MAX, RUN_TIMEOUT_SECONDS_MAX

LABEL_CHARS_MAX = 1000
"""A label is a path of scopes and a name."""
_SPAN = f"must be over 0 and at most {RUN_TIMEOUT_SECONDS_MAX:g}"


def step_problems(at: str, step: StepSpec, profile: Profile) -> Iterator[Detail]:
    """What is wrong with one step, by itself and under its profile."""
    for part in ("name", "queue"):
        if not 0 < len(getattr(step, part)) <= NAME_CHARS_MAX:
            yield Detail(f"{at}.{part}", f"must have 1 to {NAME_CHARS_MAX} characters")
    if not step.required and not profile.optional_steps:
        yield Detail(f"{at}.required", f"profile {profile.name} has no optional steps")
    if profile.strict_sequence and step.needs is not None:
        yield Detail(f"{at}.needs", f"profile {profile.name} runs steps strictly in order")
    lease = step.lease_seconds
    if lease is not None and not LEASE_SECONDS_MIN <= lease <= LEASE_SECONDS_MAX:
        yield Detail(f"{at}.lease_seconds", f"must be {LEASE_SECONDS_MIN:g} to {LEASE_SECONDS_MAX:g}")
    if not _is_span(step.timeout_seconds):
        yield Detail(f"{at}.timeout_seconds", _SPAN)
    if step.retries is not None and not 0 <= step.retries <= 1000:
        yield Detail(f"{at}.retries", "must be 0 to 1000")
    yield from _part_problems(at, step)


def _part_problems(at: str, step: StepSpec) -> Iterator[Detail]:
    for part, kind in (("approval", "approval"), ("wait", "wait"), ("backoff", "work")):
        if getattr(step, part) is not None and step.kind != kind:
            yield Detail(f"{at}.{part}", f"belongs to a step of kind {kind!r}, not {step.kind!r}")
    backoff, approval, wait = step.backoff, step.approval, step.wait
    if backoff is not None:
        if not backoff.seconds or not all(isfinite(s) and s >= 0 for s in backoff.seconds):
            yield Detail(f"{at}.backoff.seconds", "must have at least one delay, and none below 0")
        if not 0 <= backoff.jitter <= 1:
            yield Detail(f"{at}.backoff.jitter", "must be 0 to 1")
    if approval is not None:
        yield from _approval_problems(f"{at}.approval", approval)
    if wait is not None or step.kind == "wait":
        yield from _wait_problems(f"{at}.wait", wait or WaitSpec())


def _approval_problems(at: str, approval: ApprovalSpec) -> Iterator[Detail]:
    if approval.people < 1:
        yield Detail(f"{at}.people", "must be at least 1")
    if not _is_span(approval.within_seconds):
        yield Detail(f"{at}.within_seconds", _SPAN)
    if not is_hex(approval.digest):
        yield Detail(f"{at}.digest", "must be a hex digest")


def _wait_problems(at: str, wait: WaitSpec) -> Iterator[Detail]:
    if not _is_span(wait.within_seconds):
        yield Detail(f"{at}.within_seconds", _SPAN)
    if not wait.event and wait.within_seconds is None:
        yield Detail(at, "a wait names an event, or a time in within_seconds")


def check_wait(c: OpenWait) -> None:
    """A wait opened under a lease is of one of four kinds, and something ends it."""
    given = [x for x in (c.approval, c.event, c.until, c.child) if x is not None]
    problems: list[Detail] = []
    if len(given) != 1:
        problems.append(Detail("wait", "a wait is for an approval, an event, a time or a child: one of them"))
    if not 0 < len(c.label) <= LABEL_CHARS_MAX:
        problems.append(Detail("label", f"must have 1 to {LABEL_CHARS_MAX} characters"))
    if c.approval is not None:
        problems += _approval_problems("approval", c.approval)
    if c.event is not None:
        problems += _wait_problems("event", c.event)
    if problems:
        raise TenureError("INVALID_INPUT", problems[0].problem, tuple(problems))


def _is_span(seconds: float | None) -> bool:
    return seconds is None or 0 < seconds <= RUN_TIMEOUT_SECONDS_MAX


def is_hex(text: str) -> bool:
    """Whether a text is bytes in hex."""
    try:
        bytes.fromhex(text)
    except ValueError:
        return False
    return True


def check_answer(approver: str, digest: str) -> None:
    """An approver is an opaque id: with a blank in it, one person would count as two."""
    if not 0 < len(approver) <= NAME_CHARS_MAX or approver.split() != [approver]:
        raise TenureError(
            "INVALID_INPUT", f"an approver is an id of 1 to {NAME_CHARS_MAX} characters without blanks"
        )
    if not is_hex(digest):
        raise TenureError("INVALID_INPUT", "the digest is not hex")
