"""Operations and facts for tests of policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.govern.connector import Operation
from tenure.govern.policy.facts import time_facts

MONDAY_10 = 1_768_212_000_000_000
"""2026-01-12, a Monday, at 10:00 UTC."""
_TARGET = {
    "type": "object",
    "properties": {"repo": {"type": "string"}, "issue": {"type": "integer"}},
    "required": ["repo", "issue"],
}
_LABELS = {"type": "array", "items": {"type": "string"}}


class Forge:
    """The part of a connector that a policy check uses."""

    def __init__(self) -> None:
        self.operations: Mapping[str, Operation] = {
            one.name: one
            for one in (
                Operation(
                    name="label.add",
                    summary="Add labels",
                    target=_TARGET,
                    fields={
                        "type": "object",
                        "properties": {
                            "labels": _LABELS,
                            "note": {"type": "string"},
                            "size": {"type": "integer"},
                            "people": {
                                "type": "array",
                                "items": {"type": "object", "properties": {"login": {"type": "string"}}},
                            },
                            "extra": {"type": "object"},
                        },
                    },
                    repeats="sets_state",
                    reverses_by="label.remove",
                ),
                Operation(
                    name="label.remove",
                    summary="Remove labels",
                    target=_TARGET,
                    fields={"type": "object", "properties": {"labels": _LABELS}},
                    repeats="sets_state",
                    reverses_by="label.add",
                ),
            )
        }


CONNECTORS = {"forge": Forge()}


def facts(**given: Any) -> dict[str, Any]:
    """Return the facts of an act that adds labels. Keyword arguments (`fields`, `run`, ...) replace parts."""
    return {
        "action": {
            "connector": given.get("connector", "forge"),
            "operation": given.get("operation", "label.add"),
            "target": given.get("target", {"repo": "acme/web", "issue": 7}),
            "fields": given.get("fields", {"labels": ["bug"]}),
            "tier": given.get("tier", "low"),
            "key": "k",
            "reverses": False,
        },
        "run": {
            "id": "run_1",
            "workflow": "triage",
            "writes": 0,
            "spent": 0,
            "budget": None,
            **given.get("run", {}),
        },
        "tenant": {"id": "acme"},
        "person": {"id": "ada", "kind": "person", "roles": [], "groups": [], **given.get("person", {})},
        "time": time_facts(given.get("now", MONDAY_10)),
    }


def policy(*rules: str, tests: str = "") -> str:
    """Return a policy. Each argument is a rule without `connector` and `operation`, which are those of `facts`."""
    whole = "version: 1\nrules:\n"
    for i, rule in enumerate(rules):
        lines = [f"name: r{i}", "connector: forge", "operation: label.add", *rule.strip().splitlines()]
        whole += "".join(f"  {'- ' if n == 0 else '  '}{line.strip()}\n" for n, line in enumerate(lines))
    return whole + tests
