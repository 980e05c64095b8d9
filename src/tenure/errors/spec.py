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


def spec(status: int, meaning: str, remedy: str, *, retryable: bool = False) -> ErrorSpec:
    """A line of the registry."""
    return ErrorSpec(status, retryable, meaning, remedy)
