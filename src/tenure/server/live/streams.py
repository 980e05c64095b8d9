"""A stream of server-sent events as an answer.

Laws:
1. Its bytes are written to the connection directly, without the framework.
2. It ends when the client disconnects, when its credential is no longer valid, when it does not keep up, and when the server stops;
   never for another reason.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from litestar import Response

from tenure.server.live.feed_follower import FeedFollower, StreamListener

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
"""The last one tells proxies not to buffer the stream."""


class EventStream(Response[bytes]):
    def __init__(
        self, follower: FeedFollower, listener: StreamListener, slot: AbstractContextManager[None]
    ) -> None:
        super().__init__(b"", media_type="text/event-stream")
        self._slot = slot
        self._follower = follower
        self._listener = listener

    def to_asgi_response(self, *_args: Any, **_how: Any) -> Any:
        return self._serve

    async def _serve(self, _scope: Scope, receive: Receive, send: Send) -> None:
        with self._slot:
            await self._send(receive, send)

    async def _send(self, receive: Receive, send: Send) -> None:
        listener = self._listener
        listener.task = asyncio.current_task()
        stuck = sending = False

        async def write(data: bytes) -> None:
            nonlocal sending
            sending = True
            await send({"type": "http.response.body", "body": data, "more_body": True})
            sending = False

        gone = asyncio.ensure_future(_until_gone(receive))
        gone.add_done_callback(lambda _: listener.end("gone"))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await write(self._follower.first_frame(listener))
            caught_up = False
            while not caught_up and listener.ended is None:
                missed, caught_up = await self._follower.read_missed(listener)
                if missed:
                    await write(missed)
                if not caught_up:
                    await asyncio.sleep(0)  # let others run between pages
            while data := await listener.take():
                await write(data)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if listener.ended is None or task is None:  # the server does not wait any longer
                raise
            task.uncancel()
            stuck = sending
        finally:
            listener.task = None
            self._follower.remove(listener)
            gone.cancel()
        if not stuck and listener.ended != "gone":  # otherwise the write would block, or nobody reads it
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    with suppress(Exception):  # any failure means that the client is gone
        while (await receive())["type"] != "http.disconnect":
            pass
