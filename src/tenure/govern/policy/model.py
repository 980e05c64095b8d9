"""What a policy file says, read."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tenure.kernel.actions import Outcome

TIERS = ("low", "med", "high")
Tier = Literal["low", "med", "high"]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule asks of people."""

    tier: Tier | None = None
    """None: the action's own."""
    people: int = 1
    group: str = ""
    """Whoever says yes belongs to it; empty: any approver."""
    within_seconds: float


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule: which actions it is about, when it speaks, and what it says."""

    name: str
    connector: str
    operations: tuple[str, ...]
    when: str | None
    """CEL; None: always."""
    says: Outcome
    why: str
    """For people; of a denial never empty."""
    asked: Asked | None = None
    """Of `needs_approval`."""
    index: int
    """Its place in the list of rules."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A test in a policy file: what the policy must say of an action."""

    name: str
    action: dict[str, Any]
    facts: dict[str, Any]
    """Beside the action; what is not given has a plain value."""
    expect: Outcome
    rules: tuple[str, ...] | None = None
    """The rules that speak, in the order of the file; None: whichever."""
    error: str | None = None
    approval: dict[str, Any] | None = None
    """What must be asked for, as far as it is given here."""
    index: int
    """Its place in the list of tests."""
    line: int


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file."""

    source: str
    text: str
    rules: tuple[Rule, ...]
    cases: tuple[Case, ...]
