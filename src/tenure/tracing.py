"""OpenTelemetry, as far as runs are concerned: where a run's trace comes from, and how its work goes on with it.

Laws:
1. Only the API is used. What is sampled, and where spans go, is the business of whoever configures the SDK.
2. A program that does not use OpenTelemetry never loads it: no span can be current in it.
3. The work of a first lease is a child of the trace its run was asked for in. Whatever is taken up again, perhaps days
   later, is a trace of its own with a link to that one.
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
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


def is_traceparent(text: str) -> bool:
    """Whether it is a W3C trace context we can go on with."""
    found = _FORM.fullmatch(text)
    return found is not None and found[1] != _NO_TRACE and found[2] != _NO_SPAN


def is_enabled() -> bool:
    """Whether OpenTelemetry is in use here; see law 2."""
    return _API in sys.modules


def current_traceparent() -> str | None:
    """The traceparent of the span that is current, if there is one."""
    if _API not in sys.modules:
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
    """The trace of a run that is asked for now, where that is not the command's own. What resumes or repeats another run
    belongs to whoever asks for it now, whose span points to where the other began."""
    if _API not in sys.modules or (now := current_traceparent()) is None:
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
    """Do something in a span: a child of `parent`, or a beginning with a link to `linked`; else a child of what is
    current. An exception that passes is recorded by its class alone: what it says may be anybody's data."""
    if _API not in sys.modules:
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
            raise  # how things go, not how they fail
        except BaseException as fault:
            made.set_status(trace.Status(trace.StatusCode.ERROR, type(fault).__name__))
            raise
