"""OpenTelemetry for runs: the trace of a run, and the spans of its work.

Laws:
1. Only the API is used. The program that configures the SDK decides what is sampled and where spans are sent.
2. A program that does not use OpenTelemetry never loads it.
3. The first lease of a run is a child of the trace that requested the run. Work that is resumed, perhaps days later, is a trace of its
   own with a link to the first one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from tenure.kernel.commands import CreateRun

TRACER_NAME = "tenure"
_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_API = "opentelemetry.trace"


def is_enabled() -> bool:
    """Whether this program uses OpenTelemetry (law 2)."""
    return _API in sys.modules


def current_traceparent() -> str | None:
    """The W3C trace context of the current span, if there is one."""
    if not is_enabled():
        return None
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _context_of(traceparent: str | None) -> SpanContext | None:
    found = None if traceparent is None else _FORM.fullmatch(traceparent)
    if found is None:
        return None
    from opentelemetry import trace

    context = trace.SpanContext(
        int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=trace.TraceFlags(int(found[3], 16))
    )
    return context if context.is_valid else None


def trace_for_new_run(command: CreateRun) -> str | None:
    """The trace of a new run, if it differs from the command's. A run that resumes or repeats another one belongs to the current trace,
    which gets a link to the trace of the other run."""
    if (now := current_traceparent()) is None:
        return None
    if command.trace is None:
        return now
    if command.resumed_from is None and command.rerun_of is None:
        return None
    from opentelemetry import trace

    earlier = _context_of(command.trace)
    if earlier is not None:
        trace.get_current_span().add_link(earlier)
    return now


@contextmanager
def span(
    name: str,
    *,
    parent: str | None = None,
    linked: str | None = None,
    about: Mapping[str, Any] | None = None,
    quiet: tuple[type[BaseException], ...] = (),
) -> Iterator[Any]:
    """A span: a child of `parent`, or a new trace with a link to `linked`, or else a child of the current span. Only the class of an
    exception is recorded, because its message may contain user data. Exceptions in `quiet` are not recorded."""
    if not is_enabled():
        yield None
        return
    from opentelemetry import context as contexts
    from opentelemetry import trace

    above, links = None, []
    if (known := _context_of(linked)) is not None:
        above, links = contexts.Context(), [trace.Link(known)]
    elif (known := _context_of(parent)) is not None:
        above = trace.set_span_in_context(trace.NonRecordingSpan(known), contexts.Context())
    with trace.get_tracer(TRACER_NAME).start_as_current_span(
        name,
        context=above,
        links=links,
        attributes=about,
        record_exception=False,
        set_status_on_exception=False,
    ) as made:
        try:
            yield made
        except quiet:
            raise  # control flow, not a failure
        except BaseException as fault:
            made.set_status(trace.Status(trace.StatusCode.ERROR, type(fault).__name__))
            raise
