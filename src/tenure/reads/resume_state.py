"""What the next holder of a lease goes on from: everything its step has recorded and been answered.

Laws:
1. Three reads, asked at the same time: one round trip. A first try of a step without checkpoints asks nothing.
2. While its lease is live only the holder records checkpoints and acts, so what is read stays true; a wait may settle at any
   time, and is asked for again by opening its label or by suspending on it.
"""

from __future__ import annotations

import asyncio

import msgspec

from tenure.kernel.lease_types import Lease
from tenure.limits import INTEGER_MAX
from tenure.store.port import Store
from tenure.store.replay import ReplayAct, ReplayCheckpoint, ReplayWait

ALL_WAITS = (0, INTEGER_MAX)
"""The numbers of a step's first and last wait."""


class ResumeState(msgspec.Struct, frozen=True):
    """All checkpoints, waits and acts of a step, each in the order in which it came to be."""

    checkpoints: list[ReplayCheckpoint]
    waits: list[ReplayWait]
    acts: list[ReplayAct]


async def read_resume_state(store: Store, lease: Lease) -> ResumeState:
    """What a claimed lease goes on from."""
    if lease.n == 1 and not lease.recorded:
        return ResumeState([], [], [])
    checkpoints, waits, acts = await asyncio.gather(
        store.read("resume_checkpoints", lease.run_id, lease.idx),
        store.read("resume_waits", lease.run_id, lease.idx, *ALL_WAITS),
        store.read("resume_acts", lease.run_id, lease.idx),
    )
    return ResumeState(checkpoints, waits, acts)
