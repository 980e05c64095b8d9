"""Checks commands before a decision uses them.

Laws:
1. Whatever would break a later decision (a backoff without delays, a wait that nothing ends, an invalid digest) is
   refused here, where the caller can correct it.
2. Texts are printable and bounded, and numbers fit both databases. `TEXTS` and `NUMBERS` list the checked fields of
   each command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import get_args

import msgspec

from tenure.errors import Detail, TenureError
from tenure.kernel import act_commands as a
from tenure.kernel import commands as c
from tenure.kernel.commands import TIERS, ApprovalSpec, OpenWait, RecordCheckpoint, StepSpec, WaitSpec
from tenure.kernel.profile import Profile
from tenure.kernel.run_rows import Cap
from tenure.limits import (
    CODE_CHARS_MAX,
    DIGEST_BYTES_MAX,
    EXPRESSION_BYTES_MAX,
    INTEGER_MAX,
    INVOLVED_PEOPLE_MAX,
    KEY_CHARS_MAX,
    KEY_TEXT_CHARS_MAX,
    LABEL_CHARS_MAX,
    LEASE_SECONDS_MAX,
    LEASE_SECONDS_MIN,
    META_BYTES_MAX,
    METADATA_BYTES_MAX,
    MOMENT_US_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    RETRIES_MAX,
    REUSE_SCOPES_MAX,
    RUN_TIMEOUT_SECONDS_MAX,
)

_INVOLVED_CHARS_MAX = (INVOLVED_PEOPLE_MAX + 1) * (NAME_CHARS_MAX + 1)

TEXTS: dict[type[c.Command], tuple[tuple[str, int, int], ...]] = {
    c.CreateRun: (
        ("tenant", 1, NAME_CHARS_MAX),
        ("workspace", 1, NAME_CHARS_MAX),
        ("workflow", 1, NAME_CHARS_MAX),
        ("code_version", 1, NAME_CHARS_MAX),
        ("source", 1, NAME_CHARS_MAX),
        ("concurrency_key", 1, KEY_CHARS_MAX),
        ("idempotency_key", 1, KEY_TEXT_CHARS_MAX),
        ("requester", 1, NAME_CHARS_MAX),
        ("involved", 0, _INVOLVED_CHARS_MAX),
    ),
    c.RecordCheckpoint: (("name", 1, LABEL_CHARS_MAX), ("error", 1, CODE_CHARS_MAX)),
    c.Heartbeat: (("progress", 0, LABEL_CHARS_MAX),),
    c.Complete: (("cost", 1, LABEL_CHARS_MAX),),
    c.ReportCost: (("cost", 1, LABEL_CHARS_MAX),),
    c.Fail: (("code", 1, CODE_CHARS_MAX), ("cost", 1, LABEL_CHARS_MAX)),
    c.Park: (("why", 1, LABEL_CHARS_MAX),),
    c.OpenWait: (("label", 1, LABEL_CHARS_MAX),),
    c.DecideApproval: (("approver", 1, NAME_CHARS_MAX),),
    a.WithdrawApproval: (("approver", 1, NAME_CHARS_MAX),),
    c.DeliverEvent: (
        ("name", 1, NAME_CHARS_MAX),
        ("event_id", 1, KEY_CHARS_MAX),
        ("source", 0, NAME_CHARS_MAX),
        ("involved", 0, _INVOLVED_CHARS_MAX),
    ),
    c.RequestCancel: (("reason", 1, CODE_CHARS_MAX),),
    c.CancelStep: (("name", 1, NAME_CHARS_MAX), ("involved", 0, _INVOLVED_CHARS_MAX)),
    c.RevokeLease: (("involved", 0, _INVOLVED_CHARS_MAX),),
    c.EndWait: (("involved", 0, _INVOLVED_CHARS_MAX),),
    c.UpdateMetadata: (("involved", 0, _INVOLVED_CHARS_MAX),),
    c.InvolvePeople: (("involved", 1, _INVOLVED_CHARS_MAX),),
    a.SettleAct: (("error", 1, CODE_CHARS_MAX),),
    a.SettleReceipt: (("person", 1, NAME_CHARS_MAX),),
}
"""Command -> (field, fewest, most characters). None always passes."""

NUMBERS: dict[type[c.Command], tuple[str, ...]] = {
    c.CreateRun: ("attempt_no", "resume_count"),
    c.RecordCheckpoint: ("seq", "n", "idx", "tries"),
    c.DecideApproval: ("no",),
    a.WithdrawApproval: ("no",),
    c.ReviseApproval: ("no",),
    c.RevokeLease: ("idx", "n"),
    c.ExpireDeadLease: ("idx", "n"),
    a.ProposeAct: ("idx", "n"),
    a.IntendAct: ("idx", "n"),
    a.RepeatAct: ("idx", "n", "no"),
    a.SettleAct: ("idx", "n", "no"),
    a.SettleReceipt: ("no",),
    a.MarkReversed: ("no", "by_no"),
    **dict.fromkeys(
        (
            c.AckLease,
            c.Heartbeat,
            c.BeginUpload,
            c.ReportCost,
            c.Complete,
            c.Fail,
            c.Release,
            c.Park,
            c.AckCancel,
            c.OpenWait,
            c.Suspend,
        ),
        ("seq", "n", "idx"),
    ),
}
"""Command -> fields that are integers from 0 to INTEGER_MAX."""

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_SPAN = f"must be over 0 and at most {RUN_TIMEOUT_SECONDS_MAX:.0f}"
DIGEST_BYTES = 32
_ROUND_CHARS = 16
"""How many characters the label of an approval has besides its act's label."""
ACT_LABEL_PREFIX = "act:"
"""The prefix of the labels of waits for the approval of an act."""
GOVERNED_LABEL_PREFIXES = (ACT_LABEL_PREFIX, "receipt:")
"""The prefixes of the labels of waits that acts open."""


