"""Live status: events as a stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

from litestar import get
from litestar.datastructures import ResponseHeader
from litestar.params import HeaderParameter, QueryParameter

from tenure import ids
from tenure.errors import Detail, TenureError
from tenure.kernel.notifications import NOTIFICATION_TYPES
from tenure.server.auth.roles import ALLOWED
from tenure.server.live.feed_follower import StreamListener
from tenure.server.live.streams import EventStream
from tenure.server.request import ApiRequest

ROUTE = "GET /events/stream"
RUNS_MAX = 200

NewsType = Literal[
    "run.status.changed", "run.step.completed", "proposal.created", "approval.requested", "approval.reminder"
]


@get(
    "/events/stream",
    media_type="text/event-stream",
    summary="A stream of events",
    response_headers=[ResponseHeader("Cache-Control", documentation_only=True)],
)
async def stream_events(
    request: ApiRequest,
    last_event_id: Annotated[
        str | None,
        HeaderParameter(
            name="Last-Event-ID", description="Continue after this event; browsers send it automatically."
        ),
    ] = None,
    after: Annotated[
        str | None,
        QueryParameter(name="last_event_id", description="The same, for tools that cannot set the header."),
    ] = None,
    run: Annotated[
        list[str] | None, QueryParameter(description="Only events of these runs.", max_items=RUNS_MAX)
    ] = None,
    type_: Annotated[
        list[NewsType] | None,
        QueryParameter(
            name="type", description="Only events of these types.", max_items=len(NOTIFICATION_TYPES)
        ),
    ] = None,
) -> EventStream:
    """Server-sent events. Frames have `id` and `data`; `data` is one of
    `{"type":"run.status.changed","runId":…,"status":…}`, `{"type":"run.step.completed","runId":…,"step":…}`,
    `{"type":"proposal.created","proposalId":…}`, `{"type":"approval.requested","approvalId":…}` and
    `{"type":"approval.reminder","approvalId":…}`.

    A client that reconnects with the id of its last event gets everything since, in order and once. 410 STREAM_RESET says that these
    events are no longer kept."""
    follower = request.server.follower
    listener = StreamListener(
        request.who.tenant,
        frozenset(_run(text) for text in run or ()),
        frozenset(type_ or ()),
        *_credential(request),
    )
    listener.place = await follower.find_place(request.who.tenant, last_event_id or after)
    return EventStream(
        follower, listener, request.server.load.hold_stream(request.who.key_id, request.who.tenant)
    )


def _run(text: str) -> int:
    try:
        return ids.run_int(text)
    except TenureError as refused:
        problem = f"{text[:60]!r} is not a run id"
        raise TenureError("INVALID_INPUT", problem, (Detail("run", problem),)) from refused


def _credential(request: ApiRequest) -> tuple[str, Callable[[], Awaitable[bool]]]:
    """The id of the caller's credential, and a check that it is still valid."""
    authenticator, who, allowed = request.server.authenticator, request.who, ALLOWED[ROUTE]

    async def is_valid() -> bool:
        now = await authenticator.revalidate(who)
        return now is not None and bool(now.roles & allowed)

    return who.session.hex() if who.by_cookie else who.key_id, is_valid


HANDLERS = [stream_events]
