"""Checks the `uses` steps of workflow files that do actions, before a run begins.

Law: values with templates are not known yet; they are checked when the step runs.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from tenure.declared import DeclaredWorkflow
from tenure.declared.model import DeclaredStep
from tenure.errors import Detail, TenureError
from tenure.expressions import json_schema
from tenure.govern.connector import Operation
from tenure.govern.connectors.registry import Connectors
from tenure.suggestions import Suggestions

ACT_KEYS = ("target", "fields", "key", "why")
"""The keys of such a step's `with`."""
_TEMPLATE = "${{"


def check_uses(declared: DeclaredWorkflow, connectors: Connectors, tools: Container[str]) -> None:
    """WORKFLOW_INVALID if a step's target or fields do not match its operation. Steps whose action is a registered tool are not checked."""
    known = dict(connectors.actions())
    guesses = Suggestions()
    found = [
        problem
        for step in declared.steps
        if step.kind == "uses" and step.target in known and step.target not in tools
        for problem in _problems(step, known[step.target], guesses)
    ]
    if found:
        listed = "; ".join(f"{one.path} {one.problem}" for one in found)
        raise TenureError("WORKFLOW_INVALID", f"{declared.source}: {listed}", tuple(found))


def _problems(step: DeclaredStep, operation: Operation, guesses: Suggestions) -> Iterator[Detail]:
    at = f"steps[{step.index}].with"
    for name in step.arguments:
        if name not in ACT_KEYS:
            yield Detail(f"{at}.{name}", f"is unknown{guesses.close_to(name, ACT_KEYS, 'there are')}")
    for name, schema in (("target", operation.target), ("fields", operation.fields)):
        given = step.arguments.get(name, {})
        unknown = set(_templates(given, f"{at}.{name}"))
        problems = json_schema.find_problems(schema, given, f"{at}.{name}", guesses=guesses)
        yield from (problem for problem in problems if problem.path not in unknown)


def _templates(value: Any, at: str) -> Iterator[str]:
    """The places of values that contain templates."""
    if isinstance(value, str) and _TEMPLATE in value:
        yield at
    elif isinstance(value, dict):
        for key, below in value.items():
            yield from _templates(below, f"{at}.{key}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _templates(item, f"{at}[{i}]")