def check_command(command: c.Command) -> None:
    """Refuse texts and numbers that a store could not store."""
    kind = type(command)
    problems: list[Detail] = []
    for field, fewest, most in TEXTS.get(kind, ()):
        value = getattr(command, field)
        if value is not None and not (fewest <= len(value) <= most and value.isprintable()):
            problems.append(text_problem(field, fewest, most))
    problems += [
        Detail(field, f"{field} must be 0 to {INTEGER_MAX}")
        for field in NUMBERS.get(kind, ())
        if not 0 <= getattr(command, field) <= INTEGER_MAX
    ]
    context = command.context
    if context is not c.SYSTEM:
        if not is_name(context.actor):
            problems.append(text_problem("actor", 1, NAME_CHARS_MAX))
        if not is_name(context.cause, 1, KEY_CHARS_MAX):
            problems.append(text_problem("cause", 1, KEY_CHARS_MAX))
    if problems:
        raise TenureError("INVALID_INPUT", problems[0].problem, tuple(problems))


def refuse_problems(problems: Sequence[Detail]) -> None:
    if problems:
        raise TenureError("INVALID_INPUT", problems[0].problem, tuple(problems))


def text_problem(at: str, fewest: int, most: int) -> Detail:
    return Detail(at, f"{at} must have {fewest} to {most} printable characters")


def is_name(text: str, fewest: int = 1, most: int = NAME_CHARS_MAX) -> bool:
    return fewest <= len(text) <= most and text.isprintable()


def request_problems(request: c.CreateRun) -> Iterator[Detail]:
    """The problems of a request for a run that `check_command` does not find."""
    if not _is_span(request.timeout_seconds):
        yield Detail("timeout_seconds", f"timeout_seconds {_SPAN}")
    if not -INTEGER_MAX <= request.priority <= INTEGER_MAX:
        yield Detail("priority", f"priority must be between {-INTEGER_MAX} and {INTEGER_MAX}")
    for field, value, most in (
        ("trigger.ref", request.trigger.ref, LABEL_CHARS_MAX),
        ("trigger.repo", request.trigger.repo, LABEL_CHARS_MAX),
        ("trace", request.trace, NAME_CHARS_MAX),
    ):
        if value is not None and not is_name(value, 1, most):
            yield text_problem(field, 1, most)
    for field in ("labels", "metadata"):
        yield from metadata_problems(field, getattr(request, field))


