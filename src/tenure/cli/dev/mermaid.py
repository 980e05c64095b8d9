"""Machines and profiles as Mermaid state diagrams, drawn from their tables."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tenure.kernel.profile import ENTITIES, Entity, Profile
from tenure.kernel.state_machine import Machine

_Arrow = tuple[str, str, str]
_UNSAFE = re.compile(r"[^\w\s/().,+|^*-]")


def machine_diagram(machine: Machine) -> str:
    """One of the kernel's machines; inputs on the arrows."""
    arrows = [(edge.state, edge.next, edge.input) for edge in machine.edges]
    return "\n".join(["stateDiagram-v2", *_body("", [machine.first], machine.terminal, arrows, "  ")])


def profile_diagram(profile: Profile, entity: Entity | None = None) -> str:
    """A profile's tables, one box per kind of object; with `entity` only that one.

    Without it, the objects whose table is the kernel's own are left out.
    """
    chosen = [entity] if entity else [e for e in ENTITIES if not profile.vocabulary(e).kernel]
    lines = ["stateDiagram-v2"]
    for name in chosen:
        vocabulary = profile.vocabulary(name)
        arrows = [(*pair, row.trigger) for row in vocabulary.edges for pair in row.pairs()]
        arrows += [
            (*pair, f"{row.trigger} (indirect)") for row in vocabulary.indirect for pair in row.pairs()
        ]
        arrows += [(*pair, "extra") for row in vocabulary.extra for pair in row.pairs()]
        first = [profile.word(name, next(iter(vocabulary.words)))]
        if len(chosen) == 1:
            lines += _body("", first, vocabulary.terminal, arrows, "  ")
        else:
            body = _body(f"{name}_", first, vocabulary.terminal, arrows, "    ")
            lines += [f"  state {name} {{", *body, "  }"]
    return "\n".join(lines)


def _body(
    prefix: str, first: Iterable[str], last: Iterable[str], arrows: list[_Arrow], indent: str
) -> list[str]:
    words = dict.fromkeys(word for source, target, _ in arrows for word in (source, target))
    lines = [f'{indent}state "{word}" as {_id(prefix, word)}' for word in words] if prefix else []
    lines += [f"{indent}[*] --> {_id(prefix, word)}" for word in first]
    for source, target, label in arrows:
        text = _UNSAFE.sub("", label).strip()
        lines.append(f"{indent}{_id(prefix, source)} --> {_id(prefix, target)}{f': {text}' if text else ''}")
    lines += [f"{indent}{_id(prefix, word)} --> [*]" for word in words if word in set(last)]
    return lines


def _id(prefix: str, word: str) -> str:
    return prefix + re.sub(r"\W", "_", word)
