"""Heartbeats from threads of their own, over a connection of their own.

Laws:
1. Neither a busy event loop nor an exhausted pool holds a heartbeat up: the heart shares nothing with the work but
   the list of leases, and its connection is made before the first lease is taken.
2. Two heartbeats that are lost cost nothing: one without an answer is given up after its interval, and sent again.
3. A lease that could not be extended is told lost while it is still ours by the clock since boot, so that its work
   stops before somebody else's begins. It counts from the moment at which it was asked for: an answer may lie in a socket for as
   long as the process stands still. A second thread looks after that: a store that hangs may hold up the first.
4. What it hears it tells the worker's loop; it decides nothing itself.
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
from tenure.kernel.decide.leases import Reply
from tenure.limits import LABEL_CHARS_MAX
from tenure.logs import get_logger
from tenure.orchestrator.heartbeats import LeaseKey, beat
from tenure.store.connect import open_store

log = get_logger(__name__)

AGAIN_SECONDS = 0.25
"""After a heartbeat that failed."""
TRY_SECONDS_MIN = 0.2
OPEN_SECONDS = 10.0
CLOSE_SECONDS = 5.0


AGAIN = "again"
"""The state of a reply that says nothing about its lease: it is asked for once more."""


class Beats(Protocol):
    """How heartbeats reach whoever gives the leases. It lives in the heart's thread and event loop."""

    async def open(self) -> None:
        """Connect, before it is needed."""
        ...

    async def beat(self, messages: list[Heartbeat]) -> dict[LeaseKey, Reply]:
        """Extend these leases: the answers. One that is missing is lost, one that is `AGAIN` is not known."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class StoreBeats:
    """Heartbeats straight into a database."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url)

    async def open(self) -> None:
        """Connect, and have the statements ready."""
        await self._store.open()
        await self._store.transact(partial(beat, []))

    async def beat(self, messages: list[Heartbeat]) -> dict[LeaseKey, Reply]:
        """In one transaction."""
        return await self._store.transact(partial(beat, messages))

    async def close(self) -> None:
        """Let go of the connections."""
        await self._store.close()


class Pulse(msgspec.Struct, gc=False):
    """A lease that is beaten for."""

    message: Heartbeat
    every_seconds: float
    lease_seconds: float
    """How long the lease holds after a heartbeat, at least."""
    due: float
    extended_at: float
    """When it was last extended, by the clock since boot, before the message was sent."""
    stop: threading.Event | None = None
    """Set when it is lost: the worker's loop may be busy, code in threads is not."""
    ends_at: float = math.inf
    """Where its timeout ends it, whatever heartbeats say."""

    @property
    def lost_at(self) -> float:
        """From when on it must be taken for lost: half a heartbeat's time before it expires."""
        return self.extended_at + self.lease_seconds - self.every_seconds / 2


Heard = Callable[[dict[LeaseKey, Reply], list[LeaseKey]], None]
"""Told in the worker's loop: the answers, and the leases that are lost."""


