"""What policies, freezes and policy decisions look like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec


class PolicyVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a policy."""

    version: int
    sha256: str
    author: str
    published_at: datetime
    active: bool
    proposed_by: str | None
    """The person who proposed to activate it; another person must confirm."""


class PolicyText(PolicyVersion, frozen=True, kw_only=True):
    """A version of a policy, with its text."""

    text: str
    """The file, byte for byte."""


class ActivationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a version after the request."""

    state: Literal["proposed", "active"]
    """`proposed`: a second person has to send the same request."""
    policy: PolicyVersion


class Freeze(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant, workflow or connector whose acts are all denied."""

    scope: str
    """`tenant`, `workflow` or `connector`."""
    name: str
    """The name of the workflow, connector or tenant."""
    thaw_proposed_by: str | None
    """The person who proposed to end the freeze; another person must confirm."""


class ThawResult(msgspec.Struct, frozen=True, kw_only=True):
    """The freezes after the request."""

    state: Literal["proposed", "thawed"]
    """`proposed`: a second person has to send the same request."""
    frozen: list[Freeze]
    """All that is still frozen."""


class PolicyDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy decided about one proposed action."""

    no: int
    step: str
    label: str
    """Identifies the act within its step."""
    action: str
    at: datetime
    version: int
    """The version of the policy. 0: there was none."""
    outcome: str
    rules: list[tuple[str, str]]
    """The rules for the operation, each with its result. `not`: its condition was false."""
    reasons: dict[str, str]
    """The reasons that the policy gives for its rules, by rule."""
    digest: str
    tier: str
    people: int
    group: str
    within_seconds: float | None
    error: str | None
    """Why it was denied, if no rule denied it."""
    request: Any = None
    """The target and fields of an action that was denied or needs approval, while they are stored. For an allowed action the receipt
    has them."""


class ShadowDifference(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    no: int
    label: str
    action: str
    at: datetime
    was: str
    was_version: int
    would: str
    why: str
    """The reason for the other outcome."""


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    looked_at: int
    same: int
    differs: list[ShadowDifference]
    not_judged: dict[str, int]
    """Why actions could not be evaluated, and how many."""
    not_as_then: list[str]
    """Facts that are current values for every action."""
