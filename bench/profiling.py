"""`--profile`: where the time of a command goes on each path and store, and cProfile's view of the code-first path.

Each workload runs three times: plain, for the true rate and CPU time; under the stopwatch, which divides that time into
stages and costs some itself; and under cProfile, which names functions and inflates their times.
"""

from __future__ import annotations

import cProfile
import gc
import io
import pstats

import msgspec
from rich.console import Console
from rich.table import Table

from bench import workloads
from bench.checking import check
from bench.figures import WORKLOADS, Workload, orchestrating, warm
from bench.places import Place, PostgresPlace
from bench.plan import Plan
from bench.report import PIPE_WIDTH
from bench.stopwatch import Stopwatch, UsedSeconds, stopwatch
from bench.workloads import STEPS, Sample
from tenure.orchestrator import Orchestrator

TOP = 30


async def _lone(orchestrator: Orchestrator, plan: Plan) -> Sample:
    seconds, runs = await workloads.lone(orchestrator, plan.lone_runs)
    return Sample(len(runs) * workloads.STEPS, sum(seconds), runs)


PATHS: dict[str, Workload] = {**WORKLOADS, "lone_run": _lone}


class Measured(msgspec.Struct):
    """A sample and what it used."""

    sample: Sample
    usage: UsedSeconds
    batches: int
    stages: dict[str, tuple[float, int]]

    @property
    def commands(self) -> int:
        """All commands, including claims, which no commit lane handles."""
        return sum(run.events for run in self.sample.runs)

    def each(self, seconds: float) -> float:
        """Microseconds per command."""
        return seconds / self.commands * 1e6


async def show_profiles(places: dict[str, Place], plan: Plan) -> None:
    console = Console(highlight=False, width=PIPE_WIDTH)
    for place in places.values():
        for path, workload in PATHS.items():
            plain = await _measure(place, workload, plan)
            with stopwatch() as (watch, missing):
                timed = await _measure(place, workload, plan, watch=watch)
            console.print(_stages(f"{path} on {place.name}", plain, timed))
            if missing:
                console.print(f"Not timed, because they do not exist: {', '.join(missing)}")
        profiler = cProfile.Profile()
        profiled = await _measure(place, WORKLOADS["code_first"], plan, profiler=profiler)
        console.print(
            f"\ncode_first on {place.name} under cProfile: {profiled.sample.rate:,.0f} steps/s,"
            f" {profiled.commands:,} commands, top {TOP} by own time"
        )
        text = io.StringIO()
        pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(TOP)
        print(text.getvalue())


async def _measure(
    place: Place,
    workload: Workload,
    plan: Plan,
    *,
    watch: Stopwatch | None = None,
    profiler: cProfile.Profile | None = None,
) -> Measured:
    folder = place.folder if isinstance(place, PostgresPlace) else None
    async with place.database() as database:
        async with orchestrating(database) as orchestrator:
            await warm(workload, orchestrator, plan)
            await place.settle()
            gc.collect()
            if watch is not None:
                watch.reset()
            batches = orchestrator.batches
            before = UsedSeconds.now(folder)
            if profiler is not None:
                profiler.enable()
            sample = await workload(orchestrator, plan)
            if profiler is not None:
                profiler.disable()
            usage = UsedSeconds.now(folder).since(before)
            batches = orchestrator.batches - batches
            stages = watch.taken() if watch is not None else {}
        await check(database.store, sample.runs, checked=plan.checked_runs)
    return Measured(sample, usage, batches, stages)


def _stages(title: str, plain: Measured, timed: Measured) -> Table:
    table = Table(
        title=f"{title}: µs per command ({plain.commands // (plain.sample.steps // STEPS)} commands per run)",
        title_justify="left",
    )
    table.add_column("stage")
    table.add_column("µs", justify="right")
    table.add_column("calls per command", justify="right")
    spent = 0.0
    for stage, (seconds, calls) in timed.stages.items():
        spent += seconds
        table.add_row(stage, f"{timed.each(seconds):.1f}", f"{calls / timed.commands:.2f}")
    used, wall = timed.usage.thread, timed.usage.wall
    table.add_row("asyncio, driver's callbacks, the rest", f"{timed.each(used - spent):.1f}", "")
    table.add_row("waiting (database, disk, other processes)", f"{timed.each(wall - used):.1f}", "")
    table.add_section()
    for name, one in (("under the stopwatch", timed), ("plain", plain)):
        usage = one.usage
        table.add_row(
            f"{name}: {one.sample.rate:,.0f} steps/s, {one.commands / one.batches:.0f} commands per lane's batch",
            f"{one.each(usage.wall):.1f}",
            f"loop {one.each(usage.thread):.1f}, process {one.each(usage.process):.1f},"
            f" server {one.each(usage.server):.1f} µs CPU",
        )
    return table
