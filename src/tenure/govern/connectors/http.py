"""The HTTP connector: one JSON request to a listed host.

Laws:
1. Every request has its key in `Idempotency-Key`. The settings say whether the service deduplicates by it (`repeats: native_key`). With
   `marker`, the service can be asked for the key (`lookup`). Otherwise the outcome of a lost answer stays unknown.
2. PUT and DELETE set a state, as HTTP defines. A DELETE of something absent succeeds.
3. Credential headers come from references.
"""

from __future__ import annotations

import re
from typing import Any, Literal
from urllib.parse import quote

import httpx
import msgspec

from tenure.errors import TenureError
from tenure.govern.connector import ConnectorCall, FoundEffect, Operation
from tenure.govern.connectors.faults import LOST, call_failed, raise_for_response
from tenure.govern.connectors.http_service import (
    HttpService,
    ServiceConnector,
    check_header_value,
    pick_fields,
)
from tenure.govern.display_text import display_lines, display_value
from tenure.outbound.responses import HttpResponse
from tenure.outbound.urls import find_url_problem

KEY_HEADER = "Idempotency-Key"
RESERVED_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "idempotency-key", "content-type"}
)
"""Headers that Tenure sets."""
CREDENTIAL_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_GONE = frozenset({404, 410})
_KEPT_HEADERS = ("etag", "location", "x-request-id")

_TARGET = {
    "type": "object",
    "properties": {
        "url": {
            "type": "string",
            "minLength": 1,
            "maxLength": 2_000,
            "description": "A URL on a listed host, or a path below base_url.",
        }
    },
    "required": ["url"],
}
_HEADERS = {
    "headers": {
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": 2_000},
        "maxProperties": 50,
        "description": "Headers without secrets.",
    },
    "secret_headers": {
        "type": "object",
        "additionalProperties": {"type": "string", "secret": True},
        "maxProperties": 10,
        "description": "Header -> reference to its value.",
    },
}
_BODY = {"type": "object", "properties": {"json": {"description": "The body."}, **_HEADERS}}
_NO_BODY = {"type": "object", "properties": _HEADERS}
_NOT_UNDONE = "Check what the request did and send the one that reverses it."

RepeatMethod = Literal["native_key", "marker", "none"]


def http_operations(repeats: RepeatMethod) -> dict[str, Operation]:
    state: Literal["native_key", "sets_state"] = "native_key" if repeats == "native_key" else "sets_state"
    return {
        name: Operation(
            name=name,
            summary=f"Send a {name.upper()} request.",
            target=_TARGET,
            fields=_NO_BODY if name == "delete" else _BODY,
            repeats=state if name in ("put", "delete") else repeats,
            undo_hint=_NOT_UNDONE,
            tier="med",
        )
        for name in ("post", "put", "patch", "delete")
    }


class HttpConnector(ServiceConnector):
    name = "http"

    def __init__(
        self,
        name: str | None = None,
        link: HttpService | None = None,
        *,
        repeats: RepeatMethod = "none",
        lookup: str = "",
    ) -> None:
        """`lookup` is the URL of a key's effect, with `{key}` in it: 200 means that the effect exists, 404 that it does not."""
        if repeats == "marker" and "{key}" not in lookup:
            raise TenureError("INVALID_INPUT", "repeats: marker needs `lookup`, a URL that contains {key}")
        super().__init__(name, link)
        self.operations = http_operations(repeats)
        self._repeats = repeats
        self._lookup = lookup

    async def call(self, call: ConnectorCall) -> Any:
        method = call.operation.upper()
        url = self._check_url(call.target["url"])
        answer = await self._link.request(
            call,
            method,
            url,
            json=call.fields.get("json", msgspec.UNSET),
            headers=self._headers(call, url),
        )
        if answer.status == 409 and self._repeats == "native_key":
            # The first request with this key may still be in progress.
            raise call_failed("unknown", LOST, "answered 409: the request with this key is still in progress")
        if not (method == "DELETE" and answer.status in _GONE):
            raise_for_response(answer, _said(answer))
        return _result(answer)

    def _headers(self, call: ConnectorCall, url: str) -> dict[str, str]:
        plain: dict[str, str] = call.fields.get("headers", {})
        secret: dict[str, str] = call.fields.get("secret_headers", {})
        for name in (*plain, *secret):
            if name.lower() in RESERVED_HEADERS or not _HEADER_NAME.fullmatch(name):
                raise call_failed(
                    "not_done", "INVALID_INPUT", f"fields.headers: a workflow must not set {name!r}"
                )
        for name, value in plain.items():
            if name.lower() in CREDENTIAL_HEADERS:
                raise call_failed(
                    "not_done", "SECRET_NOT_A_REFERENCE", f"fields.headers: {name} must be in secret_headers"
                )
            if not (value.isascii() and value.isprintable()):
                raise call_failed(
                    "not_done",
                    "INVALID_INPUT",
                    f"fields.headers: {name} has characters that are not allowed in a header",
                )
        key = call.key if call.key.isascii() and call.key.isprintable() else quote(call.key, safe="")
        made = {**plain, KEY_HEADER: key, **self._authorization(call, url)}
        overridden = {name.lower() for name in secret}
        return {name: value for name, value in made.items() if name.lower() not in overridden} | {
            name: check_header_value(self._link.secrets.resolve(reference, call.tenant))
            for name, reference in secret.items()
        }

    def _authorization(self, call: ConnectorCall, url: str) -> dict[str, str]:
        """The authorization header, only for the service that the token belongs to."""
        own, there = httpx.URL(self._link.base_url), httpx.URL(url)
        if not self._link.tokens or (own.scheme, own.netloc) != (there.scheme, there.netloc):
            return {}
        return {"Authorization": f"Bearer {self._link.token(call.tenant)}"}

    def _check_url(self, given: str) -> str:
        url = self._link.absolute(given)
        if url.startswith("/"):
            raise call_failed(
                "not_done", "INVALID_INPUT", "target.url is a path, but the connector has no base_url"
            )
        if (why := find_url_problem(url, self._link.way)) is not None:
            raise call_failed("not_done", "OUTGOING_REFUSED", f"target.url: {why}")
        return url

    async def lookup(self, call: ConnectorCall) -> FoundEffect | None:
        """Look the key up, if the settings say where."""
        if not self._lookup:
            return None
        url = self._link.absolute(self._lookup.replace("{key}", quote(call.key, safe="")))
        answer = await self._link.request(call, "GET", url, headers=self._authorization(call, url))
        if answer.status == 404:
            return None
        raise_for_response(answer, _said(answer))
        return FoundEffect(_result(answer))

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        body = fields.get("json", {})
        written = body if isinstance(body, dict) else {"body": body}
        return display_lines(
            f"{operation.upper()} {display_value(self._link.absolute(target.get('url', '')))}",
            *(
                f"{display_value(name)}: {display_value(value)}"
                for name, value in fields.get("headers", {}).items()
            ),
            *(
                f"{display_value(name)}: the secret at {display_value(value)}"
                for name, value in fields.get("secret_headers", {}).items()
            ),
            *(f"{display_value(key)} = {display_value(value)}" for key, value in written.items()),
        )


def _result(answer: HttpResponse) -> dict[str, Any]:
    kept = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}
    body = answer.json()
    return {
        "status": answer.status,
        **({"headers": kept} if kept else {}),
        **({} if body is None else {"json": body}),
    }


def _said(answer: HttpResponse) -> str:
    """The service's own message, if its JSON has one of the usual forms."""
    found = pick_fields(answer.json(), ("detail", "message", "error", "title")).values()
    return next((value for value in found if isinstance(value, str)), "")
