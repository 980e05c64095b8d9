"""What the holder of a lease resumes from: the checkpoints, waits and acts of its step.

Laws:
1. Three reads at the same time make one round trip. The first attempt of a step without checkpoints reads nothing.
2. While a lease is live, only its holder records checkpoints and acts, so they stay as they were read. A wait may settle at any
   time; the holder learns that when it opens the wait's label again or suspends on it.
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
    """All checkpoints, waits and acts of a step, each in order of creation."""

    checkpoints: list[ReplayCheckpoint]
    waits: list[ReplayWait]
    acts: list[ReplayAct]


async def read_resume_state(store: Store, lease: Lease) -> ResumeState:
    if lease.n == 1 and not lease.recorded:
        return ResumeState([], [], [])
    checkpoints, waits, acts = await asyncio.gather(
        store.read("resume_checkpoints", lease.run_id, lease.idx),
        store.read("resume_waits", lease.run_id, lease.idx, *ALL_WAITS),
        store.read("resume_acts", lease.run_id, lease.idx),
    )
    return ResumeState(checkpoints, waits, acts)
