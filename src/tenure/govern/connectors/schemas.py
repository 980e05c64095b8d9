"""The schemas of operations: a part of JSON Schema, small enough to be sure of.

Laws:
1. What is not understood is refused when a connector is registered, never passed over when a value is looked at.
2. An object has the keys that it declares and no others, unless it says what others are.
3. `secret: true` at a text (or at the values of an object) takes a reference, `env:NAME` or `file:/PATH`, and nothing else. A text that is
   no reference may be the secret itself: it is not repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from tenure.declared.inputs import JSON_TYPES, same_json, shown_json
from tenure.errors import Detail, TenureError
from tenure.limits import PROBLEMS_MAX
from tenure.secrets import FORM, is_reference
from tenure.suggestions import Suggestions, close_to

DEPTH_MAX = 32

_IS: dict[str, Callable[[Any], bool]] = {**JSON_TYPES, "null": lambda v: v is None}
_SAID = frozenset({"type", "description", "title", "examples", "default", "enum", "secret"})
_OF: dict[str, frozenset[str]] = {
    "string": frozenset({"pattern", "minLength", "maxLength"}),
    "integer": frozenset({"minimum", "maximum"}),
    "number": frozenset({"minimum", "maximum"}),
    "boolean": frozenset(),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}),
    "null": frozenset(),
}


def object_of(**properties: Any) -> dict[str, Any]:
    """The schema of an object with these keys; one whose name ends with `_` may be left out."""
    return {
        "type": "object",
        "properties": {name.removesuffix("_"): schema for name, schema in properties.items()},
        "required": [name for name in properties if not name.endswith("_")],
    }


def types_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The types a schema allows; none: any."""
    given = schema.get("type", ())
    return (given,) if isinstance(given, str) else tuple(given)


def check_schema(schema: Any, at: str, depth: int = 0) -> None:
    """Refuse a schema that says something we would pass over (law 1)."""
    if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
        raise ValueError(f"{at} is no schema")
    kinds = types_of(schema)
    unknown = [kind for kind in kinds if kind not in _IS]
    if unknown:
        raise ValueError(f"{at}.type: there is no {unknown[0]!r}; there are {', '.join(_IS)}")
    known = _SAID.union(*(_OF[kind] for kind in kinds))
    for key in schema:
        if key not in known:
            guess = close_to(key, sorted(known))
            raise ValueError(f"{at} has {key!r}, which is not understood there{guess}")
    if "pattern" in schema:
        re.compile(schema["pattern"])
    for name, below in schema.get("properties", {}).items():
        check_schema(below, f"{at}.properties.{name}", depth + 1)
    missing = set(schema.get("required", ())) - set(schema.get("properties", {}))
    if missing:
        raise ValueError(f"{at}.required: {min(missing)!r} is not among its properties")
    if isinstance(schema.get("additionalProperties"), Mapping):
        check_schema(schema["additionalProperties"], f"{at}.additionalProperties", depth + 1)
    if "items" in schema:
        check_schema(schema["items"], f"{at}.items", depth + 1)


def problems(
    schema: Mapping[str, Any], value: Any, at: str, depth: int = 0, guesses: Suggestions | None = None
) -> Iterator[Detail]:
    """What keeps a value from fitting its schema."""
    guesses = guesses or Suggestions()
    if depth > DEPTH_MAX:
        yield Detail(at, f"is nested over {DEPTH_MAX} deep")
        return
    if schema.get("secret") and isinstance(value, str):
        if not is_reference(value):
            yield Detail(at, FORM)
        return
    kinds = types_of(schema)
    if kinds and not any(_IS[kind](value) for kind in kinds):
        yield Detail(at, f"must be {' or '.join(kinds)}, not {_shown(schema, value)}")
        return
    choices = schema.get("enum")
    if choices is not None and not any(same_json(value, choice) for choice in choices):
        said = ", ".join(shown_json(choice) for choice in choices)
        yield Detail(at, f"must be one of {said}, not {_shown(schema, value)}")
    if isinstance(value, str):
        yield from _text_problems(schema, value, at)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield Detail(at, f"must be at least {schema['minimum']:g}")
        if value > schema.get("maximum", value):
            yield Detail(at, f"must be at most {schema['maximum']:g}")
    elif isinstance(value, list | tuple):
        yield from _size(value, schema.get("minItems"), schema.get("maxItems"), "items", at)
        for i, item in enumerate(value):
            yield from problems(schema.get("items", {}), item, f"{at}[{i}]", depth + 1, guesses)
    elif isinstance(value, Mapping):
        yield from _object_problems(schema, value, at, depth, guesses)


