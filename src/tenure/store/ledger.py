"""A tenant's ledger, appended to and read: leaves, the full subtrees over them, signed checkpoints, and the keys that sign.

Laws:
1. Leaves of one ledger are appended one transaction after the other, under its lock: positions have no gaps, and with every
   leaf the full subtrees that it makes whole are written, so that a proof reads O(log n) rows.
2. Nothing of a ledger is ever changed or deleted, whatever becomes of the runs it tells of.
3. A leaf that is there already (of a run and part, or of a line of the admin chain) is not appended again: repeating is harmless.
4. Lock order: a tenant's admin chain before its ledger, and the installation's before a tenant's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tenure.errors import TenureError
from tenure.kernel import merkle
from tenure.kernel.governance import Leaf, Node, Signed, SigningKey
from tenure.kernel.leaves import Entry
from tenure.kernel.merkle import Growing, Place, Range
from tenure.store.port import Answer, Query, Transaction


class NewRun(msgspec.Struct, gc=False):
    """A run that its ledger does not know yet."""

    run_id: int
    tenant: str
    hash: bytes
    """Of its first event."""


class AdminHead(msgspec.Struct, gc=False):
    """The newest line of an admin chain that is not sealed."""

    tenant: str
    seq: int
    hash: bytes


class RunHead(msgspec.Struct, gc=False):
    """A run at one of its events, as a leaf tells of it."""

    run_id: int
    seq: int
    version: int | None
    """How many events it has; None: it is not there."""
    status: str | None
    hash: bytes | None
    """Of that event."""
    sealed: bool
    """Whether the ledger has its seal."""


class LedgerSize(msgspec.Struct, gc=False):
    """A ledger: how many leaves it has, and how many of them are signed for."""

    tenant: str
    size: int
    signed: int


READS: dict[str, Answer] = {
    "ledger_sizes": LedgerSize,  # ()
    "ledger_head": Leaf,  # () ; tenant -> the newest
    "leaves_after": Leaf,  # () ; tenant, after_pos, limit -> in order
    "leaves_at": Leaf,  # (tenant, pos)
    "leaves_of_run": Leaf,  # () ; tenant, run_id -> in order
    "leaves_taken": Leaf,  # (tenant, run_id, kind, part)
    "admin_sealed": Leaf,  # () ; tenant -> the newest of its admin leaves
    "key_leaves": Leaf,  # () ; after_pos, limit -> of the installation's own ledger, in order
    "nodes_at": Node,  # (tenant, level, pos)
    "nodes_after": Node,  # () ; tenant, after_level, after_pos, limit -> in order
    "signed_before": Signed,  # () ; tenant, before_size, limit -> newest first
    "signed_after": Signed,  # () ; tenant, after_size, limit -> in order
    "signed_from": Signed,  # () ; tenant, size -> the first that covers so many leaves
    "signing_keys": SigningKey,  # () -> oldest first
    "runs_unledgered": NewRun,  # () ; after_id, upto_id -> by id
    "admin_unsealed": AdminHead,  # ()
    "run_heads": RunHead,  # (tenant, run_id, seq)
}
"""Queries used on their own, and within transactions; `ledger.sql` has their texts."""

WRITES: dict[str, Answer] = {
    "save_leaf": Leaf,  # rows
    "save_node": Node,  # rows
    "save_signed": Signed,  # nothing where there is one of that size
    "save_signing_key": SigningKey,  # inserted, or replaced by its key
}
"""Statements of small transactions of their own."""


class Reader(Protocol):
    """The part of a store that ledgers are read by."""

    async def read(self, name: str, *scalars: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        """Ask one named query."""
        ...


def ledger_lock(tenant: str) -> Query:
    """What those who append to a ledger wait for. (No tenant is called like that.)"""
    return Query("lock_tenants", ((f"ledger/{tenant}",),))


def appended(tenant: str, entries: Sequence[Entry], now: int) -> Transaction[list[Leaf]]:
    """A part of a transaction: append leaves to a ledger, in this order. The answer has a leaf for each entry, also for
    those that were there already (law 3)."""
    yield ledger_lock(tenant)
    there = yield from _there(tenant, entries)
    size = yield from _size(tenant)
    edge = yield from _nodes(tenant, merkle.places(0, size))
    tree = Growing(size, edge)
    new: list[Leaf] = []
    nodes: list[tuple[Any, ...]] = []
    leaves: list[Leaf] = []
    for entry in entries:
        name = _name(entry)
        leaf = there.get(name)
        if leaf is None:
            leaf = Leaf(tenant, tree.size, entry.kind, entry.run_id, entry.part, entry.body, now)
            for (level, pos), whole in tree.add(merkle.leaf_hash(entry.body)):
                nodes.append((tenant, level, pos, whole))
            new.append(leaf)
            if entry.kind != "key":
                there[name] = leaf
        leaves.append(leaf)
    if new:
        yield Query("save_leaf", [msgspec.structs.astuple(leaf) for leaf in new])
    if nodes:
        yield Query("save_node", nodes)
    return leaves


def ranges(tenant: str, spans: Sequence[Range]) -> Transaction[list[bytes]]:
    """A part of a transaction: the hashes of ranges of leaves, for a root or a proof."""
    found: list[bytes] = []
    for span in spans:
        hashes = yield from _nodes(tenant, merkle.places(*span))
        found.append(merkle.together(hashes))
    return found


async def hashes_of(store: Reader, tenant: str, spans: Sequence[Range]) -> list[bytes]:
    """The same, read on its own: what is full never changes."""
    wanted = dict.fromkeys(place for span in spans for place in merkle.places(*span))
    low = [(tenant, pos) for level, pos in wanted if level == 0]
    high = [(tenant, level, pos) for level, pos in wanted if level > 0]
    known: dict[Place, bytes] = {}
    if low:
        for leaf in await store.read("leaves_at", rows=low):
            known[0, leaf.pos] = merkle.leaf_hash(leaf.body)
    if high:
        for node in await store.read("nodes_at", rows=high):
            known[node.level, node.pos] = node.hash
    for place in wanted:
        if place not in known:
            raise lost(tenant, place)
    return [merkle.hash_of(span, known) for span in spans]


def lost(tenant: str, place: Place) -> TenureError:
    """A ledger has a hole."""
    level, pos = place
    what = f"leaf {pos}" if level == 0 else f"node {pos} of level {level}"
    return TenureError("LEDGER_BROKEN", f"{what} of {ledger_name(tenant)} is not there")


def ledger_name(tenant: str) -> str:
    """A ledger as people know it."""
    return f"the ledger of tenant {tenant!r}" if tenant else "the installation's ledger"


def _name(entry: Entry | Leaf) -> tuple[str, int | None, int]:
    return entry.kind, entry.run_id, entry.part


def _there(tenant: str, entries: Sequence[Entry]) -> Transaction[dict[tuple[str, int | None, int], Leaf]]:
    """Those of the entries that have a leaf already."""
    found: dict[tuple[str, int | None, int], Leaf] = {}
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


def _nodes(tenant: str, wanted: Sequence[Place]) -> Transaction[list[bytes]]:
    """The hashes of full subtrees; those of single leaves are made anew."""
    known: dict[Place, bytes] = {}
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
            raise lost(tenant, place)
    return [known[place] for place in wanted]
