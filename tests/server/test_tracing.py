"""OpenTelemetry traces from a request to its steps. A continued run has a new trace that links to the first one."""

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import tenure
from tenure.cli.workflows.registration import register_workflow
from tenure.tracing import current_traceparent
from tests.server.stage import site

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = 0x0AF7651916CD43DD8448EB211C80319C
_exporter = InMemorySpanExporter()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The spans that a test exports. A process can have only one provider, so the provider stays."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(_exporter))
        trace.set_tracer_provider(provider)
    _exporter.clear()
    yield _exporter
    _exporter.clear()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


@tenure.step
async def look() -> str | None:
    return tenure.current().traceparent


@tenure.workflow
async def traced() -> str | None:
    return await look()


@tenure.workflow
async def asks() -> bool:
    await look()
    await tenure.approve("may it?")
    await look()
    return True


async def test_a_step_runs_in_the_trace_of_the_request_that_asked_for_it(
    url: str, spans: InMemorySpanExporter
) -> None:
    async with site(url) as s, s.engine.worker(traced, asks):
        caller = await s.as_("operator")
        await register_workflow(s.engine.scoped(tenant="acme"), traced)
        answer = await caller.post("/runs", json={"workflow": "traced"}, headers={"traceparent": GIVEN})
        assert answer.status_code == 201, answer.text
        run = answer.json()["id"]
        handed = await s.engine.scoped(tenant="acme").result(run, wait=30)
    [request] = named(spans, "POST /runs")
    [lease] = named(spans, "workflow traced")
    [step] = named(spans, "step look")
    assert request.parent is not None
    assert request.parent.span_id == 0xB7AD6B7169203331
    assert {ids(span)[0] for span in (request, lease, step)} == {TRACE}
    assert lease.parent is not None
    assert lease.parent.span_id == ids(request)[1]
    assert step.parent is not None
    assert step.parent.span_id == ids(lease)[1]
    assert handed == f"00-{TRACE:032x}-{ids(step)[1]:016x}-01"
    assert request.attributes is not None
    assert (request.attributes["http.route"], request.attributes["http.response.status_code"]) == (
        "/runs",
        201,
    )


async def test_a_continued_run_is_linked_to_its_first_trace(url: str, spans: InMemorySpanExporter) -> None:
    async with site(url) as s, s.engine.worker(traced, asks):
        engine = s.engine.scoped(tenant="acme")
        caller = await s.as_("operator")
        await register_workflow(engine, asks)
        answer = await caller.post("/runs", json={"workflow": "asks"}, headers={"traceparent": GIVEN})
        run = answer.json()["id"]
        while (await engine.get(run)).status != "waiting_approval":  # noqa: ASYNC110 - until the worker has suspended the run
            await asyncio.sleep(0.01)
        await engine.approve(run, approver="person:anna")
        assert await engine.result(run, wait=30) is True
    first, second = sorted(named(spans, "workflow asks"), key=lambda span: span.start_time or 0)
    assert ids(first)[0] == TRACE
    assert not first.links
    assert ids(second)[0] != TRACE
    assert second.parent is None
    [link] = second.links
    assert link.context.trace_id == TRACE
    assert {ids(span)[0] for span in named(spans, "step look")} == {TRACE, ids(second)[0]}


async def test_an_invalid_traceparent_is_ignored(url: str, spans: InMemorySpanExporter) -> None:
    async with site(url) as s:
        caller = await s.caller()
        for broken in ("00-zz-11-01", f"00-{'0' * 32}-b7ad6b7169203331-01", "x" * 500, ""):
            assert (await caller.get("/healthz", headers={"traceparent": broken})).status_code == 200
    assert all(span.parent is None for span in named(spans, "GET /healthz"))
    assert len(named(spans, "GET /healthz")) == 4
    assert current_traceparent() is None
