"""A service that is called over HTTP: its address, its tokens and its requests; and the markers by which effects are found again.

Laws:
1. An operation makes at most one writing request, as its last request: a failure before it has changed nothing.
2. A token is resolved for one request, and is sent only to the service's own host.
3. A marker stands for tenant and key and reveals neither. It is at the very end of what Tenure wrote; texts of others must not contain one.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import msgspec

from tenure.errors import TenureError
from tenure.govern.connector import ConnectorCall
from tenure.govern.connectors.base import ConnectorBase
from tenure.govern.connectors.faults import call_failed
from tenure.outbound.http import send_request
from tenure.outbound.responses import HttpResponse
from tenure.outbound.urls import OutboundRoute
from tenure.secrets import Secrets, resolve_own

USER_AGENT = "tenure"
EVERY_TENANT = "*"


class HttpService(msgspec.Struct, frozen=True, kw_only=True):
    base_url: str = ""
    """Without a trailing slash."""
    way: OutboundRoute = OutboundRoute()
    tokens: dict[str, str] = {}
    """Tenant -> reference. `*` is for all other tenants."""
    secrets: Secrets = Secrets()
    """Resolves the references in fields, which belong to tenants."""

    def token(self, tenant: str) -> str:
        reference = self.tokens.get(tenant) or self.tokens.get(EVERY_TENANT)
        if reference is None:
            raise TenureError("SECRET_UNAVAILABLE", "no token is configured for this tenant")
        return check_header_value(resolve_own(reference))

    async def request(
        self,
        call: ConnectorCall,
        method: str,
        url: str,
        *,
        json: Any = msgspec.UNSET,
        headers: dict[str, str] | None = None,
    ) -> HttpResponse:
        """Send one request. A path is relative to `base_url`."""
        whole = {"User-Agent": USER_AGENT, "Accept": "application/json", **(headers or {})}
        content = b""
        if json is not msgspec.UNSET:
            content = msgspec.json.encode(json)
            whole = {"Content-Type": "application/json", **whole}
        return await send_request(
            method, self.absolute(url), self.way, deadline=call.deadline, headers=whole, content=content
        )

    def absolute(self, url: str) -> str:
        """The URL of a path below `base_url`. Other URLs are returned unchanged."""
        return f"{self.base_url}{url}" if url.startswith("/") else url


class ServiceConnector(ConnectorBase):
    base_url = ""

    def __init__(self, name: str | None = None, link: HttpService | None = None) -> None:
        self.name = name or self.name
        self._link = link or HttpService(base_url=self.base_url)


def check_header_value(value: bytes) -> str:
    text = value.decode("ascii", "replace")
    if not (text.isascii() and text.isprintable()):
        raise TenureError(
            "SECRET_UNAVAILABLE", "a secret cannot be used in a header: it is not printable ASCII"
        )
    return text


def build_path(*parts: str | int) -> str:
    """A path from its segments, which are quoted."""
    for part in parts:
        if str(part) in ("", ".", ".."):
            raise call_failed("not_done", "INVALID_INPUT", f"{part!r} cannot be a path segment")
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


def pick_fields(body: Any, keys: Iterable[str]) -> dict[str, Any]:
    """The given keys of a JSON value, as far as it has them."""
    return {key: body[key] for key in keys if key in body} if isinstance(body, dict) else {}


# ---- Markers: how an effect is found again if its service knows no keys.

HIDDEN = "<!-- tenure:"


def marker_text(call: ConnectorCall) -> str:
    return sha256(f"{call.tenant}\0{call.key}".encode()).hexdigest()[:32]


def hidden_marker(call: ConnectorCall) -> str:
    return f"{HIDDEN}{marker_text(call)} -->"


def refuse_markers(text: str, sign: str) -> None:
    if sign in text:
        raise call_failed(
            "not_done",
            "INVALID_INPUT",
            f"a text must not contain {sign!r}, which begins Tenure's own markers",
        )


def text_digest(text: str) -> str:
    """A digest of a text that ignores line ends and trailing blanks."""
    return sha256("\n".join(line.rstrip() for line in text.strip().splitlines()).encode()).hexdigest()
