"""Data for tests over all routes: the table of docs/roles.md, the list of routes, and the smallest body of each."""

import re
from pathlib import Path
from typing import Any

from tenure.server.app import handlers
from tenure.services.identity.principals import ROLES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "roles.md"
_LINE = re.compile(r"\| `([A-Z]+ /\S*)` \|(.*)\|$")
_TYPED = re.compile(r"\{(\w+)(?::\w+)?\}")
_FORMATS = {"date-time": "2099-01-01T00:00:00Z", "uuid": "00000000-0000-4000-8000-000000000000"}


def table() -> dict[str, set[str]]:
    """The table of docs/roles.md: route -> roles that may use it."""
    found: dict[str, set[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if match := _LINE.match(line):
            cells = [cell.strip() for cell in match[2].split("|")]
            roles = {role for role, cell in zip(ROLES, cells, strict=False) if cell == "yes"}
            found[match[1]] = roles | set(re.findall(r"`(\w+)`", cells[-1]))
    return found


def routes() -> set[str]:
    """Every route of the application."""
    return {
        f"{method} {_TYPED.sub(lambda place: f'{{{place[1]}}}', path)}"
        for handler in handlers()
        for path in handler.paths
        for method in handler.http_methods
        if method not in ("OPTIONS", "HEAD")
    }


def smallest(document: dict[str, Any], schema: dict[str, Any]) -> Any:
    """The smallest value that satisfies a schema, or nearly does."""
    if "$ref" in schema:
        return smallest(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            real = [one for one in schema[choice] if one.get("type") != "null"]
            return smallest(document, real[0])
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    kind = next((one for one in kind if one != "null"), "null") if isinstance(kind, list) else kind
    if kind == "object" or "properties" in schema:
        known = schema.get("properties", {})
        return {name: smallest(document, known[name]) for name in schema.get("required", ()) if name in known}
    if kind == "array":
        return [smallest(document, schema["items"])] * schema.get("minItems", 0)
    if kind == "string":
        text = _FORMATS.get(schema.get("format", ""), "x")
        return text.ljust(schema.get("minLength", 0), "x")
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        return int(least) if kind == "integer" else least
    return kind == "boolean"


def body_for(document: dict[str, Any], route: str) -> dict[str, Any]:
    """The httpx arguments for a request to a route."""
    method, _, path = route.partition(" ")
    operation = document["paths"].get(path, {}).get(method.lower(), {})
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        return {"json": smallest(document, content["application/json"].get("schema", {}))}
    if content:
        return {"content": b"x", "headers": {"Content-Type": next(iter(content))}}
    return {}
