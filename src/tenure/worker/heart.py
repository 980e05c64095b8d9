"""Heartbeats from a thread of their own, over a connection of their own.

Laws:
1. Neither a busy event loop nor an exhausted pool holds a heartbeat up: the heart shares nothing with the work but
   the list of leases.
2. A lease is beaten for well before its time; one that was not extended in time is told lost while it is still
   ours by the monotonic clock, so that its work stops before somebody else's begins.
3. What it hears it tells the worker's loop; it decides nothing itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from tenure.errors import TenureError
from tenure.kernel.commands import Heartbeat
from tenure.kernel.decide.leases import Reply
from tenure.orchestrator.heartbeats import LeaseKey, beat
from tenure.store.connect import open_store

if TYPE_CHECKING:
    from tenure.store.port import Store

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.25
CLOSE_SECONDS = 5.0


class Pulse(msgspec.Struct, gc=False):
    """A lease that is beaten for."""

    message: Heartbeat
    every_seconds: float
    lease_seconds: float
    """How long the lease holds after a heartbeat, at least."""
    due: float
    extended_at: float
    """When it was last extended, by the monotonic clock, before the message was sent."""

    @property
    def lost_at(self) -> float:
        """From when on it must be taken for lost: a heartbeat's time before it expires."""
        return self.extended_at + max(self.lease_seconds - self.every_seconds, self.lease_seconds / 2)


Heard = Callable[[dict[LeaseKey, Reply], list[LeaseKey]], None]
"""Told in the worker's loop: the answers, and the leases that are lost."""


class Heart:
    """See the laws above."""

    def __init__(self, url: str, heard: Heard) -> None:
        self._url = url
        self._heard = heard
        self._pulses: dict[LeaseKey, Pulse] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to beat."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="tenure-heart", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, at once."""
        self._stopping.set()

    async def stopped(self) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, CLOSE_SECONDS)

    def hold(self, message: Heartbeat, every_seconds: float, lease_seconds: float) -> None:
        """Beat for a lease from now on."""
        now = time.monotonic()
        pulse = Pulse(message, every_seconds, lease_seconds, now + every_seconds, now)
        with self._lock:
            self._pulses[message.run_id, message.idx, message.n] = pulse

    def hurry(self, run_id: int) -> None:
        """Beat for the leases of a run at once: there may be news."""
        with self._lock:
            for key, pulse in self._pulses.items():
                if key[0] == run_id:
                    pulse.due = 0.0

    def progress(self, key: LeaseKey, text: str) -> None:
        """What the next heartbeat says."""
        with self._lock:
            pulse = self._pulses.get(key)
            if pulse is not None:
                pulse.message = msgspec.structs.replace(pulse.message, progress=text)

    def let_go(self, key: LeaseKey) -> None:
        """The lease has ended."""
        with self._lock:
            self._pulses.pop(key, None)

    # ---------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        asyncio.run(self._beat())

    async def _beat(self) -> None:
        store: Store | None = None
        while not self._stopping.is_set():
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            with self._lock:
                due = {key: pulse for key, pulse in self._pulses.items() if pulse.due <= now}
            if not due:
                continue
            replies: dict[LeaseKey, Reply] = {}
            try:
                if store is None:
                    store = open_store(self._url)
                    await store.open()
                replies = await store.transact(partial(beat, [pulse.message for pulse in due.values()]))
            except Exception as fault:
                log.warning("heartbeats_failed", leases=len(due), error=repr(fault))
                await self._closed(store)
                store = None
                self._conclude(due, {}, now, answered=False)
                continue
            self._conclude(due, replies, now, answered=True)
        await self._closed(store)

    async def _closed(self, store: Store | None) -> None:
        if store is not None:
            try:
                await store.close()
            except (TenureError, OSError) as fault:
                log.warning("heart_not_closed", error=repr(fault))

    def _conclude(
        self, due: dict[LeaseKey, Pulse], replies: dict[LeaseKey, Reply], sent_at: float, *, answered: bool
    ) -> None:
        """Put the next beats down, and tell the worker what was heard; see law 2."""
        now = time.monotonic()
        lost: list[LeaseKey] = []
        with self._lock:
            for key, pulse in due.items():
                if key in replies:
                    pulse.extended_at = sent_at
                    pulse.due = sent_at + pulse.every_seconds
                elif answered or now >= pulse.lost_at:
                    self._pulses.pop(key, None)
                    lost.append(key)
                else:
                    pulse.due = now + TICK_SECONDS
        loop = self._loop
        if loop is not None and not loop.is_closed() and (lost or any(r.cancel for r in replies.values())):
            loop.call_soon_threadsafe(self._heard, replies, lost)
