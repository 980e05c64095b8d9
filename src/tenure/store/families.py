"""The families of named queries beside the port's: each has its module, and a file of this name in both databases.

Law: a family's module has `READS` (asked on their own) and `WRITES` (statements of its own small transactions, which answer
the rows they wrote); what a query needs and answers stands there, its text in `FAMILY.sql`.
"""

from __future__ import annotations

from tenure.kernel.beside import BESIDE
from tenure.kernel.governance import GOVERNANCE
from tenure.kernel.model import Row
from tenure.kernel.service import SERVICE
from tenure.store import (
    acting,
    beside,
    cards,
    costing,
    deliveries,
    evidence,
    feeding,
    filing,
    gauging,
    identity,
    keys,
    ledger,
    listing,
    policies,
    remote,
)
from tenure.store.port import Answer
from tenure.store.sqlfile import named_queries

FAMILIES = {
    "acting": acting,
    "beside": beside,
    "cards": cards,
    "costing": costing,
    "identity": identity,
    "keys": keys,
    "ledger": ledger,
    "listing": listing,
    "deliveries": deliveries,
    "evidence": evidence,
    "feeding": feeding,
    "filing": filing,
    "gauging": gauging,
    "policies": policies,
    "remote": remote,
}
READS: dict[str, Answer] = {
    name: answer for family in FAMILIES.values() for name, answer in family.READS.items()
}
WRITES: dict[str, Answer] = {
    name: answer for family in FAMILIES.values() for name, answer in family.WRITES.items()
}
ROWS: dict[str, type[Row]] = {**BESIDE, **SERVICE, **GOVERNANCE}
"""The tables beside the runs'."""


def texts(package: str) -> dict[str, str]:
    """All the queries of a database: the port's and the families'."""
    found = named_queries(package)
    for family in FAMILIES:
        found |= named_queries(package, f"{family}.sql")
    return found
