"""Shadow evaluation: how another policy would have decided past actions.

Laws:
1. Nothing is changed and nothing is called. Only verdicts and stored requests are read.
2. The report says what cannot be reconstructed. For every action: the requester's current roles and groups are used, and the run's current
   costs. The target and fields of unknown operations were not stored, and others may have been erased: if the policy uses them, the action
   is not evaluated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tenure import ids
from tenure.artifacts import is_reference
from tenure.clock import to_datetime
from tenure.govern.policy.evaluation import CompiledPolicy
from tenure.govern.policy.facts import build_facts, find_requester
from tenure.kernel.act_commands import Ruling
from tenure.kernel.act_rows import ReceiptRow, RunSpendRow, VerdictRow
from tenure.kernel.run_rows import PayloadRow, RunRow, RunSpecRow
from tenure.shapes.policies import ShadowDifference, ShadowReport
from tenure.store.port import QueryReader

AT_ONCE = 500
FACTS_NOT_RESTORED = (
    "the roles and groups of a run's requester are the current ones",
    "the costs of a run are the current ones",
)


class ShadowEvaluation:
    """Implements the laws above. `fetch` reads stored requests from the artifacts."""

    def __init__(self, store: QueryReader, fetch: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._store = store
        self._fetch = fetch

    async def evaluate(self, tenant: str, policy: CompiledPolicy, since_us: int, most: int) -> ShadowReport:
        """Evaluate a policy for up to `most` decisions of a tenant since a time."""
        same = looked_at = 0
        differs: list[ShadowDifference] = []
        skipped = Counter[str]()
        place = (since_us - 1, 0, 0)
        while looked_at < most:
            rows: list[VerdictRow] = await self._store.read(
                "verdicts_since", tenant, since_us, *place, min(AT_ONCE, most - looked_at)
            )
            for row in rows:
                looked_at += 1
                ruling, known = await self._evaluate_verdict(policy, row)
                if ruling is None:
                    skipped["its run was deleted"] += 1
                elif ruling.error == "POLICY_ERROR" and not known:
                    skipped["its target and fields were not stored"] += 1
                elif _describe(ruling) == _describe(row):
                    same += 1
                else:
                    differs.append(
                        ShadowDifference(
                            run=ids.run_text(row.run_id),
                            no=row.no,
                            label=row.label,
                            action=f"{row.connector}.{row.operation}",
                            at=to_datetime(row.at),
                            was=_describe(row),
                            was_version=row.version,
                            would=_describe(ruling),
                            why=ruling.why,
                        )
                    )
            if not rows:
                break
            place = (rows[-1].at, rows[-1].run_id, rows[-1].no)
        return ShadowReport(
            looked_at=looked_at,
            same=same,
            differs=differs,
            not_judged=dict(skipped),
            not_as_then=[*FACTS_NOT_RESTORED],
        )

    async def _evaluate_verdict(self, policy: CompiledPolicy, row: VerdictRow) -> tuple[Ruling | None, bool]:
        """What a policy would have ruled, and whether the whole action was known."""
        runs: list[RunRow] = await self._store.read("get_run", row.run_id)
        specs: list[RunSpecRow] = await self._store.read("get_spec", row.run_id)
        if not runs or not specs:
            return None, False
        receipts: list[ReceiptRow] = await self._store.read("receipts_of", row.run_id)
        of = next((one for one in receipts if one.digest == row.digest), None)
        request = await self._request(row, of)
        run_spends: list[RunSpendRow] = await self._store.read("run_spends_of", row.run_id)
        written = RunSpendRow(
            row.run_id,
            run_spends[0].spent if run_spends else 0,
            sum(one.intent_at < row.at and one.state != "reused" for one in receipts),
        )
        action: dict[str, Any] = {
            "connector": row.connector,
            "operation": row.operation,
            "tier": of.tier if of is not None else row.act_tier,
            "key": of.name if of is not None else row.name,
            "reverses": specs[0].undo_of is not None,  # an undo run does nothing but undo
        }
        if request is not None:
            action |= {"target": request.get("target", {}), "fields": request.get("fields", {})}
        facts = build_facts(
            run=runs[0],
            spec=specs[0],
            run_spend=written,
            person=await find_requester(self._store, row.tenant, specs[0].requester),
            action=action,
            now_us=row.at,
        )
        return policy.ruling(facts), request is not None

    async def _request(self, row: VerdictRow, of: ReceiptRow | None) -> dict[str, Any] | None:
        """The stored request of an action: that of its verdict, or else that of its receipt."""
        ref = of.request_ref if row.request_ref is None and of is not None else row.request_ref
        kept: list[PayloadRow] = [] if ref is None else await self._store.read("payload", row.run_id, ref)
        if not kept or not kept[0].body:
            return None
        body = kept[0].body
        found = msgspec.json.decode(await self._fetch(body) if is_reference(body) else body)
        return found if isinstance(found, dict) and "target" in found else None


def _describe(ruling: Ruling | VerdictRow) -> str:
    if ruling.outcome != "needs_approval":
        return ruling.outcome
    return f"{ruling.outcome} ({ruling.tier}, {ruling.people} of {ruling.people_in or 'any group'})"
