"""From the text of a file to a declared workflow, or to everything that is wrong with it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from tenure import own_profiles
from tenure.canonical import canonical
from tenure.declared import rules
from tenure.declared.document import Problems, read
from tenure.declared.grammar import DEFAULT_PROFILE, WORKFLOW
from tenure.declared.inputs import Input
from tenure.declared.model import GATES, Awaited, Declared, Question, Step
from tenure.declared.shapes import MISSING, Variant
from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.kernel.terms import NONE as NO_TERMS
from tenure.kernel.terms import Terms

VERSION_DIGITS = 12
"""Hex digits of the digest in a version that is not given."""


def load(text: str, source: str = "<text>") -> Declared:
    """A workflow from the text of its file; WORKFLOW_INVALID names every problem with its line and column."""
    own_profiles.load()
    problems = Problems(source)
    root = read(text, problems)
    data = WORKFLOW.read(root, (), problems)
    if data is MISSING:
        raise problems.error()
    inputs = _inputs(data, problems)
    named = data.get("profile", DEFAULT_PROFILE if "profile" not in root.entries else None)
    rules.Rules(data, None if named is None else profiles.get(named), problems).check()
    problems.raise_any()
    steps = tuple(_step(i, variant, data.get("defaults", {})) for i, variant in enumerate(data["steps"]))
    made = Declared(
        name=data["name"],
        version="",
        digest="",
        profile=data.get("profile", DEFAULT_PROFILE),
        timeout_seconds=data.get("timeout"),
        terms=Terms.of(data.get("budget"), data.get("compensate", False)),
        inputs=inputs,
        steps=steps,
    )
    # Written in order of the keys, so that neither their order in the file nor `5m` or `300s` makes a difference.
    defined = {name: value for name, value in msgspec.structs.asdict(made).items() if name != "text"}
    if made.terms == NO_TERMS:
        del defined["terms"]  # a file that asks for none keeps its digest
    digest = hashlib.sha256(canonical(msgspec.to_builtins(defined))).hexdigest()
    return msgspec.structs.replace(
        made, digest=digest, version=data.get("version", digest[:VERSION_DIGITS]), source=source, text=text
    )


def load_file(path: Path) -> Declared:
    """A workflow from its file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise TenureError("WORKFLOW_INVALID", f"{path} cannot be read: {why}") from fault
    return load(text, str(path))


def _inputs(data: dict[str, Any], problems: Problems) -> dict[str, Input]:
    made = {}
    for name, values in data.get("inputs", {}).items():
        if "type" not in values:
            continue  # which has been told
        declared = msgspec.convert(values, Input)
        for key, problem in declared.own_problems():
            problems.add(("inputs", name, key), problem)
        made[name] = declared
    return made


def _step(index: int, variant: Variant, defaults: dict[str, Any]) -> Step:
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
        asked = {"action": values["id"], **values["approval"]}
        return Step(**common, approval=Question(**asked))
    if kind == "wait":
        return Step(**common, wait=Awaited(**values["wait"]))
    assert kind not in GATES
    common |= {
        "timeout_seconds": values.get("timeout", defaults.get("timeout")),
        "retry": rules.merged(values.get("retry"), defaults.get("retry")),
        "idempotency_key": values.get("idempotency_key", ""),
        "idempotent": values.get("idempotent", False),
    }
    if kind == "run":
        command = values["run"]
        argv = ("sh", "-c", command) if values.get("shell") else rules.arguments(command)
        rest = {key: values[key] for key in ("env", "cwd", "output") if key in values}
        return Step(**common, run=argv, **rest)
    return Step(**common, target=values[kind], arguments=values.get("with", {}))
