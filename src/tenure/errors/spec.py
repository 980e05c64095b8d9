"""What the registry says about an error code."""

from __future__ import annotations

import msgspec


class ErrorSpec(msgspec.Struct, frozen=True):
    status: int
    meaning: str
    remedy: str
    """What to do next, in terms of commands and Python: never HTTP paths or headers."""
    retryable: bool = False
    """Whether the same request may succeed later without being changed."""
    at_api: str = ""
    """What to do next in terms of the HTTP API. Only HTTP responses have it, at the end of the message."""

    def api_message(self, message: str) -> str:
        return f"{message.rstrip('.')}; {self.at_api}" if self.at_api else message

    def plain_message(self, message: str) -> str:
        """The message of an HTTP response without `at_api`."""
        return message.removesuffix(f"; {self.at_api}") if self.at_api else message

    @property
    def remedy_at_api(self) -> str:
        return f"{self.remedy} At the API: {self.at_api}." if self.at_api else self.remedy
