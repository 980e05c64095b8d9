"""The OpenAPI document as a page.

Law: the page has no scripts and loads nothing from other servers. Its content security policy enforces this.
"""

from __future__ import annotations

import base64
import html
from functools import lru_cache
from hashlib import sha256
from typing import Any

from tenure.server.http.openapi import openapi_document

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; }
details { border: 1px solid #8886; border-radius: 6px; margin: 0.4rem 0; padding: 0.4rem 0.8rem; }
summary { cursor: pointer; }
table { border-collapse: collapse; }
td, th { text-align: left; padding: 0.1rem 1rem 0.1rem 0; vertical-align: top; }
b { display: inline-block; min-width: 4.5rem; font-family: ui-monospace, monospace; }
small { opacity: 0.75; }
"""
_HASH = base64.b64encode(sha256(_STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_METHODS = ("get", "post", "put", "patch", "delete")


@lru_cache(maxsize=1)
def render_page() -> bytes:
    made = openapi_document()
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width">',
        f"<title>{_text(made['info']['title'])}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(made['info']['title'])} <small>{_text(made['info']['version'])}</small></h1>",
        f"<p>{_text(made['info'].get('description', ''))}</p>",
        "<p>The same for programs: <a href=/openapi.json><code>/openapi.json</code></a>.</p>",
    ]
    for path, item in sorted(made["paths"].items()):
        parts += [_operation(path, method, item[method]) for method in _METHODS if method in item]
    parts.append("<h2>Shapes</h2>")
    parts += [_shape(name, schema) for name, schema in sorted(made["components"]["schemas"].items())]
    parts.append("</body></html>")
    return "".join(parts).encode()


def _text(value: Any) -> str:
    return html.escape(str(value))


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    roles = ", ".join(operation.get("x-tenure-roles", ()))
    rows = [
        f"<tr><td><code>{_text(given['name'])}</code></td><td>{_text(given['in'])}</td>"
        f"<td>{_type(given.get('schema', {}))}</td><td>{_text(given.get('description', ''))}</td></tr>"
        for given in operation.get("parameters", ())
    ]
    body = operation.get("requestBody", {}).get("content", {})
    asked = "".join(
        f"<p>Body: <code>{_text(kind)}</code> {_type(of.get('schema', {}))}</p>" for kind, of in body.items()
    )
    answers = "".join(
        f"<tr><td>{_text(status)}</td><td>{_answer(given)}</td></tr>"
        for status, given in operation["responses"].items()
    )
    return (
        f"<details><summary><b>{method.upper()}</b><code>{_text(path)}</code> {_text(operation.get('summary', ''))}</summary>"
        f"<p>{_text(operation.get('description', ''))}</p><p><small>For: {_text(roles)}</small></p>"
        + (f"<table>{''.join(rows)}</table>" if rows else "")
        + f"{asked}<table>{answers}</table></details>"
    )


def _answer(given: dict[str, Any]) -> str:
    if "$ref" in given:
        made = openapi_document()["components"]["responses"][given["$ref"].rsplit("/", 1)[1]]
        return f"{_text(made['description'])} {_type({'$ref': '#/components/schemas/Error'})}"
    return f"{_text(given.get('description', ''))} " + " ".join(
        _type(kind.get("schema", {})) for kind in given.get("content", {}).values()
    )


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f'<a href="#{_text(name)}"><code>{_text(name)}</code></a>'
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    for many in ("oneOf", "anyOf"):
        if many in schema:
            return " or ".join(_type(each) for each in schema[many])
    if "enum" in schema:
        return " or ".join(f"<code>{_text(each)}</code>" for each in schema["enum"])
    kind = schema.get("type", "anything")
    return f"<code>{_text(kind if isinstance(kind, str) else ' or '.join(kind))}</code>"


def _shape(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{_text(field)}</code>{'' if field in required else ' <small>optional</small>'}</td>"
        f"<td>{_type(of)}</td><td>{_text(of.get('description', ''))}</td></tr>"
        for field, of in schema.get("properties", {}).items()
    )
    return f'<details id="{_text(name)}"><summary><code>{_text(name)}</code></summary><table>{rows or _type(schema)}</table></details>'
