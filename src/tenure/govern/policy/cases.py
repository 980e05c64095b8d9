"""The tests in a policy file: the expected ruling on an action.

Law: facts that a test does not set have fixed defaults: noon of a Monday, a run without writes and costs, and an unknown requester.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from tenure import durations
from tenure.clock import us
from tenure.govern.policy.evaluation import SKIPPED, CompiledPolicy
from tenure.govern.policy.facts import time_facts
from tenure.govern.policy.model import PolicyCase, PolicyFile
from tenure.kernel.act_commands import Ruling

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


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    line: int
    passed: bool
    wrong: list[str]
    """How the ruling differs from the expected one."""
    outcome: str
    rules: list[tuple[str, str]]
    """All rules for the operation, with the outcome of each."""
    why: str


def run_cases(policy: PolicyFile) -> list[CaseResult]:
    compiled = CompiledPolicy(policy)
    return [_compare(case, compiled.ruling(build_case_facts(case))) for case in policy.cases]


def build_case_facts(case: PolicyCase) -> dict[str, Any]:
    """The facts of a test, with defaults. `time.now` determines the other time facts."""
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


def _compare(case: PolicyCase, ruling: Ruling) -> CaseResult:
    rules = msgspec.json.decode(ruling.rules, type=list[tuple[str, str]])
    wrong: list[str] = []

    def compare(what: str, wanted: Any, found: Any) -> None:
        if wanted != found:
            wrong.append(f"{what}: {found if found not in (None, '', []) else 'none'}, not {wanted}")

    compare("outcome", case.expect, ruling.outcome)
    if case.rules is not None:
        compare("rules", sorted(case.rules), sorted(name for name, what in rules if what != SKIPPED))
    if case.error is not None:
        compare("error", case.error, ruling.error)
    if case.approval is not None and ruling.outcome == "needs_approval":
        found = {
            "tier": ruling.tier,
            "people": ruling.people,
            "group": ruling.people_in,
            "within": ruling.within_seconds,
        }
        for name, wanted in case.approval.items():
            compare(name, durations.parse_duration(wanted) if name == "within" else wanted, found[name])
    return CaseResult(
        name=case.name,
        line=case.line,
        passed=not wrong,
        wrong=wrong,
        outcome=ruling.outcome,
        rules=rules,
        why=ruling.why,
    )
