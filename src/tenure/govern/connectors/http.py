"""The HTTP connector: one JSON request to a listed host.

Laws:
1. Every request has its key in `Idempotency-Key`. The settings say whether the service deduplicates by it (`repeats: native_key`). With
   `marker`, the service can be asked for the key (`lookup`). Otherwise the outcome of a lost answer stays unknown.
2. PUT and DELETE set a state, as HTTP defines. A DELETE of something absent succeeds.
3. Credential headers come from references.
"""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import quote

import httpx
import msgspec

from tenure.errors import TenureError
from tenure.govern.connector import ConnectorCall, FoundEffect, Operation
from tenure.govern.connectors.base import ConnectorBase
from tenure.govern.connectors.faults import LOST, call_failed, raise_for_response
from tenure.govern.connectors.http_service import HttpService, check_header_value
from tenure.govern.display_text import display_lines, display_value
from tenure.outbound.responses import HttpResponse
from tenure.outbound.urls import find_url_problem

KEY_HEADER = "Idempotency-Key"
RESERVED_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "idempotency-key", "content-type"}
)
"""Headers that Tenure sets."""
CREDENTIAL_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
"""Headers with credentials, which must come from references."""
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
    """The operations of a service with this kind of deduplication."""
    state: Literal["native_key", "sets_state"] = "native_key" if repeats == "native_key" else "sets_state"
    made = (
        Operation(name="post", summary="Send a POST request.", target=_TARGET, fields=_BODY, repeats=repeats),
        Operation(name="put", summary="Send a PUT request.", target=_TARGET, fields=_BODY, repeats=state),
        Operation(
            name="patch", summary="Send a PATCH request.", target=_TARGET, fields=_BODY, repeats=repeats
        ),
        Operation(
            name="delete", summary="Send a DELETE request.", target=_TARGET, fields=_NO_BODY, repeats=state
        ),
    )
    return {each.name: msgspec.structs.replace(each, undo_hint=_NOT_UNDONE, tier="med") for each in made}


class HttpConnector(ConnectorBase):
    def __init__(
        self,
        name: str = "http",
        link: HttpService | None = None,
        *,
        repeats: RepeatMethod = "none",
        lookup: str = "",
    ) -> None:
        """`lookup` is the URL of a key's effect, with `{key}` in it: 200 means that the effect exists, 404 that it does not."""
        if repeats == "marker" and "{key}" not in lookup:
            raise TenureError("INVALID_INPUT", "repeats: marker needs `lookup`, a URL that contains {key}")
        self.name = name
        self.operations = http_operations(repeats)
        self._link = link or HttpService()
        self._repeats = repeats
        self._lookup = lookup

    async def call(self, call: ConnectorCall) -> Any:
        method = call.operation.upper()
        headers = self._headers(call)
        body = call.fields.get("json", msgspec.UNSET)
        answer = await self._link.request(call, method, self._address(call), json=body, headers=headers)
        if method == "DELETE" and answer.status in _GONE:
            return _result(answer)
        if answer.status == 409 and self._repeats == "native_key":
            # The first request with this key may still be in progress.
            raise call_failed("unknown", LOST, "answered 409: the request with this key is still in progress")
        raise_for_response(answer, _said(answer))
        return _result(answer)

    def _headers(self, call: ConnectorCall) -> dict[str, str]:
        plain: dict[str, str] = call.fields.get("headers", {})
        secret: dict[str, str] = call.fields.get("secret_headers", {})
        for name in (*plain, *secret):
            if name.lower() in RESERVED_HEADERS or not _is_token(name):
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
        made = {**plain, KEY_HEADER: _key_text(call.key)}
        made |= self._who(call, self._address(call))
        said_twice = {name.lower() for name in secret}
        made = {name: value for name, value in made.items() if name.lower() not in said_twice}
        for name, reference in secret.items():
            made[name] = check_header_value(self._link.secrets.resolve(reference, call.tenant))
        return made

    def _who(self, call: ConnectorCall, url: str) -> dict[str, str]:
        """The authorization header, only for the service that the token belongs to."""
        own, there = httpx.URL(self._link.base_url), httpx.URL(url)
        if not self._link.tokens or (own.scheme, own.netloc) != (there.scheme, there.netloc):
            return {}
        return {"Authorization": f"Bearer {self._link.token(call.tenant)}"}

    def _address(self, call: ConnectorCall) -> str:
        url: str = call.target["url"]
        if url.startswith("/"):
            if not self._link.base_url:
                raise call_failed(
                    "not_done", "INVALID_INPUT", "target.url is a path, but the connector has no base_url"
                )
            url = f"{self._link.base_url}{url}"
        why = find_url_problem(url, self._link.way)
        if why is not None:
            raise call_failed("not_done", "OUTGOING_REFUSED", f"target.url: {why}")
        return url

    async def lookup(self, call: ConnectorCall) -> FoundEffect | None:
        """Look the key up, if the settings say where."""
        if not self._lookup:
            return None
        url = self._lookup.replace("{key}", quote(call.key, safe=""))
        url = f"{self._link.base_url}{url}" if url.startswith("/") else url
        answer = await self._link.request(call, "GET", url, headers=self._who(call, url))
        if answer.status == 404:
            return None
        raise_for_response(answer, _said(answer))
        return FoundEffect(_result(answer))

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        url = target.get("url", "")
        there = f"{self._link.base_url}{url}" if str(url).startswith("/") else url
        said = [f"{operation.upper()} {display_value(there)}"]
        said += [
            f"{display_value(name)}: {display_value(value)}"
            for name, value in fields.get("headers", {}).items()
        ]
        said += [
            f"{display_value(name)}: the secret at {display_value(value)}"
            for name, value in fields.get("secret_headers", {}).items()
        ]
        body = fields.get("json", msgspec.UNSET)
        if isinstance(body, dict):
            said += [f"{display_value(key)} = {display_value(value)}" for key, value in body.items()]
        elif body is not msgspec.UNSET:
            said.append(f"body = {display_value(body)}")
        return display_lines(*said)


def _is_token(name: str) -> bool:
    return bool(name) and all(
        char.isascii() and (char.isalnum() or char in "!#$%&'*+.^_`|~-") for char in name
    )


def _key_text(key: str) -> str:
    """The key for a header. Keys that are not printable ASCII are quoted."""
    return key if key.isascii() and key.isprintable() else quote(key, safe="")


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
    body = answer.json()
    if not isinstance(body, dict):
        return ""
    for key in ("detail", "message", "error", "title"):
        if isinstance(body.get(key), str):
            return str(body[key])
    return ""
