"""Evaluates a policy for an action.

Laws:
1. Rules are found by the literal names of connector and operation. All of them are evaluated.
2. A condition that fails, or is neither true nor false, is a denial: POLICY_ERROR. So is every other failure.
3. A denial overrides an approval, and an approval overrides an allowance. If no rule applies, the action is denied: POLICY_NO_RULE.
4. The strictest of all required approvals counts: the highest tier, the most people, the shortest time, and the group that is named. Neither of
   two groups is stricter: rules that name different groups are a denial, POLICY_ERROR.
5. Nothing is compiled while an action waits: a policy is compiled once, and the facts are converted to CEL once for all rules.
6. The cost of conditions is bounded before they are evaluated, for each and for all together (`tenure.expressions.cost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.errors import TenureError
from tenure.expressions.cost import ValueBound, bound_value
from tenure.expressions.digests import execute_with_digests, uses_digests
from tenure.expressions.expression import (
    SHARED_BUDGET_USED_UP,
    Expression,
    WorkBound,
    cel_error_reason,
    compile_cel,
    is_panic,
    measure_values,
    parse_expression,
)
from tenure.govern.policy.facts import ROOTS, checked_facts
from tenure.govern.policy.model import TIERS, PolicyFile, PolicyRule
from tenure.kernel.act_commands import Ruling
from tenure.limits import EXPRESSIONS_WORK_MAX

if TYPE_CHECKING:
    import cel

SKIPPED, FAILED = "not", "error"
"""The outcomes of rules that do not apply: the condition is false, or it failed."""
_encode = msgspec.json.Encoder().encode


def deny_without_rule(version: int, error: str, why: str) -> Ruling:
    return Ruling(version=version, outcome="deny", error=error, why=why)


class _Facts:
    """The facts for CEL and their measured sizes, each computed when first needed."""

    def __init__(self, facts: dict[str, Any], conditions: int) -> None:
        self.plain = facts
        self._enough = EXPRESSIONS_WORK_MAX // max(conditions, 1)
        self._context: cel.Context | None = None
        self._size: int | None = None
        self._shapes: dict[str, ValueBound] = {}
        self._work_left = EXPRESSIONS_WORK_MAX

    @property
    def context(self) -> cel.Context:
        if self._context is None:
            import cel  # late, as in tenure.expressions.expression

            self._context = cel.Context(variables=self.plain)
        return self._context

    def check_cost(self, bound: WorkBound) -> None:
        """Raise ValueError if a condition may cost too much, by itself or together with those before it."""
        if self._size is None:
            self._size = measure_values(self.plain)
        self._work_left -= bound.work(self._size, self._shape, self._enough)
        if self._work_left < 0:
            raise ValueError(SHARED_BUDGET_USED_UP)

    def _shape(self, root: str) -> ValueBound:
        if root not in self._shapes:
            self._shapes[root] = bound_value(self.plain.get(root))
        return self._shapes[root]


class _Condition:
    def __init__(self, source: str) -> None:
        self._expression: Expression = parse_expression(source, ROOTS)
        self.refers = self._expression.refers
        self._program = compile_cel(self._expression.source) if self._expression.path is None else None

    def value(self, facts: _Facts) -> Any:
        if self._program is None:
            return self._expression.value(facts.plain)
        assert self._expression.bound is not None
        facts.check_cost(self._expression.bound)
        if uses_digests(self._expression.source):
            return execute_with_digests(self._program, facts.plain)
        return self._program.execute(facts.context)


_CompiledRule = tuple[PolicyRule, _Condition | None]


class CompiledPolicy:
    def __init__(self, policy: PolicyFile, version: int = 0) -> None:
        self.version = version
        self._by_action: dict[tuple[str, str], list[_CompiledRule]] = {}
        for rule in policy.rules:
            compiled = (rule, None if rule.when is None else _Condition(rule.when))
            for operation in rule.operations:
                self._by_action.setdefault((rule.connector, operation), []).append(compiled)
        self._reads = {
            action: checked_facts(
                reference for _, condition in rules if condition is not None for reference in condition.refers
            )
            for action, rules in self._by_action.items()
        }

    def reads(self, facts: dict[str, Any]) -> frozenset[str]:
        """The changeable facts that the rules for an action use."""
        action = facts["action"]
        return self._reads.get((action["connector"], action["operation"]), frozenset())

    def ruling(self, facts: dict[str, Any]) -> Ruling:
        """The ruling on `facts`. Never raises."""
        try:
            action = facts["action"]
            found = self._by_action.get((action["connector"], action["operation"]), ())
            return self._evaluate(found, _Facts(facts, len(found)), action["tier"])
        except Exception as fault:  # law 2: any failure is a denial
            return deny_without_rule(
                self.version, "POLICY_ERROR", f"the policy cannot be evaluated: {cel_error_reason(fault)}"
            )

    def _evaluate(self, found: Sequence[_CompiledRule], facts: _Facts, tier: str) -> Ruling:
        outcomes: list[tuple[str, str]] = []
        applied: list[PolicyRule] = []
        broken: list[str] = []
        for rule, condition in found:
            holds, problem = (True, "") if condition is None else _holds(condition, facts)
            if problem:
                broken.append(f"{rule.name}: {problem}")
            elif holds:
                applied.append(rule)
            outcomes.append((rule.name, FAILED if problem else rule.says if holds else SKIPPED))
        rules = _encode(outcomes).decode()
        denials = [rule for rule in applied if rule.says == "deny"]
        if denials or broken:
            why = "\n".join([*(_reason(rule) for rule in denials), *broken])
            return self._deny(rules, "POLICY_ERROR" if broken else None, why)
        asking = [rule for rule in applied if rule.says == "needs_approval"]
        if asking:
            return self._strictest(asking, rules, tier)
        if not applied:
            return self._deny(rules, "POLICY_NO_RULE", "no rule applies to this action")
        why = "\n".join(_reason(rule) for rule in applied)
        return Ruling(version=self.version, outcome="allow", rules=rules, why=why)

    def _deny(self, rules: str, error: str | None, why: str) -> Ruling:
        return Ruling(version=self.version, outcome="deny", rules=rules, error=error, why=why)

    def _strictest(self, asking: list[PolicyRule], rules: str, tier: str) -> Ruling:
        asked = [rule.asked for rule in asking if rule.asked is not None]
        groups = sorted({one.group for one in asked if one.group})
        if len(groups) > 1:
            named = ", ".join(rule.name for rule in asking if rule.asked is not None and rule.asked.group)
            why = f"{named}: these rules require different groups ({', '.join(groups)}), but an approval has one group"
            return self._deny(rules, "POLICY_ERROR", why)
        return Ruling(
            version=self.version,
            outcome="needs_approval",
            rules=rules,
            tier=TIERS[max(TIERS.index(one.tier or tier) for one in asked)],
            people=max(one.people for one in asked),
            people_in="".join(groups),
            within_seconds=min(one.within_seconds for one in asked),
            why="\n".join(_reason(rule) for rule in asking),
        )


def _reason(rule: PolicyRule) -> str:
    return f"{rule.name}: {rule.why}" if rule.why else rule.name


def _holds(condition: _Condition, facts: _Facts) -> tuple[bool, str]:
    """Whether a condition is true, or why it failed."""
    try:
        value = condition.value(facts)
    except TenureError as fault:
        return False, fault.message
    except Exception as fault:  # CEL raises many types
        return False, cel_error_reason(fault)
    except BaseException as fault:  # a panic of the CEL library is not an Exception; see law 2
        if not is_panic(fault):
            raise
        return False, "CEL failed internally"
    if value is True or value is False:
        return value, ""
    return False, f"the condition is a {type(value).__name__}, but it must be true or false"
