"""Checks the numbered invariants over the rows of a run and of a database.

Laws:
1. The checks are pure: they take rows and return violations. `examination` loads the rows.
2. They trust nothing that the kernel computed: counters are counted again, states walked again, hashes recomputed.
3. `invariants.INVARIANTS` has every invariant by its number.
"""

from __future__ import annotations

from tenure.doctor.database_checks import DatabaseSummary, check_database
from tenure.doctor.invariants import INVARIANTS, Invariant, Violation
from tenure.doctor.run_checks import check_run
from tenure.doctor.run_dump import RunDump

__all__ = [
    "INVARIANTS",
    "DatabaseSummary",
    "Invariant",
    "RunDump",
    "Violation",
    "check_database",
    "check_run",
]
