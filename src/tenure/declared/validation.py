"""Rules that span several places of a workflow file: needs, references, requirements of a profile.

Law: rules check whatever could be read, so that one load reports all problems. A value that is missing because it was invalid
causes no second problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

from tenure.declared.model import GATES, RetrySettings, required_capability
from tenure.declared.step_inputs import names_attempt, split_arguments
from tenure.errors import TenureError
from tenure.expressions import templates
from tenure.expressions.expression import (
    FIELDS,
    ROOTS,
    ExpressionReference,
    MalformedExpression,
)
from tenure.expressions.schema import VariantValue
from tenure.expressions.templates import parse_condition
from tenure.expressions.yaml_document import FileProblems, TextPosition, YamlNode, YamlPath
from tenure.kernel import capability as cap
from tenure.kernel.profile import Profile

GOVERNED_PROFILE = "governed-runtime"
EFFECTS = ("run", "uses")
"""Kinds of steps that have effects outside of the run."""
_FIXED = ("inputs",)
"""What a text may reference that must be known when a run is submitted."""
_STABLE = ("inputs", "steps", "run", "trigger")
"""What an idempotency key may reference: it must be the same for every attempt."""
TEMPLATES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("run",), ROOTS),
    (("env",), ROOTS),
    (("cwd",), ROOTS),
    (("with",), ROOTS),
    (("idempotency_key",), _STABLE),
    (("approval", "title"), _FIXED),
    (("wait", "event"), _FIXED),
    (("wait", "source"), _FIXED),
)
"""The places of templates in a step, and the roots that they may reference."""


SHELLS = frozenset({"sh", "ash", "bash", "dash", "ksh", "zsh"})
_NO_NODE = YamlNode(kind="map", mark=TextPosition(1, 1))
NO_EXPRESSIONS = 'a shell command cannot contain expressions; put the value into env and use "$NAME"'


class NeedsGraph:
    def __init__(self, ids: list[str | None], steps: dict[int, VariantValue]) -> None:
        self.ids = ids
        self.index_of = {step_id: i for i, step_id in reversed(list(enumerate(ids))) if step_id is not None}
        needs = {i: self._needs_of(i, steps.get(i)) for i in range(len(ids))}
        self.cycle: list[int] = []
        self._before = [0] * len(ids)
        """For each step the set of steps before it, as bits of an integer."""
        try:
            order = [*TopologicalSorter(needs).static_order()]
        except CycleError as found:
            ring = found.args[1][:0:-1]  # each step needs the next one
            first = ring.index(min(ring))
            self.cycle = [*ring[first:], *ring[:first], ring[first]]
            return
        for step in order:
            for need in needs[step]:
                self._before[step] |= self._before[need] | 1 << need

    def _needs_of(self, i: int, step: VariantValue | None) -> set[int]:
        named = step.values.get("needs") if step is not None else None
        if named is None:
            return {i - 1} if i else set()
        return {self.index_of[name] for name in named if name in self.index_of} - {i}

    def is_before(self, need: int, step: int) -> bool:
        """Whether `need` always ends before `step` begins."""
        return bool(self.cycle) or bool(self._before[step] >> need & 1)


class WorkflowValidator:
    def __init__(
        self, root: YamlNode, data: dict[str, Any], profile: Profile | None, problems: FileProblems
    ) -> None:
        self.root = root
        self.data = data
        self.profile = profile
        self.problems = problems
        self.inputs = list(self._node("inputs").entries)
        self.steps: dict[int, VariantValue] = {_index(step): step for step in data.get("steps", ())}
        ids = [item.entries.get("id", (None, _NO_NODE))[1].value for item in self._node("steps").items]
        self.graph = NeedsGraph([each if isinstance(each, str) else None for each in ids], self.steps)

    def check(self) -> None:
        self._check_ids()
        for step in self.steps.values():
            self._check_needs(step)
            self._check_templates(step)
            self._check_kind(step)
            if self.profile is not None:
                self._check_profile(step, self.profile)
        if self.graph.cycle:
            names = " -> ".join(str(self.graph.ids[i]) for i in self.graph.cycle)
            self.problems.add(("steps", self.graph.cycle[0], "needs"), f"the needs form a cycle: {names}")

    # ------------------------------------------------------------------------------------------ names

    def _node(self, *path: str | int) -> YamlNode:
        """The node at a path of the file, whether or not it is valid. If there is none: an empty one."""
        node = self.root
        for part in path:
            node = node.items[part] if isinstance(part, int) else node.entries.get(part, (None, _NO_NODE))[1]
        return node

    def _check_ids(self) -> None:
        first: dict[str, int] = {}
        for i, step_id in enumerate(self.graph.ids):
            if step_id is None:
                continue
            if step_id in first:
                line = self.root.find(("steps", first[step_id], "id")).line
                self.problems.add(
                    ("steps", i, "id"),
                    f"step {step_id!r} is already defined in line {line}; ids must be unique",
                )
            first.setdefault(step_id, i)

    def _check_needs(self, step: VariantValue) -> None:
        known = self.graph.index_of
        written = self._node(*step.path, "needs").items
        # An invalid item was left out of the values, so a position is found by its text.
        places = {item.value: i for i, item in reversed(list(enumerate(written)))}
        for name in step.values.get("needs", ()):
            at: YamlPath = (*step.path, "needs", places[name]) if name in places else (*step.path, "needs")
            if name == step.values.get("id"):
                self.problems.add(at, "a step cannot need itself")
            elif name not in known:
                self.problems.add(at, f"there is no step {name!r}{self.problems.close_to(name, known)}")

    # ------------------------------------------------------------------------------------- expressions

    def _check_templates(self, step: VariantValue) -> None:
        for inside, roots in TEMPLATES:
            value: Any = step.values
            for part in inside:
                value = value.get(part) if isinstance(value, dict) else None
            for place, text in templates.find_templates(value):
                self._check_text((*step.path, *inside, *place), templates.parse_template, text, step, roots)
        if "if" in step.values:
            path = (*step.path, "if")
            roots = _FIXED if step.kind in GATES else ROOTS
            for reference in self._check_text(path, parse_condition, step.values["if"], step, roots):
                if names_attempt(reference):
                    problem = f"{reference} is not known: a condition is decided once, before the first attempt; it can use run.id"
                    self.problems.add(path, problem)

    def _check_text(
        self,
        path: YamlPath,
        parse: Callable[[str], Any],
        text: str,
        step: VariantValue,
        roots: tuple[str, ...],
    ) -> tuple[ExpressionReference, ...]:
        """Check a template or condition, and return its references."""
        try:
            refers: tuple[ExpressionReference, ...] = parse(text).refers
        except MalformedExpression as fault:
            self.problems.add(path, str(fault))
            return ()
        for reference in refers:
            for problem in self._reference_problems(reference, step, roots):
                self.problems.add(path, problem)
        return refers

    def _reference_problems(
        self, reference: ExpressionReference, step: VariantValue, roots: tuple[str, ...]
    ) -> Iterator[str]:
        root, parts = reference.root, reference.parts
        if root not in roots:
            if roots is _FIXED:
                yield f"{reference} is not known when the run is submitted; only inputs can be used here"
            else:
                yield f"{reference} is not the same for every attempt; an idempotency key can use {', '.join(roots)}"
        elif root == "inputs" and parts:
            if parts[0] not in self.inputs:
                hint = ""
                if isinstance(parts[0], str) and "-" in parts[0]:
                    hint = " (for a subtraction, put spaces around the minus sign)"
                yield f"there is no input {parts[0]!r}{self.problems.close_to(str(parts[0]), self.inputs)}{hint}"
        elif root == "steps":
            yield from self._step_problems(parts, step)
        elif root in FIELDS and parts and parts[0] not in FIELDS[root]:
            guess = self.problems.close_to(str(parts[0]), FIELDS[root])
            yield f"there is no {root}.{parts[0]}; there are {', '.join(FIELDS[root])}{guess}"
        elif roots is _STABLE and names_attempt(reference):
            yield f"{reference} is not the same for every attempt; an idempotency key can use run.id"

    def _step_problems(self, parts: tuple[str | int, ...], step: VariantValue) -> Iterator[str]:
        known = self.graph.index_of
        if not parts or not isinstance(parts[0], str):
            yield "a reference to a step needs its id: steps.ID.output"
            return
        name = parts[0]
        if name not in known:
            yield f"there is no step {name!r}{self.problems.close_to(name, known)}"
        elif name == step.values.get("id"):
            yield "a step cannot use its own output"
        elif not self.graph.is_before(known[name], _index(step)):
            yield f"step {name!r} may not have ended by then; add it to this step's needs"
        if len(parts) < 2 or parts[1] != "output":
            yield f"only the output of a step can be used: steps.{name}.output"

    # ------------------------------------------------------------------------------------------- kinds

    def _check_kind(self, step: VariantValue) -> None:
        values, path = step.values, step.path
        if step.kind == "run" and "run" in values:
            self._check_command(values, path)
        if step.kind == "wait" and "wait" in values:
            written = self._node(*path, "wait").entries
            if ("event" in written) == ("time" in written):
                self.problems.add((*path, "wait"), "a wait needs either an event or a time")
            if "time" in written:
                for key in ("within", "source"):
                    if key in values["wait"]:
                        self.problems.add((*path, "wait", key), f"{key!r} belongs to an event, not to a time")
        if step.kind not in GATES:
            self._check_work(step)

    def _check_command(self, values: dict[str, Any], path: YamlPath) -> None:
        command = values["run"]
        if values.get("shell"):
            if not isinstance(command, str):
                self.problems.add((*path, "run"), "with shell: true the command must be a single string")
            elif templates.OPEN in command:
                self.problems.add((*path, "run"), NO_EXPRESSIONS)
            return
        try:
            words = split_arguments(command)
        except MalformedExpression as fault:
            self.problems.add((*path, "run"), str(fault))
            return
        if not words or not words[0]:
            self.problems.add((*path, "run"), "a command needs a program to start")
        if script := find_script(words):
            at: YamlPath = (*path, "run") if isinstance(command, str) else (*path, "run", script)
            if templates.OPEN in words[script]:
                self.problems.add(at, NO_EXPRESSIONS)

    def _check_work(self, step: VariantValue) -> None:
        values, path = step.values, step.path
        defaults = self.data.get("defaults", {})
        queue = values.get("queue", defaults.get("queue", "default"))
        target = values.get(step.kind)
        if isinstance(target, str):
            try:
                cap.capability(queue, required_capability(step.kind, target))
            except TenureError as fault:
                self.problems.add((*path, step.kind), fault.message)
        retry = RetrySettings.merge(values.get("retry"), defaults.get("retry"))
        if retry.jitter is not None and retry.backoff is None and "retry" in values:
            self.problems.add((*path, "retry", "jitter"), "jitter needs a backoff; set its delays too")

    def _check_profile(self, step: VariantValue, profile: Profile) -> None:
        values, path = step.values, step.path
        if not profile.optional_steps and values.get("required") is False:
            self.problems.add((*path, "required"), f"profile {profile.name} has no optional steps; remove it")
        if profile.strict_sequence and "needs" in values:
            self.problems.add(
                (*path, "needs"), f"profile {profile.name} runs steps strictly in order; remove it"
            )
        keyed = "idempotency_key" in self._node(*path).entries or values.get("idempotent") is True
        if profile.name == GOVERNED_PROFILE and step.kind in EFFECTS and not keyed:
            self.problems.add(
                path,
                (
                    f"under {GOVERNED_PROFILE} a step with effects needs an idempotency_key that is stable for the step and its target,"
                    " or idempotent: true"
                ),
            )


def _index(step: VariantValue) -> int:
    at = step.path[-1]
    return at if isinstance(at, int) else 0


def find_script(words: tuple[str, ...]) -> int:
    """The position of the script if the command is a shell with `-c`, else 0."""
    if len(words) < 3 or words[0].rpartition("/")[2] not in SHELLS:
        return 0
    for i, word in enumerate(words[1:-1], start=1):
        if not word.startswith("-"):
            return 0
        if not word.startswith("--") and "c" in word:
            return i + 1
    return 0
