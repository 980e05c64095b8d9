"""Checks the numbered invariants over the rows of a run and of a database.

Laws:
1. The checks are pure: they take rows and return violations. `examination` loads the rows.
2. The checks trust nothing that the kernel computed: they count again, walk the states again and recompute the hashes.
3. `invariants.INVARIANTS` has every invariant by its number.
"""

from __future__ import annotations

from tenure.doctor.checked_run import RunDump
from tenure.doctor.database_checks import DatabaseSummary, check_database
from tenure.doctor.invariants import INVARIANTS, Invariant, Violation
from tenure.doctor.run_checks import check_run

__all__ = [
    "INVARIANTS",
    "DatabaseSummary",
    "Invariant",
    "RunDump",
    "Violation",
    "check_database",
    "check_run",
]
