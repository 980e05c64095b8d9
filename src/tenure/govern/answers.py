"""What becomes of a request to another service: its answer, or how it failed.

Apart from `outgoing`, which makes requests: what a fault means is asked in processes that never make one, and need not load httpx.
"""

from __future__ import annotations

from typing import Any

import msgspec


class NotSent(Exception):
    """Nothing of the request has left this machine."""

    def __init__(self, message: str, *, refused: bool = False, late: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        """By us: it will be refused again."""
        self.late = late
        """Its deadline had passed."""


class AnswerLost(Exception):
    """Some or all of the request was sent, and no whole answer came back."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came back."""

    status: int
    headers: dict[str, str]
    """Names in small letters."""
    body: bytes
    cut: bool = False
    """There was more of it than is read."""

    def json(self) -> Any:
        """The body as JSON; None where it is none."""
        if self.cut or "content-encoding" in self.headers:
            return None
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            return None
