"""What policies, freezes and policy decisions look like from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class PolicyVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a policy."""

    version: int
    sha256: str
    author: str
    published_at: datetime
    active: bool
    proposed_by: str | None
    """Of one that somebody wants to be active: the person who does."""


class PolicyText(PolicyVersion, frozen=True, kw_only=True):
    """A version with its text."""

    text: str
    """The file, byte for byte."""


class Freeze(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is frozen: every act of it is denied."""

    scope: str
    """`tenant`, `workflow` or `connector`."""
    name: str
    """Of the workflow or connector; of the tenant its own."""
    thaw_proposed_by: str | None
    """The person who wants it to thaw; another one must say so too."""


class PolicyDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy said of one proposed action."""

    no: int
    step: str
    label: str
    """Which act of its step it was."""
    action: str
    at: datetime
    version: int
    """Of the policy; 0: there was none."""
    outcome: str
    rules: list[tuple[str, str]]
    """The rules about the operation, and what each said; `not`: its condition did not hold."""
    reasons: dict[str, str]
    """Why those that spoke say so, as far as the policy tells."""
    digest: str
    tier: str
    people: int
    group: str
    within_seconds: float | None
    error: str | None
    """Why it was denied, where no rule said so."""
    request: Any = None
    """Target and fields of what was denied or asked about, while they are kept. Those of an allowed action are in its receipt."""
