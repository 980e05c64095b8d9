"""Checks a policy against the connectors that it names: for `tenure policy check`, and for the policy file of an embedded engine.

Laws:
1. All problems are reported together, each with its line. A policy that passes uses only fields that every named operation has.
2. An embedded engine's file becomes active when the engine starts, if the tenant has no people: a file cannot replace what two people must
   decide at a server (see `store.policies`, law 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tenure.expressions.cel_syntax import UnsupportedSyntax, parse_cel
from tenure.expressions.expression import MalformedExpression, parse_expression
from tenure.expressions.yaml_document import FileProblems
from tenure.govern.connector import Operation
from tenure.govern.policy.condition_types import check_condition
from tenure.govern.policy.facts import ACTION, ROOTS, SCHEMAS
from tenure.govern.policy.loader import load_policy, read_policy, read_policy_text
from tenure.govern.policy.model import PolicyFile, PolicyRule
from tenure.kernel.governance_rows import GovernanceRow
from tenure.store.policies import PolicyRegistry
from tenure.store.port import Store


class DeclaresOperations(Protocol):
    @property
    def operations(self) -> Mapping[str, Operation]: ...


ConnectorOperations = Mapping[str, DeclaresOperations]


def check_policy(text: str, source: str, connectors: ConnectorOperations) -> PolicyFile:
    """A policy that was checked against connectors; POLICY_INVALID names every problem with its line and column."""

    def check(policy: PolicyFile, problems: FileProblems) -> None:
        for rule in policy.rules:
            _check_rule(rule, connectors, problems)
        _check_cases(policy, connectors, problems)

    return read_policy(text, source, check)


async def install_policy(
    store: Store, tenant: str, policy: str | Path, connectors: ConnectorOperations
) -> GovernanceRow:
    """Make a policy active for a tenant (law 2). `policy` is a path, or the text itself, which has more than one line. If there are no
    connectors, it is not checked against any."""
    is_text = isinstance(policy, str) and "\n" in policy
    text = str(policy) if is_text else read_policy_text(Path(policy))
    source = "<policy>" if is_text else str(policy)
    check_policy(text, source, connectors) if connectors else load_policy(text, source)
    return await PolicyRegistry(store, tenant).install(text)


def _check_rule(rule: PolicyRule, connectors: ConnectorOperations, problems: FileProblems) -> None:
    path = ("rules", rule.index)
    operations = _operations(rule.connector, rule.operations, path, connectors, problems)
    if rule.when is None:
        return
    try:
        parse_expression(rule.when, ROOTS)
        tree = parse_cel(rule.when.strip())
    except MalformedExpression:
        return  # reported when the file was read
    except UnsupportedSyntax as fault:
        problems.add((*path, "when"), str(fault))
        return
    for operation in operations:

        def tell(what: str, name: str = operation.name) -> None:
            of = f" (of {rule.connector}.{name})" if "action." in what and len(operations) > 1 else ""
            problems.add((*path, "when"), f"{what}{of}")

        try:
            check_condition(tree, condition_schemas(operation), tell, problems.guesses)
        except UnsupportedSyntax as fault:
            tell(str(fault))


def condition_schemas(operation: Operation) -> dict[str, Any]:
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
    connectors: ConnectorOperations,
    problems: FileProblems,
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


def _check_cases(policy: PolicyFile, connectors: ConnectorOperations, problems: FileProblems) -> None:
    for case in policy.cases:
        path = ("tests", case.index)
        connector, operation = case.action["connector"], case.action["operation"]
        if connector not in connectors or operation not in connectors[connector].operations:
            problems.add((*path, "action"), f"there is no operation {connector}.{operation}")
            continue
        declared = connectors[connector].operations[operation]
        for root, schema in (("target", declared.target), ("fields", declared.fields)):
            properties = schema.get("properties", {})
            if schema.get("additionalProperties", "properties" not in schema) is not False:
                continue
            for name in case.action[root]:
                if name not in properties:
                    guess = problems.close_to(name, properties, "there are")
                    problems.add((*path, root, name), f"there is no {root}.{name}{guess}")
