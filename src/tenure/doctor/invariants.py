"""The invariants by number: their sentences, their scope, and the functions that check them.

Laws:
1. Every number of the specification is here. An invariant that no rows can show says what shows it, so that a report
   can name it.
2. A check only reads. It yields (row, problem) for every problem, so that a broken row is reported by every invariant
   that it breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

import msgspec

InvariantScope = Literal["run", "global", "eventual", "elsewhere"]
"""run: the rows of one run show it. global: all runs together show it. eventual: it holds once the system has settled.
elsewhere: no rows can show it."""

Finding = tuple[str, str]
"""(row, problem)."""
Check = Callable[[Any], Iterable[Finding]]


class Invariant(msgspec.Struct):
    """An invariant of the specification, and its checks."""

    number: str
    text: str
    scope: InvariantScope
    shown_by: str = ""
    """What shows it, if rows cannot."""
    checks: list[Check] = []


class Violation(msgspec.Struct, frozen=True):
    number: str
    text: str
    run_id: int
    row: str

    def __str__(self) -> str:
        return f"{self.number} {self.row}: {self.text}"


_LINES = (
    Invariant("I1", "every status is a known one", "run"),
    Invariant("I2", "each consecutive pair of a history is an edge of its table", "run"),
    Invariant("I3", "the row equals the fold of its events", "run"),
    Invariant("I4", "no state event after a terminal one", "run"),
    Invariant("I5", "terminal <=> finish time, outcome and reason are set", "run"),
    Invariant("I6", "created <= started <= finished, and the duration agrees", "run"),
    Invariant("I7", "the event sequence of a run is 1..n without gaps", "run"),
    Invariant("I8", "each event has actor, initiator, cause and store time", "run"),
    Invariant("I9", "a run's status = f(its steps)", "run"),
    Invariant("I10", "every non-terminal state has a deadline or a named wake source", "run"),
    Invariant("I11", "succeeded <=> every step is closed and all required ones succeeded", "run"),
    Invariant("I12", "failed => planning failed, or a required step ended badly", "run"),
    Invariant(
        "I13", "canceled => a request, and an ack, a passed deadline, or a lease lost while canceling", "run"
    ),
    Invariant("I14", "a terminal run has no open step, live lease, timer or approval", "run"),
    Invariant(
        "I15", "a step starts only after its predecessors succeeded, or failed where that is allowed", "run"
    ),
    Invariant(
        "I16", "attempts are numbered 1..n, within the maximum, each opened after the last was closed", "run"
    ),
    Invariant("I17", "at most one attempt succeeds and none follows it", "run"),
    Invariant("I18", "charged = claims - releases - suspensions, since the last progress", "run"),
    Invariant(
        "I19", "a retry happens only within budget, not while canceling, and not before its backoff", "run"
    ),
    Invariant("I20", "steps_completed only grows and equals the count", "run"),
    Invariant("I21", "allow-failure steps never change the outcome", "run"),
    Invariant("I22", "at most one live lease per step", "run"),
    Invariant(
        "I23",
        "the fence only grows and is never reused; a lease expires at its moment, or when its holder is proven dead",
        "run",
    ),
    Invariant("I24", "every accepted runner message carries the current fence, before expiry", "run"),
    Invariant("I25", "a stale message changes no row", "run"),
    Invariant("I26", "a heartbeat only extends, never past the step's timeout", "run"),
    Invariant("I27", "the message sequence of a lease grows, and its last answer is kept", "run"),
    Invariant(
        "I28", "completed lease <=> accepted Complete or Fail; canceled lease <=> accepted CancelAck", "run"
    ),
    Invariant("I29", "an expired lease is swept within a bound", "eventual"),
    Invariant("I30", "a lease's tenant is its run's", "run"),
    Invariant("I31", "at most one run per (tenant, source, key)", "global"),
    Invariant("I32", "the same key means the same request hash", "global"),
    Invariant("I33", "the cached response is that of the run the key made", "global"),
    Invariant(
        "I34",
        "nothing is recorded for a request whose signature failed",
        "elsewhere",
        "the tests of hooks: rows cannot show a request that left none",
    ),
    Invariant("I35", "at most one run per (schedule, slot)", "global"),
    Invariant("I36", "every external call has an INTENT committed before it", "run"),
    Invariant("I37", "at most one SUCCEEDED receipt per key", "run"),
    Invariant("I38", "an UNKNOWN receipt is never retried automatically unless that is safe", "run"),
    Invariant("I39", "an outbox row or a notification exists if and only if its transition committed", "run"),
    Invariant("I40", "each INTENT has an ALLOW for the same action digest and policy version", "run"),
    Invariant("I41", "a policy error means a recorded DENY", "run"),
    Invariant(
        "I42", "approved means approved for exactly this digest and revision, before it expired", "run"
    ),
    Invariant("I43", "approver != requester; two-person means two people", "run"),
    Invariant("I44", "an approval is decided once", "run"),
    Invariant("I45", "approval steps are never leased", "run"),
    Invariant("I46", "caps hold: writes per run, live leases and runs per minute per tenant", "run"),
    Invariant("I47", "no new lease after a cancel request", "run"),
    Invariant("I48", "leaseless steps are canceled in the same commit", "run"),
    Invariant("I49", "cancel is final by its deadline, and nothing outlives its timeout", "eventual"),
    Invariant("I50", "every child row's tenant is its parent's", "run"),
    Invariant("I51", "the hash chain recomputes, and what was sealed is what is there", "run"),
    Invariant(
        "I52", "one evidence bundle per sealed run, and numbered supplements, sha256 as recorded", "run"
    ),
    Invariant(
        "I53",
        "no secret in any table, log, metric, bundle or response: they are named by reference",
        "global",
    ),
    Invariant("I54", "payloads within limits", "run"),
    Invariant("I55", "every run is terminal or waits for a named person, event or time", "eventual"),
    Invariant(
        "I56",
        "an accepted artifact is never changed by a lease that has ended; a late one is stored separately, and marked",
        "run",
    ),
    Invariant(
        "I57",
        "no step body begins under a lease that had ended by the store's clock",
        "elsewhere",
        "tests/worker/test_lease_clock.py and tests/chaos/test_drain.py: rows show when a lease was held, not when a body began",
    ),
    Invariant(
        "I58",
        "every fact that a policy verdict relied on holds in the commit that records the intention",
        "run",
    ),
    Invariant(
        "I59",
        "nobody who started, changed or sent data to the run before the question was asked decides its approval",
        "run",
    ),
    Invariant(
        "I60",
        "two values have the same digest if and only if they are the same value",
        "elsewhere",
        "tests/test_canonical.py (the rule, as a property) and tests/server/test_equal_values.py (every entry point)",
    ),
    Invariant(
        "I61",
        "a step whose condition is false is never leased, and every view says that it was skipped and why",
        "run",
    ),
    Invariant(
        "I62",
        "published documents follow the order of commits, never go backwards, and stop at the terminal one",
        "elsewhere",
        "tests/publish (status.json, Firestore) and tests/server/test_vcs_reports_processes.py: the documents are not in the database",
    ),
    Invariant(
        "I63",
        "REPORTED stands only after the VCS has accepted the final status",
        "elsewhere",
        "tests/server/test_vcs_reports.py and tests/server/test_vcs_reports_processes.py: what the VCS accepted is not in the database",
    ),
    Invariant(
        "I64",
        "a limit by key is never exceeded, and a holder that died frees its place within its lease",
        "elsewhere",
        "nothing yet: there are no limits by key",
    ),
    Invariant(
        "I65",
        "a stream's readers see each generation's chunks once, in order, without a gap",
        "elsewhere",
        "nothing yet: runs have no streams of chunks",
    ),
)

INVARIANTS: dict[str, Invariant] = {line.number: line for line in _LINES}

F = TypeVar("F", bound=Check)


def checks(number: str) -> Callable[[F], F]:
    """Register a function as a check of an invariant."""

    def register(check: F) -> F:
        invariant = INVARIANTS[number]
        assert invariant.scope != "elsewhere", f"{number} has a check, so its scope is not elsewhere"
        invariant.checks.append(check)
        return check

    return register
