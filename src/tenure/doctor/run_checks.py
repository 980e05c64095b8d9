"""The checks of one run, in the order of their numbers."""

from __future__ import annotations

from tenure.doctor import acts, cancel, evidence, history, leases, runs, states, waits
from tenure.doctor.checked_run import CheckedRun
from tenure.doctor.invariants import INVARIANTS, Check, Violation
from tenure.doctor.run_dump import RunDump

MODULES = (states, history, runs, leases, waits, acts, cancel, evidence)
"""Where the checks are; importing them registers them."""


def _ordered() -> list[tuple[str, Check]]:
    return [
        (number, check)
        for number, invariant in INVARIANTS.items()
        if invariant.scope in ("run", "eventual")
        for check in invariant.checks
    ]


_CHECKS = _ordered()


def check_run(bundle: RunDump, *, settled: bool = False, now: int | None = None) -> list[Violation]:
    """Every violation that this run's rows show. `settled` adds the invariants that hold once faults have
    stopped and everything due has been done; `now` is the store's time for those that need one."""
    view = CheckedRun(bundle, settled=settled, now=now)
    run_id = bundle.run.id
    found = []
    for number, check in _CHECKS:
        try:
            found += [Violation(number, problem, run_id, row) for row, problem in check(view)]
        except Exception as problem:  # rows so broken that they cannot be read
            name = type(problem).__name__
            found.append(Violation(number, f"cannot be checked ({name}: {problem})", run_id, "run"))
    return found
