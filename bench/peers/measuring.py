"""Samples of one system: after a warm-up, as many runs as fill the planned time."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from bench.peers.known import System
from bench.peers.session import Sample, Session, p50_ms

LONE_RUNS_PER_TURN = 5
"""A shared disk may be twenty times slower from one second to the next, so systems take short turns."""
COUNT_MAX = 100_000


class Taken(msgspec.Struct, frozen=True):
    """A sample of one figure of a system."""

    value: float
    unit: str
    sample: Sample


async def sampled(
    system: System, session: Session, seconds: float, wanted: Collection[str] | None = None
) -> dict[str, Taken]:
    """All figures of a system except `lone`, or only the wanted ones."""
    taken: dict[str, Taken] = {}
    for figure in ("throughput", *session.figures):
        if wanted is not None and figure not in wanted:
            continue
        sample = await filled(session, figure, system.warm, seconds)
        unit = system.unit if figure == "throughput" else figure.split("_")[-1]
        taken[figure] = Taken(sample.rate, f"{unit}/s", sample)
    return taken


async def lone_turn(session: Session, runs: int) -> Taken | None:
    """The median latency of some runs one after another; None for a queue."""
    sample = await session.sample("lone", runs)
    return Taken(p50_ms(sample), "ms p50", sample) if sample.lone_seconds else None


async def filled(session: Session, figure: str, warm: int, seconds: float) -> Sample:
    """A sample of about `seconds`. A small sample before it determines its size."""
    first = await session.sample(figure, warm)
    count = int(warm * seconds / first.seconds)
    return await session.sample(figure, min(max(count, warm), COUNT_MAX))