def _text_problems(schema: Mapping[str, Any], value: str, at: str) -> Iterator[Detail]:
    yield from _size(value, schema.get("minLength"), schema.get("maxLength"), "characters", at)
    if "pattern" in schema and not _pattern(schema["pattern"]).fullmatch(value):
        yield Detail(at, f"must be of the form {schema['pattern']}")


def _object_problems(
    schema: Mapping[str, Any], value: Mapping[str, Any], at: str, depth: int, guesses: Suggestions
) -> Iterator[Detail]:
    yield from _size(value, schema.get("minProperties"), schema.get("maxProperties"), "keys", at)
    declared: Mapping[str, Any] = schema.get("properties", {})
    others = schema.get("additionalProperties", "properties" not in schema)
    for key, below in value.items():
        here = f"{at}.{key}"
        if key in declared:
            yield from problems(declared[key], below, here, depth + 1, guesses)
        elif isinstance(others, Mapping):
            yield from problems(others, below, here, depth + 1, guesses)
        elif not others:
            guess = guesses.close_to(key, declared, "there are") if declared else "; there are none"
            yield Detail(here, f"is not known{guess}")
    for key in schema.get("required", ()):
        if key not in value:
            yield Detail(f"{at}.{key}", "must be given")


def _size(value: Any, least: int | None, most: int | None, unit: str, at: str) -> Iterator[Detail]:
    if least is not None and len(value) < least:
        yield Detail(at, f"must have at least {least} {unit}, not {len(value)}")
    if most is not None and len(value) > most:
        yield Detail(at, f"must have at most {most} {unit}, not {len(value)}")


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _shown(schema: Mapping[str, Any], value: Any) -> str:
    return "that" if schema.get("secret") else shown_json(value)


def secret_places(schema: Mapping[str, Any], value: Any, at: str) -> Iterator[tuple[str, str]]:
    """Where in a value a secret is asked for: (place, text)."""
    if schema.get("secret") and isinstance(value, str):
        yield at, value
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from secret_places(schema.get("items", {}), item, f"{at}[{i}]")
    elif isinstance(value, Mapping):
        others = schema.get("additionalProperties")
        for key, below in value.items():
            found = schema.get("properties", {}).get(key, others if isinstance(others, Mapping) else {})
            yield from secret_places(found, below, f"{at}.{key}")


def check(schema: Mapping[str, Any], value: Any, at: str) -> None:
    """Refuse a value that does not fit: INVALID_INPUT, or SECRET_NOT_A_REFERENCE where a secret itself may have been given."""
    given = [
        Detail(place, FORM) for place, text in secret_places(schema, value, at) if not is_reference(text)
    ]
    if given:
        raise TenureError("SECRET_NOT_A_REFERENCE", _told(given), tuple(given))
    found: list[Detail] = []
    for problem in problems(schema, value, at):
        found.append(problem)
        if len(found) >= PROBLEMS_MAX:
            break
    if found:
        raise TenureError("INVALID_INPUT", _told(found), tuple(found))


def _told(found: list[Detail]) -> str:
    return "; ".join(f"{problem.path} {problem.problem}" for problem in found)
