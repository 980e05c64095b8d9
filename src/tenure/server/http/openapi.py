"""The OpenAPI document: what the framework knows of the routes, and what is true of all of them.

Laws:
1. The routes are the source: paths, parameters, bodies and answers are read from the handlers, who may ask from the
   table of roles. Nothing is described here that could be otherwise there.
2. Every answer from 400 on has the one schema `Error`, and a route lists all those it can give.
3. A query parameter that is not in the document is refused (`Known`): a filter that was misspelt must not mean "all".
4. An integer in a query or a path is written in the digits 0 to 9 (in a path without leading zeros), and a number as in JSON: `1e1`,
   ` 10`, `+10` and `1_0` are no integers, nor are digits of other scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import version
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.routes import HTTPRoute

from tenure.errors import CODES, Detail, TenureError
from tenure.server.auth.authentication import COOKIE
from tenure.server.auth.roles import ALLOWED, ANYONE, HERE, LEASE
from tenure.server.error_responses import ErrorBody
from tenure.server.request import ApiRequest
from tenure.services.idempotency import RequestInProcess

TITLE = "Tenure"
_ABOUT = """Durable runs over HTTP. JSON in snake_case, times in RFC 3339 UTC. Lists are `{items, next_cursor}`, newest first.
Every answer from 400 on has the shape `Error`; `docs/errors/` has a page for each code.
A path without a version is version 1, for good: changes only add."""
_SECURITY = {
    "key": {"type": "http", "scheme": "bearer", "description": "`Bearer tn_<key id>_<secret>`"},
    "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "From `POST /session`."},
    "lease": {"type": "http", "scheme": "bearer", "description": "The token of a lease, from a claim."},
}
_SAID: dict[int, str] = {
    400: "The request cannot be read.",
    401: "No credential, or not a good one.",
    403: "This credential may not do that.",
    404: "There is no such thing for this tenant.",
    409: "It cannot be done as things are.",
    410: "What was asked for is no longer kept.",
    413: "The body is too large.",
    415: "The body has another content type than this address takes.",
    422: "The request was understood, and it is wrong.",
    429: "Too often.",
    500: "Something failed that should not have.",
    502: "What is behind this server cannot be reached.",
    503: "The server cannot do its work now.",
    504: "It took longer than it may.",
}
_WITH_BODY = ("post", "put", "patch")
_KEYED_BY = frozenset({"create_once", "idempotent", "keyed", "start_run"})
"""A handler that calls one of these takes an idempotency key."""
_KEY_SCHEMA = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"}
_KEY_HEADERS: list[dict[str, Any]] = [
    {"name": name, "in": "header", "required": False, "schema": _KEY_SCHEMA, "description": text}
    for name, text in (
        ("Idempotency-Key", "The same request under the same key is answered once, and has one effect."),
        ("X-Idempotency-Key", "The same; where both are given they are equal."),
    )
]
_IN_PROCESS = {
    "description": "The same request is in process: ask again.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RequestInProcess"}}},
}
_DELIVERIES = re.compile(r"/hooks/(?:github|slack|generic)/")


@lru_cache(maxsize=1)
def openapi_document() -> dict[str, Any]:
    from tenure.server.app import handlers

    config = OpenAPIConfig(
        title=TITLE, version=version("tenure"), description=_ABOUT, use_handler_docstrings=True
    )
    app = Litestar(handlers(), request_class=ApiRequest, openapi_config=config, logging_config=None)
    made: dict[str, Any] = _plain_names(app.openapi_schema.to_schema())
    routes = {
        f"{method} {route.path_format}": handler
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method, (handler, _) in route.route_handler_map.items()
    }
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    _, found = msgspec.json.schema_components(
        [ErrorBody, RequestInProcess], ref_template="#/components/schemas/{name}"
    )
    schemas["Error"] = found.pop("ErrorBody")
    schemas |= found
    schemas["ApiError"]["properties"]["code"]["enum"] = sorted(CODES)
    components["securitySchemes"] = _SECURITY
    components["responses"] = {
        f"Error{status}": {
            "description": text,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for status, text in _SAID.items()
    }
    for path, item in made["paths"].items():
        for method, operation in item.items():
            handler = routes[f"{method.upper()} {path}"]
            _complete(path, method, operation, keyed=bool(_KEYED_BY & {*handler.fn.__code__.co_names}))
            for name in _strict(handler.parsed_data_field):
                schemas.get(name, {})["additionalProperties"] = False
    _drop_unused(made)
    return made


def _plain_names(made: dict[str, Any]) -> dict[str, Any]:
    """The names of generic shapes have no modules in them: `Page_a.b.RunLine_` is `PageOfRunLine`."""
    text = msgspec.json.encode(made).decode()
    for name in made["components"]["schemas"]:
        if "." in name:
            outer, *parts = [part.rsplit(".", 1)[-1] for part in name.split("_") if part]
            plain = f"{outer}Of{'Or'.join(part for part in parts if part[0].isupper())}"
            text = text.replace(f'"{name}"', f'"{plain}"').replace(f'/schemas/{name}"', f'/schemas/{plain}"')
    found: dict[str, Any] = msgspec.json.decode(text)
    return found


def _strict(field: Any) -> Iterator[str]:
    """The shapes within a body that take no other fields than their own."""
    if field is None:
        return
    try:
        left: list[Any] = [msgspec.inspect.type_info(field.annotation)]
    except TypeError:
        return
    seen: set[type] = set()
    while left:
        info = left.pop()
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in seen:
                continue
            seen.add(info.cls)
            if info.forbid_unknown_fields:
                yield info.cls.__name__
            left += [each.type for each in info.fields]
        elif isinstance(info, msgspec.inspect.UnionType):
            left += info.types
        elif isinstance(info, msgspec.inspect.Metadata):
            left.append(info.type)
        else:
            left += [
                part
                for name in ("item_type", "value_type")
                if (part := getattr(info, name, None)) is not None
            ]
            left += getattr(info, "item_types", ())


def _complete(path: str, method: str, operation: dict[str, Any], *, keyed: bool) -> None:
    """Laws 1 and 2 for one operation."""
    if keyed:
        given = operation.setdefault("parameters", [])
        names = {each["name"].lower() for each in given}
        given += [each for each in _KEY_HEADERS if each["name"].lower() not in names]
        operation["responses"].setdefault("202", _IN_PROCESS)
    allowed = ALLOWED.get(f"{method.upper()} {path}", frozenset())
    operation["security"] = _security(allowed)
    operation["x-tenure-roles"] = sorted(allowed)
    body = operation.get("requestBody", {})
    for content in body.get("content", {}).values():
        if {"type": "null"} in content.get("schema", {}).get("oneOf", ()):
            body["required"] = False
    responses = operation["responses"]
    for bare in ("204", "304"):
        responses.get(bare, {}).pop("content", None)
    # What the framework says of refusals is not how we refuse. A route's own are in our words below.
    own = {int(status) for status in responses if int(status) >= 400} - {400}
    for status in [status for status in responses if int(status) >= 400]:
        del responses[status]
    for status in sorted(own | _refusals(path, method, allowed)):
        responses[str(status)] = {"$ref": f"#/components/responses/Error{status}"}


def _security(allowed: frozenset[str]) -> list[dict[str, list[str]]]:
    if ANYONE in allowed:
        return []
    if LEASE in allowed:
        return [{"lease": []}]
    ways: list[dict[str, list[str]]] = [{"key": []}, {"session": []}]
    return [*ways, {}] if HERE in allowed else ways


def _refusals(path: str, method: str, allowed: frozenset[str]) -> set[int]:
    """The statuses from 400 on that a route can answer with."""
    if path in ("/healthz", "/readyz"):
        return {400, 500, 503}
    found = {400, 429, 500, 502, 503, 504}
    if path not in ("/openapi.json", "/docs", "/metrics"):
        found.add(422)
    if ANYONE not in allowed or method in _WITH_BODY:
        found.add(401)
    if ANYONE not in allowed:
        found.add(403)
    if path not in ("/openapi.json", "/docs", "/metrics"):
        found.add(404)  # also for what a query or a body names: a run, a profile
    if method != "get":
        found |= {403, 409}
    if method in _WITH_BODY:
        found |= {413, 415}
    if path.endswith("/result") or LEASE in allowed:
        found.add(409)
    if path == "/events/stream":
        found.add(410)
    return found


def _drop_unused(made: dict[str, Any]) -> None:
    """Schemas nothing points to are the framework's own."""
    schemas = made["components"]["schemas"]
    while True:
        text = msgspec.json.encode(made).decode()
        unused = [name for name in schemas if f'"#/components/schemas/{name}"' not in text]
        if not unused:
            return
        for name in unused:
            del schemas[name]


