"""`python -m bench`: measure the figures and print them.

Laws:
1. A missed bar is shown. It is an error only with --strict.
2. Results go to stdout, progress to stderr.
3. An invalid sample ends the program with 2, because no later result could be trusted.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bench.checking import Broken
from bench.figures import Series, all_series
from bench.peers import comparing
from bench.peers.known import UnknownPeer
from bench.places import Place, open_places
from bench.plan import QUICK, Plan
from bench.report import Result, print_json, print_table, result_of, versions, write_json
from tenure.engine.entry_point import COLLECT_AFTER
from tenure.limits import BATCH_COMMANDS_MAX
from tenure.orchestrator import Orchestrator

MILLION = 1_000_000


class Screen:
    """Progress on stderr: a bar on a terminal, otherwise lines."""

    def __init__(self, rounds: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=self._console
        )
        self._task: TaskID = self._progress.add_task("starting", total=rounds)
        self._head = ""

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def begin(self, head: str) -> None:
        """Begin a series, or the next round of it."""
        self._head = head

    def say(self, what: str) -> None:
        """Show what is being done."""
        self._progress.update(self._task, description=f"{self._head}: {what}")

    def round_done(self, text: str) -> None:
        """Show the result of a round."""
        self._progress.advance(self._task)
        self._console.print(text, style="dim", soft_wrap=True)


def chosen(plan: Plan, only: str) -> list[Series]:
    """The series with a figure whose name matches."""
    return [
        one
        for one in all_series(plan)
        if any(comparing.name_matches(figure.name, only) for figure in one.figures)
    ]


async def measure(
    series: list[Series], places: dict[str, Place], plan: Plan, done: Callable[[Result], None]
) -> None:
    with Screen(len(series) * plan.repeat) as screen:
        for one in series:
            names = ", ".join(figure.name for figure in one.figures)
            rounds: list[list[tuple[float, float]]] = []
            screen.begin(f"{names} 1/{plan.repeat}")
            pairs = cast("Any", one.measure(places[one.figures[0].store], plan, screen.say))
            async with aclosing(pairs):
                async for taken in pairs:
                    rounds.append(taken)
                    for figure, (against, value) in zip(one.figures, taken, strict=True):
                        screen.round_done(
                            f"{figure.name} {len(rounds)}/{plan.repeat}: {value:,.4g} {figure.unit}"
                            f" against {against:,.4g}, ratio {value / against:.3f}"
                        )
                    if len(rounds) >= plan.repeat:
                        break
                    screen.begin(f"{names} {len(rounds) + 1}/{plan.repeat}")
            for i, figure in enumerate(one.figures):
                done(result_of(figure, [taken[i] for taken in rounds]))


def peers_asked(peers: str, only: str, *, small: bool) -> comparing.Asked:
    """The peers of `--peers`. By default, the whole bench has the standard peers, and a part of it none."""
    try:
        return comparing.asked_for(peers or ("none" if only or small else "standard"), only)
    except UnknownPeer as unknown:
        raise typer.BadParameter(str(unknown), param_hint="--peers") from unknown


async def settings_of(places: dict[str, Place], plan: Plan, frozen: int) -> dict[str, str]:
    """Everything that is needed to repeat the measurement."""
    found = versions()
    for place in places.values():
        found |= await place.settings()
        async with place.database() as database:
            lanes = len(Orchestrator(database.store)._lanes)
        found[f"{place.name} lanes"] = f"{lanes}, up to {BATCH_COMMANDS_MAX} commands per commit"
    found["in flight"] = (
        f"{plan.code_first_in_flight} runs code-first; leased {plan.leased_in_flight} runs,"
        f" {plan.workers} workers with {plan.slots} slots each"
    )
    found["samples"] = f"median of {plan.repeat}, interleaved with what they are compared with"
    found["gc"] = (
        f"on, collects after {COLLECT_AFTER:,} new objects as in `tenure worker`; {frozen:,} objects of the start-up frozen"
        " (gc.freeze), collected before each sample"
    )
    found["loop"] = "uvloop, one process"
    found["measured"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return found


def load_of(before: float, after: float) -> str:
    """The load average, with a warning if the machine was busy."""
    text = f"{before:.1f} before the bench, {after:.1f} at its end"
    if before > (os.cpu_count() or 1) / 4:
        text += "; THE MACHINE WAS BUSY: do not trust these figures, measure again on a quiet machine"
    return text


def _stop(number: int, frame: object) -> None:
    """Exit with an exception, so that the databases are removed."""
    del frame
    raise SystemExit(128 + number)


def main(
    only: Annotated[
        str, typer.Option(help="Only figures whose name contains this, or matches this glob.")
    ] = "",
    quick: Annotated[
        bool, typer.Option(help="Tiny samples: shows that the bench works, says nothing about speed.")
    ] = False,
    repeat: Annotated[int, typer.Option(help="Samples per figure; the median counts. 0: as planned.")] = 0,
    finished: Annotated[int, typer.Option(help="Also measure with this many finished runs.")] = 0,
    million: Annotated[bool, typer.Option(help="The same as --finished 1000000.")] = False,
    in_flight: Annotated[int, typer.Option(help="Runs in flight on the code-first path. 0: as planned.")] = 0,
    profile: Annotated[
        bool, typer.Option(help="Show where the time goes instead of measuring figures.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Also write the report with every sample to this file.")
    ] = None,
    strict: Annotated[bool, typer.Option(help="End with 1 if a bar is missed.")] = False,
    peers: Annotated[
        str,
        typer.Option(
            help="Also measure other systems: names separated by commas, standard, all or none."
            " By default, the whole bench has the standard ones, and a part of it none."
        ),
    ] = "",
) -> None:
    """Measure Tenure's figures and compare them with the bare database, in the same run.

    Needs no set-up: a private PostgreSQL is started and removed. Takes some minutes. Leave the machine alone
    meanwhile.
    """
    plan = QUICK if quick else Plan()
    plan = msgspec.structs.replace(
        plan,
        repeat=repeat or plan.repeat,
        code_first_in_flight=in_flight or plan.code_first_in_flight,
        finished=MILLION if million else finished,
    )
    series = chosen(plan, only)
    asked = peers_asked(peers, only, small=quick or profile)
    if not series and not asked.comparisons:
        raise typer.BadParameter(f"no figure matches {only!r}", param_hint="--only")
    signal.signal(signal.SIGTERM, _stop)
    load_before = os.getloadavg()[0]  # before the bench adds to it
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])
    frozen = gc.get_freeze_count()
    results: list[Result] = []

    def done(result: Result) -> None:
        results.append(result)
        print_json(result.line)

    outcome = comparing.Outcome([], [])
    with open_places({figure.store for one in series for figure in one.figures} | asked.stores) as places:
        try:
            if profile:
                from bench.profiling import show_profiles

                uvloop.run(show_profiles(places, plan))
                return
            settings = uvloop.run(settings_of(places, plan, frozen))
            uvloop.run(measure(series, places, plan, done))
            say = partial(print, file=sys.stderr)
            outcome = uvloop.run(comparing.compare_all(asked, places, plan, say, quick=quick))
        except Broken as broken:
            print(f"The sample is invalid: {broken}", file=sys.stderr)
            raise typer.Exit(2) from broken
    for line in comparing.lines(outcome.systems):
        print_json(line)
    for result in outcome.results:
        done(result)
    settings |= comparing.settings_of(outcome.systems)
    settings["load"] = load_of(load_before, os.getloadavg()[0])
    print_table(results, settings)
    if json is not None:
        write_json(json, settings=settings, figures=results, systems=outcome.systems)
    if strict and not all(result.line.met for result in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
