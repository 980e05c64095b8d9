"""What only all runs together show: I31, I35, I37, I39, I46, and rows that belong to no run (I50)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from tenure.doctor.table import Finding, Violation
from tenure.kernel.model import Cap

RATE_WINDOW_US = 60_000_000


class Leases(msgspec.Struct, frozen=True):
    """Live leases of one workflow of a tenant."""

    tenant: str
    workflow: str
    leases: int


class Start(msgspec.Struct, frozen=True, order=True):
    """A run that counts against max_runs_per_min, by when it began."""

    admitted_at: int
    run_id: int
    tenant: str
    workflow: str


class Wrote(msgspec.Struct, frozen=True):
    """A run that has written to the world."""

    run_id: int
    tenant: str
    workflow: str
    writes: int


class WholeView(msgspec.Struct, kw_only=True):
    """What the checks over all runs look at."""

    caps: Sequence[Cap] = ()
    usage: Sequence[Leases] = ()
    starts: Sequence[Start] = ()
    same_key: Sequence[tuple[int, str]] = ()
    """Runs whose idempotency key another run has too, with the key."""
    other_request: Sequence[tuple[int, str]] = ()
    """Runs whose key is on record for another request, with the key."""
    other_answer: Sequence[tuple[int, str]] = ()
    """Runs whose key is answered with another run, with the key."""
    same_slot: Sequence[tuple[int, str]] = ()
    """Runs of a schedule's slot that another run was started for too, with the slot."""
    wrote: Sequence[Wrote] = ()
    """Runs that have written to the world."""
    same_act: Sequence[tuple[int, str]] = ()
    """Runs with a receipt that holds a key which another run's holds too, with the key."""
    key_holders_twice: Sequence[int] = ()
    """Runs that share a concurrency key although both have begun."""
    orphans: Sequence[int] = ()
    """Run ids that rows name although there is no such run."""
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
    """Hooks and webhooks that have something else than a reference where a secret is named: (tenant, which)."""


def check_whole(view: WholeView) -> list[Violation]:
    """Every violation that all runs together show."""
    return [
        Violation(number, problem, _id(row), row)
        for number, check in WHOLE_CHECKS
        for row, problem in check(view)
    ]


def _id(row: str) -> int:
    kind, _, number = row.partition(" ")
    return int(number) if kind == "run" else 0


def one_run_per_key(view: WholeView) -> Iterator[Finding]:
    """I31: no two runs of a tenant have the same idempotency key from the same source."""
    for run_id, key in view.same_key:
        yield f"run {run_id}", f"shares the idempotency key {key!r} with another run"


def one_request_per_key(view: WholeView) -> Iterator[Finding]:
    """I32: a run and the record of its key are of the same request."""
    for run_id, key in view.other_request:
        yield f"run {run_id}", f"was made by another request than is on record for its key {key!r}"


def one_answer_per_key(view: WholeView) -> Iterator[Finding]:
    """I33: who repeats a request is answered with the run that it made."""
    for run_id, key in view.other_answer:
        yield f"run {run_id}", f"is not the run that its key {key!r} is answered with"


def one_run_per_slot(view: WholeView) -> Iterator[Finding]:
    """I35: a schedule has started at most one run for a slot."""
    for run_id, slot in view.same_slot:
        yield f"run {run_id}", f"was started for the slot {slot!r}, and so was another run"


def leases_within_caps(view: WholeView) -> Iterator[Finding]:
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


def starts_within_rates(view: WholeView) -> Iterator[Finding]:
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


def writes_within_caps(view: WholeView) -> Iterator[Finding]:
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


def secrets_by_reference(view: WholeView) -> Iterator[Finding]:
    """I53: of a secret that others share with us, its reference is kept. (What is no reference may be one: it is not shown.)"""
    for tenant, which in view.bare_secrets:
        yield f"tenant {tenant}", f"has a {which} whose secret is no reference: it may be the secret itself"


def one_effect_per_key(view: WholeView) -> Iterator[Finding]:
    """I37: no two runs of a tenant have a receipt that holds the same key."""
    for run_id, key in view.same_act:
        yield f"run {run_id}", f"holds the action key {key!r}, and so does another run"


def one_holder_per_key(view: WholeView) -> Iterator[Finding]:
    """I46: one run at a time holds a concurrency key."""
    for run_id in view.key_holders_twice:
        yield f"run {run_id}", "holds a concurrency key that another open run holds too"


def rows_have_their_run(view: WholeView) -> Iterator[Finding]:
    """I50: what lies beneath a run has that run, and every run has its spec."""
    for run_id in view.orphans:
        yield f"run {run_id}", "rows name it, but there is no such run"
    for run_id in view.lost_specs:
        yield f"run {run_id}", "has no run_spec row, or one of another tenant"


def feed_is_committed(view: WholeView) -> Iterator[Finding]:
    """I39: the feed tells what was committed, all of it and nothing else."""
    for run_id, seq in view.untold:
        yield f"run {run_id}", f"its event {seq} has changed its status and is not in the feed"
    for run_id, seq in view.unfounded:
        yield f"run {run_id}", f"the feed tells of its event {seq}, which is not there"


def admin_chains_recompute(view: WholeView) -> Iterator[Finding]:
    """I51: nobody has changed who changed what of people and keys."""
    for tenant, seq in view.broken_chains:
        yield f"tenant {tenant or 'of the installation'}", f"its admin chain does not recompute at line {seq}"


def ledgers_recompute(view: WholeView) -> Iterator[Finding]:
    """I51: the trees recompute, and what was sealed is what is there: of runs length and head when they ended, of admin
    chains up to their line."""
    for tenant, place, problem in view.broken_ledgers:
        yield f"tenant {tenant or 'of the installation'}", f"{place}: {problem}"


WHOLE_CHECKS: tuple[tuple[str, Callable[[WholeView], Iterator[Finding]]], ...] = (
    ("I31", one_run_per_key),
    ("I32", one_request_per_key),
    ("I33", one_answer_per_key),
    ("I35", one_run_per_slot),
    ("I37", one_effect_per_key),
    ("I39", feed_is_committed),
    ("I46", leases_within_caps),
    ("I46", starts_within_rates),
    ("I46", one_holder_per_key),
    ("I46", writes_within_caps),
    ("I50", rows_have_their_run),
    ("I51", admin_chains_recompute),
    ("I51", ledgers_recompute),
    ("I53", secrets_by_reference),
)
"""By the number of their invariant; I50 and I51 are also checks of each run."""
