"""What the connectors that speak HTTP share: where their service is, who we are there, and how a request is made.

Laws:
1. An operation makes at most one request that writes, and makes it last: a fault before it has changed nothing.
2. A token is resolved for the one request that has it, and goes only to the service's own host.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from tenure.errors import TenureError
from tenure.govern.answers import Answer
from tenure.govern.connector import Call
from tenure.govern.connectors.faults import failed
from tenure.govern.outgoing import Way, send
from tenure.secrets import Secrets, resolve_own

USER_AGENT = "tenure"
EVERY_TENANT = "*"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A way to one service."""

    base_url: str = ""
    """Without a slash at its end."""
    way: Way = Way()
    tokens: dict[str, str] = {}
    """Tenant -> reference; `*` for all that have none of their own."""
    secrets: Secrets = Secrets()
    """For references in fields, which are the tenants' own."""

    def token(self, tenant: str) -> str:
        """The token of a tenant there."""
        reference = self.tokens.get(tenant) or self.tokens.get(EVERY_TENANT)
        if reference is None:
            raise TenureError("SECRET_UNAVAILABLE", "no token is set up for this tenant")
        return header_text(resolve_own(reference))

    async def request(
        self,
        call: Call,
        method: str,
        url: str,
        *,
        json: Any = msgspec.UNSET,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Make one request; a path is one of the service's."""
        whole = {"User-Agent": USER_AGENT, "Accept": "application/json", **(headers or {})}
        content = b""
        if json is not msgspec.UNSET:
            content = msgspec.json.encode(json)
            whole = {"Content-Type": "application/json", **whole}
        where = f"{self.base_url}{url}" if url.startswith("/") else url
        return await send(method, where, self.way, deadline=call.deadline, headers=whole, content=content)


def header_text(value: bytes) -> str:
    """A secret that can stand in a header."""
    try:
        text = value.decode("ascii")
    except UnicodeDecodeError:
        text = "\n"
    if not text.isprintable():
        raise TenureError("SECRET_UNAVAILABLE", "a secret cannot stand in a header: it is no printable ASCII")
    return text


def path(*parts: str | int) -> str:
    """A path from its parts, none of which can be more than a part."""
    for part in parts:
        if str(part) in ("", ".", ".."):
            raise failed("not_done", "INVALID_INPUT", f"{part!r} is no part of an address")
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


def taken(answer: Answer, *keys: str) -> dict[str, Any]:
    """What is kept of an answer: these keys of its object, where they are there."""
    body = answer.json()
    return {key: body[key] for key in keys if key in body} if isinstance(body, dict) else {}
