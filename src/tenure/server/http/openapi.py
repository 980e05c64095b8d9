"""The OpenAPI document, and the check of query parameters against it.

Laws:
1. The code is the source: paths, parameters, bodies and answers come from the handlers, roles from the table of roles. The
   document cannot differ from them.
2. Every answer with status 400 or above has the schema `Error`, and a route lists all those that it can give.
3. A query parameter that is not in the document is refused: a misspelt filter must not mean "all".
4. An integer in a query or a path has the digits 0 to 9 (in a path without leading zeros), and a number is written as in JSON: `1e1`,
   ` 10`, `+10` and `1_0` are not integers, nor are digits of other scripts.
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
A path without a version is version 1, permanently: changes only add."""
_SECURITY = {
    "key": {"type": "http", "scheme": "bearer", "description": "`Bearer tn_<key id>_<secret>`"},
    "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "From `POST /session`."},
    "lease": {"type": "http", "scheme": "bearer", "description": "The token of a lease, from a claim."},
}
_STATUS_TEXTS: dict[int, str] = {
    400: "The request cannot be parsed.",
    401: "The credential is missing or invalid.",
    403: "The credential does not allow this.",
    404: "The tenant has no such object.",
    409: "The current state does not allow this.",
    410: "The requested events are no longer kept.",
    413: "The body is too large.",
    415: "The content type of the body is not supported here.",
    422: "A value of the request is invalid.",
    429: "Too many requests.",
    500: "An internal error.",
    502: "The database, or another service, cannot be reached.",
    503: "The server is busy or not ready.",
    504: "The request took too long.",
}
_WITH_BODY = ("post", "put", "patch")
_KEYED_BY = frozenset({"create_once", "idempotent", "keyed", "start_run"})
"""A handler that calls one of these takes an idempotency key."""
_KEY_SCHEMA = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"}
_KEY_HEADERS: list[dict[str, Any]] = [
    {"name": name, "in": "header", "required": False, "schema": _KEY_SCHEMA, "description": text}
    for name, text in (
        (
            "Idempotency-Key",
            "The same request under the same key has one effect, and always gets the same answer.",
        ),
        ("X-Idempotency-Key", "The same. If both are sent, they must be equal."),
    )
]
_IN_PROCESS = {
    "description": "The same request is being processed: send it again.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RequestInProcess"}}},
}
_DELIVERIES = re.compile(r"/hooks/(?:github|slack|generic|servicenow)/")


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
        for status, text in _STATUS_TEXTS.items()
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
    """Remove modules from the names of generic shapes: `Page_a.b.RunLine_` becomes `PageOfRunLine`."""
    text = msgspec.json.encode(made).decode()
    for name in made["components"]["schemas"]:
        if "." in name:
            outer, *parts = [part.rsplit(".", 1)[-1] for part in name.split("_") if part]
            plain = f"{outer}Of{'Or'.join(part for part in parts if part[0].isupper())}"
            text = text.replace(f'"{name}"', f'"{plain}"').replace(f'/schemas/{name}"', f'/schemas/{plain}"')
    found: dict[str, Any] = msgspec.json.decode(text)
    return found


def _strict(field: Any) -> Iterator[str]:
    """The names of the structs in a body that forbid unknown fields."""
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
    """Add the roles and errors of one operation (laws 1 and 2)."""
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
    # The framework describes refusals in its own shape. They are replaced by ours.
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
    rules = (
        # 404 also for what a query or a body names: a run, a profile
        (path not in ("/openapi.json", "/docs", "/metrics"), {404, 422}),
        (ANYONE not in allowed, {401, 403}),
        (method in _WITH_BODY, {401, 413, 415}),
        (method != "get", {403, 409}),
        (path.endswith("/result") or LEASE in allowed, {409}),
        (path == "/events/stream", {410}),
    )
    return {400, 429, 500, 502, 503, 504}.union(*(statuses for applies, statuses in rules if applies))


def _drop_unused(made: dict[str, Any]) -> None:
    """Remove schemas that nothing refers to: the framework adds some."""
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
    """A query parameter."""

    repeated: bool
    number: re.Pattern[str] | None
    """The form of a number; None for other types."""


_INTEGER = re.compile(r"-?[0-9]{1,19}")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,19})?(?:[eE][+-]?[0-9]{1,3})?")


@lru_cache(maxsize=1)
def _query_parameters() -> dict[str, dict[str, _Parameter]]:
    """The query parameters of each route."""
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
    """A guard for laws 3 and 4. The addresses of hooks are exempt: senders may append parameters."""
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
    known = _query_parameters().get(f"{scope.get('method', 'GET')} {template}", {})
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
