"""A span for each request.

Laws:
1. The span continues the trace of the request's `traceparent`. An invalid one is ignored.
2. The span has the route's template, the method, the status and the request's id; nothing of the body, and no credential.
"""

from __future__ import annotations

from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tenure.tracing import TRACER_NAME

_READ = TraceContextTextMapPropagator()
_NONE: dict[str, str] = {}
PARENT_BYTES_MAX = 128
STATE_BYTES_MAX = 512
"""The lengths that W3C requires everybody to propagate. Longer headers are ignored."""
_TRACER = trace.get_tracer(TRACER_NAME)
"""A proxy that finds its provider once there is one."""


class RequestSpan:
    """The span of one request, from its arrival to its answer."""

    __slots__ = ("_span", "_token")

    def __init__(self, method: str, headers: dict[bytes, bytes], request_id: str) -> None:
        given = headers.get(b"traceparent")
        carrier = _NONE
        if given is not None and len(given) <= PARENT_BYTES_MAX:
            carrier = {"traceparent": given.decode("latin-1")}
            state = headers.get(b"tracestate", b"")
            if 0 < len(state) <= STATE_BYTES_MAX:
                carrier["tracestate"] = state.decode("latin-1")
        above = _READ.extract(carrier, context=contexts.Context())
        self._span = _TRACER.start_span(method, context=above, kind=trace.SpanKind.SERVER)
        if self._span.is_recording():
            self._span.set_attribute("http.request.method", method)
            self._span.set_attribute("tenure.request_id", request_id)
        self._token = contexts.attach(trace.set_span_in_context(self._span, above))

    def end(self, scope: Any, status: int) -> None:
        contexts.detach(self._token)
        if self._span.is_recording():
            route = scope.get("path_template")
            if route:
                self._span.update_name(f"{scope['method']} {route}")
                self._span.set_attribute("http.route", route)
            self._span.set_attribute("http.response.status_code", status)
            if status >= 500:
                self._span.set_status(trace.Status(trace.StatusCode.ERROR))
        self._span.end()
