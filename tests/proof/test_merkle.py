"""The Merkle tree of a ledger: the vectors of RFC 6962, valid proofs, and no valid proof of a false claim."""

from collections.abc import Callable, Iterable
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.proof.merkle import (
    EMPTY_ROOT,
    GrowingTree,
    NodePlace,
    consistency_ranges,
    full_subtrees,
    inclusion_ranges,
    is_consistent,
    is_included,
    leaf_hash,
    node_hash,
    range_hash,
)

INPUTS = [
    bytes.fromhex(text)
    for text in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"
    )
]  # fmt: skip
"""The leaves of the tests of the reference implementation (Certificate Transparency)."""
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
"""The roots over the first 1, 2, ... 8 leaves."""


def tree_root(leaves: Iterable[bytes]) -> bytes:
    """Return the root over leaf hashes."""
    tree = GrowingTree()
    for leaf in leaves:
        tree.add(leaf)
    return tree.root()


def tree_and_nodes(leaves: list[bytes]) -> tuple[GrowingTree, dict[NodePlace, bytes]]:
    tree = GrowingTree()
    nodes: dict[NodePlace, bytes] = {}
    for pos, leaf in enumerate(leaves):
        nodes[0, pos] = leaf
        nodes.update(tree.add(leaf))
    return tree, nodes


def leaf_hashes(count: int) -> list[bytes]:
    return [leaf_hash(str(n).encode()) for n in range(count)]


def rfc_root(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962, 2.1, implemented literally."""
    if not leaves:
        return sha256().digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return node_hash(rfc_root(leaves[:k]), rfc_root(leaves[k:]))


def test_the_roots_match_the_reference_of_the_rfc() -> None:
    assert EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for size, root in enumerate(ROOTS, start=1):
        assert tree_root(map(leaf_hash, INPUTS[:size])).hex() == root


def test_proofs_match_the_example_of_the_rfc() -> None:
    """RFC 6962, 2.1.3: the tree over d0 to d6."""
    assert inclusion_ranges(0, 7) == [(1, 2), (2, 4), (4, 7)]  # b, h, l
    assert inclusion_ranges(3, 7) == [(2, 3), (0, 2), (4, 7)]  # c, g, l
    assert inclusion_ranges(4, 7) == [(5, 6), (6, 7), (0, 4)]  # f, j, k
    assert inclusion_ranges(6, 7) == [(4, 6), (0, 4)]  # i, k
    assert consistency_ranges(3, 7) == [(2, 3), (3, 4), (0, 2), (4, 7)]  # c, d, g, l
    assert consistency_ranges(4, 7) == [(4, 7)]  # l
    assert consistency_ranges(6, 7) == [(4, 6), (6, 7), (0, 4)]  # i, j, k


@given(st.integers(0, 300))
def test_an_incremental_tree_has_the_same_root(size: int) -> None:
    leaves = leaf_hashes(size)
    tree, nodes = tree_and_nodes(leaves)
    assert tree.root() == rfc_root(leaves) == range_hash((0, size), nodes)
    resumed = GrowingTree(size, [nodes[place] for place in full_subtrees(0, size)])
    resumed.add(leaf_hash(b"next"))
    assert resumed.root() == rfc_root([*leaves, leaf_hash(b"next")])


@given(st.data(), st.integers(1, 300))
def test_every_leaf_has_a_short_proof_that_fits_no_other_leaf(data: st.DataObject, size: int) -> None:
    pos = data.draw(st.integers(0, size - 1))
    leaves = leaf_hashes(size)
    tree, nodes = tree_and_nodes(leaves)
    root = tree.root()
    proof = [range_hash(span, nodes) for span in inclusion_ranges(pos, size)]
    assert len(proof) <= (size - 1).bit_length()
    assert is_included(leaves[pos], pos, size, proof, root)
    wrong = data.draw(st.integers(-2, size + 2).filter(lambda n: n != pos))
    assert not is_included(leaves[pos], wrong, size, proof, root)
    assert not is_included(leaf_hash(b"forged"), pos, size, proof, root)
    assert not is_included(leaves[pos], pos, size, [*proof, root], root)
    if proof:
        assert not is_included(leaves[pos], pos, size, proof[:-1], root)
        at = data.draw(st.integers(0, len(proof) - 1))
        changed = [*proof[:at], leaf_hash(b"forged"), *proof[at + 1 :]]
        assert not is_included(leaves[pos], pos, size, changed, root)


@given(st.data(), st.integers(0, 300))
def test_consistency_is_proven_for_a_grown_tree_and_not_for_a_rewritten_one(
    data: st.DataObject, new: int
) -> None:
    old = data.draw(st.integers(0, new))
    leaves = leaf_hashes(new)
    tree, nodes = tree_and_nodes(leaves)
    before = rfc_root(leaves[:old])
    proof = [range_hash(span, nodes) for span in consistency_ranges(old, new)]
    assert len(proof) <= new.bit_length() + 1
    assert is_consistent(old, before, new, tree.root(), proof)
    if old:
        at = data.draw(st.integers(0, old - 1))
        rewritten = [*leaves[:at], leaf_hash(b"forged"), *leaves[at + 1 :]]
        again, other = tree_and_nodes(rewritten)
        assert not is_consistent(old, before, new, again.root(), proof)
        made = [range_hash(span, other) for span in consistency_ranges(old, new)]
        assert not is_consistent(old, before, new, again.root(), made)
        assert not is_consistent(old, leaf_hash(b"forged"), new, tree.root(), proof)
    assert not is_consistent(new + 1, before, new, tree.root(), proof)
    assert not is_consistent(old, before, new, tree.root(), [*proof, before])


def test_a_leaf_cannot_be_confused_with_a_node() -> None:
    left, right = leaf_hashes(2)
    assert leaf_hash(left + right) != node_hash(left, right)


@pytest.mark.parametrize(
    "call",
    [lambda: inclusion_ranges(3, 3), lambda: inclusion_ranges(-1, 3), lambda: consistency_ranges(4, 3)],
)
def test_impossible_proofs_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="a tree of 3 leaves"):
        call()
