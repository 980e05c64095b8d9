"""Heartbeats, sent from their own thread over their own connection.

Laws:
1. Neither a busy event loop nor an exhausted pool delays a heartbeat: the heartbeater shares only the list of leases with the work, and
   connects before the first lease is claimed.
2. Two lost heartbeats cost nothing: one without a reply is abandoned after its interval and sent again.
3. A lease that could not be extended is reported lost while it is still ours by the clock since boot, so that its work stops before
   another worker's begins. It counts from the moment of asking, because a reply may lie in a socket for as long as the process stands
   still. A second thread checks this, because a store that hangs may block the first.
4. The heartbeater reports to the worker's loop, and decides nothing itself.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import msgspec

from tenure import clock
from tenure.kernel.commands import Heartbeat
from tenure.kernel.lease_types import LeaseKey, LeaseReply
from tenure.limits import LABEL_CHARS_MAX
from tenure.logs import get_logger
from tenure.orchestrator.heartbeats import extend_leases
from tenure.store.factory import open_store

log = get_logger(__name__)

RETRY_SECONDS = 0.25
ATTEMPT_SECONDS_MIN = 0.2
OPEN_SECONDS = 10.0
CLOSE_SECONDS = 5.0


REPLY_UNKNOWN = "again"
"""The state of a reply that says nothing about its lease."""


class HeartbeatChannel(Protocol):
    """A connection of the heartbeater's thread to the database or the server."""

    async def open(self) -> None: ...

    async def send(self, messages: list[Heartbeat]) -> dict[LeaseKey, LeaseReply]:
        """Extend these leases. A lease without a reply is lost. After a `REPLY_UNKNOWN` its heartbeat is sent again."""

    async def close(self) -> None: ...


class StoreHeartbeatChannel:
    def __init__(self, url: str) -> None:
        self._store = open_store(url)

    async def open(self) -> None:
        await self._store.open()
        await self._store.transact(partial(extend_leases, []))

    async def send(self, messages: list[Heartbeat]) -> dict[LeaseKey, LeaseReply]:
        return await self._store.transact(partial(extend_leases, messages))

    async def close(self) -> None:
        await self._store.close()


class TrackedLease(msgspec.Struct, gc=False):
    message: Heartbeat
    every_seconds: float
    lease_seconds: float
    """How long the lease lasts after a heartbeat, at least."""
    due: float
    extended_at: float
    """When the last successful heartbeat was sent, by the clock since boot."""
    stop: threading.Event | None = None
    """Set when the lease is lost: code in threads sees it even if the worker's loop is busy."""
    ends_at: float = math.inf
    """When the lease ends by its timeout, even with heartbeats."""

    @property
    def lost_at(self) -> float:
        """When the lease counts as lost: half a heartbeat interval before it expires."""
        return self.extended_at + self.lease_seconds - self.every_seconds / 2


HeartbeatCallback = Callable[[dict[LeaseKey, LeaseReply], list[LeaseKey]], None]
"""Called in the worker's loop with the replies and the lost leases."""


