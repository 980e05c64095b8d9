"""The log: JSON lines for machines, and the events of a run that git-with-intent names (its section 7.2).

Laws:
1. A line of a run's event has exactly the fields of that section, and its tenant; besides them only what every line has
   (timestamp, level).
2. No payload, no name, no secret: only ids, states and numbers. Secrets that a call has resolved are removed from every line that is
   logged during the call.
3. Events of runs that are not logged cost nothing: then nothing watches the orchestrator.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

import structlog

from tenure import ids
from tenure.govern.redaction import Redactor
from tenure.secrets import resolved_so_far

if TYPE_CHECKING:
    from tenure.kernel.feed import ObservedEvent

Level = Literal["debug", "info", "warning", "error"]
LEVELS: dict[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_OURS = "tenure_of_uvicorn"


def configure_logging(
    stream: TextIO | None = None, *, level: Level = "info", form: Literal["json", "text"] = "json"
) -> None:
    """Log to a stream from now on, by default to stdout."""
    render: Any = structlog.processors.JSONRenderer()
    if form == "text":
        render = structlog.dev.ConsoleRenderer(
            colors=(stream or sys.stdout).isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
            structlog.processors.format_exc_info,
            _without_secrets,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_: structlog.PrintLogger(stream or sys.stdout),
        cache_logger_on_first_use=False,
    )


def _without_secrets(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Remove the secrets that the call around a log line has resolved."""
    values = resolved_so_far()
    if not values:
        return line
    clean: MutableMapping[str, Any] = Redactor(values).clean(dict(line))
    return clean


class _Handler(logging.Handler):
    """Passes uvicorn's log records to our log."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"message": record.getMessage()}
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        structlog.get_logger("uvicorn").error("http_server_failed", **fields)


def redirect_uvicorn_logs() -> None:
    """Log uvicorn's errors in our format. Its other messages are dropped, because the server logs its own."""
    theirs = logging.getLogger("uvicorn.error")
    theirs.setLevel(logging.ERROR)
    theirs.propagate = False
    if not any(handler.name == _OURS for handler in theirs.handlers):
        handler = _Handler()
        handler.name = _OURS
        theirs.addHandler(handler)


def rfc3339(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RunEventLog:
    def __init__(self) -> None:
        self._log = structlog.get_logger("tenure.runs")

    def log_event(self, event: ObservedEvent, words: tuple[str, str]) -> None:
        """Log an event of a run; `words` are its states before and after, in its profile's words."""
        about: dict[str, Any] = {"runId": ids.run_text(event.run_id), "tenant": event.tenant}
        if event.created:
            self._log.info("run_created", **about, type=event.workflow, idempotencyKey=event.key)
        if words[0] != words[1]:
            self._log.info(
                "run_transition", **about, **{"from": words[0]}, to=words[1], initiator=event.initiator
            )
        if event.checkpoint is not None and event.checkpoint_done:
            self._log.info("run_checkpoint", **about, stepId=event.checkpoint, resumable=event.resumable)
        if event.orphaned:
            self._log.warning(
                "orphan_detected",
                **about,
                lastHeartbeat=None if event.beat_at is None else rfc3339(event.beat_at),
            )
        if event.reason is not None:
            self._log.info(
                "run_completed", **about, durationMs=(event.duration_us or 0) // 1000, status=words[1]
            )

    def idempotency_hit(self, key: str, run_id: str | None, tenant: str) -> None:
        self._log.info("idempotency_hit", key=key, cachedRunId=run_id, tenant=tenant)
