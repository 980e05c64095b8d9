"""`tenure simulate`: search for violations of the invariants in simulated worlds made from seeds."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tenure.cli.common.console import err, out, print_json
from tenure.cli.common.options import AsJson

SEEDS = 1000


app = typer.Typer()


@app.command()
def simulate(
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds to run.  \\[default: 1000]")
    ] = None,
    start: Annotated[int | None, typer.Option(min=0, help="The first seed.  \\[default: 0]")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Run only this seed.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Processes to use.  \\[default: one for each core]", show_default=False),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --seed: print everything that happens.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the real kernel, orchestrator and SQLite store in simulated worlds full of faults.

    Each seed is a different world: processes crash before and after their commits; messages are lost, repeated and late; workers
    hang; clocks are wrong. The invariants are checked after every commit, and once the faults stop, everything must recover. A
    failing seed prints the command that reproduces it.
    """
    if seed is not None and not (seeds is start is jobs is None):
        raise typer.BadParameter(
            "leave out --seeds, --start and --jobs: they are for several seeds", param_hint="--seed"
        )
    if seed is not None:
        _one(seed, trace=trace, as_json=as_json)
    elif trace:
        raise typer.BadParameter("a trace shows one seed: add --seed", param_hint="--trace")
    else:
        first = start or 0
        _many(range(first, first + (seeds or SEEDS)), jobs or os.cpu_count() or 1, as_json=as_json)


def _one(seed: int, *, trace: bool, as_json: bool) -> None:
    from tenure.simulate import simulate as run

    began = time.perf_counter()
    report = run(seed, trace=trace)
    took = time.perf_counter() - began
    if as_json:
        print_json(report)
    else:
        for line in report.trace:
            print(line)
        print(f"trace digest: {report.digest}")
        _summary(1, report.runs, report.commands, report.commits, report.seconds, took)
        if report.violation is not None:
            _show_failure(seed, report.violation)
    if report.violation is not None:
        raise typer.Exit(1)


def _many(seeds: range, jobs: int, *, as_json: bool) -> None:
    from tenure.simulate.campaign import run_seeds
    from tenure.simulate.world import SeedReport

    began = time.perf_counter()
    columns = (
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[bad]}"),
    )
    bad = 0
    with Progress(*columns, console=err(), transient=True) as progress:
        task = progress.add_task("seeds", total=len(seeds), bad="")

        def seen(report: SeedReport) -> None:
            nonlocal bad
            bad += report.violation is not None
            progress.update(task, advance=1, bad=f"[red]{bad} failed[/]" if bad else "")

        tally = run_seeds(seeds, jobs=jobs, seen=seen)
    took = time.perf_counter() - began
    if as_json:
        print_json(tally)
    else:
        _summary(tally.seeds, tally.runs, tally.commands, tally.commits, tally.seconds, took)
        for report in tally.failed:
            _show_failure(report.seed, report.violation or "")
    if tally.failed:
        raise typer.Exit(1)


def _summary(seeds: int, runs: int, commands: int, commits: int, seconds: float, took: float) -> None:
    out().print(
        f"seeds {seeds}  runs {runs}  steps {commands}  commits {commits}"
        f"  simulated hours {seconds / 3600:.1f}  wall {took:.1f} s"
    )


def _show_failure(seed: int, violation: str) -> None:
    from tenure.simulate.campaign import reproduction_command

    out().print(f"[red]FAILED[/]  {reproduction_command(seed)}  # {escape(violation)}", soft_wrap=True)
