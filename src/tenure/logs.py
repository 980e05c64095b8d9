"""Loggers that load structlog when the first line is logged.

If rich is installed, structlog loads all of it for its tracebacks. That takes longer than everything else that an engine loads, and
most processes log nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_prepare: Callable[[], None] | None = None


def get_logger(name: str) -> Any:
    return _Logger(name)


def configure_on_first_use(prepare: Callable[[], None]) -> None:
    """Call `prepare` before the first line is logged, unless structlog is configured by then."""
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
