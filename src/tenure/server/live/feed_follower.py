"""The end of the feed, as this process follows it, and the listeners of its streams.

Laws:
1. One reader serves all listeners. It reads while there are listeners: immediately after a commit of this process, and otherwise
   every tenth of a second. It keeps what it read for a while, so that a listener that reconnects soon needs no read.
2. A listener gets everything after its place, in order, once: first what it missed, then what comes. Nothing is awaited between
   the two, so nothing is lost between them.
3. A frame is encoded once for all listeners.
4. The reader waits for no listener: a listener whose queue grows too long is ended.
5. A listener's credential is checked every two seconds, and the stream ends when it is no longer valid.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from random import getrandbits

import msgspec
import structlog

from tenure.errors import TenureError
from tenure.kernel.feed import decode_feed_lines
from tenure.kernel.notifications import (
    APPROVAL_REMINDER,
    APPROVAL_REQUESTED,
    PROPOSAL_CREATED,
    STATUS_CHANGED,
    STEP_COMPLETED,
    Notification,
    build_notifications,
)
from tenure.kernel.run_rows import CONDITION_FALSE
from tenure.kernel.server_rows import FeedRow
from tenure.services.repositories import FeedCursors, FeedRepository

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.1
PAUSE_SECONDS = 0.01
"""Between two reads, so that many commits are read at once."""
UPKEEP_SECONDS = 1.0
CREDENTIAL_SECONDS = 2.0
KEEP_ALIVE_SECONDS = 15.0
PAGE_ROWS = 200
MISSED_ROWS = 50
"""Rows of missed commits that one listener reads at a time."""
PAGE_FRAMES = 400
PAGE_BYTES = 64 * 1024
"""What is sent of them before other tasks run: frames, and bytes of the feed that were decoded for them."""
TURN_BYTES = 32 * 1024
"""After so many bytes the listeners get a turn to send, so that only a slow listener has a long queue."""
RING_ROWS_MAX = 2_000
RING_BYTES_MAX = 8 * 1024 * 1024
QUEUE_FRAMES_MAX = 1_000
QUEUE_BYTES_MAX = 256 * 1024
ALL = 2**31
"""The part after every part of a commit."""

Place = tuple[int, int]
"""A position and a part: the listener has everything up to it."""


class StatusFrame(msgspec.Struct, tag="run.status.changed", rename="camel"):
    """A run's status has changed."""

    run_id: str
    status: str


class SkippedStepFrame(msgspec.Struct):
    """A step that was skipped, and why."""

    name: str
    reason: str


class StepFrame(msgspec.Struct, tag="run.step.completed", rename="camel"):
    """A step of a run is done; `step` counts the steps that are."""

    run_id: str
    step: int
    skipped: tuple[SkippedStepFrame, ...] | msgspec.UnsetType = msgspec.UNSET
    """The steps that were skipped just now because their condition was false; absent if there are none."""


class ProposalFrame(msgspec.Struct, tag="proposal.created", rename="camel"):
    """A run has proposed something."""

    proposal_id: str


class ApprovalFrame(msgspec.Struct, tag="approval.requested", rename="camel"):
    """A run has requested an approval."""

    approval_id: str


class ReminderFrame(msgspec.Struct, tag="approval.reminder", rename="camel"):
    """Half of the time for an approval has passed."""

    approval_id: str


Frame = StatusFrame | StepFrame | ProposalFrame | ApprovalFrame | ReminderFrame
_QUESTION_FRAMES: dict[str, type[ProposalFrame | ApprovalFrame | ReminderFrame]] = {
    PROPOSAL_CREATED: ProposalFrame,
    APPROVAL_REQUESTED: ApprovalFrame,
    APPROVAL_REMINDER: ReminderFrame,
}
_encode = msgspec.json.Encoder().encode


def make_frame(id_: str, notification: Notification) -> bytes:
    body: Frame
    if notification.type == STATUS_CHANGED:
        body = StatusFrame(notification.run, notification.word)
    elif notification.type == STEP_COMPLETED:
        skipped = tuple(SkippedStepFrame(name, CONDITION_FALSE) for name in notification.item.skipped)
        body = StepFrame(notification.run, notification.item.steps, skipped or msgspec.UNSET)
    else:
        body = _QUESTION_FRAMES[notification.type](notification.question)
    return b"id: %b\ndata: %b\n\n" % (id_.encode(), _encode(body))


