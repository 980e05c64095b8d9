"""Policy versions and freezes, as the product shows them."""

from __future__ import annotations

from typing import Any

from tenure.clock import to_datetime
from tenure.kernel.governance_rows import GovernanceRow, PolicyRow
from tenure.shapes.policies import Freeze, PolicyText, PolicyVersion
from tenure.store.policies import PolicyVersionSummary, frozen_scopes, proposed_thaws


def build_policy_version(row: PolicyRow | PolicyVersionSummary, now: GovernanceRow) -> PolicyVersion:
    return PolicyVersion(**_version(row, now))


def build_policy_text(row: PolicyRow, now: GovernanceRow) -> PolicyText:
    return PolicyText(**_version(row, now), text=row.text)


def _version(row: PolicyRow | PolicyVersionSummary, now: GovernanceRow) -> dict[str, Any]:
    return {
        "version": row.version,
        "sha256": row.digest.hex(),
        "author": row.author,
        "published_at": to_datetime(row.created_at),
        "active": now.version == row.version,
        "proposed_by": now.proposed_by if now.proposed == row.version else None,
    }


def build_freezes(now: GovernanceRow) -> list[Freeze]:
    wanted = proposed_thaws(now)
    return [
        Freeze(
            scope={"wf": "workflow", "cn": "connector"}.get(scope.partition(":")[0], "tenant"),
            name=scope.partition(":")[2] or now.tenant,
            thaw_proposed_by=wanted.get(scope),
        )
        for scope in frozen_scopes(now)
    ]
