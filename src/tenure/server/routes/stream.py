"""Live status: what happens, as it happens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

from litestar import get
from litestar.datastructures import ResponseHeader
from litestar.params import HeaderParameter, QueryParameter

from tenure import ids
from tenure.errors import Detail, TenureError
from tenure.kernel.news import TYPES
from tenure.server.call import Call
from tenure.server.identity.roles import ALLOWED
from tenure.server.live.streams import EventStream, Slot
from tenure.server.live.tail import Listener

ROUTE = "GET /events/stream"
RUNS_MAX = 200

NewsType = Literal[
    "run.status.changed", "run.step.completed", "proposal.created", "approval.requested", "approval.reminder"
]


@get(
    "/events/stream",
    media_type="text/event-stream",
    summary="What happens, as it happens",
    response_headers=[ResponseHeader("Cache-Control", documentation_only=True)],
)
async def stream(
    request: Call,
    last_event_id: Annotated[
        str | None,
        HeaderParameter(
            name="Last-Event-ID", description="Go on behind this event; browsers send it by themselves."
        ),
    ] = None,
    after: Annotated[
        str | None,
        QueryParameter(name="last_event_id", description="The same, for tools that cannot set the header."),
    ] = None,
    run: Annotated[
        list[str] | None, QueryParameter(description="Only of these runs.", max_items=RUNS_MAX)
    ] = None,
    type_: Annotated[
        list[NewsType] | None,
        QueryParameter(name="type", description="Only of these types.", max_items=len(TYPES)),
    ] = None,
) -> EventStream:
    """Server-sent events. Frames have `id` and `data`; `data` is one of
    `{"type":"run.status.changed","runId":…,"status":…}`, `{"type":"run.step.completed","runId":…,"step":…}`,
    `{"type":"proposal.created","proposalId":…}`, `{"type":"approval.requested","approvalId":…}` and
    `{"type":"approval.reminder","approvalId":…}`.

    Whoever comes again with the id of the last event it got hears everything since, in order and once. 410 STREAM_RESET
    says that this is not kept any more."""
    tail = request.service.tail
    listener = Listener(
        request.who.tenant,
        frozenset(_run(text) for text in run or ()),
        frozenset(type_ or ()),
        *_credential(request),
    )
    listener.place = await tail.place(request.who.tenant, last_event_id or after)
    return EventStream(tail, listener, Slot(request.service.load, request.who.key_id, request.who.tenant))


def _run(text: str) -> int:
    try:
        return ids.run_int(text)
    except TenureError as refused:
        problem = f"{text[:60]!r} is no id of a run"
        raise TenureError("INVALID_INPUT", problem, (Detail("run", problem),)) from refused


def _credential(request: Call) -> tuple[str, Callable[[], Awaitable[bool]]]:
    """By what the caller was let in, and whether it still would be."""
    gate, who, allowed = request.service.gate, request.who, ALLOWED[ROUTE]

    async def good() -> bool:
        now = await gate.still(who)
        return now is not None and bool(now.roles & allowed)

    return who.session.hex() if who.by_cookie else who.key_id, good


HANDLERS = [stream]