class Heart:
    """See the laws above."""

    def __init__(self, make: Callable[[], Beats], heard: Heard) -> None:
        self._make = make
        self._heard = heard
        self._pulses: dict[LeaseKey, Pulse] = {}
        self._lock = threading.Lock()
        self._watched = threading.Condition(self._lock)
        self._stopping = False
        self._next_beat = math.inf
        """When the beating thread looks again by itself."""
        self._next_look = math.inf
        """When the watching thread does."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beating: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._ends: list[asyncio.Future[None]] = []
        self._closing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to beat."""
        self._loop = asyncio.get_running_loop()
        for target in (self._run, self._watch):
            end: asyncio.Future[None] = self._loop.create_future()
            self._ends.append(end)
            threading.Thread(
                target=self._thread, args=(target, end), name="tenure-heart", daemon=True
            ).start()

    def _thread(self, target: Callable[[], None], end: asyncio.Future[None]) -> None:
        try:
            target()
        finally:
            assert self._loop is not None
            with suppress(RuntimeError):  # the worker's loop has ended before
                self._loop.call_soon_threadsafe(end.set_result, None)

    def stop(self) -> None:
        """Stop, at once."""
        with self._lock:
            self._stopping = True
            self._watched.notify()
            self._nudge()

    async def stopped(self) -> None:
        """Wait for the threads to end."""
        if self._ends:
            await asyncio.wait(self._ends, timeout=CLOSE_SECONDS)

    def hold(
        self,
        message: Heartbeat,
        every_seconds: float,
        lease_seconds: float,
        stop: threading.Event | None = None,
        *,
        asked_at: float | None = None,
        ends_at: float = math.inf,
    ) -> None:
        """Beat for a lease from now on, which was asked for then: it counts from there."""
        now = clock.boot_seconds()
        since = now if asked_at is None else asked_at
        due = min(now + every_seconds, since + lease_seconds / 2)
        pulse = Pulse(message, every_seconds, lease_seconds, due, since, stop, ends_at)
        with self._lock:
            self._pulses[message.run_id, message.idx, message.n] = pulse
            if pulse.due < self._next_beat:
                self._nudge()
            if pulse.lost_at < self._next_look:
                self._watched.notify()

    def hurry(self, run_id: int) -> None:
        """Beat for the leases of a run at once: there may be news."""
        with self._lock:
            for key, pulse in self._pulses.items():
                if key[0] == run_id:
                    pulse.due = 0.0
                    self._nudge()

    def progress(self, key: LeaseKey, text: str) -> None:
        """What the next heartbeat says."""
        said = "".join(char if char.isprintable() else " " for char in text[:LABEL_CHARS_MAX])
        with self._lock:
            pulse = self._pulses.get(key)
            if pulse is not None:
                pulse.message = msgspec.structs.replace(pulse.message, progress=said)

    def held_until(self, key: LeaseKey) -> float:
        """Until when a lease is ours for certain, by the clock since boot; what is not beaten for is not ours."""
        with self._lock:
            pulse = self._pulses.get(key)
            return -math.inf if pulse is None else min(pulse.lost_at, pulse.ends_at)

    def let_go(self, key: LeaseKey) -> None:
        """The lease has ended."""
        with self._lock:
            self._pulses.pop(key, None)

    def _nudge(self) -> None:
        """Have the beating thread look again; under the lock."""
        self._next_beat = -math.inf
        if self._beating is not None and not self._beating.is_closed():
            self._beating.call_soon_threadsafe(self._wake.set)

    # --------------------------------------------------------------------------- the thread that beats

    def _run(self) -> None:
        asyncio.run(self._beat())

    async def _beat(self) -> None:
        with self._lock:
            self._beating = asyncio.get_running_loop()
        beats = await self._opened()
        while not self._stopping:
            due = await self._due()
            if not due:
                continue
            sent_at = clock.boot_seconds()
            patience = max(min(pulse.every_seconds for pulse in due.values()), TRY_SECONDS_MIN)
            try:
                async with asyncio.timeout(patience):
                    if beats is None:
                        beats = self._make()
                        await beats.open()
                    replies = await beats.beat([pulse.message for pulse in due.values()])
            except Exception as fault:
                log.warning("heartbeats_failed", leases=len(due), error=repr(fault))
                self._drop(beats)
                beats = None
                self._put_off(due)
            else:
                self._conclude(due, replies, sent_at)
        if beats is not None:
            self._drop(beats)
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_SECONDS)

    async def _opened(self) -> Beats | None:
        """The connection, made before it is needed; see law 1."""
        beats: Beats | None = None
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                beats = self._make()
                await beats.open()
        except Exception as fault:
            log.warning("heart_not_connected", error=repr(fault))
            self._drop(beats)
            return None
        return beats

    async def _due(self) -> dict[LeaseKey, Pulse]:
        """The leases to beat for now; waits while there are none."""
        with self._lock:
            now = clock.boot_seconds()
            due = {key: pulse for key, pulse in self._pulses.items() if pulse.due <= now}
            next_beat = min((pulse.due for pulse in self._pulses.values()), default=math.inf)
            self._next_beat = next_beat
            self._wake.clear()
            if due or self._stopping:
                return due
        try:
            async with asyncio.timeout(None if next_beat == math.inf else next_beat - now):
                await self._wake.wait()
        except TimeoutError:
            pass
        return {}

    def _drop(self, beats: Beats | None) -> None:
        """Let go of a connection without waiting for it."""
        if beats is not None:
            closing = asyncio.ensure_future(_closed(beats))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _put_off(self, due: dict[LeaseKey, Pulse]) -> None:
        now = clock.boot_seconds()
        with self._lock:
            for pulse in due.values():
                pulse.due = now + min(AGAIN_SECONDS, pulse.every_seconds / 4)

    def _conclude(self, due: dict[LeaseKey, Pulse], replies: dict[LeaseKey, Reply], sent_at: float) -> None:
        """Put the next beats down, and tell the worker what was heard."""
        lost: list[LeaseKey] = []
        with self._lock:
            for key, pulse in due.items():
                if self._pulses.get(key) is not pulse:
                    continue  # it has ended meanwhile
                reply = replies.get(key)
                if reply is None:
                    lost.append(key)
                elif reply.state == AGAIN:
                    pulse.due = clock.boot_seconds() + min(AGAIN_SECONDS, pulse.every_seconds / 4)
                else:
                    pulse.extended_at = sent_at
                    pulse.due = sent_at + pulse.every_seconds
            self._lose(lost)
        if lost or any(reply.cancel for reply in replies.values()):
            self._tell(replies, lost)

    # ------------------------------------------------------------------------- the thread that watches

    def _watch(self) -> None:
        while True:
            with self._watched:
                if self._stopping:
                    return
                now = clock.boot_seconds()
                lost = [key for key, pulse in self._pulses.items() if pulse.lost_at <= now]
                self._lose(lost)
                if not lost:
                    self._next_look = min(
                        (pulse.lost_at for pulse in self._pulses.values()), default=math.inf
                    )
                    self._watched.wait(None if self._next_look == math.inf else self._next_look - now)
                    continue
            log.warning("leases_given_up", leases=len(lost))
            self._tell({}, lost)

    def _lose(self, keys: list[LeaseKey]) -> None:
        """These are lost; under the lock."""
        for key in keys:
            pulse = self._pulses.pop(key)
            if pulse.stop is not None:
                pulse.stop.set()

    def _tell(self, replies: dict[LeaseKey, Reply], lost: list[LeaseKey]) -> None:
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._heard, replies, lost)
            except RuntimeError:
                log.info("heart_without_worker", leases=len(lost))  # its loop has ended


async def _closed(beats: Beats) -> None:
    try:
        await beats.close()
    except Exception as fault:
        log.warning("heart_not_closed", error=repr(fault))
