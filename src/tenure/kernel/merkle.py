"""Merkle trees as in RFC 6962: what a ledger's root is, and proofs that something is in it, or that it only grew.

Laws:
1. A leaf is hashed after a byte 0, a node after a byte 1, so that neither can be taken for the other.
2. Every hash that a proof needs is that of a range of leaves, and a range is a few full subtrees: (level, pos) has the leaves
   from pos * 2**level on. So whoever keeps the full subtrees reads O(log n) of them for any proof.
3. Nothing here reads or writes anything. What is given to a check may be anything at all: the answer is then no.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

Place = tuple[int, int]
"""Of a full subtree: its level and its position there. Leaves are at level 0."""
Range = tuple[int, int]
"""Leaves from the first number up to, and without, the second."""

EMPTY_ROOT = sha256().digest()
HASH_BYTES = 32


def leaf_hash(body: bytes) -> bytes:
    """The hash of a leaf."""
    return sha256(b"\0" + body).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of a node."""
    return sha256(b"\1" + left + right).digest()


def places(low: int, high: int) -> list[Place]:
    """The full subtrees that make up a range of leaves, from left to right, as the tree over that range has them.

    (The range begins where a subtree that may be as large as it begins: so do all that proofs are made of.)
    """
    found: list[Place] = []
    while low < high:
        level = (high - low).bit_length() - 1
        found.append((level, low >> level))
        low += 1 << level
    return found


def together(hashes: Sequence[bytes]) -> bytes:
    """The hash of a range from those of its full subtrees."""
    if not hashes:
        return EMPTY_ROOT
    *rest, whole = hashes
    for left in reversed(rest):
        whole = node_hash(left, whole)
    return whole


def hash_of(span: Range, nodes: Mapping[Place, bytes]) -> bytes:
    """The hash of a range; KeyError where a subtree of it is not known."""
    return together([nodes[place] for place in places(*span)])


def root_of(leaves: Iterable[bytes]) -> bytes:
    """The root over leaves, from their hashes."""
    tree = Growing()
    for leaf in leaves:
        tree.add(leaf)
    return tree.root()


class Growing:
    """A tree that leaves are added to; it keeps the full subtrees of its right edge only."""

    def __init__(self, size: int = 0, edge: Iterable[bytes] = ()) -> None:
        """`edge`: the hashes of `places(0, size)`."""
        self.size = size
        self._edge = list(edge)

    def add(self, leaf: bytes) -> list[tuple[Place, bytes]]:
        """Add a leaf by its hash; the full subtrees above it that are whole now, lowest first."""
        made: list[tuple[Place, bytes]] = []
        level, pos, whole = 0, self.size, leaf
        while pos & 1:
            whole = node_hash(self._edge.pop(), whole)
            level, pos = level + 1, pos >> 1
            made.append(((level, pos), whole))
        self._edge.append(whole)
        self.size += 1
        return made

    def root(self) -> bytes:
        """The root as it is now."""
        return together(self._edge)


# ------------------------------------------------------------------------------------------------ proofs


def inclusion(pos: int, size: int) -> list[Range]:
    """The ranges whose hashes prove that a leaf is in the tree of a size, from the leaf up (RFC 6962, 2.1.1)."""
    if not 0 <= pos < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {pos}")
    found: list[Range] = []
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


def consistency(old: int, new: int) -> list[Range]:
    """The ranges whose hashes prove that the tree of one size begins with the tree of another (RFC 6962, 2.1.2)."""
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {new} leaves never had {old}")
    if old in (0, new):
        return []
    found: list[Range] = []
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
    """Whether a proof shows that the leaf with this hash is at this place of the tree with this root."""
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
    """Whether a proof shows that the tree of the new size begins with all of the tree of the old size."""
    if not 0 <= old <= new:
        return False
    if old == 0:
        return not proof and old_root == EMPTY_ROOT
    if old == new:
        return not proof and old_root == new_root
    steps = list(proof)
    if old & (old - 1) == 0:  # a full tree is its own first subtree, and no proof repeats it
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
    """The largest power of two below a number of leaves: how many are left of a node."""
    return 1 << ((count - 1).bit_length() - 1)