def check_checkpoint(c: RecordCheckpoint) -> None:
    """Check a checkpoint. A failed one has a message in place of an output."""
    if c.state == "done" and c.meta is None and c.message is None and c.next_at is None and not c.arguments:
        return  # nearly all of them
    problems: list[Detail] = []
    if c.meta is not None:
        problems += metadata_problems("meta", c.meta, META_BYTES_MAX)
    if len(c.arguments) > DIGEST_BYTES_MAX:
        problems.append(
            Detail("arguments", f"arguments must be a digest of at most {DIGEST_BYTES_MAX} bytes")
        )
    if c.next_at is not None and not 0 <= c.next_at <= MOMENT_US_MAX:
        problems.append(Detail("next_at", "next_at must be a moment in microseconds"))
    if c.message is not None and c.state != "failed":
        problems.append(Detail("message", "only a failed try can have a message"))
    if c.output is not None and c.state == "failed":
        problems.append(Detail("output", "a failed try must have a message, not an output"))
    refuse_problems(problems)


def metadata_problems(at: str, text: str, most: int = METADATA_BYTES_MAX) -> Iterator[Detail]:
    """The problems of labels or metadata, which must be JSON objects of a bounded size."""
    if text == "{}":
        return
    try:
        encoded = text.encode()
        if len(encoded) > most:
            yield Detail(at, f"{at} must have at most {most} bytes")
        else:
            _decode_object(encoded)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        yield Detail(at, f"{at} must be a JSON object")


def step_problems(at: str, step: StepSpec, profile: Profile) -> Iterator[Detail]:
    """The problems of one step by itself and under its profile."""
    for part, fewest, most in (
        ("name", 1, NAME_CHARS_MAX),
        ("queue", 1, NAME_CHARS_MAX),
        ("tool", 0, NAME_CHARS_MAX),
        ("idempotency_key", 0, LABEL_CHARS_MAX),
    ):
        if not is_name(getattr(step, part), fewest, most):
            yield text_problem(f"{at}.{part}", fewest, most)
    if not step.required and not profile.optional_steps:
        yield Detail(f"{at}.required", f"profile {profile.name} has no optional steps")
    if profile.strict_sequence and step.needs is not None:
        yield Detail(f"{at}.needs", f"profile {profile.name} runs steps strictly in order")
    lease = step.lease_seconds
    if lease is not None and not LEASE_SECONDS_MIN <= lease <= LEASE_SECONDS_MAX:
        yield Detail(f"{at}.lease_seconds", f"must be {LEASE_SECONDS_MIN:g} to {LEASE_SECONDS_MAX:g}")
    if not _is_span(step.timeout_seconds):
        yield Detail(f"{at}.timeout_seconds", _SPAN)
    if step.retries is not None and not 0 <= step.retries <= RETRIES_MAX:
        yield Detail(f"{at}.retries", f"must be 0 to {RETRIES_MAX}")
    yield from _part_problems(at, step)


def _part_problems(at: str, step: StepSpec) -> Iterator[Detail]:
    for part, kind in (("approval", "approval"), ("wait", "wait"), ("backoff", "work")):
        if getattr(step, part) is not None and step.kind not in (kind, "plan" if part == "backoff" else kind):
            yield Detail(f"{at}.{part}", f"can only be set on a step of kind {kind!r}, not {step.kind!r}")
    backoff, approval, wait = step.backoff, step.approval, step.wait
    if backoff is not None:
        if not backoff.seconds or not all(isfinite(s) and s >= 0 for s in backoff.seconds):
            yield Detail(f"{at}.backoff.seconds", "must have at least one delay, and none below 0")
        if not 0 <= backoff.jitter <= 1:
            yield Detail(f"{at}.backoff.jitter", "must be 0 to 1")
    if step.template is not None and (step.kind != "work" or step.input is not None or step.skipped):
        yield Detail(
            f"{at}.template", "can only be set on a step of kind 'work' that has no input and is not skipped"
        )
    if step.reuse is not None:
        yield from _reuse_problems(f"{at}.reuse", step, step.reuse)
    if step.skipped and step.condition is None:
        yield Detail(f"{at}.skipped", "can only be set on a step with a condition")
    if step.condition is not None and not 1 <= len(step.condition.encode()) <= EXPRESSION_BYTES_MAX:
        yield Detail(f"{at}.condition", f"must have 1 to {EXPRESSION_BYTES_MAX} bytes")
    if step.kind == "approval" and step.name.startswith(GOVERNED_LABEL_PREFIXES):
        # Its question would look like the question of a connector.
        yield Detail(
            f"{at}.name",
            f"the name of an approval gate must not begin with {ACT_LABEL_PREFIX!r}: that is for questions about acts",
        )
    if approval is not None:
        yield from _approval_problems(f"{at}.approval", approval)
    if wait is not None or step.kind == "wait":
        yield from _wait_problems(f"{at}.wait", wait or WaitSpec())


