"""What another policy would have said of actions that were decided already.

Laws:
1. Nothing is changed and nothing is called: it reads verdicts, and what was kept of their actions.
2. What cannot be had again is said. Of every action: the roles and groups of its requester are those of now, and what its run had
   spent is what it has spent by now. Of an operation that nobody knew target and fields were not kept, and others may have been
   erased: where the policy looks at them, such an action is not judged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec

from tenure import ids
from tenure.artifacts import is_reference
from tenure.govern.policy.evaluating import Compiled
from tenure.govern.policy.facts import facts_of, person_of
from tenure.govern.policy.policies import Reader
from tenure.govern.policy.views import moment
from tenure.kernel.actions import Ruling
from tenure.kernel.governed import Purse, Receipt, Verdict
from tenure.kernel.model import Payload, Run, RunSpec

AT_ONCE = 500
NOT_AS_THEN = (
    "the roles and groups of a run's requester are those of now",
    "what a run had spent is what it has spent by now",
)
_UNKNOWN = "its target and fields were not kept"


class Differs(msgspec.Struct, frozen=True, kw_only=True):
    """An action that would have been decided otherwise."""

    run: str
    no: int
    """Of the verdict."""
    label: str
    action: str
    at: datetime
    was: str
    was_version: int
    would: str
    why: str
    """Of what it would have been."""


class Shadow(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    looked_at: int
    same: int
    differs: list[Differs]
    not_judged: dict[str, int]
    """Why some could not be judged, and how many."""
    not_as_then: list[str]
    """Facts that are those of now, for every action."""


class Shadowing:
    """See the laws above. `fetch` reads what was kept among the artifacts."""

    def __init__(self, store: Reader, fetch: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._store = store
        self._fetch = fetch

    async def judged(self, tenant: str, policy: Compiled, since_us: int, most: int) -> Shadow:
        """Ask a policy about the decisions of a tenant since a moment, at most so many of them."""
        same = looked_at = 0
        differs: list[Differs] = []
        left: dict[str, int] = {}
        place = (since_us - 1, 0, 0)
        while looked_at < most:
            rows: list[Verdict] = await self._store.read(
                "verdicts_since", tenant, since_us, *place, min(AT_ONCE, most - looked_at)
            )
            for row in rows:
                looked_at += 1
                said, known = await self._judged(policy, row)
                if said is None or (said.error == "POLICY_ERROR" and not known):
                    why = "its run is gone" if said is None else _UNKNOWN
                    left[why] = left.get(why, 0) + 1
                elif _words(*_shown(said)) == _was(row):
                    same += 1
                else:
                    differs.append(_differs(row, said))
            if not rows:
                break
            place = (rows[-1].at, rows[-1].run_id, rows[-1].no)
        return Shadow(
            looked_at=looked_at, same=same, differs=differs, not_judged=left, not_as_then=[*NOT_AS_THEN]
        )

    async def _judged(self, policy: Compiled, row: Verdict) -> tuple[Ruling | None, bool]:
        """What a policy would have said then, and whether the whole action was known."""
        runs: list[Run] = await self._store.read("get_run", row.run_id)
        specs: list[RunSpec] = await self._store.read("get_spec", row.run_id)
        if not runs or not specs:
            return None, False
        receipts: list[Receipt] = await self._store.read("receipts_of", row.run_id)
        of = next((one for one in receipts if one.digest == row.digest), None)
        request = await self._request(row, of)
        purses: list[Purse] = await self._store.read("purses_of", row.run_id)
        written = Purse(
            row.run_id,
            purses[0].spent if purses else 0,
            sum(one.intent_at < row.at and one.state != "reused" for one in receipts),
        )
        requester = person_of(specs[0].requester)
        people = [] if requester is None else await self._store.read("person_named", row.tenant, requester)
        action: dict[str, Any] = {
            "connector": row.connector,
            "operation": row.operation,
            "tier": of.tier if of is not None else row.act_tier,
            "key": of.name if of is not None else row.name,
            "reverses": specs[0].undo_of is not None,  # a run that undoes another does nothing else
        }
        if request is not None:
            action |= {"target": request.get("target", {}), "fields": request.get("fields", {})}
        facts = facts_of(
            run=runs[0],
            spec=specs[0],
            purse=written,
            person=people[0] if people else None,
            action=action,
            now_us=row.at,
        )
        return policy.ruling(facts), request is not None

    async def _request(self, row: Verdict, of: Receipt | None) -> dict[str, Any] | None:
        """What was kept of an action: with its verdict, else with its receipt."""
        ref = row.request_ref
        if ref is None and of is not None:
            ref = of.request_ref
        kept: list[Payload] = [] if ref is None else await self._store.read("payload", row.run_id, ref)
        if not kept or not kept[0].body:
            return None
        body = kept[0].body
        if is_reference(body):
            body = await self._fetch(body)
        found = msgspec.json.decode(body)
        return found if isinstance(found, dict) and "target" in found else None


def _shown(said: Ruling) -> tuple[str, str, int, str]:
    return said.outcome, said.tier, said.people, said.people_in


def _differs(row: Verdict, said: Ruling) -> Differs:
    return Differs(
        run=ids.run_text(row.run_id),
        no=row.no,
        label=row.label,
        action=f"{row.connector}.{row.operation}",
        at=moment(row.at),
        was=_was(row),
        was_version=row.version,
        would=_words(*_shown(said)),
        why=said.why,
    )


def _was(row: Verdict) -> str:
    return _words(row.outcome, row.tier, row.people, row.people_in)


def _words(outcome: str, tier: str, people: int, group: str) -> str:
    if outcome != "needs_approval":
        return outcome
    return f"{outcome} ({tier}, {people} of {group or 'any group'})"
