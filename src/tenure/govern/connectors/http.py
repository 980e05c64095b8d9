"""Any service that speaks HTTP and JSON: one request to a listed host.

Laws:
1. Every request carries its key in `Idempotency-Key`. Whether that makes two requests one is what the settings say (`repeats: native_key`);
   where they say `marker`, the service can be asked for the key (`lookup`), and else nothing is known of a lost answer.
2. PUT and DELETE set a state, as HTTP has it; what DELETE finds gone is deleted.
3. Headers that say who we are come from references.
"""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import quote

import httpx
import msgspec

from tenure.errors import TenureError
from tenure.govern.answers import Answer
from tenure.govern.connector import Call, Found, Operation
from tenure.govern.connectors.base import ConnectorBase
from tenure.govern.connectors.faults import LOST, failed, raise_for
from tenure.govern.connectors.link import Link, header_text
from tenure.govern.outgoing import refusal
from tenure.govern.wording import lines, shown

KEY_HEADER = "Idempotency-Key"
OURS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "idempotency-key", "content-type"}
)
"""Headers that a request has from us."""
SAYS_WHO = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
"""Headers that are secrets: they come from references."""
_GONE = frozenset({404, 410})
_KEPT_HEADERS = ("etag", "location", "x-request-id")

_TARGET = {
    "type": "object",
    "properties": {
        "url": {
            "type": "string",
            "minLength": 1,
            "maxLength": 2_000,
            "description": "Of a listed host; or a path below base_url.",
        }
    },
    "required": ["url"],
}
_HEADERS = {
    "headers": {
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": 2_000},
        "maxProperties": 50,
        "description": "Headers that are no secrets.",
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
_NOT_UNDONE = "Look at what the request did and make the one that takes it back."

HowRepeated = Literal["native_key", "marker", "none"]


def operations(repeats: HowRepeated) -> dict[str, Operation]:
    """The operations of a service that treats keys so."""
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
    """See the laws above."""

    def __init__(
        self, name: str = "http", link: Link | None = None, *, repeats: HowRepeated = "none", lookup: str = ""
    ) -> None:
        """`lookup` is the address of what a key has done, with `{key}` in it: 200 says that it was, 404 that it was not."""
        if repeats == "marker" and "{key}" not in lookup:
            raise TenureError("INVALID_INPUT", "repeats: marker needs `lookup`, an address with {key} in it")
        self.name = name
        self.operations = operations(repeats)
        self._link = link or Link()
        self._repeats = repeats
        self._lookup = lookup

    async def call(self, call: Call) -> Any:
        """Send the request."""
        method = call.operation.upper()
        headers = self._headers(call)
        body = call.fields.get("json", msgspec.UNSET)
        answer = await self._link.request(call, method, self._address(call), json=body, headers=headers)
        if method == "DELETE" and answer.status in _GONE:
            return _result(answer)
        if answer.status == 409 and self._repeats == "native_key":
            # The first request of this key may still be under way.
            raise failed("unknown", LOST, "answered 409: what its key stands for is not decided yet")
        raise_for(answer, _said(answer))
        return _result(answer)

    def _headers(self, call: Call) -> dict[str, str]:
        plain: dict[str, str] = call.fields.get("headers", {})
        secret: dict[str, str] = call.fields.get("secret_headers", {})
        for name in (*plain, *secret):
            if name.lower() in OURS or not _is_token(name):
                raise failed(
                    "not_done", "INVALID_INPUT", f"fields.headers: {name!r} is not for a workflow to set"
                )
        for name, value in plain.items():
            if name.lower() in SAYS_WHO:
                raise failed(
                    "not_done", "SECRET_NOT_A_REFERENCE", f"fields.headers: {name} belongs to secret_headers"
                )
            if not (value.isascii() and value.isprintable()):
                raise failed(
                    "not_done", "INVALID_INPUT", f"fields.headers: {name} has characters no header has"
                )
        made = {**plain, KEY_HEADER: _key_text(call.key)}
        made |= self._who(call, self._address(call))
        said_twice = {name.lower() for name in secret}
        made = {name: value for name, value in made.items() if name.lower() not in said_twice}
        for name, reference in secret.items():
            made[name] = header_text(self._link.secrets.resolve(reference, call.tenant))
        return made

    def _who(self, call: Call, url: str) -> dict[str, str]:
        """Who we are: told to the service that the token is for, and to nobody else."""
        own, there = httpx.URL(self._link.base_url), httpx.URL(url)
        if not self._link.tokens or (own.scheme, own.netloc) != (there.scheme, there.netloc):
            return {}
        return {"Authorization": f"Bearer {self._link.token(call.tenant)}"}

    def _address(self, call: Call) -> str:
        url: str = call.target["url"]
        if url.startswith("/"):
            if not self._link.base_url:
                raise failed(
                    "not_done", "INVALID_INPUT", "target.url is a path, and the connector has no base_url"
                )
            url = f"{self._link.base_url}{url}"
        why = refusal(url, self._link.way)
        if why is not None:
            raise failed("not_done", "OUTGOING_REFUSED", f"target.url: {why}")
        return url

    async def lookup(self, call: Call) -> Found | None:
        """Ask for the key, where the service can be asked."""
        if not self._lookup:
            return None
        url = self._lookup.replace("{key}", quote(call.key, safe=""))
        url = f"{self._link.base_url}{url}" if url.startswith("/") else url
        answer = await self._link.request(call, "GET", url, headers=self._who(call, url))
        if answer.status == 404:
            return None
        raise_for(answer, _said(answer))
        return Found(_result(answer))

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        """The request, line by line."""
        url = target.get("url", "")
        there = f"{self._link.base_url}{url}" if str(url).startswith("/") else url
        said = [f"{operation.upper()} {shown(there)}"]
        said += [f"{shown(name)}: {shown(value)}" for name, value in fields.get("headers", {}).items()]
        said += [
            f"{shown(name)}: the secret at {shown(value)}"
            for name, value in fields.get("secret_headers", {}).items()
        ]
        body = fields.get("json", msgspec.UNSET)
        if isinstance(body, dict):
            said += [f"{shown(key)} = {shown(value)}" for key, value in body.items()]
        elif body is not msgspec.UNSET:
            said.append(f"body = {shown(body)}")
        return lines(*said)


def _is_token(name: str) -> bool:
    return bool(name) and all(
        char.isascii() and (char.isalnum() or char in "!#$%&'*+.^_`|~-") for char in name
    )


def _key_text(key: str) -> str:
    """A key that can stand in a header: the same one always gives the same."""
    return key if key.isascii() and key.isprintable() else quote(key, safe="")


def _result(answer: Answer) -> dict[str, Any]:
    kept = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}
    body = answer.json()
    return {
        "status": answer.status,
        **({"headers": kept} if kept else {}),
        **({} if body is None else {"json": body}),
    }


def _said(answer: Answer) -> str:
    """What an answer says in words, where it is JSON of a usual form."""
    body = answer.json()
    if not isinstance(body, dict):
        return ""
    for key in ("detail", "message", "error", "title"):
        if isinstance(body.get(key), str):
            return str(body[key])
    return ""
