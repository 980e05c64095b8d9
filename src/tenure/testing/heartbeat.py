"""Heartbeats by a lab's clock: without a thread or a connection, sent when the lab moves its clock."""

from __future__ import annotations

import asyncio
import math
import threading
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tenure.clock import us
from tenure.kernel.commands import Heartbeat
from tenure.kernel.lease_types import LeaseKey
from tenure.orchestrator.heartbeats import extend_leases
from tenure.worker.heartbeat import HeartbeatCallback

if TYPE_CHECKING:
    from tenure.store.port import Store
    from tenure.testing.lab_clock import LabClock


class _TrackedLease(msgspec.Struct):
    message: Heartbeat
    every_us: int
    due_us: int


class LabHeartbeater:
    """The heartbeater of a lab's worker; it has the methods of `Heartbeater`."""

    def __init__(self, store: Store, clock: LabClock, on_replies: HeartbeatCallback) -> None:
        self._store = store
        self._clock = clock
        self._on_replies = on_replies
        self._leases: dict[LeaseKey, _TrackedLease] = {}
        self._sending: set[asyncio.Task[int]] = set()
        self._stopped = False

    def start(self) -> None:
        """Nothing to start: the lab calls `send_due`."""

    def stop(self) -> None:
        self._stopped = True
        self._leases.clear()

    async def stopped(self) -> None:
        await asyncio.gather(*self._sending, return_exceptions=True)

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
        del lease_seconds, stop, asked_at, ends_at  # in a lab no heartbeat is late
        every = us(every_seconds)
        key = message.run_id, message.idx, message.n
        self._leases[key] = _TrackedLease(message, every, self._clock.now_us() + every)

    def heartbeat_now(self, run_id: int) -> None:
        for key, lease in self._leases.items():
            if key[0] == run_id:
                lease.due_us = 0
        task = asyncio.get_running_loop().create_task(self.send_due())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def progress(self, key: LeaseKey, text: str) -> None:
        lease = self._leases.get(key)
        if lease is not None:
            lease.message = msgspec.structs.replace(lease.message, progress=text)

    def held_until(self, key: LeaseKey) -> float:
        """In a lab a lease is held while it is tracked."""
        return math.inf if key in self._leases else -math.inf

    def forget_lease(self, key: LeaseKey) -> None:
        self._leases.pop(key, None)

    def next_us(self) -> int | None:
        return min((lease.due_us for lease in self._leases.values()), default=None)

    async def send_due(self) -> int:
        """Send the heartbeats that are due, and return their number."""
        now = self._clock.now_us()
        due = {key: lease for key, lease in self._leases.items() if lease.due_us <= now}
        if not due:
            return 0
        for lease in due.values():
            lease.due_us = now + lease.every_us
        replies = await self._store.transact(
            partial(extend_leases, [lease.message for lease in due.values()])
        )
        lost = [key for key in due if key not in replies and key in self._leases]
        for key in lost:
            del self._leases[key]
        if not self._stopped:
            self._on_replies(replies, lost)
        return len(due)
