"""The checks of one run, in the order of their numbers."""

from __future__ import annotations

from tenure.doctor import acts, cancel, history, leases, runs, states, waits
from tenure.doctor.checked_run import CheckedRun, RunDump
from tenure.doctor.invariants import INVARIANTS, Violation

MODULES = (states, history, runs, leases, waits, acts, cancel)
"""The modules with checks. Importing them registers the checks."""
_CHECKS = [
    (number, check)
    for number, invariant in INVARIANTS.items()
    if invariant.scope in ("run", "eventual")
    for check in invariant.checks
]


def check_run(bundle: RunDump, *, settled: bool = False, now: int | None = None) -> list[Violation]:
    """Every violation that the rows of a run show. `settled` adds the invariants that hold once faults have stopped
    and everything due is done. `now` is the store's time, which some of those need."""
    view = CheckedRun(bundle, settled=settled, now=now)
    run_id = bundle.run.id
    found = []
    for number, check in _CHECKS:
        try:
            found += [Violation(number, problem, run_id, row) for row, problem in check(view)]
        except Exception as problem:  # the rows are too broken to be read
            text = f"cannot be checked ({type(problem).__name__}: {problem})"
            found.append(Violation(number, text, run_id, "run"))
    return found
