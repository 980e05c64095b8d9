"""Templates: values that contain `${{ … }}` in their strings.

Laws:
1. A string that is exactly one expression takes the type of its value. In other strings each value is inserted as text (strings as they
   are, other values as JSON).
2. An evaluated value is data and is never searched for expressions: `evaluate_known_templates` lists the places that are still
   templates, and only those are evaluated later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.expressions import expression
from tenure.expressions.expression import Expression, ExpressionReference, MalformedExpression

OPEN, CLOSE = "${{", "}}"
_QUOTED = re.compile(r"\"(?:[^\"\\]++|\\.)*+\"|'(?:[^'\\]++|\\.)*+'", re.DOTALL)
_REMEMBERED_CHARS_MAX = 1_000
"""Longer templates are not cached."""

TemplatePlace = tuple[str | int, ...]
TemplatePart = str | Expression


class TextTemplate(msgspec.Struct, frozen=True):
    """A string, split into literals and expressions."""

    parts: tuple[TemplatePart, ...]

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return tuple(part for part in self.parts if isinstance(part, Expression))

    @property
    def refers(self) -> tuple[ExpressionReference, ...]:
        return tuple(reference for part in self.expressions for reference in part.refers)

    def value(self, scope: Mapping[str, Any]) -> Any:
        if len(self.parts) == 1 and isinstance(self.parts[0], Expression):
            return self.parts[0].value(scope)
        return "".join(p if isinstance(p, str) else format_value(p.value(scope)) for p in self.parts)


def parse_template(text: str, roots: tuple[str, ...] = expression.ROOTS) -> TextTemplate:
    """Parse a template, or raise MalformedExpression. Its expressions may reference only `roots`."""
    return _remembered(text, roots) if len(text) <= _REMEMBERED_CHARS_MAX else _parse(text, roots)


def _parse(text: str, roots: tuple[str, ...]) -> TextTemplate:
    return TextTemplate(
        tuple(
            part if literal else expression.parse_expression(part, roots)
            for literal, part in split_template(text)
            if part or not literal
        )
    )


_remembered = lru_cache(maxsize=4096)(_parse)


def split_template(text: str) -> Iterator[tuple[bool, str]]:
    """The parts of a string in order: (whether it is literal, the part)."""
    at = 0
    while (begin := text.find(OPEN, at)) >= 0:
        end = _end(text, begin + len(OPEN))
        yield True, text[at:begin]
        yield False, text[begin + len(OPEN) : end]
        at = end + len(CLOSE)
    yield True, text[at:]


def _end(text: str, at: int) -> int:
    """The end of an expression: the first `}}` that is neither in quotes nor the end of a map."""
    depth, open_quotes = 0, ""
    while at < len(text):
        if text[at] in "\"'" and text[at] not in open_quotes:
            quoted = _QUOTED.match(text, at)
            if quoted:
                at = quoted.end()
                continue
            open_quotes += text[at]  # later quotes of this kind are escaped, and have no end either
        if depth == 0 and text.startswith(CLOSE, at):
            return at
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    raise MalformedExpression("an expression begins with ${{ but has no closing }}")


def format_value(value: Any) -> str:
    """A value inside a string: a string as it is, other values as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def find_templates(value: Any, place: TemplatePlace = ()) -> Iterator[tuple[TemplatePlace, str]]:
    """Every string in a JSON value that contains an expression, with its place."""
    if isinstance(value, str):
        if OPEN in value:
            yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from find_templates(item, (*place, key))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from find_templates(item, (*place, i))


def evaluate_known_templates(
    value: Any,
    scope: Mapping[str, Any],
    place: TemplatePlace,
    left: list[TemplatePlace],
    *,
    lenient: bool = False,
) -> Any:
    """Evaluate every template whose references are in the scope. The places of the others are added to `left`; if `lenient`, also those of
    templates that have no value.
    """

    def decide(text: str, at: TemplatePlace) -> Any:
        template = parse_template(text)
        if all(reference.is_known(scope) for reference in template.refers):
            try:
                return template.value(scope)
            except TenureError:
                if not lenient:
                    raise
        left.append(at)
        return text

    return _map_texts(value, place, decide)


def evaluate_open_templates(
    value: Any, scope: Mapping[str, Any], place: TemplatePlace, open_places: frozenset[TemplatePlace]
) -> Any:
    """Evaluate only the templates at the open places."""
    return _map_texts(
        value,
        place,
        lambda text, at: parse_template(text).value(scope) if at in open_places else text,
        all_texts=True,
    )


def evaluate_templates(value: Any, scope: Mapping[str, Any], roots: tuple[str, ...]) -> Any:
    """Evaluate all templates. They may reference only `roots`."""
    return _map_texts(value, (), lambda text, _: parse_template(text, roots).value(scope))


def _map_texts(
    value: Any, place: TemplatePlace, change: Callable[[str, TemplatePlace], Any], *, all_texts: bool = False
) -> Any:
    if isinstance(value, str):
        return change(value, place) if all_texts or OPEN in value else value
    if isinstance(value, Mapping):
        return {k: _map_texts(v, (*place, k), change, all_texts=all_texts) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(v, (*place, i), change, all_texts=all_texts) for i, v in enumerate(value)]
    return value


def parse_condition(text: str, roots: tuple[str, ...] = expression.ROOTS) -> expression.Expression:
    """The expression of an `if`, which may be wrapped in `${{ }}`. It may reference only `roots`."""
    stripped = text.strip()
    if stripped.startswith(OPEN):
        parts = parse_template(stripped, roots).parts
        if len(parts) == 1 and isinstance(parts[0], expression.Expression):
            return parts[0]
        raise MalformedExpression("an if must be a single expression")
    return expression.parse_expression(stripped, roots)
