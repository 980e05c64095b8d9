"""Logs of the simulated processes: not printed; an error among them is a finding."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog


class LogCapture:
    """Catches what is logged while it is entered."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._before: dict[str, Any] = {}

    def __enter__(self) -> LogCapture:
        self._before = structlog.get_config()
        structlog.configure(processors=[self._catch], cache_logger_on_first_use=False)
        return self

    def __exit__(self, *exc: object) -> None:
        structlog.configure(**self._before)

    def _catch(self, _logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        if method in ("error", "exception", "critical"):
            details = ", ".join(f"{k}={v}" for k, v in event.items() if k not in ("event", "exc_info"))
            trouble = event.get("exc_info")
            if isinstance(trouble, bool) and trouble:
                trouble = sys.exc_info()[1]
            self._tell(f"an error was logged: {event.get('event')} ({details}) {trouble!r}")
        raise structlog.DropEvent
