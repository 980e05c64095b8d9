"""What a policy says of an action.

Laws:
1. Rules are found by the literal names of connector and operation; all that are found are evaluated, whatever the others say.
2. A condition that has no value, or another than true or false, is a denial: POLICY_ERROR. So is everything else that breaks.
3. A denial beats an approval, an approval beats an allowance, and where no rule speaks it is a denial: POLICY_NO_RULE.
4. Of approvals the strictest of all that were asked for: the highest tier, the most people, the shortest time, and the group
   that one of them names. Of two groups neither is the stricter: rules that name different ones are a denial, POLICY_ERROR.
5. Nothing is compiled while an action waits: a policy is compiled once, and the facts are given to CEL once for all rules.
6. What conditions may cost is bounded before they are evaluated, each and all together (`declared.expression_cost`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tenure.declared.expression_cost import Shape, shape_of
from tenure.declared.expressions import (
    TOGETHER_TOO_MUCH,
    Bound,
    Expression,
    is_panic,
    measure,
    parse,
    program,
    reason_of,
)
from tenure.errors import TenureError
from tenure.govern.policy.facts import ROOTS, checked_facts
from tenure.govern.policy.model import TIERS, Policy, Rule
from tenure.kernel.actions import Ruling
from tenure.limits import EXPRESSIONS_WORK_MAX

if TYPE_CHECKING:
    import cel

SKIPPED, FAILED = "not", "error"
"""What a verdict says of rules that were found and do not speak: their condition does not hold, or has no value."""
_encode = msgspec.json.Encoder().encode


def denial(version: int, error: str, why: str) -> Ruling:
    """A denial that no rule said."""
    return Ruling(version=version, outcome="deny", error=error, why=why)


class _Facts:
    """Facts as CEL takes them, and what they measure, each made when first needed."""

    def __init__(self, facts: dict[str, Any], conditions: int) -> None:
        self.plain = facts
        self._enough = EXPRESSIONS_WORK_MAX // max(conditions, 1)
        self._context: cel.Context | None = None
        self._size: int | None = None
        self._shapes: dict[str, Shape] = {}
        self._work_left = EXPRESSIONS_WORK_MAX

    @property
    def context(self) -> cel.Context:
        if self._context is None:
            import cel  # late, as in declared.expressions

            self._context = cel.Context(variables=self.plain)
        return self._context

    def check_cost(self, bound: Bound) -> None:
        """Refuse a condition that may cost too much, by itself or after those before it; ValueError."""
        if self._size is None:
            self._size = measure(self.plain)
        self._work_left -= bound.work(self._size, self._shape, self._enough)
        if self._work_left < 0:
            raise ValueError(TOGETHER_TOO_MUCH)

    def _shape(self, root: str) -> Shape:
        if root not in self._shapes:
            self._shapes[root] = shape_of(self.plain.get(root))
        return self._shapes[root]


class _Condition:
    """A rule's condition, compiled."""

    def __init__(self, source: str) -> None:
        self._expression: Expression = parse(source, ROOTS)
        self.refers = self._expression.refers
        self._program = program(self._expression.source) if self._expression.path is None else None

    def value(self, facts: _Facts) -> Any:
        if self._program is None:
            return self._expression.value(facts.plain)
        assert self._expression.bound is not None
        facts.check_cost(self._expression.bound)
        return self._program.execute(facts.context)


class _Ready:
    """A rule and its condition."""

    __slots__ = ("condition", "rule")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.condition = None if rule.when is None else _Condition(rule.when)


