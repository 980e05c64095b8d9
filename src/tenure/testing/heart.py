"""Heartbeats by a lab's clock: no thread, no connection of its own; beaten when the clock comes to their moments."""

from __future__ import annotations

import asyncio
import math
import threading
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tenure.clock import us
from tenure.kernel.commands import Heartbeat
from tenure.orchestrator.heartbeats import LeaseKey, beat
from tenure.worker.heart import Heard

if TYPE_CHECKING:
    from tenure.store.port import Store
    from tenure.testing.clock import LabClock


class _Pulse(msgspec.Struct):
    message: Heartbeat
    every_us: int
    due_us: int


class LabHeart:
    """The heart of a lab's worker: what a `Heart` offers."""

    def __init__(self, store: Store, clock: LabClock, heard: Heard) -> None:
        self._store = store
        self._clock = clock
        self._heard = heard
        self._pulses: dict[LeaseKey, _Pulse] = {}
        self._hurrying: set[asyncio.Task[int]] = set()
        self._stopped = False

    def start(self) -> None:
        """There is nothing to start: see `beat`."""

    def stop(self) -> None:
        """Beat no more."""
        self._stopped = True
        self._pulses.clear()

    async def stopped(self) -> None:
        """It ends at once."""
        await asyncio.gather(*self._hurrying, return_exceptions=True)

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
        """Beat for a lease from now on."""
        del lease_seconds, stop, asked_at, ends_at  # in a lab no heartbeat is late
        every = us(every_seconds)
        key = message.run_id, message.idx, message.n
        self._pulses[key] = _Pulse(message, every, self._clock.now_us() + every)

    def hurry(self, run_id: int) -> None:
        """Beat for the leases of a run at once."""
        for key, pulse in self._pulses.items():
            if key[0] == run_id:
                pulse.due_us = 0
        task = asyncio.get_running_loop().create_task(self.beat())
        self._hurrying.add(task)
        task.add_done_callback(self._hurrying.discard)

    def progress(self, key: LeaseKey, text: str) -> None:
        """What the next heartbeat says."""
        pulse = self._pulses.get(key)
        if pulse is not None:
            pulse.message = msgspec.structs.replace(pulse.message, progress=text)

    def held_until(self, key: LeaseKey) -> float:
        """In a lab a lease is held while it is beaten for."""
        return math.inf if key in self._pulses else -math.inf

    def let_go(self, key: LeaseKey) -> None:
        """The lease has ended."""
        self._pulses.pop(key, None)

    def next_us(self) -> int | None:
        """When the next heartbeat is due."""
        return min((pulse.due_us for pulse in self._pulses.values()), default=None)

    async def beat(self) -> int:
        """Beat where it is due; for how many leases."""
        now = self._clock.now_us()
        due = {key: pulse for key, pulse in self._pulses.items() if pulse.due_us <= now}
        if not due:
            return 0
        for pulse in due.values():
            pulse.due_us = now + pulse.every_us
        replies = await self._store.transact(partial(beat, [pulse.message for pulse in due.values()]))
        lost = [key for key in due if key not in replies and key in self._pulses]
        for key in lost:
            del self._pulses[key]
        if not self._stopped:
            self._heard(replies, lost)
        return len(due)
