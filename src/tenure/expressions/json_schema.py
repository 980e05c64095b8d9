"""JSON Schema, in a small subset: schemas of operations and of workflow inputs, and checks of values against them.

Laws:
1. A schema with an unknown keyword is refused when its connector is registered, not ignored when a value is checked.
2. An object has only its declared keys, unless `additionalProperties` allows others.
3. `secret: true` on a string (or on the values of an object) takes a reference, `env:NAME` or `file:/PATH`, and nothing else. A string
   that is not a reference may be the secret itself, so messages do not repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from math import isfinite
from typing import Any

import msgspec

from tenure.errors import Detail, TenureError
from tenure.limits import PROBLEMS_MAX
from tenure.secrets import REFERENCE_FORM, is_reference
from tenure.suggestions import Suggestions, did_you_mean

DEPTH_MAX = 32

JSON_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool) and isfinite(v),
    "boolean": lambda v: isinstance(v, bool),
    "array": lambda v: isinstance(v, list | tuple),
    "object": lambda v: isinstance(v, Mapping) and all(isinstance(key, str) for key in v),
    "null": lambda v: v is None,
}
_COMMON_KEYWORDS = frozenset({"type", "description", "title", "examples", "default", "enum", "secret"})
_KEYWORDS: dict[str, frozenset[str]] = {
    "string": frozenset({"pattern", "minLength", "maxLength"}),
    "integer": frozenset({"minimum", "maximum"}),
    "number": frozenset({"minimum", "maximum"}),
    "boolean": frozenset(),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}),
    "null": frozenset(),
}


def object_schema(**properties: Any) -> dict[str, Any]:
    """The schema of an object with these keys. A key whose name ends with `_` is optional."""
    return {
        "type": "object",
        "properties": {name.removesuffix("_"): schema for name, schema in properties.items()},
        "required": [name for name in properties if not name.endswith("_")],
    }


def allowed_types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The types that a schema allows. Empty: any type."""
    given = schema.get("type", ())
    return (given,) if isinstance(given, str) else tuple(given)


def check_schema(schema: Any, at: str, depth: int = 0) -> None:
    """Raise ValueError for a schema with an unknown type or keyword (law 1)."""
    if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
        raise ValueError(f"{at} is not a schema")
    kinds = allowed_types(schema)
    if unknown := [kind for kind in kinds if kind not in JSON_TYPES]:
        raise ValueError(f"{at}.type: unknown type {unknown[0]!r}; the types are {', '.join(JSON_TYPES)}")
    known = _COMMON_KEYWORDS.union(*(_KEYWORDS[kind] for kind in kinds))
    for key in schema:
        if key not in known:
            raise ValueError(f"{at}: unknown keyword {key!r}{did_you_mean(key, sorted(known))}")
    if "pattern" in schema:
        re.compile(schema["pattern"])
    for name, below in schema.get("properties", {}).items():
        check_schema(below, f"{at}.properties.{name}", depth + 1)
    if missing := set(schema.get("required", ())) - set(schema.get("properties", {})):
        raise ValueError(f"{at}.required: {min(missing)!r} is not among the properties")
    if isinstance(schema.get("additionalProperties"), Mapping):
        check_schema(schema["additionalProperties"], f"{at}.additionalProperties", depth + 1)
    if "items" in schema:
        check_schema(schema["items"], f"{at}.items", depth + 1)