class Compiled:
    """A policy, ready to be asked; see the laws above."""

    def __init__(self, policy: Policy, version: int = 0) -> None:
        self.version = version
        self._by_action: dict[tuple[str, str], list[_Ready]] = {}
        for rule in policy.rules:
            ready = _Ready(rule)
            for operation in rule.operations:
                self._by_action.setdefault((rule.connector, operation), []).append(ready)
        self._reads = {action: _read_by(found) for action, found in self._by_action.items()}

    def reads(self, facts: dict[str, Any]) -> frozenset[str]:
        """Which facts that can change the rules about an action read."""
        action = facts["action"]
        return self._reads.get((action["connector"], action["operation"]), frozenset())

    def ruling(self, facts: dict[str, Any]) -> Ruling:
        """What it says of `facts`; it never raises."""
        try:
            action = facts["action"]
            found = self._by_action.get((action["connector"], action["operation"]), ())
            return self._judged(found, _Facts(facts, len(found)), action["tier"])
        except Exception as fault:  # law 2: whatever breaks is a denial
            return denial(self.version, "POLICY_ERROR", f"the policy cannot be asked: {reason_of(fault)}")

    def _judged(self, found: Any, facts: _Facts, tier: str) -> Ruling:
        spoken: list[tuple[str, str]] = []
        heard: list[Rule] = []
        broken: list[str] = []
        for ready in found:
            rule = ready.rule
            if ready.condition is not None:
                holds, wrong = _holds(ready.condition, facts)
                if wrong:
                    spoken.append((rule.name, FAILED))
                    broken.append(f"{rule.name}: {wrong}")
                    continue
                if not holds:
                    spoken.append((rule.name, SKIPPED))
                    continue
            spoken.append((rule.name, rule.says))
            heard.append(rule)
        rules = _encode(spoken).decode()
        denials = [rule for rule in heard if rule.says == "deny"]
        if denials or broken:
            why = "\n".join([*(_reason(rule) for rule in denials), *broken])
            error = "POLICY_ERROR" if broken else None
            return Ruling(version=self.version, outcome="deny", rules=rules, error=error, why=why)
        asking = [rule for rule in heard if rule.says == "needs_approval"]
        if asking:
            return self._strictest(asking, rules, tier)
        if not heard:
            why = "no rule speaks for this action"
            return Ruling(version=self.version, outcome="deny", rules=rules, error="POLICY_NO_RULE", why=why)
        why = "\n".join(_reason(rule) for rule in heard)
        return Ruling(version=self.version, outcome="allow", rules=rules, why=why)

    def _strictest(self, asking: list[Rule], rules: str, tier: str) -> Ruling:
        asked = [rule.asked for rule in asking if rule.asked is not None]
        tiers = [TIERS.index(one.tier or tier) for one in asked]
        groups = sorted({one.group for one in asked if one.group})
        if len(groups) > 1:
            named = ", ".join(rule.name for rule in asking if rule.asked is not None and rule.asked.group)
            why = (
                f"{named}: they ask different groups ({', '.join(groups)}), and one approval is of one group"
            )
            return Ruling(version=self.version, outcome="deny", rules=rules, error="POLICY_ERROR", why=why)
        return Ruling(
            version=self.version,
            outcome="needs_approval",
            rules=rules,
            tier=TIERS[max(tiers)],
            people=max(one.people for one in asked),
            people_in="".join(groups),
            within_seconds=min(one.within_seconds for one in asked),
            why="\n".join(_reason(rule) for rule in asking),
        )


def _read_by(found: list[_Ready]) -> frozenset[str]:
    conditions = [ready.condition for ready in found if ready.condition is not None]
    return checked_facts(reference for condition in conditions for reference in condition.refers)


def _reason(rule: Rule) -> str:
    return f"{rule.name}: {rule.why}" if rule.why else rule.name


def _holds(condition: _Condition, facts: _Facts) -> tuple[bool, str]:
    """Whether a condition holds, or what is wrong with it."""
    try:
        value = condition.value(facts)
    except TenureError as fault:
        return False, fault.message
    except Exception as fault:  # CEL raises many kinds
        return False, reason_of(fault)
    except (
        BaseException
    ) as fault:  # a panic of the library below CEL is none of Python's exceptions; see law 2
        if not is_panic(fault):
            raise
        return False, "CEL has given up"
    if value is True or value is False:
        return value, ""
    return False, f"the condition is a {type(value).__name__}, neither true nor false"
