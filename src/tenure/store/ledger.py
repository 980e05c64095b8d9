"""Ledgers: leaves, the full subtrees over them, signed checkpoints, and signing keys.

Laws:
1. Leaves of one ledger are appended one transaction after the other, under its lock: positions have no gaps, and with every
   leaf the full subtrees that it makes whole are written, so that a proof reads O(log n) rows.
2. Nothing of a ledger is ever changed or deleted, also when its runs are.
3. A leaf that exists (for a run and part, or a line of the admin chain) is not appended again: repeating is harmless.
4. Lock order: a tenant's admin chain before its ledger, and the installation's before a tenant's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.kernel.governance_rows import LedgerLeafRow, LedgerNodeRow, SignedCheckpointRow, SigningKeyRow
from tenure.proof import merkle
from tenure.proof.ledger_leaves import LedgerEntry
from tenure.proof.merkle import GrowingTree, LeafRange, NodePlace
from tenure.store.port import Query, QueryReader, RowType, Transaction


class UnledgeredRun(msgspec.Struct, gc=False):
    """A run that is not in its ledger yet."""

    run_id: int
    tenant: str
    hash: bytes
    """Of its first event."""


class AdminHead(msgspec.Struct, gc=False):
    """The newest line of an admin chain that is not sealed."""

    tenant: str
    seq: int
    hash: bytes


class LedgerRunHead(msgspec.Struct, gc=False):
    """A run at one of its events, as a leaf describes it."""

    run_id: int
    seq: int
    version: int | None
    """How many events it has; None: the run does not exist."""
    status: str | None
    hash: bytes | None
    """Of that event."""
    sealed: bool
    """Whether the ledger has its seal."""


class LedgerSize(msgspec.Struct, gc=False):
    """A ledger: how many leaves it has, and how many the newest checkpoint covers."""

    tenant: str
    size: int
    signed: int


READS: dict[str, RowType] = {
    "ledger_sizes": LedgerSize,  # ()
    "ledger_head": LedgerLeafRow,  # () ; tenant -> the newest
    "leaves_after": LedgerLeafRow,  # () ; tenant, after_pos, limit -> in order
    "leaves_at": LedgerLeafRow,  # (tenant, pos)
    "leaves_of_run": LedgerLeafRow,  # () ; tenant, run_id -> in order
    "leaves_taken": LedgerLeafRow,  # (tenant, run_id, kind, part)
    "admin_sealed": LedgerLeafRow,  # () ; tenant -> the newest of its admin leaves
    "key_leaves": LedgerLeafRow,  # () ; after_pos, limit -> of the installation's own ledger, in order
    "nodes_at": LedgerNodeRow,  # (tenant, level, pos)
    "nodes_after": LedgerNodeRow,  # () ; tenant, after_level, after_pos, limit -> in order
    "ledger_checkpoints_before": SignedCheckpointRow,  # () ; tenant, before_size, limit -> newest first
    "ledger_checkpoints_after": SignedCheckpointRow,  # () ; tenant, after_size, limit -> in order
    "ledger_checkpoints_from": SignedCheckpointRow,  # () ; tenant, size -> the first that covers so many leaves
    "signing_keys": SigningKeyRow,  # () -> oldest first
    "runs_unledgered": UnledgeredRun,  # () ; after_id, upto_id -> by id
    "admin_unsealed": AdminHead,  # ()
    "run_heads": LedgerRunHead,  # (tenant, run_id, seq)
}
"""Queries used on their own, and within transactions; `ledger.sql` has their texts."""

WRITES: dict[str, RowType] = {
    "save_ledger_leaf": LedgerLeafRow,  # rows
    "save_ledger_node": LedgerNodeRow,  # rows
    "save_ledger_checkpoint": SignedCheckpointRow,  # nothing where there is one of that size
    "save_signing_key": SigningKeyRow,  # inserted, or replaced by its key
}


def ledger_lock(tenant: str) -> Query:
    """The lock for appending to a ledger. (No tenant can have this name.)"""
    return Query("lock_tenants", ((f"ledger/{tenant}",),))


def append_leaves(tenant: str, entries: Sequence[LedgerEntry], now: int) -> Transaction[list[LedgerLeafRow]]:
    """Append leaves to a ledger, in this order, as a part of a transaction. The answer has a leaf for each entry, also for
    existing ones (law 3)."""
    yield ledger_lock(tenant)
    there = yield from _there(tenant, entries)
    size = yield from _size(tenant)
    edge = yield from _nodes(tenant, merkle.full_subtrees(0, size))
    tree = GrowingTree(size, edge)
    new: list[LedgerLeafRow] = []
    nodes: list[tuple[Any, ...]] = []
    leaves: list[LedgerLeafRow] = []
    for entry in entries:
        name = _name(entry)
        leaf = there.get(name)
        if leaf is None:
            leaf = LedgerLeafRow(tenant, tree.size, entry.kind, entry.run_id, entry.part, entry.body, now)
            for (level, pos), whole in tree.add(merkle.leaf_hash(entry.body)):
                nodes.append((tenant, level, pos, whole))
            new.append(leaf)
            if entry.kind != "key":
                there[name] = leaf
        leaves.append(leaf)
    if new:
        yield Query("save_ledger_leaf", [msgspec.structs.astuple(leaf) for leaf in new])
    if nodes:
        yield Query("save_ledger_node", nodes)
    return leaves


def load_range_hashes(tenant: str, spans: Sequence[LeafRange]) -> Transaction[list[bytes]]:
    """The hashes of ranges of leaves, for a root or a proof, as a part of a transaction."""
    found: list[bytes] = []
    for span in spans:
        hashes = yield from _nodes(tenant, merkle.full_subtrees(*span))
        found.append(merkle.combine_hashes(hashes))
    return found


async def read_range_hashes(store: QueryReader, tenant: str, spans: Sequence[LeafRange]) -> list[bytes]:
    """The same outside of a transaction: full subtrees never change."""
    wanted = dict.fromkeys(place for span in spans for place in merkle.full_subtrees(*span))
    low = [(tenant, pos) for level, pos in wanted if level == 0]
    high = [(tenant, level, pos) for level, pos in wanted if level > 0]
    known: dict[NodePlace, bytes] = {}
    if low:
        for leaf in await store.read("leaves_at", rows=low):
            known[0, leaf.pos] = merkle.leaf_hash(leaf.body)
    if high:
        for node in await store.read("nodes_at", rows=high):
            known[node.level, node.pos] = node.hash
    for place in wanted:
        if place not in known:
            raise missing_leaf_error(tenant, place)
    return [merkle.range_hash(span, known) for span in spans]


def missing_leaf_error(tenant: str, place: NodePlace) -> TenureError:
    """A ledger has a hole."""
    level, pos = place
    what = f"leaf {pos}" if level == 0 else f"node {pos} of level {level}"
    return TenureError("LEDGER_BROKEN", f"{what} of {ledger_name(tenant)} is not there")


def ledger_name(tenant: str) -> str:
    """A ledger as people know it."""
    return f"the ledger of tenant {tenant!r}" if tenant else "the installation's ledger"


def _name(entry: LedgerEntry | LedgerLeafRow) -> tuple[str, int | None, int]:
    return entry.kind, entry.run_id, entry.part


def _there(
    tenant: str, entries: Sequence[LedgerEntry]
) -> Transaction[dict[tuple[str, int | None, int], LedgerLeafRow]]:
    """Those of the entries that have a leaf already."""
    found: dict[tuple[str, int | None, int], LedgerLeafRow] = {}
    of_runs = [(tenant, each.run_id, each.kind, each.part) for each in entries if each.run_id is not None]
    if of_runs:
        for leaf in (yield Query("leaves_taken", of_runs)):
            found[_name(leaf)] = leaf
    if any(each.kind == "admin" for each in entries):
        newest = yield Query("admin_sealed", scalars=(tenant,))
        for each in entries:
            if each.kind == "admin" and newest and each.part <= newest[0].part:
                found[_name(each)] = newest[0]
    return found


def _size(tenant: str) -> Transaction[int]:
    head = yield Query("ledger_head", scalars=(tenant,))
    return head[0].pos + 1 if head else 0


def _nodes(tenant: str, wanted: Sequence[NodePlace]) -> Transaction[list[bytes]]:
    """The hashes of full subtrees; those of single leaves are made anew."""
    known: dict[NodePlace, bytes] = {}
    low = [(tenant, pos) for level, pos in wanted if level == 0]
    high = [(tenant, level, pos) for level, pos in wanted if level > 0]
    if low:
        for leaf in (yield Query("leaves_at", low)):
            known[0, leaf.pos] = merkle.leaf_hash(leaf.body)
    if high:
        for node in (yield Query("nodes_at", high)):
            known[node.level, node.pos] = node.hash
    for place in wanted:
        if place not in known:
            raise missing_leaf_error(tenant, place)
    return [known[place] for place in wanted]
