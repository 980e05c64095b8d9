"""The figures: what is measured, what it is compared with, and the bar.

Laws:
1. A series measures pairs (against, value), one directly after the other, because the speed of a machine changes over
   time. The bench takes the planned number of pairs and compares medians.
2. Each sample has its own database, except for the figures about growth.
3. An invalid sample ends the bench.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import TypeVar

import msgspec

from bench import finished, many, suspended, workloads
from bench.checking import Broken, check
from bench.long_runs import CheckpointRuns, LeasedRuns, LongRuns, Maker
from bench.places import STORES, Database, Place
from bench.plan import Plan
from bench.workloads import Expected, Sample
from tenure.orchestrator import Orchestrator

Pairs = AsyncIterator[list[tuple[float, float]]]
"""Per round one pair (against, value) for each figure of the series."""
Measure = Callable[[Place, Plan, Callable[[str], None]], Pairs]
Workload = Callable[[Orchestrator, Plan], Awaitable[Sample]]

T = TypeVar("T")

SAMPLE_SECONDS_MAX = 120.0
THROUGHPUT = "steps/s"
FLAT = Fraction(3, 4)
"""A loss of less than 25%."""
HALF_A_MILLION = Fraction(4, 5)
"""The least share of the throughput that remains with up to half a million finished runs in the database."""
LATENCY = Fraction(24, 10)


class Figure(msgspec.Struct, frozen=True):
    """A line of the report."""

    name: str
    store: str
    unit: str
    bar: Fraction
    at_most: bool
    """Whether the ratio must be at most the bar, or at least."""
    against: str
    """A description of what the value is compared with."""


class Series(msgspec.Struct, frozen=True):
    """Figures that are measured together."""

    figures: list[Figure]
    measure: Measure


# ---------------------------------------------------------------------------------------- the workloads


async def _code_first(orchestrator: Orchestrator, plan: Plan) -> Sample:
    return await workloads.code_first(orchestrator, plan.code_first_runs, plan.code_first_in_flight)


async def _leased(orchestrator: Orchestrator, plan: Plan) -> Sample:
    return await workloads.leased(
        orchestrator, plan.leased_runs, plan.leased_in_flight, plan.workers, plan.slots
    )


WORKLOADS: dict[str, Workload] = {"code_first": _code_first, "leased": _leased}


@asynccontextmanager
async def orchestrating(database: Database) -> AsyncIterator[Orchestrator]:
    async with Orchestrator(database.store) as orchestrator:
        yield orchestrator


async def warm(workload: Workload, orchestrator: Orchestrator, plan: Plan) -> None:
    """Make connections and prepared statements and fill caches, before the clock starts."""
    small = msgspec.structs.replace(plan, code_first_runs=plan.warm_runs, leased_runs=plan.warm_runs)
    await guarded(workload(orchestrator, small))


async def sampled(workload: Workload, place: Place, database: Database, plan: Plan) -> Sample:
    """A sample that was checked."""
    async with orchestrating(database) as orchestrator:
        await warm(workload, orchestrator, plan)
        await place.settle()
        gc.collect()
        sample = await guarded(workload(orchestrator, plan))
    await check(database.store, sample.runs, checked=plan.checked_runs)
    return sample


async def guarded(work: Awaitable[T]) -> T:
    """The result of a sample. If the sample does not end in time, print what its tasks wait for, and raise Broken."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=SAMPLE_SECONDS_MAX)
        if task.done():
            return task.result()
        for waiting in asyncio.all_tasks():
            waiting.print_stack(limit=3, file=sys.stderr)
        raise Broken(f"a sample was still running after {SAMPLE_SECONDS_MAX:g} seconds")
    finally:
        task.cancel()


# ------------------------------------------------------------------------------------------ the figures


