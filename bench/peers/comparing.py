"""Compares Tenure with the peers, by turns on the same machine in the same run."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import msgspec

from bench.checking import Broken
from bench.peers.bars import COMPARISONS, Comparison, Value, compare
from bench.peers.environments import NotMeasured
from bench.peers.known import System, chosen, tenure_for
from bench.peers.measuring import LONE_RUNS_PER_TURN, Taken, filled, lone_turn, sampled
from bench.peers.session import Server, Session, running
from bench.places import Place, PostgresPlace
from bench.plan import Plan
from bench.report import Result, rounded

ROUNDS_MAX = 3
SAMPLE_SECONDS = 4.0
QUICK_SECONDS = 0.2
CHOOSING_SECONDS, CHOOSING_ROUNDS = 2.0, 2
TURNS, QUICK_TURNS = 30, 2
RATES = ("throughput", "jobs", "single_enqueues", "batch_enqueues")
"""The figures that are measured for each system alone. `lone` is measured by turns."""
Say = Callable[[str], None]


class Figures(msgspec.Struct):
    """A figure of one system over all rounds."""

    value: float
    unit: str
    cpu_seconds_per_1000: float | None
    """User and system time of all its processes, including its share of PostgreSQL's."""
    bytes_per_1000: float | None
    """Bytes written to PostgreSQL's log, or, by a system without PostgreSQL, to storage."""
    samples: list[float]


class Report(msgspec.Struct):
    """The results of one system."""

    system: str
    title: str
    settings: dict[str, str]
    figures: dict[str, Figures]
    not_measured: str = ""


class Outcome(msgspec.Struct):
    results: list[Result]
    systems: list[Report]


class Asked(msgspec.Struct, frozen=True):
    """The requested comparisons and their systems."""

    comparisons: list[Comparison]
    peers: list[System]
    ours: list[System]
    narrowed: bool
    """Whether only the figures of the comparisons are measured, instead of all figures of a peer."""

    @property
    def stores(self) -> set[str]:
        """The names of the needed places."""
        return {system.store for system in (*self.peers, *self.ours)} - {"own"}


def name_matches(name: str, only: str) -> bool:
    """Whether a name matches a glob, or contains a text without wildcards."""
    return fnmatchcase(name, only if any(sign in only for sign in "*?[") else f"*{only}*")


def asked_for(peers: str, only: str = "") -> Asked:
    """The comparisons of `--peers` and `--only`. With `--only`, peers without a comparison are left out."""
    systems = chosen(peers)
    names = {system.name for system in systems}
    kept = [one for one in COMPARISONS if names & set(one.peers) and name_matches(one.name, only)]
    if only:
        needed = {peer for one in kept for peer in one.peers}
        systems = [system for system in systems if system.name in needed]
    used = {one.ours for one in kept}
    return Asked(kept, systems, [system for system in tenure_for(systems) if system.name in used], bool(only))


class _Run:
    """The state of a comparison."""

    def __init__(self, asked: Asked, server: Server | None, plan: Plan, say: Say, *, quick: bool) -> None:
        self.asked = asked
        self.taken: dict[str, dict[str, list[Taken]]] = {}
        """System -> figure -> a sample for each round or turn."""
        self.settings: dict[str, dict[str, str]] = {}
        self.reasons: dict[str, str] = {}
        self._best: dict[str, dict[str, str]] = {}
        self._server = server
        self._say = say
        self._rounds = min(plan.repeat, ROUNDS_MAX)
        self._seconds = QUICK_SECONDS if quick else SAMPLE_SECONDS
        self._turns = QUICK_TURNS if quick else TURNS

    def _left(self) -> list[System]:
        return [one for one in (*self.asked.ours, *self.asked.peers) if one.name not in self.reasons]

    def _wanted(self, system: System, figure: str) -> bool:
        """Whether a figure is measured: all figures of a peer, unless narrowed, and those of Tenure that are compared."""
        if not system.ours and not self.asked.narrowed:
            return True
        return any(
            (system.name == one.ours and figure == one.figure)
            or (system.name in one.peers and figure == (one.theirs or one.figure))
            for one in self.asked.comparisons
        )

    def _keep(self, system: System, figure: str, one: Taken) -> None:
        self.taken.setdefault(system.name, {}).setdefault(figure, []).append(one)

    @contextmanager
    def _reporting(self, system: System) -> Iterator[None]:
        try:
            yield
        except NotMeasured as reason:
            if system.ours:
                raise Broken(f"{system.title}: {reason}") from reason
            self.reasons[system.name] = str(reason)
            self.taken.pop(system.name, None)
            self._say(f"{system.title}: not measured: {reason}")

    def _running(self, system: System) -> AbstractAsyncContextManager[Session]:
        best = self._best.get(system.name, system.candidates[0])
        return running(system, self._server, Path(tempfile.gettempdir()), best)

    async def choose(self) -> None:
        """Find the best candidate of each system's settings on this machine."""
        for system in self._left():
            if len(system.candidates) == 1 or not self._wanted(system, "throughput"):
                continue
            rates = [0.0] * len(system.candidates)
            with self._reporting(system):
                for _ in range(CHOOSING_ROUNDS):
                    for number, candidate in enumerate(system.candidates):
                        self._best[system.name] = candidate
                        async with self._running(system) as session:
                            sample = await filled(session, "throughput", system.warm, CHOOSING_SECONDS)
                        rates[number] = max(rates[number], sample.rate)
                self._best[system.name] = system.candidates[rates.index(max(rates))]
                tried = ", ".join(
                    f"{_said(one)}: {rate:,.0f}" for one, rate in zip(system.candidates, rates, strict=True)
                )
                self._say(f"{system.title}: {tried} {system.unit}/s")

    async def many(self) -> None:
        """Measure throughput: each system alone on the machine, round after round."""
        for number in range(1, self._rounds + 1):
            for system in self._left():
                if not (wanted := {figure for figure in RATES if self._wanted(system, figure)}):
                    continue
                with self._reporting(system):
                    async with self._running(system) as session:
                        self.settings[system.name] = session.settings
                        found = await sampled(system, session, self._seconds, wanted)
                    for name, one in found.items():
                        self._keep(system, name, one)
                        self._say(
                            f"{system.title} {name} {number}/{self._rounds}: {one.value:,.4g} {one.unit}"
                        )

    async def alone(self) -> None:
        """Measure latency: all systems are started and idle, and do a few runs each by turns."""
        async with AsyncExitStack() as stack:
            sessions: list[tuple[System, Session]] = []
            for system in self._left():
                if system.unit == "steps" and self._wanted(system, "lone"):
                    with self._reporting(system):
                        session = await stack.enter_async_context(self._running(system))
                        self.settings[system.name] = session.settings
                        await lone_turn(session, LONE_RUNS_PER_TURN)
                        sessions.append((system, session))
            for _ in range(self._turns):
                for system, session in sessions:
                    if system.name in self.reasons:
                        continue
                    with self._reporting(system):
                        one = await lone_turn(session, LONE_RUNS_PER_TURN)
                        if one is not None:
                            self._keep(system, "lone", one)
        for system, _ in sessions:
            if turns := self.taken.get(system.name, {}).get("lone"):
                p50 = statistics.median(one.value for one in turns)
                self._say(f"{system.title} lone: {p50:,.4g} ms p50 of {len(turns)} turns")


