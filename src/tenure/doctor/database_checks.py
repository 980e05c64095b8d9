"""Checks over all runs of a database: I31 to I33, I35, I37, I39, I46, I51, I53, and rows that belong to no run (I50)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from tenure.doctor.invariants import Finding, Violation
from tenure.kernel.run_rows import Cap

RATE_WINDOW_US = 60_000_000


class LeaseCount(msgspec.Struct, frozen=True):
    """Live leases of one workflow of a tenant."""

    tenant: str
    workflow: str
    leases: int


class RatedStart(msgspec.Struct, frozen=True, order=True):
    """A run that counts against max_runs_per_min, by when it began."""

    admitted_at: int
    run_id: int
    tenant: str
    workflow: str


class WriteCount(msgspec.Struct, frozen=True):
    """A run that has made writes."""

    run_id: int
    tenant: str
    workflow: str
    writes: int


class DatabaseSummary(msgspec.Struct, kw_only=True):
    """What the checks over all runs look at."""

    caps: Sequence[Cap] = ()
    usage: Sequence[LeaseCount] = ()
    starts: Sequence[RatedStart] = ()
    same_key: Sequence[tuple[int, str]] = ()
    """Runs that share their idempotency key with another run, with the key."""
    other_request: Sequence[tuple[int, str]] = ()
    """Runs whose key is on record for another request, with the key."""
    other_answer: Sequence[tuple[int, str]] = ()
    """Runs whose key is answered with another run, with the key."""
    same_slot: Sequence[tuple[int, str]] = ()
    """Runs that share their schedule's slot with another run, with the slot."""
    wrote: Sequence[WriteCount] = ()
    """Runs that have made writes."""
    same_act: Sequence[tuple[int, str]] = ()
    """Runs with a receipt whose key another run's receipt holds too, with the key."""
    key_holders_twice: Sequence[int] = ()
    """Runs that hold the same concurrency key at the same time."""
    orphans: Sequence[int] = ()
    """Run ids in rows for which there is no run."""
    lost_specs: Sequence[int] = ()
    """Runs without a spec, or with another tenant's."""
    untold: Sequence[tuple[int, int]] = ()
    """Events that have changed a run's status and are not in the feed: (run, sequence)."""
    unfounded: Sequence[tuple[int, int]] = ()
    """Lines of the feed without their event, likewise."""
    broken_chains: Sequence[tuple[str, int]] = ()
    """Admin chains that do not recompute: (tenant, line)."""
    broken_ledgers: Sequence[tuple[str, str, str]] = ()
    """What is wrong with ledgers: (tenant, place, what)."""
    bare_secrets: Sequence[tuple[str, str]] = ()
    """Hooks and webhooks whose secret is not a reference: (tenant, which)."""


DatabaseCheck = tuple[str, Callable[[DatabaseSummary], Iterator[Finding]]]


def check_database(view: DatabaseSummary) -> list[Violation]:
    """Every violation that all runs together show."""
    return [
        Violation(number, problem, _id(row), row)
        for number, check in DATABASE_CHECKS
        for row, problem in check(view)
    ]


def _id(row: str) -> int:
    kind, _, number = row.partition(" ")
    return int(number) if kind == "run" else 0


def leases_within_caps(view: DatabaseSummary) -> Iterator[Finding]:
    """I46: live leases of a tenant and of a workflow are within max_concurrency."""
    by_tenant: dict[str, int] = {}
    by_workflow: dict[tuple[str, str], int] = {}
    for row in view.usage:
        by_tenant[row.tenant] = by_tenant.get(row.tenant, 0) + row.leases
        by_workflow[row.tenant, row.workflow] = row.leases
    for cap in view.caps:
        if cap.max_concurrency is None:
            continue
        if cap.scope == "":
            used = by_tenant.get(cap.tenant, 0)
        elif cap.scope.startswith("wf:"):
            used = by_workflow.get((cap.tenant, cap.scope[3:]), 0)
        else:
            continue
        if used > cap.max_concurrency:
            yield (
                f"cap {cap.tenant}/{cap.scope}",
                f"{used} live leases; max_concurrency is {cap.max_concurrency} (unless it was lowered just now)",
            )


def starts_within_rates(view: DatabaseSummary) -> Iterator[Finding]:
    """I46: in no 60 seconds did more rated runs begin than max_runs_per_min."""
    for cap in view.caps:
        most = cap.max_runs_per_min
        if most is None:
            continue
        if cap.scope == "":
            starts = sorted(s for s in view.starts if s.tenant == cap.tenant)
        elif cap.scope.startswith("wf:"):
            starts = sorted(s for s in view.starts if s.tenant == cap.tenant and s.workflow == cap.scope[3:])
        else:
            continue
        for first, over in zip(starts, starts[most:], strict=False):
            if over.admitted_at - first.admitted_at < RATE_WINDOW_US:
                yield (
                    f"run {over.run_id}",
                    f"is one more than {most} runs of {cap.tenant}/{cap.scope} within a minute",
                )


def writes_within_caps(view: DatabaseSummary) -> Iterator[Finding]:
    """I46: no run has made more writes than its tenant's and its workflow's max_writes_per_run."""
    for cap in view.caps:
        most = cap.max_writes_per_run
        if most is None or cap.scope.startswith("ws:"):
            continue
        for run in view.wrote:
            if run.tenant == cap.tenant and cap.scope in ("", f"wf:{run.workflow}") and run.writes > most:
                yield (
                    f"run {run.run_id}",
                    f"has made {run.writes} writes; max_writes_per_run is {most} (unless it was lowered since)",
                )


def _report(number: str, listed: str, subject: str, problem: str) -> DatabaseCheck:
    """A check that reports each entry of a list of the summary; `{0}`, `{1}` … are the entry's values."""

    def check(view: DatabaseSummary) -> Iterator[Finding]:
        for entry in getattr(view, listed):
            values = entry if isinstance(entry, tuple) else (entry,)
            row = f"{subject} {values[0]}" if values[0] else f"{subject} of the installation"
            yield row, problem.format(*values)

    return number, check


DATABASE_CHECKS: tuple[DatabaseCheck, ...] = (
    _report("I31", "same_key", "run", "shares the idempotency key {1!r} with another run"),
    _report(
        "I32", "other_request", "run", "was made by a request other than the recorded one of its key {1!r}"
    ),
    _report("I33", "other_answer", "run", "is not the run that its key {1!r} is answered with"),
    _report("I35", "same_slot", "run", "was started for the slot {1!r}, as was another run"),
    _report("I37", "same_act", "run", "holds the action key {1!r}, as does another run"),
    _report("I39", "untold", "run", "its event {1} has changed its status and is not in the feed"),
    _report("I39", "unfounded", "run", "the feed has its event {1}, which does not exist"),
    ("I46", leases_within_caps),
    ("I46", starts_within_rates),
    _report("I46", "key_holders_twice", "run", "holds a concurrency key that another open run holds too"),
    ("I46", writes_within_caps),
    _report("I50", "orphans", "run", "rows name it, but there is no such run"),
    _report("I50", "lost_specs", "run", "has no run_spec row, or one of another tenant"),
    _report("I51", "broken_chains", "tenant", "its admin chain does not recompute at line {1}"),
    _report("I51", "broken_ledgers", "tenant", "{1}: {2}"),
    _report(
        "I53",
        "bare_secrets",
        "tenant",
        "has a {1} whose secret is not a reference: it may be the secret itself",
    ),
)
"""By the number of their invariant; I50 and I51 are also checks of each run."""
