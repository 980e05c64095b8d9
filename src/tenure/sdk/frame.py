"""One try of a step or tool, as the code inside it sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec


class Cost(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call to a provider cost."""

    provider: str
    model: str
    tokens_in: int = 0
    tokens_out: int = 0
    micros: int = 0
    """Money in millionths of the currency's unit."""
    currency: str = "USD"


class Frame:
    """The step that runs now. `tenure.current()` answers it."""

    scope = None

    __slots__ = ("_log", "_stop", "attempt", "costs", "key", "progress_text", "run_id", "step", "workflow")

    def __init__(
        self,
        run_id: str,
        workflow: str,
        step: str,
        attempt: int,
        key: str,
        log: Callable[[str, str, dict[str, Any]], None],
        stop: threading.Event,
    ) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.step = step
        self.attempt = attempt
        self.key = key
        """Stable over the tries of this step: pass it on to whatever can recognise a repeat."""
        self.costs: list[Cost] = []
        self.progress_text = ""
        self._log = log
        self._stop = stop

    @property
    def frame(self) -> Frame:
        """Itself: where code stands inside a step."""
        return self

    @property
    def canceled(self) -> bool:
        """Whether the step should stop: for code in threads, which nobody can interrupt."""
        return self._stop.is_set()

    def progress(self, text: str) -> None:
        """Say how far it is; told with the next heartbeat, and counted as progress where that is asked for."""
        self.progress_text = text

    def log(self, level: str, text: str, fields: dict[str, Any]) -> None:
        """A line beside the run's history."""
        self._log(level, text, fields)
