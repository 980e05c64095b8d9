"""The largest bodies that routes accept, built from their schemas, for the test that no request blocks the event loop."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

FILLER: list[tuple[str, Callable[[int], Any]]] = [
    ("empty lists", lambda room: [[]] * (room // 4)),
    ("a long text", lambda room: "x" * room),
    ("many names", lambda room: {f"name-{i}": i for i in range(room // 20)}),
]
"""Values for fields that accept any JSON."""


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            real = [one for one in schema[choice] if one.get("type") != "null"]
            return _resolved(document, real[-1])
    return schema


def largest(document: dict[str, Any], schema: dict[str, Any], room: int, filler: int, depth: int = 0) -> Any:
    """A value of about `room` bytes that satisfies a schema, or nearly does."""
    schema = _resolved(document, schema)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return max(schema["enum"], key=lambda one: len(str(one)))
    kind = schema.get("type")
    kind = next((one for one in kind if one != "null"), "null") if isinstance(kind, list) else kind
    if kind in ("object", None) and "properties" not in schema:
        made = FILLER[filler][1](room)
        return made if kind is None or isinstance(made, dict) else {"x": made}
    if "properties" in schema:
        known = schema["properties"]
        if depth > 4:
            known = {name: known[name] for name in schema.get("required", ())}
        share = room // max(len(known), 1)
        return {name: largest(document, below, share, filler, depth + 1) for name, below in known.items()}
    if kind == "array":
        below = schema.get("items", {})
        small = largest(document, below, 40, filler, depth + 1)
        each = len(json.dumps(small)) + 2
        return [small] * max(min(schema.get("maxItems", 10**6), room // each), schema.get("minItems", 0))
    if kind == "string":
        if schema.get("format") == "date-time":
            return "2099-01-01T00:00:00Z"
        return "x" * max(min(schema.get("maxLength", room), room), schema.get("minLength", 1))
    if kind in ("integer", "number"):
        return schema.get("maximum", 10)
    return kind == "boolean"


def _fitting(make: Callable[[int], Any], room: int) -> bytes:
    """The JSON of a value that is made smaller until it has less than `room` bytes."""
    asked = room
    while True:
        asked = asked * 9 // 10
        text = json.dumps(make(asked), separators=(",", ":")).encode()
        if len(text) < room:
            return text


def bodies(document: dict[str, Any], route: str, room: int) -> list[tuple[str, bytes, str]]:
    """Bodies for a route: name, bytes, content type."""
    method, _, path = route.partition(" ")
    content = (
        document["paths"].get(path, {}).get(method.lower(), {}).get("requestBody", {}).get("content", {})
    )
    if not content and method in ("GET", "DELETE"):
        return [("nothing", b"", "")]
    made = []
    schema = content.get("application/json", {}).get("schema", {})
    for number, (name, fill) in enumerate(FILLER):
        make = partial(largest, document, schema, filler=number) if schema else fill
        made.append((name, _fitting(make, room), "application/json"))
    made.append(("nothing but lists", b"[" + b"[]," * (room // 3 - 2) + b"[]]", "application/json"))
    made.append(("nothing but texts", b"[" + b'"",' * (room // 3 - 2) + b'""]', "application/json"))
    return made
