"""The invariant checker: given all rows of a run, which of the numbered invariants do not hold?

Laws:
1. Pure: it is handed rows and answers with violations; loading them is the store's business.
2. It trusts nothing the kernel computed: counters are counted again, states walked again, hashes made again.
3. An invariant is looked up by its number in `table.INVARIANTS`; those whose subject does not exist yet are
   listed there too.
"""

from __future__ import annotations

from tenure.doctor.bundle import Bundle
from tenure.doctor.run_checks import check_run
from tenure.doctor.table import INVARIANTS, Invariant, Violation
from tenure.doctor.whole import WholeView, check_whole

__all__ = ["INVARIANTS", "Bundle", "Invariant", "Violation", "WholeView", "check_run", "check_whole"]
