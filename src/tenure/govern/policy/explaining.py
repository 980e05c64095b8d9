"""What policies decided about a run's actions, with the reasons of their rules.

Laws:
1. A verdict keeps the version and what each rule said; why a rule says so is in the text of that version, which never changes.
2. Of what was denied or asked about target and fields are shown, and nothing else of what was kept: a question has the agent's own
   words too. What is large stays among the artifacts, as a receipt's does.
"""

from __future__ import annotations

from typing import Any

from tenure.artifacts import is_reference
from tenure.errors import TenureError
from tenure.govern.policy.loading import load
from tenure.govern.policy.policies import Reader
from tenure.govern.policy.views import DecisionView, decision_view
from tenure.kernel.governance import Policy
from tenure.kernel.governed import Verdict
from tenure.kernel.model import Payload, Step
from tenure.orchestrator.step_views import decoded
from tenure.store.port import Store


async def decisions_of(store: Store, run_id: int) -> list[DecisionView]:
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
    refs = [(run_id, row.request_ref) for row in verdicts if row.request_ref is not None]
    kept: list[Payload] = await store.read("load_payloads", rows=refs) if refs else []
    requests = {one.ref: _request(one.body) for one in kept}
    return [
        decision_view(
            row, names.get(row.idx, str(row.idx)), reasons[row.version], requests.get(row.request_ref or 0)
        )
        for row in verdicts
    ]


def _request(body: bytes | None) -> Any:
    """Law 2."""
    found = decoded(body)
    if body is None or is_reference(body) or not isinstance(found, dict):
        return found
    return {name: found[name] for name in ("target", "fields") if name in found}


async def _reasons(store: Reader, tenant: str, version: int) -> dict[str, str]:
    """Why the rules of a version say what they say; of one that cannot be read nothing is known."""
    rows: list[Policy] = await store.read("policy_at", tenant, version)
    try:
        rules = load(rows[0].text).rules if rows else ()
    except TenureError:
        return {}
    return {rule.name: rule.why for rule in rules if rule.why}
