"""The response to a request, or how the request failed.

A separate module from `tenure.outbound.http`: code that only interprets failures need not load httpx.
"""

from __future__ import annotations

from typing import Any

import msgspec


class RequestNotSent(Exception):
    def __init__(self, message: str, *, refused: bool = False, late: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        """Tenure refused it, and would refuse it again."""
        self.late = late


class ResponseLost(Exception):
    """A part of the request was sent, and no complete response was received."""


class HttpResponse(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    cut: bool = False
    """The body was longer than the limit."""

    def json(self) -> Any:
        """The body as JSON, or None if it is not complete JSON."""
        if self.cut or "content-encoding" in self.headers:
            return None
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            return None
