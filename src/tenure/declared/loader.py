"""Loads workflow files: a declared workflow, or everything that is wrong with the file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from tenure import custom_profiles
from tenure.canonical import canonical
from tenure.declared.grammar import WORKFLOW
from tenure.declared.model import (
    ApprovalQuestion,
    DeclaredStep,
    DeclaredWorkflow,
    RetrySettings,
    WaitSettings,
    WorkflowInput,
    WorkflowPlanner,
)
from tenure.declared.step_inputs import split_arguments
from tenure.declared.validation import WorkflowValidator
from tenure.expressions.schema import MISSING, VariantValue
from tenure.expressions.yaml_document import FileProblems, read_yaml, read_yaml_text
from tenure.kernel import profiles
from tenure.kernel.commands import DEFAULT_PROFILE
from tenure.kernel.run_terms import NO_TERMS, RunTerms

VERSION_DIGITS = 12
"""Hex digits of the digest that form the version of a file without one."""


def load_workflow(text: str, source: str = "<text>") -> DeclaredWorkflow:
    """A workflow from the text of its file; WORKFLOW_INVALID names every problem with its line and column."""
    custom_profiles.load_custom_profiles()
    problems = FileProblems(source)
    root = read_yaml(text, problems)
    data = WORKFLOW.read(root, (), problems)
    if data is MISSING:
        raise problems.error()
    inputs = _inputs(data, problems)
    named = data.get("profile", DEFAULT_PROFILE if "profile" not in root.entries else None)
    profile = None if named is None else profiles.get(named)
    if "steps" not in root.entries and "planner" not in root.entries:
        problems.add((), "a workflow needs 'steps' or a 'planner'")
    elif "steps" in root.entries and "planner" in root.entries:
        problems.add(("planner",), "cannot be set in a workflow with steps: the planner returns them")
    WorkflowValidator(root, data, profile, problems).check()
    problems.raise_any()
    defaults = data.get("defaults", {})
    steps = tuple(_step(i, variant, defaults) for i, variant in enumerate(data.get("steps", ())))
    made = DeclaredWorkflow(
        name=data["name"],
        version="",
        digest="",
        profile=data.get("profile", DEFAULT_PROFILE),
        timeout_seconds=data.get("timeout"),
        terms=RunTerms.of(data.get("budget"), data.get("compensate", False)),
        inputs=inputs,
        steps=steps,
        planner=_planner(data["planner"], defaults) if "planner" in data else None,
    )
    # Sorted by key and normalized: neither the order of keys nor `5m` instead of `300s` changes the digest.
    defined = {name: value for name, value in msgspec.structs.asdict(made).items() if name != "text"}
    if made.terms == NO_TERMS:
        del defined["terms"]  # so that a file without terms keeps its digest
    if made.planner is None:
        del defined["planner"]  # likewise
    digest = hashlib.sha256(canonical(msgspec.to_builtins(defined))).hexdigest()
    return msgspec.structs.replace(
        made, digest=digest, version=data.get("version", digest[:VERSION_DIGITS]), source=source, text=text
    )


def load_workflow_file(path: Path) -> DeclaredWorkflow:
    return load_workflow(read_yaml_text(path, "WORKFLOW_INVALID"), str(path))


def _inputs(data: dict[str, Any], problems: FileProblems) -> dict[str, WorkflowInput]:
    made = {
        name: msgspec.convert(values, WorkflowInput)
        for name, values in data.get("inputs", {}).items()
        if "type" in values  # a missing type is reported already
    }
    for name, declared in made.items():
        for key, problem in declared.own_problems():
            problems.add(("inputs", name, key), problem)
    return made


def _planner(values: dict[str, Any], defaults: dict[str, Any]) -> WorkflowPlanner:
    return WorkflowPlanner(
        tool=values["uses"],
        queue=values.get("queue", defaults.get("queue", "default")),
        timeout_seconds=values.get("timeout", defaults.get("timeout")),
        retry=RetrySettings.merge(values.get("retry"), defaults.get("retry")),
    )


def _step(index: int, variant: VariantValue, defaults: dict[str, Any]) -> DeclaredStep:
    values = variant.values
    kind: Any = variant.kind
    common = {
        "id": values["id"],
        "index": index,
        "kind": kind,
        "needs": tuple(values["needs"]) if "needs" in values else None,
        "condition": values.get("if"),
        "required": values.get("required", True),
        "queue": values.get("queue", defaults.get("queue", "default")),
    }
    if kind == "approval":
        return DeclaredStep(
            **common, approval=ApprovalQuestion(**{"action": values["id"], **values["approval"]})
        )
    if kind == "wait":
        return DeclaredStep(**common, wait=WaitSettings(**values["wait"]))
    common |= {
        "timeout_seconds": values.get("timeout", defaults.get("timeout")),
        "retry": RetrySettings.merge(values.get("retry"), defaults.get("retry")),
        "idempotency_key": values.get("idempotency_key", ""),
        "idempotent": values.get("idempotent", False),
    }
    if kind == "run":
        command = values["run"]
        argv = ("sh", "-c", command) if values.get("shell") else split_arguments(command)
        rest = {key: values[key] for key in ("env", "cwd", "output") if key in values}
        return DeclaredStep(**common, run=argv, **rest)
    return DeclaredStep(**common, target=values[kind], arguments=values.get("with", {}))
