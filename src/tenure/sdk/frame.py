"""One try of a step or tool, as the code inside it sees it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any, Protocol

from tenure.kernel.costs import Cost
from tenure.orchestrator import spans


class Beside(Protocol):
    """What a try says beside its outcome, and is told: the line of its lease, or of its process."""

    stop: threading.Event
    progress: str

    def log(self, step: str, level: str, text: str, fields: dict[str, Any]) -> None:
        """Keep a line beside the run's history."""
        ...

    def spend(self, cost: Cost) -> None:
        """Tell of a cost with the next message."""
        ...


class Frame:
    """The step that runs now. `tenure.current()` answers it."""

    scope = None

    __slots__ = (
        "_line",
        "_loop",
        "_moved",
        "attempt",
        "costs",
        "given_up",
        "key",
        "progress_text",
        "run_id",
        "step",
        "trace",
        "workflow",
    )

    def __init__(
        self,
        run_id: str,
        workflow: str,
        step: str,
        attempt: int,
        key: str,
        line: Beside,
        trace: str | None = None,
    ) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.step = step
        self.attempt = attempt
        self.key = key
        """Stable over the tries of this step: pass it on to whatever can recognise a repeat."""
        self.trace = trace
        self.costs: list[Cost] = []
        self.progress_text = ""
        self.given_up = False
        """Whether this try is over, though its code goes on; its lease may be another try's."""
        self._line = line
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moved: asyncio.Event | None = None

    @property
    def frame(self) -> Frame:
        """Itself: where code stands inside a step."""
        return self

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context to pass on to whatever this step calls: that of the span that is current, else of whoever
        asked for the run."""
        return spans.current() or self.trace

    @property
    def canceled(self) -> bool:
        """Whether the step should stop: for code in threads, which nobody can interrupt."""
        return self.given_up or self._line.stop.is_set()

    def progress(self, text: str) -> None:
        """Say how far it is; told with the next heartbeat, and counted as progress where that is asked for."""
        self.progress_text = text
        self._line.progress = text
        loop, moved = self._loop, self._moved
        if loop is not None and moved is not None and not moved.is_set():
            with suppress(RuntimeError):  # a thread that has outlived its loop
                loop.call_soon_threadsafe(moved.set)

    async def moved(self) -> None:
        """Wait for the next word of progress."""
        if self._moved is None:
            self._loop, self._moved = asyncio.get_running_loop(), asyncio.Event()
        await self._moved.wait()
        self._moved.clear()

    def spend(self, cost: Cost) -> None:
        """What a call to a provider cost: shown with this step, and counted for the run."""
        self.costs.append(cost)
        self._line.spend(cost)

    def log(self, level: str, text: str, fields: dict[str, Any]) -> None:
        """A line beside the run's history."""
        self._line.log(self.step, level, text, fields)
