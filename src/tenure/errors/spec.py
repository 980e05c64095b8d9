"""What is said of a code."""

from __future__ import annotations

import msgspec


class ErrorSpec(msgspec.Struct, frozen=True):
    """What is true of every error with this code."""

    status: int
    """The HTTP status it has at the API."""
    retryable: bool
    """Whether the same request may succeed later without being changed."""
    meaning: str
    remedy: str
    """In words for everybody: commands, never addresses of the API."""
    at_api: str = ""
    """What to do in the API's words, where it has its own; the message of an answer ends with it, and nobody else sees it."""

    def api_message(self, message: str) -> str:
        """A message as the API gives it."""
        return f"{message.rstrip('.')}; {self.at_api}" if self.at_api else message

    def plain_message(self, message: str) -> str:
        """A message of an answer, without what is said at the API alone."""
        return message.removesuffix(f"; {self.at_api}") if self.at_api else message

    @property
    def remedy_at_api(self) -> str:
        """The remedy with what is said at the API."""
        return f"{self.remedy} At the API: {self.at_api}." if self.at_api else self.remedy


def spec(status: int, meaning: str, remedy: str, *, retryable: bool = False, at_api: str = "") -> ErrorSpec:
    """A line of the registry."""
    return ErrorSpec(status, retryable, meaning, remedy, at_api)
