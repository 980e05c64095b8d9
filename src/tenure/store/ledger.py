"""Ledgers: leaves, the full subtrees over them, signed checkpoints, and signing keys.

Laws:
1. Transactions append leaves to a ledger one after the other, under its lock, so positions have no gaps. Each leaf is written
   with the full subtrees that it completes, so a proof reads O(log n) rows.
2. No row of a ledger is ever changed or deleted, not even when its runs are deleted.
3. A leaf that exists (for a run and part, or a line of the admin chain) is not appended again: repeating is harmless.
4. Lock order: a tenant's admin chain before its ledger, and the installation's before a tenant's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    "ledger_checkpoints_from": SignedCheckpointRow,  # () ; tenant, size -> the first that covers this many leaves
    "signing_keys": SigningKeyRow,  # () -> oldest first
    "runs_unledgered": UnledgeredRun,  # () ; after_id, upto_id -> by id
    "admin_unsealed": AdminHead,  # ()
    "run_heads": LedgerRunHead,  # (tenant, run_id, seq)
}

WRITES: dict[str, RowType] = {
    "save_ledger_leaf": LedgerLeafRow,  # rows
    "save_ledger_node": LedgerNodeRow,  # rows
    "save_ledger_checkpoint": SignedCheckpointRow,  # nothing if there is one of that size
    "save_signing_key": SigningKeyRow,  # inserted, or replaced by its key
}


def ledger_lock(tenant: str) -> Query:
    """The lock for appending to a ledger. (No tenant can have this name.)"""
    return Query("lock_tenants", ((f"ledger/{tenant}",),))


def append_leaves(tenant: str, entries: Sequence[LedgerEntry], now: int) -> Transaction[list[LedgerLeafRow]]:
    """Append leaves to a ledger, in this order, as a part of a transaction. The answer has a leaf for each entry, also for
    existing ones (law 3)."""
    yield ledger_lock(tenant)
    existing = yield from _load_existing(tenant, entries)
    head = yield Query("ledger_head", scalars=(tenant,))
    size = head[0].pos + 1 if head else 0
    tree = GrowingTree(size, (yield from _load_subtrees(tenant, merkle.full_subtrees(0, size))))
    new: list[LedgerLeafRow] = []
    nodes: list[tuple[Any, ...]] = []
    leaves: list[LedgerLeafRow] = []
    for entry in entries:
        name = _name(entry)
        leaf = existing.get(name)
        if leaf is None:
            leaf = LedgerLeafRow(tenant, tree.size, entry.kind, entry.run_id, entry.part, entry.body, now)
            nodes += [(tenant, *place, whole) for place, whole in tree.add(merkle.leaf_hash(entry.body))]
            new.append(leaf)
            if entry.kind != "key":
                existing[name] = leaf
        leaves.append(leaf)
    if new:
        yield Query("save_ledger_leaf", [msgspec.structs.astuple(leaf) for leaf in new])
    if nodes:
        yield Query("save_ledger_node", nodes)
    return leaves


async def read_range_hashes(store: QueryReader, tenant: str, spans: Sequence[LeafRange]) -> list[bytes]:
    """The hashes of ranges of leaves, for a root or a proof. No transaction is needed: full subtrees never change."""
    wanted = dict.fromkeys(place for span in spans for place in merkle.full_subtrees(*span))
    low, high = _subtree_rows(tenant, wanted)
    leaves = await store.read("leaves_at", rows=low) if low else []
    nodes = await store.read("nodes_at", rows=high) if high else []
    known = _subtree_hashes(tenant, wanted, leaves, nodes)
    return [merkle.range_hash(span, known) for span in spans]


def missing_leaf_error(tenant: str, place: NodePlace) -> TenureError:
    level, pos = place
    what = f"leaf {pos}" if level == 0 else f"node {pos} of level {level}"
    return TenureError("LEDGER_BROKEN", f"{what} of {ledger_name(tenant)} is missing")


def ledger_name(tenant: str) -> str:
    return f"the ledger of tenant {tenant!r}" if tenant else "the installation's ledger"


def _name(entry: LedgerEntry | LedgerLeafRow) -> tuple[str, int | None, int]:
    return entry.kind, entry.run_id, entry.part


def _load_existing(
    tenant: str, entries: Sequence[LedgerEntry]
) -> Transaction[dict[tuple[str, int | None, int], LedgerLeafRow]]:
    """The leaves of the entries that have one already."""
    of_runs = [(tenant, each.run_id, each.kind, each.part) for each in entries if each.run_id is not None]
    taken = (yield Query("leaves_taken", of_runs)) if of_runs else []
    found: dict[tuple[str, int | None, int], LedgerLeafRow] = {_name(leaf): leaf for leaf in taken}
    admin = [each for each in entries if each.kind == "admin"]
    newest = (yield Query("admin_sealed", scalars=(tenant,))) if admin else []
    return found | {_name(each): newest[0] for each in admin if newest and each.part <= newest[0].part}


def _load_subtrees(tenant: str, wanted: Sequence[NodePlace]) -> Transaction[list[bytes]]:
    """The hashes of full subtrees, as a part of a transaction."""
    low, high = _subtree_rows(tenant, wanted)
    leaves = (yield Query("leaves_at", low)) if low else []
    nodes = (yield Query("nodes_at", high)) if high else []
    known = _subtree_hashes(tenant, wanted, leaves, nodes)
    return [known[place] for place in wanted]


def _subtree_rows(
    tenant: str, wanted: Iterable[NodePlace]
) -> tuple[list[tuple[str, int]], list[tuple[str, int, int]]]:
    """The keys of the leaves and of the nodes at these places."""
    low = [(tenant, pos) for level, pos in wanted if level == 0]
    return low, [(tenant, level, pos) for level, pos in wanted if level > 0]


def _subtree_hashes(
    tenant: str, wanted: Iterable[NodePlace], leaves: list[LedgerLeafRow], nodes: list[LedgerNodeRow]
) -> dict[NodePlace, bytes]:
    """The hashes at these places. Those of single leaves are not stored, and are computed."""
    known: dict[NodePlace, bytes] = {(0, leaf.pos): merkle.leaf_hash(leaf.body) for leaf in leaves}
    known |= {(node.level, node.pos): node.hash for node in nodes}
    for place in wanted:
        if place not in known:
            raise missing_leaf_error(tenant, place)
    return known
