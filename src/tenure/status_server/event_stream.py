"""Streams of published events (agent-runs' section 4.3), as server-sent events.

Laws:
1. A frame has the number of its event as `id` and the event as `data`. A client that comes back with its last number gets what follows, in order
   and once. STREAM_RESET: what follows is no longer published.
2. One look at a tenant's head serves all its listeners. A listener reads on when it has sent what it has, so a slow one holds up nobody.
3. A stream ends when its key is no longer valid, when its client does not read, and when the server stops. An outage of the storage does not
   end it: it waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from tenure.errors import TenureError
from tenure.logs import get_logger
from tenure.shapes.published import EventsHead, KeyDigest
from tenure.status_server.published_reader import PublishedReader

log = get_logger(__name__)

LOOK_SECONDS = 0.25
CREDENTIAL_SECONDS = 2.0
KEEP_ALIVE_SECONDS = 15.0
OUTAGE_SECONDS = 2.0
NUMBER_DIGITS_MAX = 15

_encode = msgspec.json.Encoder().encode


class _Watch:
    """Follows the head of one tenant's events, as long as it has listeners."""

    def __init__(self, reader: PublishedReader, tenant: str) -> None:
        self._reader = reader
        self._tenant = tenant
        self._moved = asyncio.Event()
        self.listeners = 0
        self.head = EventsHead()
        self.task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        version = await self._reader.events_version(self._tenant)
        self.head = await self._reader.events_head(self._tenant)
        self.task = asyncio.get_running_loop().create_task(self._follow(version))

    async def _follow(self, seen: str | None) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                version = await self._reader.events_version(self._tenant)
                if version != seen:
                    self.head = await self._reader.events_head(self._tenant)
                    seen = version
                    moved, self._moved = self._moved, asyncio.Event()
                    moved.set()
            except TenureError as fault:
                log.warning("events_unreadable", tenant=self._tenant, error=fault.code, message=fault.message)
                await asyncio.sleep(OUTAGE_SECONDS)

    async def wait_beyond(self, number: int, seconds: float) -> EventsHead:
        """The head as soon as it has events after a number, or as it is after some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.head.next <= number + 1:
                    await self._moved.wait()
        return self.head


class EventStreams:
    """The streams of a process."""

    def __init__(self, reader: PublishedReader) -> None:
        self._reader = reader
        self._watches: dict[str, _Watch] = {}
        self._lock = asyncio.Lock()

    async def _watch(self, tenant: str) -> _Watch:
        async with self._lock:
            watch = self._watches.get(tenant)
            if watch is None:
                watch = _Watch(self._reader, tenant)
                await watch.begin()
                self._watches[tenant] = watch
            watch.listeners += 1
            return watch

    def _leave(self, tenant: str, watch: _Watch) -> None:
        watch.listeners -= 1
        if watch.listeners == 0 and watch.task is not None:
            watch.task.cancel()
            self._watches.pop(tenant, None)

    async def open(self, key: KeyDigest, last_id: str | None) -> AsyncIterator[bytes]:
        """The frames of a tenant's events from now on, or after an event. Raises before the first frame if it cannot begin."""
        watch = await self._watch(key.tenant)
        try:
            place = watch.head.next - 1 if last_id is None else _parse_number(last_id)
            first = watch.head.segments[0].first if watch.head.segments else watch.head.next
            if place + 1 < first or place >= watch.head.next:
                raise TenureError("STREAM_RESET")
        except BaseException:
            self._leave(key.tenant, watch)
            raise
        return self._frames(key, watch, place)

    async def _frames(self, key: KeyDigest, watch: _Watch, place: int) -> AsyncIterator[bytes]:
        checked = sent = time.monotonic()
        try:
            yield b": listening\nid: %d\n\n" % place
            while True:
                head = await watch.wait_beyond(place, CREDENTIAL_SECONDS)
                now = time.monotonic()
                if now - checked >= CREDENTIAL_SECONDS:
                    checked = now
                    with suppress(TenureError):  # without the storage nothing new is sent either
                        if not await self._reader.is_still_valid(key):
                            return
                try:
                    frames, place = await self._read_on(key.tenant, head, place)
                except TenureError as fault:
                    if fault.code == "STREAM_RESET":  # the client comes back, and is told
                        return
                    await asyncio.sleep(OUTAGE_SECONDS)
                    continue
                if frames:
                    yield frames
                    sent = now
                elif now - sent >= KEEP_ALIVE_SECONDS:
                    yield b": keep-alive\n\n"
                    sent = now
        finally:
            self._leave(key.tenant, watch)

    async def _read_on(self, tenant: str, head: EventsHead, place: int) -> tuple[bytes, int]:
        """The frames of one segment after a place, and the place after them."""
        if head.segments and place + 1 < head.segments[0].first:
            raise TenureError("STREAM_RESET")
        for segment in head.segments:
            if segment.last > place:
                found = [
                    event
                    for event in await self._reader.segment(tenant, segment)
                    if place < event.n <= segment.last
                ]
                frames = b"".join(b"id: %d\ndata: %b\n\n" % (event.n, _encode(event.data)) for event in found)
                return frames, segment.last
        return b"", place


def _parse_number(text: str) -> int:
    if not text.isdigit() or len(text) > NUMBER_DIGITS_MAX or not text.isascii():
        raise TenureError("REQUEST_MALFORMED", f"{text[:60]!r} is not the id of an event of this stream")
    return int(text)
