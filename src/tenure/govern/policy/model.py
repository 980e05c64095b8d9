"""A policy file after it was read."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tenure.kernel.act_commands import RulingOutcome

TIERS = ("low", "med", "high")
Tier = Literal["low", "med", "high"]


class ApprovalDemand(msgspec.Struct, frozen=True, kw_only=True):
    tier: Tier | None = None
    """None: the action's own tier."""
    people: int = 1
    group: str = ""
    """The group of the approvers. Empty: any approver."""
    within_seconds: float


class PolicyRule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    connector: str
    operations: tuple[str, ...]
    when: str | None
    """CEL. None: always."""
    says: RulingOutcome
    why: str
    """For people. A denial always has one."""
    asked: ApprovalDemand | None = None
    """For `needs_approval`."""
    index: int


class PolicyCase(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    action: dict[str, Any]
    facts: dict[str, Any]
    """Besides the action. Missing facts have defaults."""
    expect: RulingOutcome
    rules: tuple[str, ...] | None = None
    """The rules that must apply, in the order of the file. None: any."""
    error: str | None = None
    approval: dict[str, Any] | None = None
    index: int
    line: int


class PolicyFile(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    text: str
    rules: tuple[PolicyRule, ...]
    cases: tuple[PolicyCase, ...]
