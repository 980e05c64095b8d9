"""Whether a policy fits the connectors it is about: `tenure policy check`.

Law: everything is told at once, with its line; and what passes looks only at fields that every operation it names has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tenure.declared.document import Problems
from tenure.declared.expressions import Malformed, parse
from tenure.declared.syntax import Unfollowed, parsed
from tenure.govern.connector import Operation
from tenure.govern.policy.facts import ACTION, ROOTS, SCHEMAS
from tenure.govern.policy.loading import problems_of, read_policy
from tenure.govern.policy.model import Policy, Rule
from tenure.govern.policy.paths import check_paths


class Operating(Protocol):
    """The part of a connector that is looked at here."""

    @property
    def operations(self) -> Mapping[str, Operation]:
        """What it can do."""
        ...


Connectors = Mapping[str, Operating]


def check(text: str, source: str, connectors: Connectors) -> Policy:
    """A policy that was checked against connectors; POLICY_INVALID names every problem with its line and column."""
    problems = problems_of(source)
    policy = read_policy(text, source, problems)
    if policy is not None:
        for rule in policy.rules:
            _check_rule(rule, connectors, problems)
        _check_cases(policy, connectors, problems)
    problems.raise_any()
    if policy is None:  # which always comes with a problem
        raise problems.error()
    return policy


def _check_rule(rule: Rule, connectors: Connectors, problems: Problems) -> None:
    path = ("rules", rule.index)
    operations = _operations(rule.connector, rule.operations, path, connectors, problems)
    if rule.when is None:
        return
    try:
        parse(rule.when, ROOTS)
        tree = parsed(rule.when.strip())
    except Malformed:
        return  # which has been told when the file was read
    except Unfollowed as fault:
        problems.add((*path, "when"), str(fault))
        return
    for operation in operations:

        def tell(what: str, name: str = operation.name) -> None:
            several = f" (of {rule.connector}.{name})" if "action." in what and len(operations) > 1 else ""
            problems.add((*path, "when"), f"{what}{several}")

        try:
            check_paths(tree, roots_of(operation), tell, problems.guesses)
        except Unfollowed as fault:
            tell(str(fault))


def roots_of(operation: Operation) -> dict[str, Any]:
    """The schemas of what a condition about an operation looks at."""
    action = {
        "type": "object",
        "properties": {**ACTION, "target": operation.target, "fields": operation.fields},
        "additionalProperties": False,
    }
    return {"action": action, **SCHEMAS}


def _operations(
    connector: str,
    names: tuple[str, ...],
    path: tuple[str | int, ...],
    connectors: Connectors,
    problems: Problems,
) -> list[Operation]:
    if connector not in connectors:
        guess = problems.close_to(connector, sorted(connectors), "there are")
        problems.add((*path, "connector"), f"there is no connector {connector!r}{guess}")
        return []
    known = connectors[connector].operations
    for name in names:
        if name not in known:
            guess = problems.close_to(name, sorted(known), "there are")
            problems.add((*path, "operation"), f"{connector} has no operation {name!r}{guess}")
    return [known[name] for name in names if name in known]


def _check_cases(policy: Policy, connectors: Connectors, problems: Problems) -> None:
    for case in policy.cases:
        path = ("tests", case.index)
        connector, operation = case.action["connector"], case.action["operation"]
        known = connector in connectors and operation in connectors[connector].operations
        if not known:
            problems.add((*path, "action"), f"there is no operation {connector}.{operation}")
            continue
        declared = connectors[connector].operations[operation]
        for root, schema in (("target", declared.target), ("fields", declared.fields)):
            properties = schema.get("properties", {})
            others = schema.get("additionalProperties", "properties" not in schema)
            for name in case.action[root]:
                if name not in properties and others is False:
                    guess = problems.close_to(name, properties, "there are")
                    problems.add((*path, root, name), f"there is no {root}.{name}{guess}")
