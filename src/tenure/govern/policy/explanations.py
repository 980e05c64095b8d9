"""Explains the policy decisions about a run's actions, with the reasons of the rules.

Laws:
1. A verdict contains the policy's version and the outcome of each rule. The reasons are in the text of that version, which never changes.
2. For a denied action or a question only target and fields are shown, because a question also contains the agent's own words. Large requests
   stay among the artifacts, as those of receipts do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tenure.artifacts import is_reference
from tenure.clock import SECOND_US, to_datetime
from tenure.errors import TenureError
from tenure.govern.policy.evaluation import SKIPPED
from tenure.govern.policy.loader import load_policy
from tenure.kernel.act_rows import VerdictRow
from tenure.kernel.governance_rows import PolicyRow
from tenure.kernel.run_rows import PayloadRow
from tenure.reads.payloads import decode_payload
from tenure.shapes.policies import PolicyDecision
from tenure.store.port import QueryReader, Store


async def explain_decisions(store: Store, run_id: int) -> list[PolicyDecision]:
    """The decisions about a run, in the order in which they were made."""
    verdicts: list[VerdictRow] = await store.read("verdicts_of", run_id)
    if not verdicts:
        return []
    names = {step.idx: step.name for step in await store.read("steps_of", run_id)}
    reasons = {
        version: await _reasons(store, verdicts[0].tenant, version)
        for version in {row.version for row in verdicts}
    }
    refs = [(run_id, row.request_ref) for row in verdicts if row.request_ref is not None]
    payloads: list[PayloadRow] = await store.read("load_payloads", rows=refs) if refs else []
    requests = {one.ref: _request(one.body) for one in payloads}
    return [
        build_policy_decision(
            row, names.get(row.idx, str(row.idx)), reasons[row.version], requests.get(row.request_ref or 0)
        )
        for row in verdicts
    ]


def _request(body: bytes | None) -> Any:
    found = decode_payload(body)
    if body is None or is_reference(body) or not isinstance(found, dict):
        return found
    return {name: found[name] for name in ("target", "fields") if name in found}


async def _reasons(store: QueryReader, tenant: str, version: int) -> dict[str, str]:
    """The reasons of a version's rules; empty if the version cannot be read."""
    rows: list[PolicyRow] = await store.read("policy_at", tenant, version)
    try:
        rules = load_policy(rows[0].text).rules if rows else ()
    except TenureError:
        return {}
    return {rule.name: rule.why for rule in rules if rule.why}


def build_policy_decision(
    row: VerdictRow, step: str, reasons: Mapping[str, str], request: Any
) -> PolicyDecision:
    rules = msgspec.json.decode(row.rules, type=list[tuple[str, str]])
    return PolicyDecision(
        no=row.no,
        step=step,
        label=row.label,
        action=f"{row.connector}.{row.operation}",
        at=to_datetime(row.at),
        version=row.version,
        outcome=row.outcome,
        rules=rules,
        reasons={name: reasons[name] for name, outcome in rules if outcome != SKIPPED and name in reasons},
        digest=row.digest.hex(),
        tier=row.tier,
        people=row.people,
        group=row.people_in,
        within_seconds=None if row.within_us is None else row.within_us / SECOND_US,
        error=row.error,
        request=request,
    )
