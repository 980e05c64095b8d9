"""Steps of workflow files that act, checked before a run begins, as far as their files tell.

Law: what a template stands for is not known yet; it is checked when the step runs, like all of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from tenure.declared import Declared
from tenure.declared.model import Step
from tenure.errors import Detail, TenureError
from tenure.govern.connector import Operation
from tenure.govern.connectors import schemas
from tenure.govern.connectors.registry import Connectors
from tenure.suggestions import Suggestions

TAKES = ("target", "fields", "key", "why")
"""What `with` of such a step has."""
_TEMPLATE = "${{"


def check_uses(declared: Declared, connectors: Connectors, tools: Container[str]) -> None:
    """WORKFLOW_INVALID where a step cannot do what it says; those that a tool does are the tool's business."""
    known = dict(connectors.actions())
    guesses = Suggestions()
    found = [
        problem
        for step in declared.steps
        if step.kind == "uses" and step.target in known and step.target not in tools
        for problem in _problems(step, known[step.target], guesses)
    ]
    if found:
        told = "; ".join(f"{one.path} {one.problem}" for one in found)
        raise TenureError("WORKFLOW_INVALID", f"{declared.source}: {told}", tuple(found))


def _problems(step: Step, operation: Operation, guesses: Suggestions) -> Iterator[Detail]:
    at = f"steps[{step.index}].with"
    for name in step.arguments:
        if name not in TAKES:
            guess = guesses.close_to(name, TAKES, "there are")
            yield Detail(f"{at}.{name}", f"is not known{guess}")
    for name, schema in (("target", operation.target), ("fields", operation.fields)):
        given = step.arguments.get(name, {})
        open_ = set(_templates(given, f"{at}.{name}"))
        for problem in schemas.problems(schema, given, f"{at}.{name}", guesses=guesses):
            if problem.path not in open_:
                yield problem


def _templates(value: Any, at: str) -> Iterator[str]:
    """The places of values that are not known yet."""
    if isinstance(value, str) and _TEMPLATE in value:
        yield at
    elif isinstance(value, dict):
        for key, below in value.items():
            yield from _templates(below, f"{at}.{key}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _templates(item, f"{at}[{i}]")
