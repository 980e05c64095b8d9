"""What policies decided about a run's actions, with the reasons of their rules.

Law: a verdict keeps the version and what each rule said; why a rule says so is in the text of that version, which never changes.
"""

from __future__ import annotations

from tenure.errors import TenureError
from tenure.govern.policy.loading import load
from tenure.govern.policy.policies import Reader
from tenure.govern.policy.views import DecisionView, decision_view
from tenure.kernel.governance import Policy
from tenure.kernel.governed import Verdict
from tenure.kernel.model import Step


async def decisions_of(store: Reader, run_id: int) -> list[DecisionView]:
    """In the order in which they were made."""
    verdicts: list[Verdict] = await store.read("verdicts_of", run_id)
    if not verdicts:
        return []
    steps: list[Step] = await store.read("steps_of", run_id)
    names = {step.idx: step.name for step in steps}
    reasons = {
        version: await _reasons(store, verdicts[0].tenant, version)
        for version in {row.version for row in verdicts}
    }
    return [decision_view(row, names.get(row.idx, str(row.idx)), reasons[row.version]) for row in verdicts]


async def _reasons(store: Reader, tenant: str, version: int) -> dict[str, str]:
    """Why the rules of a version say what they say; of one that cannot be read nothing is known."""
    rows: list[Policy] = await store.read("policy_at", tenant, version)
    try:
        rules = load(rows[0].text).rules if rows else ()
    except TenureError:
        return {}
    return {rule.name: rule.why for rule in rules if rule.why}
