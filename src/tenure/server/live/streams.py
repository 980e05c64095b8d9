"""A stream of server-sent events as an answer.

Laws:
1. It is written to the connection as it is: no framework between a listener and its bytes.
2. It ends when the caller hangs up, when its credential is not good any more, when it does not keep up, and when the
   server stops; never for another reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from litestar import Response

from tenure.server.live.tail import Listener, Tail
from tenure.server.load import Load

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
"""The last one is for proxies that would collect what is sent before they pass it on."""


class Slot:
    """One of the streams that a credential and its tenant may have; TOO_MANY_STREAMS where they have them all."""

    def __init__(self, load: Load, key: str, tenant: str) -> None:
        self._load, self._whose = load, (key, tenant)

    def __enter__(self) -> None:
        self._load.open_stream(*self._whose)

    def __exit__(self, *_fault: object) -> None:
        self._load.close_stream(*self._whose)


class EventStream(Response[bytes]):
    """See the laws above."""

    def __init__(self, tail: Tail, listener: Listener, slot: Slot) -> None:
        super().__init__(b"", media_type="text/event-stream")
        self._slot = slot
        self._tail = tail
        self._listener = listener

    def to_asgi_response(self, *_args: Any, **_how: Any) -> Any:
        """What the framework runs."""
        return self._serve

    async def _serve(self, _scope: Scope, receive: Receive, send: Send) -> None:
        with self._slot:
            await self._send(receive, send)

    async def _send(self, receive: Receive, send: Send) -> None:
        listener = self._listener
        listener.task = asyncio.current_task()
        stuck = sending = False

        async def sent(data: bytes) -> None:
            nonlocal sending
            sending = True
            await send({"type": "http.response.body", "body": data, "more_body": True})
            sending = False

        gone = asyncio.ensure_future(_until_gone(receive))
        gone.add_done_callback(lambda _: listener.end("gone"))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await sent(self._tail.beginning(listener))
            there = False
            while not there and listener.ended is None:
                missed, there = await self._tail.missed(listener)
                if missed:
                    await sent(missed)
                if not there:
                    await asyncio.sleep(0)  # what was read before is sent without a pause
            while data := await listener.take():
                await sent(data)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if listener.ended is None or task is None:  # the server does not want to wait for us any longer
                raise
            task.uncancel()
            stuck = sending
        finally:
            listener.task = None
            self._tail.forget(listener)
            gone.cancel()
        if not stuck and listener.ended != "gone":  # else it would have to be waited for, or nobody is there
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    with contextlib.suppress(Exception):  # whatever it is: it is over
        while (await receive())["type"] != "http.disconnect":
            pass
