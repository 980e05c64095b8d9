"""What is wrong with a message about an act, before anything is taken of it; see `checks`."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import get_args

import msgspec

from tenure.errors import Detail, TenureError
from tenure.kernel.act_commands import IntendAct, ProposeAct, ProposedAct, RepeatSafety, Ruling, RulingOutcome
from tenure.kernel.commands import TIERS
from tenure.kernel.decide.validation import is_name, text_problem
from tenure.limits import (
    CODE_CHARS_MAX,
    INTEGER_MAX,
    KEY_TEXT_CHARS_MAX,
    LABEL_CHARS_MAX,
    META_BYTES_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    RUN_TIMEOUT_SECONDS_MAX,
)

DIGEST_BYTES = 32
"""From the one that asks least to the one that asks most."""
_ROUND_CHARS = 16
"""What the label of an approval has besides its act's."""


def check_act(act: ProposedAct, ruling: Ruling) -> None:
    """Refuse a proposed action or a ruling that could not be kept."""
    problems = [*_act_problems(act), *_ruling_problems(ruling)]
    if problems:
        raise TenureError("INVALID_INPUT", problems[0].problem, tuple(problems))


def _act_problems(act: ProposedAct) -> Iterator[Detail]:
    for part, most in (
        ("label", LABEL_CHARS_MAX - _ROUND_CHARS),
        ("connector", NAME_CHARS_MAX),
        ("operation", NAME_CHARS_MAX),
        ("name", KEY_TEXT_CHARS_MAX),
    ):
        if not is_name(getattr(act, part), 1, most):
            yield text_problem(f"act.{part}", 1, most)
    if len(act.digest) != DIGEST_BYTES:
        yield Detail("act.digest", f"a digest has {DIGEST_BYTES} bytes")
    if act.tier not in TIERS:
        yield Detail("act.tier", f"the tier is one of {', '.join(TIERS)}")
    if act.repeats not in get_args(RepeatSafety):
        yield Detail("act.repeats", f"repeats is one of {', '.join(get_args(RepeatSafety))}")


def _ruling_problems(ruling: Ruling) -> Iterator[Detail]:
    if ruling.outcome not in get_args(RulingOutcome):
        yield Detail("ruling.outcome", f"the outcome is one of {', '.join(get_args(RulingOutcome))}")
    if not 0 <= ruling.version <= INTEGER_MAX:
        yield Detail("ruling.version", f"a version is 0 to {INTEGER_MAX}")
    if ruling.tier and ruling.tier not in TIERS:
        yield Detail("ruling.tier", f"the tier is one of {', '.join(TIERS)}")
    if not 0 <= ruling.people <= INTEGER_MAX:
        yield Detail("ruling.people", f"people are 0 to {INTEGER_MAX}")
    if not is_name(ruling.people_in, 0):
        yield text_problem("ruling.people_in", 0, NAME_CHARS_MAX)
    if ruling.error is not None and not is_name(ruling.error, 1, CODE_CHARS_MAX):
        yield text_problem("ruling.error", 1, CODE_CHARS_MAX)
    if not is_duration(ruling.within_seconds):
        yield Detail("ruling.within_seconds", f"must be over 0 and at most {RUN_TIMEOUT_SECONDS_MAX:.0f}")
    try:
        if len(ruling.rules.encode()) > META_BYTES_MAX * 4:
            yield Detail("ruling.rules", f"rules have at most {META_BYTES_MAX * 4} bytes")
        msgspec.json.decode(ruling.rules, type=list[tuple[str, str]])
    except (msgspec.DecodeError, UnicodeEncodeError):
        yield Detail("ruling.rules", "rules are a JSON list of [name, what it said]")


def request_to_keep(c: ProposeAct | IntendAct) -> bytes | None:
    """Target and fields of what is denied; where people were to be asked, their question has them. What is too large to be kept is
    denied all the same."""
    body = c.question if isinstance(c, ProposeAct) and c.request is None else c.request
    return None if body is None or len(body) > PAYLOAD_BYTES_MAX else body


def is_duration(seconds: float | None) -> bool:
    """Whether this is a length of time, or none."""
    return seconds is None or 0 < seconds <= RUN_TIMEOUT_SECONDS_MAX


def check_duration(at: str, seconds: float | None, *, fewest: float = 0.0) -> None:
    """Refuse what is no length of time."""
    if seconds is not None and not (isfinite(seconds) and fewest <= seconds <= RUN_TIMEOUT_SECONDS_MAX):
        problem = f"{at} must be {fewest:g} to {RUN_TIMEOUT_SECONDS_MAX:.0f}"
        raise TenureError("INVALID_INPUT", problem, (Detail(at, problem),))
