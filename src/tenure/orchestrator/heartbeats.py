"""Heartbeats write only the lease's expiry: no event, no version and no run lock, so they delay no command."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from tenure.errors import TenureError
from tenure.futures import fail_future
from tenure.kernel.commands import Heartbeat
from tenure.kernel.decide.leases import extended_expiry
from tenure.kernel.lease_types import LeaseKey, LeaseReply
from tenure.kernel.run_rows import AttemptRow, StepRow
from tenure.logs import get_logger
from tenure.store.port import ExtendedLease, Query, Transaction

if TYPE_CHECKING:
    from tenure.orchestrator.core import Orchestrator

log = get_logger(__name__)

QUIET_STATES = frozenset({"running", "uploading", "canceling"})
"""States in which a heartbeat changes nothing but the expiry; in `starting` the first one begins the work."""


def extend_leases(beats: list[Heartbeat]) -> Transaction[dict[LeaseKey, LeaseReply]]:
    """Extend these leases. A lease that cannot be extended is missing from the answer; a command then finds out why."""
    keys = [(b.run_id, b.idx, b.n) for b in beats]
    steps: list[StepRow] = yield Query("load_steps", list(dict.fromkeys((r, i) for r, i, _ in keys)))
    attempts: list[AttemptRow] = yield Query("load_attempts", keys)
    now: int = (yield Query("now"))[0].now_us
    step_of = {(s.run_id, s.idx): s for s in steps}
    attempt_of = {(a.run_id, a.idx, a.n): a for a in attempts}
    rows = []
    expires: dict[LeaseKey, int] = {}
    for b, key in zip(beats, keys, strict=True):
        step, attempt = step_of.get(key[:2]), attempt_of.get(key)
        if step is None or attempt is None or step.attempt != b.n or attempt.lease != "active":
            continue
        if attempt.state not in QUIET_STATES or attempt.expires_at <= now or 0 < b.seq <= attempt.seq:
            continue
        expires[key] = extended_expiry(step, attempt, now)
        rows.append((*key, b.seq, expires[key], b.progress or attempt.progress))
    if not rows:
        return {}
    written: list[ExtendedLease] = yield Query("beat", rows, (now,))
    return {
        (w.run_id, w.idx, w.n): LeaseReply(
            cancel=w.state == "canceling", expires_at=expires[w.run_id, w.idx, w.n]
        )
        for w in written
    }


class HeartbeatBatcher:
    """Collects heartbeats while the last ones are being written. Only the newest heartbeat of a lease counts."""

    def __init__(self, orchestrator: Orchestrator, lane: int) -> None:
        self._orchestrator = orchestrator
        self._lane = lane
        self._waiting: dict[LeaseKey, tuple[Heartbeat, asyncio.Future[LeaseReply]]] = {}
        self._open: set[asyncio.Future[LeaseReply]] = set()
        self._writing = False

    def close(self) -> None:
        """Fail the heartbeats that still wait for their answer."""
        for future in tuple(self._open):
            fail_future(future, TenureError("STORE_UNAVAILABLE", "the orchestrator was stopped"))

    def heartbeat(self, message: Heartbeat) -> asyncio.Future[LeaseReply]:
        key = (message.run_id, message.idx, message.n)
        future: asyncio.Future[LeaseReply] = asyncio.get_running_loop().create_future()
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        older = self._waiting.get(key)
        if older is not None and not older[1].done():
            older[1].set_result(LeaseReply("ignored"))
        self._waiting[key] = (message, future)
        if not self._writing:
            self._writing = True
            self._orchestrator.spawn(self._write())
        return future

    async def _write(self) -> None:
        orchestrator = self._orchestrator
        try:
            while self._waiting:
                beats, self._waiting = self._waiting, {}
                replies: dict[LeaseKey, LeaseReply] = {}
                try:
                    make = partial(extend_leases, [message for message, _ in beats.values()])
                    replies = await orchestrator.store.transact(make, lane=self._lane)
                except Exception as fault:
                    log.warning("heartbeats_failed", error=repr(fault))
                for key, (message, future) in beats.items():
                    reply = replies.get(key)
                    if reply is None:
                        orchestrator.spawn(self._send_as_command(message, future))
                    elif not future.done():
                        future.set_result(reply)
                        orchestrator.update_lease(message, reply)
        finally:
            self._writing = False

    async def _send_as_command(self, message: Heartbeat, future: asyncio.Future[LeaseReply]) -> None:
        """Send a heartbeat as a command, which begins the work or explains what is wrong."""
        try:
            reply = await self._orchestrator.send(message)
        except Exception as fault:
            fail_future(future, fault)
        else:
            if not future.done():
                future.set_result(reply)
