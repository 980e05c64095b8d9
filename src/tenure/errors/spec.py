"""What the registry says about an error code."""

from __future__ import annotations

import msgspec


class ErrorSpec(msgspec.Struct, frozen=True):
    status: int
    """The HTTP status."""
    retryable: bool
    """Whether the same request may succeed later without being changed."""
    meaning: str
    remedy: str
    """What to do next, in terms of commands and Python: never HTTP paths or headers."""
    at_api: str = ""
    """What to do next in terms of the HTTP API. Only HTTP answers have it, at the end of the message."""

    def api_message(self, message: str) -> str:
        return f"{message.rstrip('.')}; {self.at_api}" if self.at_api else message

    def plain_message(self, message: str) -> str:
        """The message of an HTTP answer without `at_api`."""
        return message.removesuffix(f"; {self.at_api}") if self.at_api else message

    @property
    def remedy_at_api(self) -> str:
        return f"{self.remedy} At the API: {self.at_api}." if self.at_api else self.remedy


def spec(status: int, meaning: str, remedy: str, *, retryable: bool = False, at_api: str = "") -> ErrorSpec:
    return ErrorSpec(status, retryable, meaning, remedy, at_api)