def _reuse_problems(at: str, step: StepSpec, reuse: c.ReuseSpec) -> Iterator[Detail]:
    if step.kind != "work" or step.skipped:
        yield Detail(at, "can only be set on a step of kind 'work' that is not skipped")
    if len(reuse.also) > REUSE_SCOPES_MAX:
        yield Detail(f"{at}.also", f"must name at most {REUSE_SCOPES_MAX} scopes")
    if not all(is_name(scope, 1, KEY_CHARS_MAX) for scope in (reuse.scope, *reuse.also)):
        yield text_problem(f"{at}.scope", 1, KEY_CHARS_MAX)
    if len(reuse.digest) != 2 * DIGEST_BYTES or not is_hex(reuse.digest):
        yield Detail(f"{at}.digest", "must be a SHA-256 in hex")


def _approval_problems(at: str, approval: ApprovalSpec) -> Iterator[Detail]:
    if approval.tier not in TIERS:
        yield Detail(f"{at}.tier", f"must be one of {', '.join(TIERS)}")
    if not 1 <= approval.people <= INTEGER_MAX:
        yield Detail(f"{at}.people", "must be at least 1")
    if not is_name(approval.action):
        yield text_problem(f"{at}.action", 1, NAME_CHARS_MAX)
    if not _is_span(approval.within_seconds):
        yield Detail(f"{at}.within_seconds", _SPAN)
    if not is_hex(approval.digest):
        yield Detail(f"{at}.digest", "must be a hex digest")
    if not is_name(approval.group, 0):
        yield text_problem(f"{at}.group", 0, NAME_CHARS_MAX)


def _wait_problems(at: str, wait: WaitSpec) -> Iterator[Detail]:
    for part in ("event", "source"):
        if not is_name(getattr(wait, part), 0):
            yield text_problem(f"{at}.{part}", 0, NAME_CHARS_MAX)
    if not _is_span(wait.within_seconds):
        yield Detail(f"{at}.within_seconds", _SPAN)
    if not wait.event and wait.within_seconds is None:
        yield Detail(at, "a wait must name an event, or a time in within_seconds")


def check_wait(opened: OpenWait) -> None:
    """Check that a wait is of exactly one kind, and that something can end it."""
    kinds = (opened.approval, opened.event, opened.until, opened.child, opened.proposal)
    problems: list[Detail] = []
    if sum(kind is not None for kind in kinds) != 1:
        problems.append(
            Detail(
                "wait",
                "a wait must be for exactly one of an approval, an event, a time, a child and a proposal",
            )
        )
    if opened.approval is not None:
        problems += _approval_problems("approval", opened.approval)
    if opened.proposal is not None:
        problems += _approval_problems("proposal", opened.proposal)
        if opened.fatal:
            problems.append(
                Detail("fatal", "no step waits for a proposal, so its refusal cannot end the step")
            )
    if opened.label.startswith(GOVERNED_LABEL_PREFIXES) and (opened.until is None or "!" not in opened.label):
        # People would see the runner's own words, and their approval would count for an act.
        begin = " or ".join(repr(prefix) for prefix in GOVERNED_LABEL_PREFIXES)
        problems.append(Detail("label", f"a label must not begin with {begin}: those are for waits of acts"))
    if opened.until is not None and not 0 <= opened.until <= MOMENT_US_MAX:
        problems.append(Detail("until", "until must be a moment in microseconds"))
    if opened.event is not None:
        problems += _wait_problems("event", opened.event)
    refuse_problems(problems)


def _is_span(seconds: float | None) -> bool:
    return seconds is None or 0 < seconds <= RUN_TIMEOUT_SECONDS_MAX


def check_duration(at: str, seconds: float | None) -> None:
    """Refuse a delay that is negative, too long, or not a number."""
    if seconds is not None and not (isfinite(seconds) and 0 <= seconds <= RUN_TIMEOUT_SECONDS_MAX):
        refuse_problems([Detail(at, f"{at} must be 0 to {RUN_TIMEOUT_SECONDS_MAX:.0f}")])


