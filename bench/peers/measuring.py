"""Samples of one system: warmed up, then as many runs as fill the time that a sample is given."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from bench.peers.known import System
from bench.peers.session import Sample, Session, p50_ms

LONE_RUNS_PER_TURN = 5
"""A shared disk may be twenty times slower from one second to the next, so systems take short turns."""
COUNT_MAX = 100_000


class Taken(msgspec.Struct, frozen=True):
    """One figure of one system, once."""

    value: float
    unit: str
    sample: Sample


async def sampled(
    system: System, session: Session, seconds: float, wanted: Collection[str] | None = None
) -> dict[str, Taken]:
    """Every figure it has but `lone`, or those that are wanted: `throughput` and its own."""
    taken: dict[str, Taken] = {}
    for figure in ("throughput", *session.figures):
        if wanted is not None and figure not in wanted:
            continue
        sample = await filled(session, figure, system.warm, seconds)
        unit = system.unit if figure == "throughput" else figure.split("_")[-1]
        taken[figure] = Taken(sample.rate, f"{unit}/s", sample)
    return taken


async def lone_turn(session: Session, runs: int) -> Taken | None:
    """Some runs one after another: the p50 of their latency; None for what has no runs."""
    sample = await session.sample("lone", runs)
    return Taken(p50_ms(sample), "ms p50", sample) if sample.lone_seconds else None


async def filled(session: Session, figure: str, warm: int, seconds: float) -> Sample:
    """A sample of about so many seconds, sized by a small one before it."""
    first = await session.sample(figure, warm)
    count = int(warm * seconds / first.seconds)
    return await session.sample(figure, min(max(count, warm), COUNT_MAX))
