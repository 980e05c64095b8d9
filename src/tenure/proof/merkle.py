"""Merkle trees as in RFC 6962: roots, inclusion proofs and consistency proofs.

Laws:
1. A leaf is hashed after a byte 0 and a node after a byte 1, so that neither can be mistaken for the other.
2. Every hash in a proof covers a range of leaves, and a range consists of a few full subtrees: (level, pos) covers the leaves
   from pos * 2**level on. With all full subtrees stored, any proof reads O(log n) of them.
3. Nothing here does I/O. A check of malformed input returns False; it does not raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

NodePlace = tuple[int, int]
"""A full subtree: its level, and its position in that level. Leaves are at level 0."""
LeafRange = tuple[int, int]
"""Leaves from the first number up to, but not including, the second."""

EMPTY_ROOT = sha256().digest()
HASH_BYTES = 32


def leaf_hash(body: bytes) -> bytes:
    return sha256(b"\0" + body).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def full_subtrees(low: int, high: int) -> list[NodePlace]:
    """The full subtrees of a range of leaves, from left to right.

    The range must begin at a multiple of its largest subtree's size. All ranges of proofs do.
    """
    found: list[NodePlace] = []
    while low < high:
        level = (high - low).bit_length() - 1
        found.append((level, low >> level))
        low += 1 << level
    return found


def combine_hashes(hashes: Sequence[bytes]) -> bytes:
    """The hash of a range from the hashes of its full subtrees."""
    if not hashes:
        return EMPTY_ROOT
    *rest, whole = hashes
    for left in reversed(rest):
        whole = node_hash(left, whole)
    return whole


def range_hash(span: LeafRange, nodes: Mapping[NodePlace, bytes]) -> bytes:
    """The hash of a range; KeyError if one of its subtrees is missing."""
    return combine_hashes([nodes[place] for place in full_subtrees(*span)])


class GrowingTree:
    """A tree to which leaves are added. It keeps only the full subtrees of its right edge."""

    def __init__(self, size: int = 0, edge: Iterable[bytes] = ()) -> None:
        """`edge`: the hashes of `full_subtrees(0, size)`."""
        self.size = size
        self._edge = list(edge)

    def add(self, leaf: bytes) -> list[tuple[NodePlace, bytes]]:
        """Add a leaf by its hash. Returns the subtrees that this leaf completed, lowest first."""
        made: list[tuple[NodePlace, bytes]] = []
        level, pos, whole = 0, self.size, leaf
        while pos & 1:
            whole = node_hash(self._edge.pop(), whole)
            level, pos = level + 1, pos >> 1
            made.append(((level, pos), whole))
        self._edge.append(whole)
        self.size += 1
        return made

    def root(self) -> bytes:
        return combine_hashes(self._edge)


# ------------------------------------------------------------------------------------------------ proofs


def inclusion_ranges(pos: int, size: int) -> list[LeafRange]:
    """The ranges whose hashes prove that leaf `pos` is in a tree of `size` leaves, from the leaf up (RFC 6962, 2.1.1)."""
    if not 0 <= pos < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {pos}")
    found: list[LeafRange] = []
    low, high = 0, size
    while high - low > 1:
        middle = low + _split(high - low)
        if pos < middle:
            found.append((middle, high))
            high = middle
        else:
            found.append((low, middle))
            low = middle
    return found[::-1]


def consistency_ranges(old: int, new: int) -> list[LeafRange]:
    """The ranges whose hashes prove that the tree of `new` leaves begins with the tree of `old` leaves (RFC 6962, 2.1.2)."""
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {new} leaves cannot begin with a tree of {old} leaves")
    if old in (0, new):
        return []
    found: list[LeafRange] = []
    low, high, whole = 0, new, True
    while old < high:
        middle = low + _split(high - low)
        if old <= middle:
            found.append((middle, high))
            high = middle
        else:
            found.append((low, middle))
            low, whole = middle, False
    if not whole:
        found.append((low, high))
    return found[::-1]


def is_included(leaf: bytes, pos: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether a proof shows that the leaf with this hash is at `pos` in the tree with this root."""
    if not 0 <= pos < size:
        return False
    here, last, whole = pos, size - 1, leaf
    for step in proof:
        if last == 0:
            return False
        if here & 1 or here == last:
            whole = node_hash(step, whole)
            while not here & 1 and here:
                here, last = here >> 1, last >> 1
        else:
            whole = node_hash(whole, step)
        here, last = here >> 1, last >> 1
    return last == 0 and whole == root


def is_consistent(old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether a proof shows that the new tree begins with the whole old tree."""
    if not 0 <= old <= new:
        return False
    if old == 0:
        return not proof and old_root == EMPTY_ROOT
    if old == new:
        return not proof and old_root == new_root
    steps = list(proof)
    if old & (old - 1) == 0:  # a full old tree is the first subtree itself, and proofs omit it
        steps.insert(0, old_root)
    if not steps:
        return False
    here, last = old - 1, new - 1
    while here & 1:
        here, last = here >> 1, last >> 1
    before = after = steps[0]
    for step in steps[1:]:
        if last == 0:
            return False
        if here & 1 or here == last:
            before, after = node_hash(step, before), node_hash(step, after)
            while not here & 1 and here:
                here, last = here >> 1, last >> 1
        else:
            after = node_hash(after, step)
        here, last = here >> 1, last >> 1
    return last == 0 and before == old_root and after == new_root


def _split(count: int) -> int:
    """The largest power of two below `count`: the number of leaves in the left subtree."""
    return 1 << ((count - 1).bit_length() - 1)