async def compare_all(
    asked: Asked, places: Mapping[str, Place], plan: Plan, say: Say, *, quick: bool
) -> Outcome:
    """Measure everything that was requested. A peer that cannot be measured is reported with the reason."""
    run = _Run(asked, _server(places), plan, say, quick=quick)
    if not quick:
        await run.choose()
    await run.many()
    if any(one.figure == "lone" for one in asked.comparisons):
        await run.alone()
    reports = [
        _report(
            one, run.settings.get(one.name, {}), run.taken.get(one.name, {}), run.reasons.get(one.name, "")
        )
        for one in (*asked.ours, *asked.peers)
    ]
    titles = {report.system: report.title for report in reports}
    results = [result for one in asked.comparisons if (result := _result(one, run.taken, titles)) is not None]
    return Outcome(results, reports)


def _said(setting: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in setting.items())


def _server(places: Mapping[str, Place]) -> Server | None:
    place = places.get("postgres")
    return cast("PostgresPlace", place).server if place is not None else None


def _values(taken: Mapping[str, Mapping[str, list[Taken]]], system: str, figure: str) -> list[Value]:
    return [Value(one.value, one.unit) for one in taken.get(system, {}).get(figure, ())]


def _result(
    what: Comparison, taken: Mapping[str, Mapping[str, list[Taken]]], titles: Mapping[str, str]
) -> Result | None:
    """The comparison with the best of the measured peers; None if no peer was measured."""
    ours = _values(taken, what.ours, what.figure)
    theirs = {peer: _values(taken, peer, what.theirs or what.figure) for peer in what.peers}
    medians = {
        peer: statistics.median(one.value for one in values) for peer, values in theirs.items() if values
    }
    if not medians or not ours:
        return None
    best = (min if what.at_most else max)(medians, key=lambda peer: medians[peer])
    return compare(what.name, ours, theirs[best], titles[best])


def _report(
    system: System, settings: dict[str, str], taken: Mapping[str, list[Taken]], not_measured: str
) -> Report:
    figures = {
        name: Figures(
            statistics.median(one.value for one in samples),
            samples[0].unit,
            _mean([one.sample.cpu_per_thousand for one in samples]),
            _mean([one.sample.log_per_thousand for one in samples]),
            [one.value for one in samples],
        )
        for name, samples in taken.items()
    }
    return Report(system.name, system.title, settings, figures, not_measured)


def _mean(values: list[float | None]) -> float | None:
    """The mean over all samples, because the kernel counts CPU time in hundredths of a second, too coarse for a short sample."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


# ------------------------------------------------------------------------------------------ the report


def lines(reports: list[Report]) -> list[dict[str, Any]]:
    """An object for each figure of a system, or with the reason why the system was not measured."""
    made: list[dict[str, Any]] = []
    for report in reports:
        if report.not_measured:
            made.append({"system": report.system, "not measured": report.not_measured})
        for name, one in report.figures.items():
            made.append(
                {
                    "system": report.system,
                    "measured": name,
                    "value": round(one.value, 2),
                    "unit": one.unit,
                    "cpu_seconds_per_1000": _short(one.cpu_seconds_per_1000),
                    "bytes_per_1000": _short(one.bytes_per_1000),
                }
            )
    return made


def _short(number: float | None) -> float | None:
    return None if number is None else rounded(number)


def settings_of(reports: list[Report]) -> dict[str, str]:
    """The rows of the systems in the table of versions and settings."""
    return {
        report.title: f"not measured: {report.not_measured}"
        if report.not_measured
        else "; ".join(
            f"{name} {value}" if name != "settings" else value for name, value in report.settings.items()
        )
        for report in reports
    }
