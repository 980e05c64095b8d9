"""Checks over all runs of a database: I31 to I33, I35, I37, I39, I46, I51, I53, and rows that belong to no run (I50)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from tenure.doctor.invariants import Finding, Violation
from tenure.kernel.run_rows import Cap

RATE_WINDOW_US = 60_000_000


class LeaseCount(msgspec.Struct, frozen=True):
    """The number of a workflow's live leases."""

    tenant: str
    workflow: str
    leases: int


class RatedStart(msgspec.Struct, frozen=True, order=True):
    """A run that counts against max_runs_per_min."""

    admitted_at: int
    run_id: int
    tenant: str
    workflow: str


class WriteCount(msgspec.Struct, frozen=True):
    """The number of a run's writes."""

    run_id: int
    tenant: str
    workflow: str
    writes: int


class DatabaseSummary(msgspec.Struct, kw_only=True):
    """The input of the checks over all runs."""

    caps: Sequence[Cap] = ()
    usage: Sequence[LeaseCount] = ()
    starts: Sequence[RatedStart] = ()
    same_key: Sequence[tuple[int, str]] = ()
    """Runs that share their idempotency key with another run, with the key."""
    other_request: Sequence[tuple[int, str]] = ()
    """Runs whose key is recorded for another request, with the key."""
    other_answer: Sequence[tuple[int, str]] = ()
    """Runs whose key is recorded with another run, with the key."""
    same_slot: Sequence[tuple[int, str]] = ()
    """Runs that share their schedule's slot with another run, with the slot."""
    wrote: Sequence[WriteCount] = ()
    """Runs that have made writes."""
    same_act: Sequence[tuple[int, str]] = ()
    """Runs with a receipt whose key a receipt of another run holds, with the key."""
    key_holders_twice: Sequence[int] = ()
    """Runs that hold the same concurrency key at the same time."""
    orphans: Sequence[int] = ()
    """Run ids of rows without a run."""
    lost_specs: Sequence[int] = ()
    """Runs without a spec, or with a spec of another tenant."""
    not_in_feed: Sequence[tuple[int, int]] = ()
    """Events that changed a run's status and are not in the feed: (run, sequence)."""
    feed_without_event: Sequence[tuple[int, int]] = ()
    """Feed lines without an event: (run, sequence)."""
    broken_chains: Sequence[tuple[str, int]] = ()
    """Admin chains that do not recompute: (tenant, line)."""
    broken_ledgers: Sequence[tuple[str, str, str]] = ()
    """Flaws of ledgers: (tenant, place, flaw)."""
    inline_secrets: Sequence[tuple[str, str]] = ()
    """Hooks and webhooks whose secret is not a reference: (tenant, which)."""


DatabaseCheck = tuple[str, Callable[[DatabaseSummary], Iterator[Finding]]]


def check_database(view: DatabaseSummary) -> list[Violation]:
    """Every violation that all runs together show."""
    return [
        Violation(number, problem, int(row[4:]) if row.startswith("run ") else 0, row)
        for number, check in DATABASE_CHECKS
        for row, problem in check(view)
    ]


C = TypeVar("C", LeaseCount, RatedStart, WriteCount)


def _within(cap: Cap, counted: Sequence[C]) -> list[C]:
    """The entries that count against a cap of a tenant or of a workflow. The checks do not cover caps of workspaces."""
    return [
        entry for entry in counted if entry.tenant == cap.tenant and cap.scope in ("", f"wf:{entry.workflow}")
    ]


def leases_within_caps(view: DatabaseSummary) -> Iterator[Finding]:
    """I46: the live leases of a tenant and of a workflow are within max_concurrency."""
    for cap in view.caps:
        if cap.max_concurrency is None:
            continue
        used = sum(count.leases for count in _within(cap, view.usage))
        if used > cap.max_concurrency:
            yield (
                f"cap {cap.tenant}/{cap.scope}",
                f"{used} live leases; max_concurrency is {cap.max_concurrency} (unless it was lowered just now)",
            )


def starts_within_rates(view: DatabaseSummary) -> Iterator[Finding]:
    """I46: no more rated runs began within 60 seconds than max_runs_per_min."""
    for cap in view.caps:
        if (most := cap.max_runs_per_min) is None:
            continue
        starts = sorted(_within(cap, view.starts))
        for first, over in zip(starts, starts[most:], strict=False):
            if over.admitted_at - first.admitted_at < RATE_WINDOW_US:
                yield (
                    f"run {over.run_id}",
                    f"is one more than {most} runs of {cap.tenant}/{cap.scope} within a minute",
                )


def writes_within_caps(view: DatabaseSummary) -> Iterator[Finding]:
    """I46: no run made more writes than the max_writes_per_run of its tenant and of its workflow."""
    for cap in view.caps:
        if (most := cap.max_writes_per_run) is None:
            continue
        for run in _within(cap, view.wrote):
            if run.writes > most:
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
    _report("I33", "other_answer", "run", "is not the run that is recorded for its key {1!r}"),
    _report("I35", "same_slot", "run", "was started for the slot {1!r}, as was another run"),
    _report("I37", "same_act", "run", "holds the action key {1!r}, as does another run"),
    _report("I39", "not_in_feed", "run", "its event {1} changed its status and is not in the feed"),
    _report("I39", "feed_without_event", "run", "the feed has its event {1}, which does not exist"),
    ("I46", leases_within_caps),
    ("I46", starts_within_rates),
    _report("I46", "key_holders_twice", "run", "holds a concurrency key that another open run also holds"),
    ("I46", writes_within_caps),
    _report("I50", "orphans", "run", "rows name it, but it does not exist"),
    _report("I50", "lost_specs", "run", "has no run_spec row, or one of another tenant"),
    _report("I51", "broken_chains", "tenant", "its admin chain does not recompute at line {1}"),
    _report("I51", "broken_ledgers", "tenant", "{1}: {2}"),
    _report(
        "I53",
        "inline_secrets",
        "tenant",
        "has a {1} whose secret is not a reference: it may be the secret itself",
    ),
)
"""(invariant, check), by number. I50 and I51 also have checks of each run."""