async def _against_floor(workload: Workload, place: Place, plan: Plan, say: Callable[[str], None]) -> Pairs:
    while True:
        say("floor")
        async with place.floor() as floor:
            await floor.batches(max(1, plan.floor_batches // 10), plan.floor_rows)
            await place.settle()
            gc.collect()
            bare = await floor.batches(plan.floor_batches, plan.floor_rows)
        say("Tenure")
        async with place.database() as database:
            sample = await sampled(workload, place, database, plan)
        yield [(bare, sample.rate)]


async def _lone_run(place: Place, plan: Plan, say: Callable[[str], None]) -> Pairs:
    """Milliseconds. Seven bare commits and one run take turns, because a shared disk may be twenty times slower from one second to the
    next."""
    async with (
        place.floor() as floor,
        place.database() as database,
        orchestrating(database) as orchestrator,
    ):
        await floor.commits(plan.warm_runs)
        await workloads.lone(orchestrator, plan.warm_runs)
        while True:
            say("seven bare commits and one run alone, by turns")
            await place.settle()
            gc.collect()
            bare: list[float] = []
            seconds: list[float] = []
            runs: list[Expected] = []
            for _ in range(plan.lone_runs):
                bare += await floor.commits(1)
                one, made = await workloads.lone(orchestrator, 1)
                seconds += one
                runs += made
            await check(database.store, runs, checked=plan.checked_runs)
            yield [(statistics.median(bare) * 1000, statistics.median(seconds) * 1000)]


async def _long_run(make: Maker, place: Place, plan: Plan, say: Callable[[str], None]) -> Pairs:
    """The first and the last steps of long runs, each compared with the same number of steps in fresh runs."""
    segment = plan.segment_steps

    async def against_fresh(long: LongRuns, where: str) -> tuple[float, float]:
        say("fresh runs")
        fresh = await make(orchestrator, plan, segment)
        await place.settle()
        gc.collect()
        young = await guarded(fresh.segment(segment))
        await check(database.store, await fresh.end(), checked=1)
        say(f"{where} of long runs")
        return young, await guarded(long.segment(segment))

    async with place.database() as database, orchestrating(database) as orchestrator:
        warming = await make(orchestrator, plan, segment)
        await warming.segment(segment)
        await warming.end()
        say(f"making {plan.long_runs} runs of {plan.long_steps:,} steps")
        long = await make(orchestrator, plan, plan.long_steps)
        firsts = [await against_fresh(long, "the beginning") for _ in range(plan.repeat)]
        say(f"bringing {plan.long_runs} runs forward to {plan.long_steps:,} steps")
        await long.forward(plan.long_steps - 2 * segment * plan.repeat)
        for number, first in enumerate(firsts, start=1):
            last = await against_fresh(long, "the end")
            if number == plan.repeat:
                await check(database.store, await long.end(), checked=1)
            yield [first, last]


async def _finished_runs(place: Place, plan: Plan, say: Callable[[str], None]) -> Pairs:
    """A database full of finished runs compared with an empty one, on both paths."""
    async with place.database() as empty, place.database() as full:
        async with orchestrating(full) as orchestrator:
            original = await workloads.code_first_run(orchestrator)
        await finished.fill(
            full, original.run_id, plan.finished, lambda made: say(f"{made:,} finished runs made")
        )
        for database in (empty, full):
            for workload in WORKLOADS.values():
                await sampled(workload, place, database, plan)
        while True:
            pairs = []
            for path, workload in WORKLOADS.items():
                say(f"empty database, {path}")
                without = await sampled(workload, place, empty, plan)
                say(f"{plan.finished:,} finished runs, {path}")
                pairs.append((without.rate, (await sampled(workload, place, full, plan)).rate))
            yield pairs


async def _suspended(place: Place, plan: Plan, say: Callable[[str], None]) -> Pairs:
    """Megabytes and the share of a CPU, compared with what the suspended runs may cost."""
    while True:
        say(f"suspending {plan.suspended:,} runs")
        async with place.address() as address:
            cost = await suspended.measure_in_process(address, plan.suspended)
        yield [(SUSPENDED_MEGABYTES, cost.megabytes), (SUSPENDED_CPU, cost.cpu_share)]


async def _many(
    kind: str, counts: Sequence[int], place: Place, plan: Plan, say: Callable[[str], None]
) -> Pairs:
    """Microseconds for each item of a run that has many, compared with a run that has a tenth of them."""
    del plan  # the counts are all that matters
    while True:
        micros = []
        for count in counts:
            say(f"{count:,} {kind} in one run")
            async with place.address() as address:
                micros.append((await many.measure_in_process(address, kind, count)).micros)
        yield [*pairwise(micros)]


async def _children(place: Place, plan: Plan, say: Callable[[str], None]) -> Pairs:
    """Seconds from the start of a run to its result, compared with what its children may take."""
    while True:
        say(f"{plan.children:,} children started and collected")
        async with place.address() as address:
            cost = await many.measure_in_process(address, "children", plan.children)
        yield [(CHILDREN_SECONDS, cost.seconds)]


LINEAR = Fraction(3, 2)
"""The most by which the cost of an item may grow with ten times as many items."""
CHILDREN_SECONDS = 20.0
SUSPENDED_MEGABYTES = 200.0
SUSPENDED_CPU = 0.02
"""A smaller share cannot be distinguished from zero."""
BARS = {
    ("code_first", "postgres"): Fraction(1, 6),
    ("code_first", "sqlite"): Fraction(1, 12),
    ("leased", "postgres"): Fraction(1, 16),
    ("leased", "sqlite"): Fraction(1, 30),
}
LONG: dict[str, Maker] = {
    "checkpoints": CheckpointRuns.create,
    "chain": LeasedRuns.chains,
    "fan": LeasedRuns.fans,
}


def all_series(plan: Plan) -> list[Series]:
    """The series of a plan, in order."""
    series: list[Series] = []

    def add(measure: Measure, *figures: Figure) -> None:
        series.append(Series(list(figures), measure))

    floor = f"bare batches of {plan.floor_rows} rows per commit"
    for path, workload in WORKLOADS.items():
        for store in STORES:
            name, bar = f"{path}_steps_{store}", BARS[path, store]
            add(partial(_against_floor, workload), Figure(name, store, THROUGHPUT, bar, False, floor))
    for store in STORES:
        name, against = f"lone_run_latency_{store}", "seven bare single-row commits"
        add(_lone_run, Figure(name, store, "ms p50", LATENCY, True, against))
    for shape, make in LONG.items():
        for store in STORES:
            names = [f"flat_long_run_{shape}_{part}_{store}" for part in ("start", "end")]
            against = "the same in fresh runs"
            add(
                partial(_long_run, make),
                *(Figure(name, store, THROUGHPUT, FLAT, False, against) for name in names),
            )
    for store in STORES:
        add(
            _suspended,
            Figure(f"suspended_memory_{store}", store, "MB", Fraction(1), True, "what they may take"),
            Figure(f"suspended_load_{store}", store, "cpus", Fraction(1), True, "what they may take"),
        )
    for kind in many.KINDS:
        for store in STORES:
            add(
                partial(_many, kind, plan.many),
                *(
                    Figure(
                        f"many_{kind}_{count}_{store}", store, "µs each", LINEAR, True, f"{fewer:,} in a run"
                    )
                    for fewer, count in pairwise(plan.many)
                ),
            )
    for store in STORES:
        name = f"children_{plan.children}_{store}"
        add(_children, Figure(name, store, "s", Fraction(1), True, "what they may take"))
    steps = (plan.replayed_steps // 10, plan.replayed_steps)
    for store in STORES:
        name = f"replay_{plan.replayed_steps}_{store}"
        figure = Figure(name, store, "µs each", LINEAR, True, f"a run of {steps[0]:,}")
        add(partial(_many, many.REPLAY, steps), figure)
    for store in STORES if plan.finished else ():
        names = [f"flat_finished_runs_{path}_{store}" for path in WORKLOADS]
        against = "the same in an empty database"
        bar = HALF_A_MILLION if plan.finished <= 500_000 else FLAT
        add(_finished_runs, *(Figure(name, store, THROUGHPUT, bar, False, against) for name in names))
    return series
