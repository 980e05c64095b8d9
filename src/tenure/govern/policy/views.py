"""What is shown of policies: versions, what holds now, and what was decided."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from tenure.clock import SECOND_US
from tenure.govern.policy.evaluating import SKIPPED
from tenure.kernel.governance import Governance, Policy
from tenure.kernel.governed import Verdict
from tenure.store.policies import PolicyLine, scopes, thaws


class VersionView(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a policy."""

    version: int
    sha256: str
    author: str
    published_at: datetime
    active: bool
    proposed_by: str | None
    """Of one that somebody wants to be active: the person who does."""


class PolicyView(VersionView, frozen=True, kw_only=True):
    """A version with its text."""

    text: str
    """The file, byte for byte."""


class FreezeView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is frozen: every act of it is denied."""

    scope: str
    """`tenant`, `workflow` or `connector`."""
    name: str
    """Of the workflow or connector; of the tenant its own."""
    thaw_proposed_by: str | None
    """The person who wants it to thaw; another one must say so too."""


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
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


def version_view(row: Policy | PolicyLine, now: Governance) -> VersionView:
    """A version, as it stands."""
    return VersionView(**_version(row, now))


def policy_view(row: Policy, now: Governance) -> PolicyView:
    """Likewise, with its text."""
    return PolicyView(**_version(row, now), text=row.text)


def _version(row: Policy | PolicyLine, now: Governance) -> dict[str, Any]:
    return {
        "version": row.version,
        "sha256": row.digest.hex(),
        "author": row.author,
        "published_at": moment(row.created_at),
        "active": now.version == row.version,
        "proposed_by": now.proposed_by if now.proposed == row.version else None,
    }


def freeze_views(now: Governance) -> list[FreezeView]:
    """What is frozen."""
    wanted = thaws(now)
    return [
        FreezeView(
            scope={"wf": "workflow", "cn": "connector"}.get(scope.partition(":")[0], "tenant"),
            name=scope.partition(":")[2] or now.tenant,
            thaw_proposed_by=wanted.get(scope),
        )
        for scope in scopes(now)
    ]


def decision_view(row: Verdict, step: str, reasons: Mapping[str, str], request: Any) -> DecisionView:
    """A verdict; `reasons` are those of its policy's rules, `request` is what was kept of its action."""
    rules = msgspec.json.decode(row.rules, type=list[tuple[str, str]])
    return DecisionView(
        no=row.no,
        step=step,
        label=row.label,
        action=f"{row.connector}.{row.operation}",
        at=moment(row.at),
        version=row.version,
        outcome=row.outcome,
        rules=rules,
        reasons={name: reasons[name] for name, said in rules if said != SKIPPED and name in reasons},
        digest=row.digest.hex(),
        tier=row.tier,
        people=row.people,
        group=row.people_in,
        within_seconds=None if row.within_us is None else row.within_us / SECOND_US,
        error=row.error,
        request=request,
    )


def moment(at_us: int) -> datetime:
    """A time of the store's."""
    return datetime.fromtimestamp(at_us / SECOND_US, UTC)