def is_hex(text: str) -> bool:
    try:
        bytes.fromhex(text)
    except ValueError:
        return False
    return True


def check_approver(approver: str, digest: str) -> None:
    """Refuse an id with a blank: one approver would count as two people."""
    if not 0 < len(approver) <= NAME_CHARS_MAX or approver.split() != [approver]:
        raise TenureError(
            "INVALID_INPUT", f"an approver must be an id of 1 to {NAME_CHARS_MAX} characters without blanks"
        )
    if not is_hex(digest):
        raise TenureError("INVALID_INPUT", "the digest must be hexadecimal")


def check_cap(cap: Cap) -> None:
    limits = (cap.max_concurrency, cap.max_runs_per_min, cap.max_writes_per_run)
    if not 1 <= cap.weight <= INTEGER_MAX or any(x is not None and not 0 <= x <= INTEGER_MAX for x in limits):
        raise TenureError("INVALID_INPUT", "a cap's weight must be at least 1, and its limits at least 0")
    if not is_name(cap.tenant) or not is_name(cap.scope, 0):
        raise TenureError("INVALID_INPUT", "a cap must name a tenant, and a scope such as 'wf:NAME'")


# ------------------------------------------------------------------------------------------------- acts


def check_act(act: a.ProposedAct, ruling: a.Ruling) -> None:
    """Refuse a proposed act or a ruling that could not be stored."""
    refuse_problems([*_act_problems(act), *_ruling_problems(ruling)])


def _act_problems(act: a.ProposedAct) -> Iterator[Detail]:
    for part, most in (
        ("label", LABEL_CHARS_MAX - _ROUND_CHARS),
        ("connector", NAME_CHARS_MAX),
        ("operation", NAME_CHARS_MAX),
        ("name", KEY_TEXT_CHARS_MAX),
    ):
        if not is_name(getattr(act, part), 1, most):
            yield text_problem(f"act.{part}", 1, most)
    if len(act.digest) != DIGEST_BYTES:
        yield Detail("act.digest", f"a digest must have {DIGEST_BYTES} bytes")
    if act.tier not in TIERS:
        yield Detail("act.tier", f"the tier must be one of {', '.join(TIERS)}")
    if act.repeats not in get_args(a.RepeatSafety):
        yield Detail("act.repeats", f"repeats must be one of {', '.join(get_args(a.RepeatSafety))}")


def _ruling_problems(ruling: a.Ruling) -> Iterator[Detail]:
    if ruling.outcome not in get_args(a.RulingOutcome):
        yield Detail("ruling.outcome", f"the outcome must be one of {', '.join(get_args(a.RulingOutcome))}")
    if not 0 <= ruling.version <= INTEGER_MAX:
        yield Detail("ruling.version", f"a version must be 0 to {INTEGER_MAX}")
    if ruling.tier and ruling.tier not in TIERS:
        yield Detail("ruling.tier", f"the tier must be one of {', '.join(TIERS)}")
    if not 0 <= ruling.people <= INTEGER_MAX:
        yield Detail("ruling.people", f"people must be 0 to {INTEGER_MAX}")
    if not is_name(ruling.people_in, 0):
        yield text_problem("ruling.people_in", 0, NAME_CHARS_MAX)
    if ruling.error is not None and not is_name(ruling.error, 1, CODE_CHARS_MAX):
        yield text_problem("ruling.error", 1, CODE_CHARS_MAX)
    if not _is_span(ruling.within_seconds):
        yield Detail("ruling.within_seconds", _SPAN)
    try:
        if len(ruling.rules.encode()) > META_BYTES_MAX * 4:
            yield Detail("ruling.rules", f"rules must have at most {META_BYTES_MAX * 4} bytes")
        msgspec.json.decode(ruling.rules, type=list[tuple[str, str]])
    except (msgspec.DecodeError, UnicodeEncodeError):
        yield Detail("ruling.rules", "rules must be a JSON list of [name, outcome]")


def request_to_keep(command: a.ProposeAct | a.IntendAct) -> bytes | None:
    """Target and fields of a denied act, or the question that has them. A request that is too large is not kept: the
    act is denied all the same."""
    body = command.request
    if body is None and isinstance(command, a.ProposeAct):
        body = command.question
    return None if body is None or len(body) > PAYLOAD_BYTES_MAX else body
