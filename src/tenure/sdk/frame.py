"""The try of a step or tool, as the code inside it sees it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any, Protocol

from tenure import tracing
from tenure.kernel.costs import Cost


class AttemptPort(Protocol):
    """What a try needs besides its outcome: a `LeasePort`, or a pipe to one from an isolated process."""

    stop: threading.Event
    """Set when the work must stop: code in threads checks it."""

    def report_progress(self, text: str) -> None:
        """Send a text with the next heartbeat."""

    def log(self, step: str, level: str, text: str, fields: dict[str, Any]) -> None:
        """Add a line to the run's log."""

    def spend(self, cost: Cost) -> None:
        """Report a cost with the next message. May be called from any thread."""


class Frame:
    """The try that is running: what `tenure.current()` returns."""

    scope = None

    __slots__ = (
        "_loop",
        "_port",
        "_progressed",
        "abandoned",
        "attempt",
        "costs",
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
        port: AttemptPort,
        trace: str | None = None,
    ) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.step = step
        self.attempt = attempt
        self.key = key
        """The same for all tries of this step: pass it to a service that recognizes repeated requests."""
        self.trace = trace
        self.costs: list[Cost] = []
        self.progress_text = ""
        self.abandoned = False
        """Whether the try is over though its code still runs."""
        self._port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._progressed: asyncio.Event | None = None

    @property
    def frame(self) -> Frame:
        return self

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context to pass to services that this step calls: that of the current span, or of the run's trigger."""
        return tracing.current_traceparent() or self.trace

    @property
    def canceled(self) -> bool:
        """Whether the step should stop. Code in threads must look, because it cannot be interrupted."""
        return self.abandoned or self._port.stop.is_set()

    def progress(self, text: str) -> None:
        """Report progress: sent with the next heartbeat, and counted for `progress_within`."""
        self.progress_text = text
        self._port.report_progress(text)
        loop, progressed = self._loop, self._progressed
        if loop is not None and progressed is not None and not progressed.is_set():
            with suppress(RuntimeError):  # the loop has ended before this thread
                loop.call_soon_threadsafe(progressed.set)

    async def progressed(self) -> None:
        if self._progressed is None:
            self._loop, self._progressed = asyncio.get_running_loop(), asyncio.Event()
        await self._progressed.wait()
        self._progressed.clear()

    def spend(self, cost: Cost) -> None:
        self.costs.append(cost)
        self._port.spend(cost)

    def log(self, level: str, text: str, fields: dict[str, Any]) -> None:
        self._port.log(self.step, level, text, fields)
