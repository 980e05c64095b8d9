"""The comparisons with peers and their bars. `compare` turns the figures of Tenure and a peer into a line of the report."""

from __future__ import annotations

from fractions import Fraction

import msgspec

from bench.figures import Figure
from bench.report import Result, result_of


class Value(msgspec.Struct, frozen=True):
    value: float
    unit: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the report: a figure of Tenure compared with that of the best of some peers."""

    name: str
    ours: str
    """The name of Tenure's system in `known.py`."""
    figure: str
    """The figure of Tenure and, unless `theirs` is given, of the peers."""
    peers: tuple[str, ...]
    theirs: str = ""
    unit: str
    bar: Fraction
    at_most: bool = False


_RUNS = ("dbos-postgres", "dbos-sqlite", "restate", "langgraph", "temporal", "temporal-local")

COMPARISONS = (
    Comparison(
        name="peer_steps_postgres_dbos", ours="tenure-postgres", figure="throughput", peers=("dbos-postgres",),
        unit="steps/s", bar=Fraction(25),
    ),
    Comparison(
        name="peer_steps_postgres_restate", ours="tenure-postgres", figure="throughput", peers=("restate",),
        unit="steps/s", bar=Fraction(5, 2),
    ),
    Comparison(
        name="peer_steps_sqlite_dbos", ours="tenure-sqlite", figure="throughput", peers=("dbos-sqlite",),
        unit="steps/s", bar=Fraction(25),
    ),
    Comparison(
        name="peer_lone_run_postgres", ours="tenure-postgres", figure="lone", peers=_RUNS, unit="ms p50",
        bar=Fraction(1, 2), at_most=True,
    ),
    Comparison(
        name="peer_lone_run_sqlite", ours="tenure-sqlite", figure="lone", peers=_RUNS, unit="ms p50",
        bar=Fraction(1, 2), at_most=True,
    ),
    Comparison(
        name="peer_single_enqueues_pgqueuer", ours="tenure-postgres", figure="single_enqueues", peers=("pgqueuer",),
        unit="enqueues/s", bar=Fraction(7, 10),
    ),
    Comparison(
        name="peer_batch_enqueues_pgqueuer", ours="tenure-postgres", figure="batch_enqueues", peers=("pgqueuer",),
        unit="enqueues/s", bar=Fraction(1, 4),
    ),
    Comparison(
        name="peer_jobs_pgqueuer", ours="tenure-postgres", figure="jobs", theirs="throughput", peers=("pgqueuer",),
        unit="jobs/s", bar=Fraction(1, 2),
    ),
)  # fmt: skip


def compare(name: str, ours: list[Value], theirs: list[Value], peer: str) -> Result:
    """Compare Tenure's samples with a peer's, which were taken by turns."""
    what = next(one for one in COMPARISONS if one.name == name)
    for value in (*ours, *theirs):
        if value.unit != what.unit:
            raise ValueError(f"{name} is in {what.unit}, not in {value.unit}")
        if not value.value > 0:
            raise ValueError(f"{name}: {value.value} {value.unit} was not measured")
    figure = Figure(what.name, what.ours, what.unit, what.bar, what.at_most, peer)
    pairs = [(their.value, our.value) for their, our in zip(theirs, ours, strict=True)]
    return result_of(figure, pairs)