class StreamListener:
    """The listener of one stream: its filters, and the frames that wait to be sent."""

    __slots__ = (
        "_size", "_waiter", "credential", "ended", "frames", "is_valid", "place", "runs", "sent_at", "task", "tenant", "types",
    )  # fmt: skip

    def __init__(
        self,
        tenant: str,
        runs: frozenset[int],
        types: frozenset[str],
        credential: str,
        is_valid: Callable[[], Awaitable[bool]],
    ) -> None:
        self.tenant = tenant
        self.runs = runs
        """Empty: all runs."""
        self.types = types
        """Empty: all types."""
        self.credential = credential
        self.is_valid = is_valid
        """Whether the credential is still valid."""
        self.place: Place = (0, 0)
        self.frames: deque[bytes] = deque()
        self._size = 0
        self.sent_at = time.monotonic()
        self.ended: str | None = None
        self.task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def wants(self, notification: Notification) -> bool:
        return (not self.runs or notification.item.run_id in self.runs) and (
            not self.types or notification.type in self.types
        )

    def put(self, data: bytes) -> None:
        """Queue data (law 4)."""
        if self.ended is not None:
            return
        self.frames.append(data)
        self._size += len(data)
        if len(self.frames) > QUEUE_FRAMES_MAX or self._size > QUEUE_BYTES_MAX:
            self.end("slow")
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> bytes:
        """Wait for queued data and take all of it. Empty: the listener has ended."""
        while not self.frames and self.ended is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.ended is not None:
            return b""
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames.clear()
        self._size = 0
        self.sent_at = time.monotonic()
        return data

    def end(self, why: str) -> None:
        if self.ended is not None:
            return
        self.ended = why
        self.frames.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self.task is not None:
            self.task.cancel()


