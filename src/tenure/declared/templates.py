"""Templates: values with `${{ … }}` in their texts.

Laws:
1. A text that is exactly one expression keeps its value's type; in mixed text each value is written into it (texts as
   they are, all else as JSON).
2. What has been evaluated is data. It is never looked at for expressions again: `close` says which places are still
   templates, and only those are evaluated later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from tenure.declared import expressions
from tenure.declared.expressions import Expression, Malformed, Reference
from tenure.errors import TenureError

OPEN, CLOSE = "${{", "}}"
_QUOTED = re.compile(r"\"(?:[^\"\\]++|\\.)*+\"|'(?:[^'\\]++|\\.)*+'", re.DOTALL)
_REMEMBERED_CHARS_MAX = 1_000
"""Longer templates are parsed each time, so that what is remembered stays small."""

Place = tuple[str | int, ...]
Part = str | Expression


class Template(msgspec.Struct, frozen=True):
    """A text in its parts."""

    parts: tuple[Part, ...]

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The expressions in it."""
        return tuple(part for part in self.parts if isinstance(part, Expression))

    @property
    def refers(self) -> tuple[Reference, ...]:
        """All it looks at."""
        return tuple(reference for part in self.expressions for reference in part.refers)

    def value(self, scope: Mapping[str, Any]) -> Any:
        """What it is worth in a scope."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Expression):
            return self.parts[0].value(scope)
        return "".join(p if isinstance(p, str) else as_text(p.value(scope)) for p in self.parts)


def parse(text: str, roots: tuple[str, ...] = expressions.ROOTS) -> Template:
    """A template from its text, or Malformed. `roots` is what its expressions may look at."""
    return _remembered(text, roots) if len(text) <= _REMEMBERED_CHARS_MAX else _parse(text, roots)


def _parse(text: str, roots: tuple[str, ...]) -> Template:
    return Template(
        tuple(
            part if literal else expressions.parse(part, roots)
            for literal, part in divide(text)
            if part or not literal
        )
    )


_remembered = lru_cache(maxsize=4096)(_parse)


def divide(text: str) -> Iterator[tuple[bool, str]]:
    """The text in turns of literal and expression: (whether it is literal, the part)."""
    at = 0
    while (begin := text.find(OPEN, at)) >= 0:
        end = _end(text, begin + len(OPEN))
        yield True, text[at:begin]
        yield False, text[begin + len(OPEN) : end]
        at = end + len(CLOSE)
    yield True, text[at:]


def _end(text: str, at: int) -> int:
    """Where an expression ends: at the first `}}` that is neither in quotes nor the end of a map."""
    depth, open_quotes = 0, ""
    while at < len(text):
        if text[at] in "\"'" and text[at] not in open_quotes:
            quoted = _QUOTED.match(text, at)
            if quoted:
                at = quoted.end()
                continue
            open_quotes += text[at]  # all others of its kind that follow are escaped, and have no end either
        if depth == 0 and text.startswith(CLOSE, at):
            return at
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    raise Malformed("an expression begins with ${{ and has no }} at its end")


def as_text(value: Any) -> str:
    """A value inside a text: a text as it is, all else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def texts(value: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Every text of a JSON value that has an expression in it, with its place."""
    if isinstance(value, str):
        if OPEN in value:
            yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts(item, (*place, key))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from texts(item, (*place, i))


def close(
    value: Any, scope: Mapping[str, Any], place: Place, left: list[Place], *, lenient: bool = False
) -> Any:
    """The value with every template evaluated that is known in the scope; the others are put on `left`, and
    so are, where it is lenient, those that have no value."""

    def decide(text: str, at: Place) -> Any:
        template = parse(text)
        if all(reference.is_known(scope) for reference in template.refers):
            try:
                return template.value(scope)
            except TenureError:
                if not lenient:
                    raise
        left.append(at)
        return text

    return _map_texts(value, place, decide)


def fill(value: Any, scope: Mapping[str, Any], place: Place, open_places: frozenset[Place]) -> Any:
    """The value with the templates at the open places evaluated, and nothing else."""
    return _map_texts(
        value, place, lambda text, at: parse(text).value(scope) if at in open_places else text, all_texts=True
    )


def evaluate(value: Any, scope: Mapping[str, Any], roots: tuple[str, ...]) -> Any:
    """The value with all its templates evaluated; they look at `roots` and nothing else."""
    return _map_texts(value, (), lambda text, _: parse(text, roots).value(scope))


def _map_texts(
    value: Any, place: Place, change: Callable[[str, Place], Any], *, all_texts: bool = False
) -> Any:
    if isinstance(value, str):
        return change(value, place) if all_texts or OPEN in value else value
    if isinstance(value, Mapping):
        return {k: _map_texts(v, (*place, k), change, all_texts=all_texts) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(v, (*place, i), change, all_texts=all_texts) for i, v in enumerate(value)]
    return value
