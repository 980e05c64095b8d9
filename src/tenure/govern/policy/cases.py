"""The tests in a policy file: what the policy must say of an action.

Law: facts that a test does not give have a plain value, the same everywhere and always: noon of a Monday, a run that has written
and spent nothing, asked for by nobody in particular.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from tenure import durations
from tenure.clock import us
from tenure.govern.policy.evaluating import SKIPPED, Compiled
from tenure.govern.policy.facts import time_facts
from tenure.govern.policy.model import Case, Policy
from tenure.kernel.actions import Ruling

_NOON = "2026-01-05T12:00:00Z"
_PLAIN: dict[str, dict[str, Any]] = {
    "action": {"tier": "low", "key": "key", "reverses": False},
    "run": {
        "id": "run_2026-01-05_120000_aaaaaa",
        "workflow": "workflow",
        "version": "1",
        "profile": "governed-runtime",
        "workspace": "default",
        "repo": None,
        "trigger": {"type": "api", "ref": None},
        "created_at": _NOON,
        "attempt": 1,
        "writes": 0,
        "spent": 0,
        "budget": None,
        "currency": "",
    },
    "tenant": {"id": "default"},
    "person": {"id": "somebody", "kind": "person", "roles": [], "groups": []},
}


class Tested(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a test."""

    name: str
    line: int
    passed: bool
    wrong: list[str]
    """What is otherwise than it must be."""
    outcome: str
    rules: list[tuple[str, str]]
    """All rules about the operation, and what each said."""
    why: str


def tested(policy: Policy) -> list[Tested]:
    """All tests of a file, in its order."""
    asked = Compiled(policy)
    return [_tested(case, asked.ruling(facts_of_case(case))) for case in policy.cases]


def facts_of_case(case: Case) -> dict[str, Any]:
    """The facts of a test, the plain ones among them; `time.now` gives the other parts of the time."""
    given = case.facts
    run = {**_PLAIN["run"], **given.get("run", {})}
    run["trigger"] = {**_PLAIN["run"]["trigger"], **run["trigger"]}
    now = datetime.fromisoformat(given.get("time", {}).get("now", _NOON))
    return {
        "action": {**_PLAIN["action"], **case.action},
        "run": run,
        "tenant": {**_PLAIN["tenant"], **given.get("tenant", {})},
        "person": {**_PLAIN["person"], **given.get("person", {})},
        "time": {**time_facts(us(now.timestamp())), **given.get("time", {})},
    }


def _tested(case: Case, said: Ruling) -> Tested:
    rules = msgspec.json.decode(said.rules, type=list[tuple[str, str]])
    wrong: list[str] = []

    def compare(what: str, wanted: Any, found: Any) -> None:
        if wanted != found:
            wrong.append(f"{what}: {found if found not in (None, '', []) else 'none'}, not {wanted}")

    compare("outcome", case.expect, said.outcome)
    if case.rules is not None:
        compare("rules", sorted(case.rules), sorted(name for name, what in rules if what != SKIPPED))
    if case.error is not None:
        compare("error", case.error, said.error)
    if case.approval is not None and said.outcome == "needs_approval":
        found = {
            "tier": said.tier,
            "people": said.people,
            "group": said.people_in,
            "within": said.within_seconds,
        }
        for name, wanted in case.approval.items():
            compare(name, durations.seconds(wanted) if name == "within" else wanted, found[name])
    return Tested(
        name=case.name,
        line=case.line,
        passed=not wrong,
        wrong=wrong,
        outcome=said.outcome,
        rules=rules,
        why=said.why,
    )