class FeedFollower:
    def __init__(self, feed: FeedRepository, stopping: asyncio.Event) -> None:
        self._feed = feed
        self._stopping = stopping
        """Set when the process stops: streams end immediately, so that the shutdown does not wait for them."""
        self._listeners: dict[str, dict[StreamListener, None]] = {}
        """By tenant."""
        self._wake = asyncio.Event()
        self._has_listeners = asyncio.Event()
        self._ring: deque[FeedRow] = deque()
        self._ring_bytes = 0
        self._ring_from: int | None = None
        """The ring has everything after this position, up to `_pos`. None: there was no listener recently."""
        self._pos = 0
        self._cursors: FeedCursors | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False

    # -------------------------------------------------------------------------------------------- life cycle

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._follow(), name="tenure-feed"),
            asyncio.create_task(self._keep_alive(), name="tenure-feed-upkeep"),
            asyncio.create_task(self._end_on_stop(), name="tenure-feed-end"),
        ]

    async def stop(self) -> None:
        self.end_all("stopping")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _end_on_stop(self) -> None:
        await self._stopping.wait()
        self.end_all("stopping")

    def wake(self) -> None:
        """Read soon: this process has committed something."""
        self._wake.set()

    def end_all(self, why: str) -> None:
        """End all listeners and accept no more."""
        self._stopped = True
        for listener in self.listeners:
            listener.end(why)

    def __len__(self) -> int:
        return sum(map(len, self._listeners.values()))

    @property
    def listeners(self) -> list[StreamListener]:
        return [listener for group in self._listeners.values() for listener in group]

    # --------------------------------------------------------------------------------------------- listeners

    async def find_place(self, tenant: str, after: str | None) -> Place:
        """Where a tenant's listener begins: now, or after an event id. STREAM_RESET: what follows that event is no longer kept."""
        self._cursors = await self._feed.cursors()
        bounds = await self._feed.bounds()
        if after is None:
            return bounds.head + 1, 0
        wanted = self._cursors.decode(tenant, after)
        if wanted is None:
            raise TenureError("REQUEST_MALFORMED", f"{after[:60]!r} is not the id of an event of this stream")
        if wanted[0] <= bounds.trimmed or wanted[0] > bounds.head + 1:
            raise TenureError("STREAM_RESET")
        return wanted

    async def read_missed(self, listener: StreamListener) -> tuple[bytes, bool]:
        """A page of what a listener has missed; and whether that was all, so that it gets new events from now on (law 2)."""
        pos, part = listener.place
        if self._ring_from is None:
            head = (await self._feed.bounds()).head
            if self._ring_from is None:  # otherwise another listener came in the meantime
                self._pos = self._ring_from = head
        ring_from = self._ring_from
        heard = pos if part == ALL else pos - 1
        """The last commit of which it has everything."""
        if heard < ring_from:
            rows = await self._feed.after(heard, MISSED_ROWS)
            # A page that is not full reaches at least to where the ring began when it was read.
            reached = rows[-1].pos if len(rows) == MISSED_ROWS else max(heard, ring_from)
            page, left_at = self._page(rows, listener)
            listener.place = left_at or (max(reached, rows[-1].pos if rows else 0), ALL)
            return page, False
        page, left_at = self._page([row for row in self._ring if row.pos > heard], listener)
        if left_at is not None:
            listener.place = left_at
            return page, False
        listener.place = (max(heard, self._pos), ALL)
        self._listeners.setdefault(listener.tenant, {})[listener] = None
        self._has_listeners.set()
        if self._stopped:
            listener.end("stopping")
        return page, True

    def remove(self, listener: StreamListener) -> None:
        group = self._listeners.get(listener.tenant, {})
        group.pop(listener, None)
        if not group:
            self._listeners.pop(listener.tenant, None)

    def _event_id(self, tenant: str, pos: int, part: int) -> str:
        """A place as the tenant sees it."""
        assert self._cursors is not None, "a listener has a place"
        return self._cursors.encode(tenant, pos, part, getrandbits(32))

    def _page(self, rows: Iterable[FeedRow], listener: StreamListener) -> tuple[bytes, Place | None]:
        """The frames of some rows after a listener's place; and the place to continue from, if the page was full before the end."""
        tenant, after = listener.tenant, listener.place
        frames: list[bytes] = []
        looked = 0
        for row in rows:
            if looked > PAGE_BYTES:
                return b"".join(frames), (row.pos, 0)
            looked += len(row.body)
            for notification in build_notifications(decode_feed_lines(row.body), {tenant}):
                if (row.pos, notification.part) > after and listener.wants(notification):
                    frames.append(
                        make_frame(self._event_id(tenant, row.pos, notification.part), notification)
                    )
                    if len(frames) >= PAGE_FRAMES:
                        return b"".join(frames), (row.pos, notification.part)
        return b"".join(frames), None

    def first_frame(self, listener: StreamListener) -> bytes:
        """The first frame: an id without an event, so that a client that is cut off before the first event returns to this place."""
        pos, part = listener.place
        return b": listening\nid: %b\n\n" % self._event_id(listener.tenant, pos, part).encode()

    # ------------------------------------------------------------------------------------------ the reader

    async def _follow(self) -> None:
        while True:
            if not self._listeners:
                self._ring.clear()
                self._ring_bytes = 0
                self._ring_from = None
                self._has_listeners.clear()
                await self._has_listeners.wait()
            try:
                if await self._read():
                    continue
            except Exception as fault:
                if isinstance(fault, TenureError):
                    log.warning("feed_reader_failed", error=fault.code, message=fault.message)
                else:
                    log.error("feed_reader_failed", traceback=traceback.format_exc())
                await asyncio.sleep(UPKEEP_SECONDS)
                continue
            await asyncio.sleep(PAUSE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()

    async def _read(self) -> bool:
        """Read new rows and send them to the listeners. Returns whether there may be more."""
        self._wake.clear()
        rows = await self._feed.after(self._pos, PAGE_ROWS)
        handed = 0
        for row in rows:
            self._pos = row.pos
            self._ring.append(row)
            self._ring_bytes += len(row.body)
            self._distribute(row)
            handed += len(row.body)
            if handed > TURN_BYTES:
                handed = 0
                await asyncio.sleep(0)
        while len(self._ring) > RING_ROWS_MAX or self._ring_bytes > RING_BYTES_MAX:
            gone = self._ring.popleft()
            self._ring_bytes -= len(gone.body)
            self._ring_from = gone.pos
        return len(rows) == PAGE_ROWS

    def _distribute(self, row: FeedRow) -> None:
        by_tenant: dict[str, list[tuple[Notification, bytes]]] = {}
        for notification in build_notifications(decode_feed_lines(row.body), self._listeners.keys()):
            tenant = notification.item.tenant
            frame = make_frame(self._event_id(tenant, row.pos, notification.part), notification)
            by_tenant.setdefault(tenant, []).append((notification, frame))
        for tenant, made in by_tenant.items():
            together = b"".join([frame for _, frame in made])
            for listener in list(self._listeners.get(tenant, ())):
                if row.pos <= listener.place[0]:
                    continue
                if not listener.runs and not listener.types:
                    listener.put(together)
                    continue
                mine = [frame for notification, frame in made if listener.wants(notification)]
                if mine:
                    listener.put(mine[0] if len(mine) == 1 else b"".join(mine))

    # --------------------------------------------------------------------------------------------- upkeep

    async def _keep_alive(self) -> None:
        looked = time.monotonic()
        while True:
            await asyncio.sleep(UPKEEP_SECONDS)
            now = time.monotonic()
            for listener in self.listeners:
                if now - listener.sent_at >= KEEP_ALIVE_SECONDS and not listener.frames:
                    id_ = self._event_id(listener.tenant, max(self._pos, listener.place[0]) + 1, 0)
                    listener.put(b": keep-alive\nid: %b\n\n" % id_.encode())
            if now - looked >= CREDENTIAL_SECONDS:
                looked = now
                await self._check_credentials()

    async def _check_credentials(self) -> None:
        by_credential: dict[str, list[StreamListener]] = {}
        for listener in self.listeners:
            by_credential.setdefault(listener.credential, []).append(listener)
        for listeners in by_credential.values():
            try:
                valid = await listeners[0].is_valid()
            except Exception as fault:  # without the store nothing new is sent either, so the stream may stay
                log.warning("credential_check_failed", error=repr(fault))
                continue
            if not valid:
                for listener in listeners:
                    listener.end("credential")
