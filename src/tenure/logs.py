"""Loggers that load structlog when the first line is logged.

structlog loads all of rich, for its tracebacks, where that is installed: longer than everything else that an engine needs, in
processes of which most log nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_prepare: Callable[[], None] | None = None


def get_logger(name: str) -> Any:
    """structlog's logger of this name."""
    return _Logger(name)


def configure_on_first_use(prepare: Callable[[], None]) -> None:
    """Before the first line, let this configure structlog, unless somebody has by then."""
    global _prepare  # noqa: PLW0603 - structlog's configuration is one per process too
    _prepare = prepare


class _Logger:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import structlog

        if _prepare is not None and not structlog.is_configured():
            _prepare()
        return getattr(structlog.get_logger(self._name), method)
