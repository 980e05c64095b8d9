"""The end of the feed, as this process follows it, and those who listen to it.

Laws:
1. One reader for all listeners: it reads while somebody listens, at once after a commit of this process and beneath that
   every tenth of a second. What it has read it keeps for a while, so that who comes again after a moment needs no read.
2. A listener hears everything behind its place, in order, once: first what it missed, then what comes. Between the two
   nothing is awaited, so nothing falls between them.
3. A frame is encoded once and shared by all who hear it.
4. Nobody is waited for: a listener that lets too much pile up is ended.
5. A listener is let in by a credential and hears on only as long as that is good: it is looked at every other second.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from random import getrandbits

import msgspec
import structlog

from tenure.errors import TenureError
from tenure.kernel.feed import decoded
from tenure.kernel.model import CONDITION_FALSE
from tenure.kernel.news import PROPOSAL, REMINDER, STATUS, STEP, News, news_of
from tenure.kernel.service import Feed
from tenure.store.feed_places import FeedPlaces
from tenure.store.feeding import Feeding

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.1
PACE_SECONDS = 0.01
"""Between two reads, so that many commits are read at once."""
HOUSE_SECONDS = 1.0
CREDENTIAL_SECONDS = 2.0
KEEP_ALIVE_SECONDS = 15.0
PAGE_ROWS = 200
MISSED_ROWS = 50
"""Of what one listener has missed, at a time."""
PAGE_FRAMES = 400
PAGE_BYTES = 64 * 1024
"""Of it, what is sent before the loop turns: frames, and bytes of the feed that were looked at for them."""
BREATH_BYTES = 32 * 1024
"""After so much was handed out the listeners get a turn to send it: what piles up then is their own slowness."""
RING_ROWS_MAX = 2_000
RING_BYTES_MAX = 8 * 1024 * 1024
QUEUE_FRAMES_MAX = 1_000
QUEUE_BYTES_MAX = 256 * 1024
ALL = 2**31
"""Behind every part of a commit."""

Place = tuple[int, int]
"""A position and a part: everything up to it has been heard."""


class StatusFrame(msgspec.Struct, tag="run.status.changed", rename="camel"):
    """A run shows another status."""

    run_id: str
    status: str


class SkippedStep(msgspec.Struct):
    """A step that was not done, and why."""

    name: str
    reason: str


class StepFrame(msgspec.Struct, tag="run.step.completed", rename="camel"):
    """A step of a run is done: how many are by now."""

    run_id: str
    step: int
    skipped: tuple[SkippedStep, ...] | msgspec.UnsetType = msgspec.UNSET
    """Those that were skipped just now, because their condition was false; left out where there are none."""


class ProposalFrame(msgspec.Struct, tag="proposal.created", rename="camel"):
    """Somebody is asked whether something shall be done."""

    proposal_id: str


class ApprovalFrame(msgspec.Struct, tag="approval.requested", rename="camel"):
    """Somebody has to approve something."""

    approval_id: str


class ReminderFrame(msgspec.Struct, tag="approval.reminder", rename="camel"):
    """Half of the time for an approval has gone."""

    approval_id: str


Frame = StatusFrame | StepFrame | ProposalFrame | ApprovalFrame | ReminderFrame
_encode = msgspec.json.Encoder().encode


def frame_of(id_: str, news: News) -> bytes:
    """A piece of news as it is sent."""
    body: Frame
    if news.type == STATUS:
        body = StatusFrame(news.run, news.word)
    elif news.type == STEP:
        skipped = tuple(SkippedStep(name, CONDITION_FALSE) for name in news.told.skipped)
        body = StepFrame(news.run, news.told.steps, skipped or msgspec.UNSET)
    elif news.type == PROPOSAL:
        body = ProposalFrame(news.question)
    elif news.type == REMINDER:
        body = ReminderFrame(news.question)
    else:
        body = ApprovalFrame(news.question)
    return b"id: %b\ndata: %b\n\n" % (id_.encode(), _encode(body))


class Listener:
    """Somebody who listens: what they want to hear, and what they are still to be sent."""

    __slots__ = ("_size", "_waiter", "check", "credential", "ended", "frames",
        "good", "place", "runs", "sent_at", "task",
                 "tenant", "types")  # fmt: skip

    def __init__(
        self,
        tenant: str,
        runs: frozenset[int],
        types: frozenset[str],
        credential: str,
        good: Callable[[], Awaitable[bool]],
    ) -> None:
        self.tenant = tenant
        self.runs = runs
        """Empty: all of them."""
        self.types = types
        """Likewise."""
        self.credential = credential
        self.good = good
        """Whether that is still good."""
        self.place: Place = (0, 0)
        self.frames: deque[bytes] = deque()
        self._size = 0
        self.sent_at = time.monotonic()
        self.ended: str | None = None
        self.task: asyncio.Task[None] | None = None
        """Whoever is sending, while that takes its time."""
        self._waiter: asyncio.Future[None] | None = None

    def wants(self, news: News) -> bool:
        """Whether it wants to hear of this."""
        return (not self.runs or news.told.run_id in self.runs) and (
            not self.types or news.type in self.types
        )

    def put(self, data: bytes) -> None:
        """Something to be sent; law 4."""
        if self.ended is not None:
            return
        self.frames.append(data)
        self._size += len(data)
        if len(self.frames) > QUEUE_FRAMES_MAX or self._size > QUEUE_BYTES_MAX:
            self.end("slow")
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> bytes:
        """All that is to be sent by now, waiting for it; nothing: it has ended."""
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
        """Nothing more is sent."""
        if self.ended is not None:
            return
        self.ended = why
        self.frames.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self.task is not None:
            self.task.cancel()


class Tail:
    """See the laws above."""

    def __init__(self, feeding: Feeding, stopping: asyncio.Event) -> None:
        self._feeding = feeding
        self._stopping = stopping
        """Set when the process is told to end: streams end at once, so that nobody has to wait for them."""
        self._listeners: dict[str, dict[Listener, None]] = {}
        """By tenant."""
        self._wake = asyncio.Event()
        self._somebody = asyncio.Event()
        self._ring: deque[Feed] = deque()
        self._ring_bytes = 0
        self._ring_from: int | None = None
        """Everything behind this position, up to `_pos`, is in the ring; None: nobody has listened yet, or of late."""
        self._pos = 0
        self._places: FeedPlaces | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False

    # -------------------------------------------------------------------------------------------- life cycle

    def start(self) -> None:
        """Begin to follow."""
        self._tasks = [
            asyncio.create_task(self._follow(), name="tenure-tail"),
            asyncio.create_task(self._keep_house(), name="tenure-tail-house"),
            asyncio.create_task(self._end_in_time(), name="tenure-tail-end"),
        ]

    async def stop(self) -> None:
        """End all listeners, and stop."""
        self.end_all("stopping")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _end_in_time(self) -> None:
        await self._stopping.wait()
        self.end_all("stopping")

    def wake(self) -> None:
        """Something was committed here."""
        self._wake.set()

    def end_all(self, why: str) -> None:
        """Let everybody go, and nobody in any more."""
        self._stopped = True
        for listener in self.everybody:
            listener.end(why)

    def __len__(self) -> int:
        return sum(map(len, self._listeners.values()))

    @property
    def everybody(self) -> list[Listener]:
        """All who listen now."""
        return [listener for group in self._listeners.values() for listener in group]

    # --------------------------------------------------------------------------------------------- listeners

    async def place(self, tenant: str, after: str | None) -> Place:
        """Where a tenant's listener begins: now, or behind what it has heard. STREAM_RESET: that is not kept any more."""
        self._places = await self._feeding.places()
        bounds = await self._feeding.bounds()
        if after is None:
            return bounds.head + 1, 0
        wanted = self._places.reveal(tenant, after)
        if wanted is None:
            raise TenureError("REQUEST_MALFORMED", f"{after[:60]!r} is no id of an event of a stream")
        if wanted[0] <= bounds.trimmed or wanted[0] > bounds.head + 1:
            raise TenureError("STREAM_RESET")
        return wanted

    async def missed(self, listener: Listener) -> tuple[bytes, bool]:
        """A page of what a listener has not heard yet; and whether that is all, so that from now on it hears what comes
        (law 2)."""
        pos, part = listener.place
        if self._ring_from is None:
            head = (await self._feeding.bounds()).head
            if self._ring_from is None:  # else somebody else has come meanwhile
                self._pos = self._ring_from = head
        ring_from = self._ring_from
        heard = pos if part == ALL else pos - 1
        """The last commit of which it has heard everything."""
        if heard < ring_from:
            rows = await self._feeding.after(heard, MISSED_ROWS)
            # A page that is not full reaches beyond what had been read before it was asked for.
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
        self._somebody.set()
        if self._stopped:
            listener.end("stopping")
        return page, True

    def forget(self, listener: Listener) -> None:
        """It is gone."""
        group = self._listeners.get(listener.tenant)
        if group is not None:
            group.pop(listener, None)
            if not group:
                del self._listeners[listener.tenant]

    def _id(self, tenant: str, pos: int, part: int) -> str:
        """A place as the tenant sees it."""
        assert self._places is not None, "whoever listens has a place"
        return self._places.hide(tenant, pos, part, getrandbits(32))

    def _page(self, rows: Iterable[Feed], listener: Listener) -> tuple[bytes, Place | None]:
        """The frames of some rows behind a listener's place; and where they were left, to give the loop a turn, if not at their
        end."""
        tenant, after = listener.tenant, listener.place
        frames: list[bytes] = []
        looked = 0
        for row in rows:
            if looked > PAGE_BYTES:
                return b"".join(frames), (row.pos, 0)
            looked += len(row.body)
            for news in news_of(decoded(row.body), {tenant}):
                if (row.pos, news.part) > after and listener.wants(news):
                    frames.append(frame_of(self._id(tenant, row.pos, news.part), news))
                    if len(frames) >= PAGE_FRAMES:
                        return b"".join(frames), (row.pos, news.part)
        return b"".join(frames), None

    def beginning(self, listener: Listener) -> bytes:
        """What a stream begins with: nothing to hear, but an id, so that whoever is cut off before the first event
        comes back to this place."""
        pos, part = listener.place
        return b": listening\nid: %b\n\n" % self._id(listener.tenant, pos, part).encode()

    # ------------------------------------------------------------------------------------------ the reader

    async def _follow(self) -> None:
        while True:
            if not self._listeners:
                self._ring.clear()
                self._ring_bytes = 0
                self._ring_from = None
                self._somebody.clear()
                await self._somebody.wait()
            try:
                full = await self._read()
            except TenureError as refused:
                log.warning("tail_failed", error=refused.code, message=refused.message)
                await asyncio.sleep(HOUSE_SECONDS)
                continue
            except Exception:
                log.error("tail_failed", traceback=traceback.format_exc())
                await asyncio.sleep(HOUSE_SECONDS)
                continue
            if full:
                continue
            await asyncio.sleep(PACE_SECONDS)
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _read(self) -> bool:
        """Read what is new and hand it out; whether there may be more."""
        self._wake.clear()
        rows = await self._feeding.after(self._pos, PAGE_ROWS)
        handed = 0
        for row in rows:
            self._pos = row.pos
            self._ring.append(row)
            self._ring_bytes += len(row.body)
            self._hand_out(row)
            handed += len(row.body)
            if handed > BREATH_BYTES:
                handed = 0
                await asyncio.sleep(0)
        while len(self._ring) > RING_ROWS_MAX or self._ring_bytes > RING_BYTES_MAX:
            gone = self._ring.popleft()
            self._ring_bytes -= len(gone.body)
            self._ring_from = gone.pos
        return len(rows) == PAGE_ROWS

    def _hand_out(self, row: Feed) -> None:
        by_tenant: dict[str, list[tuple[News, bytes]]] = {}
        for news in news_of(decoded(row.body), self._listeners.keys()):
            tenant = news.told.tenant
            frame = frame_of(self._id(tenant, row.pos, news.part), news)
            by_tenant.setdefault(tenant, []).append((news, frame))
        for tenant, made in by_tenant.items():
            together = b"".join([frame for _, frame in made])
            for listener in list(self._listeners.get(tenant, ())):
                if row.pos <= listener.place[0]:
                    continue
                if not listener.runs and not listener.types:
                    listener.put(together)
                    continue
                mine = [frame for news, frame in made if listener.wants(news)]
                if mine:
                    listener.put(mine[0] if len(mine) == 1 else b"".join(mine))

    # -------------------------------------------------------------------------------------------- the house

    async def _keep_house(self) -> None:
        looked = time.monotonic()
        while True:
            await asyncio.sleep(HOUSE_SECONDS)
            now = time.monotonic()
            for listener in self.everybody:
                if now - listener.sent_at >= KEEP_ALIVE_SECONDS and not listener.frames:
                    id_ = self._id(listener.tenant, max(self._pos, listener.place[0]) + 1, 0)
                    listener.put(b": keep-alive\nid: %b\n\n" % id_.encode())
            if now - looked >= CREDENTIAL_SECONDS:
                looked = now
                await self._check_credentials()

    async def _check_credentials(self) -> None:
        by_credential: dict[str, list[Listener]] = {}
        for listener in self.everybody:
            by_credential.setdefault(listener.credential, []).append(listener)
        for listeners in by_credential.values():
            try:
                good = await listeners[0].good()
            except (
                Exception
            ) as fault:  # the store cannot be asked: nothing is known, and nothing is heard either
                log.warning("credential_check_failed", error=repr(fault))
                continue
            if not good:
                for listener in listeners:
                    listener.end("credential")