def find_problems(
    schema: Mapping[str, Any], value: Any, at: str, depth: int = 0, guesses: Suggestions | None = None
) -> Iterator[Detail]:
    """Why a value does not match its schema. With `items: None` the items of an array are not checked."""
    guesses = guesses or Suggestions()
    if depth > DEPTH_MAX:
        yield Detail(at, f"is nested more than {DEPTH_MAX} levels deep")
        return
    if schema.get("secret") and isinstance(value, str):
        if not is_reference(value):
            yield Detail(at, REFERENCE_FORM)
        return
    kinds = allowed_types(schema)
    if kinds and not any(JSON_TYPES[kind](value) for kind in kinds):
        yield Detail(at, f"must be {' or '.join(map(name_type, kinds))}, not {_shown(schema, value)}")
        return
    choices = schema.get("enum")
    if choices is not None and not any(is_same_json(value, choice) for choice in choices):
        listed = ", ".join(map(display_json, choices))
        yield Detail(at, f"must be one of {listed}, not {_shown(schema, value)}")
    if isinstance(value, str):
        yield from _size_problems(value, schema.get("minLength"), schema.get("maxLength"), "characters", at)
        if "pattern" in schema and not _pattern(schema["pattern"]).fullmatch(value):
            yield Detail(at, f"must match {schema['pattern']}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield Detail(at, f"must be at least {schema['minimum']:g}, not {display_json(value)}")
        if value > schema.get("maximum", value):
            yield Detail(at, f"must be at most {schema['maximum']:g}, not {display_json(value)}")
    elif isinstance(value, list | tuple):
        yield from _size_problems(value, schema.get("minItems"), schema.get("maxItems"), "items", at)
        items = schema.get("items", {})
        for i, item in enumerate(() if items is None else value):
            yield from find_problems(items, item, f"{at}[{i}]", depth + 1, guesses)
    elif isinstance(value, Mapping):
        yield from _object_problems(schema, value, at, depth, guesses)


def _object_problems(
    schema: Mapping[str, Any], value: Mapping[str, Any], at: str, depth: int, guesses: Suggestions
) -> Iterator[Detail]:
    yield from _size_problems(value, schema.get("minProperties"), schema.get("maxProperties"), "keys", at)
    declared: Mapping[str, Any] = schema.get("properties", {})
    others = schema.get("additionalProperties", "properties" not in schema)
    for key, below in value.items():
        here = f"{at}.{key}"
        if key in declared:
            yield from find_problems(declared[key], below, here, depth + 1, guesses)
        elif isinstance(others, Mapping):
            yield from find_problems(others, below, here, depth + 1, guesses)
        elif not others:
            guess = guesses.close_to(key, declared, "there are") if declared else "; there are none"
            yield Detail(here, f"is unknown{guess}")
    for key in schema.get("required", ()):
        if key not in value:
            yield Detail(f"{at}.{key}", "must be given")


def _size_problems(value: Any, least: int | None, most: int | None, unit: str, at: str) -> Iterator[Detail]:
    if least is not None and len(value) < least:
        yield Detail(at, f"must have at least {least} {unit}, not {len(value)}")
    if most is not None and len(value) > most:
        yield Detail(at, f"must have at most {most} {unit}, not {len(value)}")


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _shown(schema: Mapping[str, Any], value: Any) -> str:
    return "that" if schema.get("secret") else display_json(value)


def find_secrets(schema: Mapping[str, Any], value: Any, at: str) -> Iterator[tuple[str, str]]:
    """The places in a value where the schema has a secret: (place, text)."""
    if schema.get("secret") and isinstance(value, str):
        yield at, value
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from find_secrets(schema.get("items", {}), item, f"{at}[{i}]")
    elif isinstance(value, Mapping):
        others = schema.get("additionalProperties")
        for key, below in value.items():
            found = schema.get("properties", {}).get(key, others if isinstance(others, Mapping) else {})
            yield from find_secrets(found, below, f"{at}.{key}")


def check_value(schema: Mapping[str, Any], value: Any, at: str) -> None:
    """Raise INVALID_INPUT for a value that does not match, or SECRET_NOT_A_REFERENCE where a secret itself may have been given."""
    given = [
        Detail(place, REFERENCE_FORM)
        for place, text in find_secrets(schema, value, at)
        if not is_reference(text)
    ]
    if given:
        raise TenureError("SECRET_NOT_A_REFERENCE", _join_problems(given), tuple(given))
    if found := [*islice(find_problems(schema, value, at), PROBLEMS_MAX)]:
        raise TenureError("INVALID_INPUT", _join_problems(found), tuple(found))


def _join_problems(found: list[Detail]) -> str:
    return "; ".join(f"{problem.path} {problem.problem}" for problem in found)


def name_type(name: str) -> str:
    """The name of a JSON type with its article."""
    return name if name == "null" else f"{'an' if name[0] in 'aio' else 'a'} {name}"


def display_json(value: Any) -> str:
    """A value in an error message: JSON of at most 60 characters."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_same_json(value: Any, choice: Any) -> bool:
    """Whether two values are the same JSON: true is not 1."""
    return bool(value == choice) and isinstance(value, bool) == isinstance(choice, bool)
