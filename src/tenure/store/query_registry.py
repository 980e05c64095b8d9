"""Every named query: where it is read from, and what it answers.

Law: a module of the list has `READS` (asked on their own, or in a transaction) and may have `WRITES` (statements of its own
small transactions, which answer the rows they wrote): what a query needs and answers. Both databases have a .sql file of the
module's name with the texts: `-- name: lock_runs` starts one, and the comment lines after it say why it is as it is.
"""

from __future__ import annotations

import re
from importlib.resources import files

from tenure.kernel.governance_rows import GOVERNANCE_ROWS
from tenure.kernel.registry_rows import REGISTRY_ROWS
from tenure.kernel.run_rows import ROWS as RUN_ROWS
from tenure.kernel.run_rows import Row
from tenure.kernel.server_rows import SERVER_ROWS
from tenure.store import (
    approvals,
    artifacts,
    caches,
    costs,
    evidence,
    feed,
    hook_deliveries,
    idempotency,
    identity,
    ledger,
    log_chunks,
    log_lines,
    metrics,
    policies,
    publications,
    receipts,
    remote_leases,
    replay,
    run_lists,
    schedules,
    slack_cards,
    subscriptions,
    test_reports,
    uploads,
    vcs_reports,
    workers,
    workflows,
)
from tenure.store.port import QUERIES, RowType

QUERY_MODULES = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        approvals, artifacts, caches, costs, evidence, feed, hook_deliveries, idempotency, identity, ledger, log_chunks,
        log_lines, metrics, policies, publications, receipts, remote_leases, replay, run_lists, schedules, slack_cards,
        subscriptions, test_reports, uploads, vcs_reports, workers, workflows,
    )
}  # fmt: skip
OWN_QUERIES = {"sqlite": "clock", "postgres": "saves"}
"""The file of queries that only this database has."""
READS: dict[str, RowType] = {
    name: answer for module in QUERY_MODULES.values() for name, answer in module.READS.items()
}
WRITES: dict[str, RowType] = {
    name: answer
    for module in QUERY_MODULES.values()
    for name, answer in getattr(module, "WRITES", {}).items()
}
ANSWERS: dict[str, RowType] = {**QUERIES, **READS, **WRITES}
"""Every query -> the type of the rows that it answers."""
TABLES_BENEATH_RUN = (
    *(table for table in RUN_ROWS if table not in ("run", "outbox", "cap", "idempotency")),
    "log_line",
    "remote_lease",
    "artifact",
    "log_chunk",
    "upload",
    "upload_part",
    "test_report",
)
"""Tables whose rows are deleted with their run. Outbox rows are not: they are still to be delivered."""
ROWS: dict[str, type[Row]] = {**REGISTRY_ROWS, **SERVER_ROWS, **GOVERNANCE_ROWS}
"""The tables that are not beneath a run."""

_NAME = re.compile(r"^--\s*name:\s*(\w+)\s*$")


def read_named_queries(database: str, file: str) -> dict[str, str]:
    """The queries of a file of `sqlite` or `postgres` by name, without their comments."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in files("tenure.store").joinpath(database, file).read_text(encoding="utf-8").splitlines():
        if match := _NAME.match(line):
            if match[1] in found:
                raise ValueError(f"{database}/{file}: two queries named {match[1]}")
            lines = found[match[1]] = []
        elif lines is not None and not line.lstrip().startswith("--"):
            lines.append(line)
    return {name: "\n".join(text).strip() for name, text in found.items()}


def load_queries(database: str, *, variants: bool = True) -> dict[str, str]:
    """All queries of a database: the port's, the modules', its own, and the generated variants of the saves."""
    own = ["queries", *QUERY_MODULES, OWN_QUERIES[database], *(["save_variants"] if variants else [])]
    return {name: text for file in own for name, text in read_named_queries(database, f"{file}.sql").items()}
