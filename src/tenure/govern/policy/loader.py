"""Loads policy files: a policy, or everything that is wrong with the file.

Law: a loaded policy can be evaluated, because every condition has been parsed. Whether the fields it names exist is checked by
`connector_check`, which needs the connectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from tenure.errors import TenureError
from tenure.expressions import json_schema
from tenure.expressions.expression import MalformedExpression, parse_expression
from tenure.expressions.schema import MISSING, VariantValue
from tenure.expressions.yaml_document import FileProblems, YamlNode, read_yaml
from tenure.govern.policy.facts import ROOTS, SCHEMAS
from tenure.govern.policy.grammar import POLICY, WITHIN_SECONDS
from tenure.govern.policy.model import ApprovalDemand, PolicyCase, PolicyFile, PolicyRule
from tenure.kernel.act_commands import RulingOutcome
from tenure.limits import POLICY_RULES_PER_OPERATION_MAX

_SAYS: dict[str, RulingOutcome] = {"allow": "allow", "deny": "deny", "approval": "needs_approval"}
_CONTEXT = ("run", "tenant", "person", "time")


def load_policy(text: str, source: str = "<text>") -> PolicyFile:
    """A policy from the text of its file; POLICY_INVALID names every problem with its line and column."""
    return read_policy(text, source, lambda _policy, _problems: None)


def read_policy(text: str, source: str, check: Callable[[PolicyFile, FileProblems], None]) -> PolicyFile:
    """Like `load_policy`, with another check, which adds its problems to those of the file."""
    problems = FileProblems(source, "POLICY_INVALID", "policy", "a version and rules")
    policy = _parse_policy(text, source, problems)
    if policy is not None:
        check(policy, problems)
    problems.raise_any()
    if policy is None:  # there is always a problem then
        raise problems.error()
    return policy


def _parse_policy(text: str, source: str, problems: FileProblems) -> PolicyFile | None:
    root = read_yaml(text, problems)
    data = POLICY.read(root, (), problems)
    if data is MISSING:
        return None
    rules = [rule for variant in data.get("rules", ()) if (rule := _rule(variant, problems)) is not None]
    _check_unique_names(data, problems)
    _check_rules_per_operation(rules, problems)
    cases = tuple(
        case
        for i, values in enumerate(data.get("tests", ()))
        if (case := _case(values, root, i, rules, problems)) is not None
    )
    return PolicyFile(source=source, text=text, rules=tuple(rules), cases=cases)


def read_policy_text(path: Path) -> str:
    """The text of a file, byte for byte."""
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise TenureError("POLICY_INVALID", f"{path} cannot be read: {why}") from fault


def load_policy_file(path: Path) -> PolicyFile:
    return load_policy(read_policy_text(path), str(path))


def _is_moment(text: Any) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _rule(variant: VariantValue, problems: FileProblems) -> PolicyRule | None:
    values, kind = variant.values, variant.kind
    when = values.get("when")
    if when is not None:
        try:
            parse_expression(when, ROOTS)
        except MalformedExpression as fault:
            problems.add((*variant.path, "when"), str(fault))
    if kind == "allow" and values.get("allow") is False:
        problems.add((*variant.path, "allow"), "must be true; actions that no rule allows are denied anyway")
    operations = values.get("operation")
    if not {"name", "connector"} <= values.keys() or not operations or kind not in values:
        return None  # reported already
    names = [operations] if isinstance(operations, str) else operations
    if len(set(names)) < len(names):
        problems.add((*variant.path, "operation"), "an operation is listed twice")
    return PolicyRule(
        name=values["name"],
        connector=values["connector"],
        operations=tuple(names),
        when=when,
        says=_SAYS[kind],
        why=values["deny"] if kind == "deny" else values.get("why", ""),
        asked=None
        if kind != "approval"
        else ApprovalDemand(
            tier=values["approval"].get("tier"),
            people=values["approval"].get("people", 1),
            group=values["approval"].get("group", ""),
            within_seconds=values["approval"].get("within", WITHIN_SECONDS),
        ),
        index=int(variant.path[-1]),
    )


def _check_unique_names(data: dict[str, Any], problems: FileProblems) -> None:
    first: dict[str, tuple[str | int, ...]] = {}
    for variant in data.get("rules", ()):
        name = variant.values.get("name")
        if name in first and problems.root is not None:
            line = problems.root.find((*first[name], "name")).line
            problems.add((*variant.path, "name"), f"rule {name!r} is already defined in line {line}")
        elif name is not None:
            first[name] = variant.path


def _check_rules_per_operation(rules: list[PolicyRule], problems: FileProblems) -> None:
    counts = Counter((rule.connector, name) for rule in rules for name in rule.operations)
    for (connector, operation), count in counts.items():
        if count > POLICY_RULES_PER_OPERATION_MAX:
            problems.add(
                ("rules",),
                f"{count} rules are for {connector}.{operation}; at most {POLICY_RULES_PER_OPERATION_MAX} are allowed",
            )


def _case(
    values: dict[str, Any], root: YamlNode, i: int, rules: list[PolicyRule], problems: FileProblems
) -> PolicyCase | None:
    if not {"name", "action", "expect"} <= values.keys():
        return None
    path = ("tests", i)
    connector, dot, operation = values["action"].partition(".")
    if not dot:
        problems.add((*path, "action"), f"must be connector.operation, not {values['action']}")
    known = {rule.name for rule in rules}
    for name in values.get("rules", ()):
        if name not in known:
            problems.add((*path, "rules"), f"there is no rule {name!r}")
    for part in _CONTEXT:
        for wrong in json_schema.find_problems(SCHEMAS[part], values.get(part, {}), part):
            problems.add((*path, *wrong.path.split(".")), wrong.problem)
    if "now" in values.get("time", {}) and not _is_moment(values["time"]["now"]):
        problems.add((*path, "time", "now"), "must be a time such as 2026-01-05T12:00:00Z")
    if "approval" in values and values["expect"] != "needs_approval":
        problems.add((*path, "approval"), "only an action that needs approval can have an approval here")
    if "error" in values and values["expect"] != "deny":
        problems.add((*path, "error"), "only a denial can have an error")
    return PolicyCase(
        name=values["name"],
        action={
            "connector": connector,
            "operation": operation,
            "target": values.get("target", {}),
            "fields": values.get("fields", {}),
            **{key: values[key] for key in ("tier", "key", "reverses") if key in values},
        },
        facts={name: values[name] for name in _CONTEXT if name in values},
        expect=values["expect"],
        rules=tuple(values["rules"]) if "rules" in values else None,
        error=values.get("error"),
        approval=values.get("approval"),
        index=i,
        line=root.find(path).line,
    )