@lru_cache(maxsize=1)
def encoded_document() -> bytes:
    return msgspec.json.encode(openapi_document())


class _Parameter(msgspec.Struct, frozen=True):
    """What a parameter of a query may be."""

    repeated: bool
    number: re.Pattern[str] | None
    """How its text must look; None: it is no number."""


_INTEGER = re.compile(r"-?[0-9]{1,19}")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,19})?(?:[eE][+-]?[0-9]{1,3})?")


@lru_cache(maxsize=1)
def _known() -> dict[str, dict[str, _Parameter]]:
    """The parameters of each route's query."""
    return {
        f"{method.upper()} {path}": {
            given["name"]: _Parameter(_has_type(given["schema"], "array"), _number(given["schema"]))
            for given in operation.get("parameters", ())
            if given["in"] == "query"
        }
        for path, item in openapi_document()["paths"].items()
        for method, operation in item.items()
        if isinstance(operation, dict)
    }


def _has_type(schema: dict[str, Any], name: str) -> bool:
    given = schema.get("type")
    return name in (given if isinstance(given, list) else [given]) or any(
        _has_type(one, name) for one in schema.get("oneOf", ())
    )


def _number(schema: dict[str, Any]) -> re.Pattern[str] | None:
    return _INTEGER if _has_type(schema, "integer") else _NUMBER if _has_type(schema, "number") else None


async def reject_unknown_parameters(connection: ASGIConnection, _handler: BaseRouteHandler) -> None:  # type: ignore[type-arg]  # any of them
    """A guard: see laws 3 and 4. What is delivered to a hook has the sender's address, which may have anything behind it."""
    scope = connection.scope
    parts: Iterable[object] = scope["path_params"].values()
    for part in parts:
        if isinstance(part, int) and str(part) not in scope["path"].split("/"):
            raise TenureError("NOT_FOUND")
    query: bytes = scope["query_string"]
    if not query:
        return
    template = str(scope["path_template"])
    if _DELIVERIES.match(template):
        return
    known = _known().get(f"{scope.get('method', 'GET')} {template}", {})
    given: set[str] = set()
    for name, text in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        code = "REQUEST_MALFORMED"
        if name not in known:
            problem = f"there is no such parameter here; there are: {', '.join(sorted(known)) or 'none'}"
        elif name in given and not known[name].repeated:
            problem = "it is given more than once, and can have one value"
        elif (number := known[name].number) is not None and not number.fullmatch(text):
            code = "INVALID_INPUT"
            problem = (
                f"{text[:60]!r} is no {'integer' if number is _INTEGER else 'number'}; send decimal digits"
            )
        else:
            given.add(name)
            continue
        raise TenureError(code, f"{name[:100]!r}: {problem}", (Detail(name[:100], problem),))