class Heartbeater:
    def __init__(self, make_channel: Callable[[], HeartbeatChannel], on_replies: HeartbeatCallback) -> None:
        self._make_channel = make_channel
        self._on_replies = on_replies
        self._leases: dict[LeaseKey, TrackedLease] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._stopping = False
        self._next_send = math.inf
        self._next_check = math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sending_loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._ends: list[asyncio.Future[None]] = []
        self._closing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for target in (lambda: asyncio.run(self._send_due()), self._watch):
            end: asyncio.Future[None] = self._loop.create_future()
            self._ends.append(end)
            threading.Thread(
                target=self._thread, args=(target, end), name="tenure-heartbeat", daemon=True
            ).start()

    def _thread(self, target: Callable[[], None], end: asyncio.Future[None]) -> None:
        try:
            target()
        finally:
            assert self._loop is not None
            with suppress(RuntimeError):  # the worker's loop has ended
                self._loop.call_soon_threadsafe(end.set_result, None)

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            self._changed.notify()
            self._wake_sender()

    async def stopped(self) -> None:
        if self._ends:
            await asyncio.wait(self._ends, timeout=CLOSE_SECONDS)

    def track(
        self,
        message: Heartbeat,
        every_seconds: float,
        lease_seconds: float,
        stop: threading.Event | None = None,
        *,
        asked_at: float | None = None,
        ends_at: float = math.inf,
    ) -> None:
        """Send heartbeats for a lease. The lease counts from `asked_at`, or else from now."""
        now = clock.boot_seconds()
        since = now if asked_at is None else asked_at
        due = min(now + every_seconds, since + lease_seconds / 2)
        lease = TrackedLease(message, every_seconds, lease_seconds, due, since, stop, ends_at)
        with self._lock:
            self._leases[message.run_id, message.idx, message.n] = lease
            if lease.due < self._next_send:
                self._wake_sender()
            if lease.lost_at < self._next_check:
                self._changed.notify()

    def heartbeat_now(self, run_id: int) -> None:
        with self._lock:
            for key, lease in self._leases.items():
                if key[0] == run_id:
                    lease.due = 0.0
                    self._wake_sender()

    def progress(self, key: LeaseKey, text: str) -> None:
        shown = "".join(char if char.isprintable() else " " for char in text[:LABEL_CHARS_MAX])
        with self._lock:
            if (lease := self._leases.get(key)) is not None:
                lease.message = msgspec.structs.replace(lease.message, progress=shown)

    def held_until(self, key: LeaseKey) -> float:
        """Until when a lease is certainly ours, by the clock since boot; -inf for one that is not tracked."""
        with self._lock:
            lease = self._leases.get(key)
            return -math.inf if lease is None else min(lease.lost_at, lease.ends_at)

    def forget_lease(self, key: LeaseKey) -> None:
        with self._lock:
            self._leases.pop(key, None)

    def _wake_sender(self) -> None:
        """The lock must be held."""
        self._next_send = -math.inf
        if self._sending_loop is not None and not self._sending_loop.is_closed():
            self._sending_loop.call_soon_threadsafe(self._wake.set)

    # --------------------------------------------------------------------------- the sending thread

    async def _send_due(self) -> None:
        with self._lock:
            self._sending_loop = asyncio.get_running_loop()
        channel: HeartbeatChannel | None = None
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                channel = self._make_channel()
                await channel.open()
        except Exception as fault:
            log.warning("heartbeat_channel_not_opened", error=repr(fault))
            self._close_later(channel)
            channel = None
        while not self._stopping:
            due = await self._due()
            if not due:
                continue
            sent_at = clock.boot_seconds()
            patience = max(min(lease.every_seconds for lease in due.values()), ATTEMPT_SECONDS_MIN)
            try:
                async with asyncio.timeout(patience):
                    if channel is None:
                        channel = self._make_channel()
                        await channel.open()
                    replies = await channel.send([lease.message for lease in due.values()])
            except Exception as fault:
                log.warning("heartbeats_failed", leases=len(due), error=repr(fault))
                self._close_later(channel)
                channel = None
                replies = dict.fromkeys(due, LeaseReply(REPLY_UNKNOWN))
            self._handle_replies(due, replies, sent_at)
        self._close_later(channel)
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_SECONDS)

    async def _due(self) -> dict[LeaseKey, TrackedLease]:
        with self._lock:
            now = clock.boot_seconds()
            due = {key: lease for key, lease in self._leases.items() if lease.due <= now}
            self._next_send = next_send = min(
                (lease.due for lease in self._leases.values()), default=math.inf
            )
            self._wake.clear()
            if due or self._stopping:
                return due
        with suppress(TimeoutError):
            async with asyncio.timeout(None if next_send == math.inf else next_send - now):
                await self._wake.wait()
        return {}

    def _close_later(self, channel: HeartbeatChannel | None) -> None:
        if channel is not None:
            closing = asyncio.ensure_future(_close(channel))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _handle_replies(
        self, due: dict[LeaseKey, TrackedLease], replies: dict[LeaseKey, LeaseReply], sent_at: float
    ) -> None:
        lost: list[LeaseKey] = []
        with self._lock:
            for key, lease in due.items():
                if self._leases.get(key) is not lease:
                    continue  # the lease has ended meanwhile
                reply = replies.get(key)
                if reply is None:
                    lost.append(key)
                elif reply.state == REPLY_UNKNOWN:
                    lease.due = clock.boot_seconds() + min(RETRY_SECONDS, lease.every_seconds / 4)
                else:
                    lease.extended_at = sent_at
                    lease.due = sent_at + lease.every_seconds
            self._lose(lost)
        if lost or any(reply.cancel for reply in replies.values()):
            self._report(replies, lost)

    # ------------------------------------------------------------------------- the watching thread

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                now = clock.boot_seconds()
                lost = [key for key, lease in self._leases.items() if lease.lost_at <= now]
                self._lose(lost)
                if not lost:
                    self._next_check = min(
                        (lease.lost_at for lease in self._leases.values()), default=math.inf
                    )
                    self._changed.wait(None if self._next_check == math.inf else self._next_check - now)
                    continue
            log.warning("leases_lost", leases=len(lost))
            self._report({}, lost)

    def _lose(self, keys: list[LeaseKey]) -> None:
        """The lock must be held."""
        for key in keys:
            lease = self._leases.pop(key)
            if lease.stop is not None:
                lease.stop.set()

    def _report(self, replies: dict[LeaseKey, LeaseReply], lost: list[LeaseKey]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._on_replies, replies, lost)
        except RuntimeError:
            log.info("worker_loop_ended", leases=len(lost))


async def _close(channel: HeartbeatChannel) -> None:
    try:
        await channel.close()
    except Exception as fault:
        log.warning("heartbeat_channel_not_closed", error=repr(fault))
