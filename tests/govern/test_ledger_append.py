"""Concurrent writers append leaves in one order, and full subtrees are stored with the leaves."""

import asyncio
import multiprocessing
from pathlib import Path

import pytest

from tenure.errors import TenureError
from tenure.proof import ledger_leaves, merkle
from tenure.store.ledger import append_leaves, read_range_hashes
from tenure.store.port import Store, Transaction
from tenure.store.postgres import PostgresStore
from tenure.store.transactions import run_transaction
from tests.govern.ledger_databases import RUN, LedgerPlace, all_leaves, append, created


async def assert_whole(store: Store, tenant: str) -> None:
    """Check that positions have no gaps and that exactly the full subtrees are stored."""
    kept = await all_leaves(store, tenant)
    assert [leaf.pos for leaf in kept] == list(range(len(kept)))
    tree = merkle.GrowingTree()
    wanted = dict(made for leaf in kept for made in tree.add(merkle.leaf_hash(leaf.body)))
    nodes = await store.read("nodes_after", tenant, 0, -1, 100_000)
    assert {(node.level, node.pos): node.hash for node in nodes} == wanted
    assert (await read_range_hashes(store, tenant, [(0, len(kept))])) == [tree.root()]
    assert not any(ledger_leaves.leaf_problem(leaf) for leaf in kept)


async def test_leaves_are_appended_in_order_with_the_subtrees_they_complete(
    ledger_place: LedgerPlace,
) -> None:
    async with ledger_place.opened() as store:
        first = 0
        for count in (1, 1, 3, 8, 1, 5):
            made = await append(store, "acme", created(count, first))
            assert [leaf.pos for leaf in made] == list(range(first, first + count))
            first += count
        await assert_whole(store, "acme")
        await append(store, "beta", created(2, tenant="beta"))
        sizes = {each.tenant: (each.size, each.signed) for each in await store.read("ledger_sizes")}
        assert sizes == {"acme": (19, 0), "beta": (2, 0)}


async def test_an_existing_leaf_is_not_appended_again(ledger_place: LedgerPlace) -> None:
    async with ledger_place.opened() as store:
        once = await append(store, "acme", created(3))
        sealed = ledger_leaves.seal_leaf("acme", RUN, 0, b"h" * 32, 9, "succeeded")
        again = await append(store, "acme", [*created(4), sealed, sealed, *created(2)], now=8)
        assert again[:3] == once
        assert [leaf.pos for leaf in again] == [0, 1, 2, 3, 4, 4, 0, 1]
        await append(store, "acme", [ledger_leaves.admin_leaf("acme", 5, b"a" * 32)])
        await append(
            store,
            "acme",
            [ledger_leaves.admin_leaf("acme", 4, b"b" * 32), ledger_leaves.admin_leaf("acme", 7, b"c" * 32)],
        )
        assert [(leaf.kind, leaf.part) for leaf in await all_leaves(store, "acme")][5:] == [
            ("admin", 5),
            ("admin", 7),
        ]
        await assert_whole(store, "acme")


async def test_a_refused_transaction_adds_no_leaf(ledger_place: LedgerPlace) -> None:
    async with ledger_place.opened() as store:

        def work() -> Transaction[None]:
            yield from append_leaves("acme", created(3), 7)
            raise TenureError("INVALID_INPUT", "changed my mind")

        with pytest.raises(TenureError, match="changed my mind"):
            await run_transaction(store, work)
        assert await all_leaves(store, "acme") == []


async def test_a_ledger_with_a_gap_accepts_no_leaves(ledger_place: LedgerPlace) -> None:
    async with ledger_place.opened() as store:
        await append(store, "acme", created(2))
        await ledger_place.execute_sql("delete from ledger_node")
        with pytest.raises(
            TenureError, match="node 0 of level 1 of the ledger of tenant 'acme' is missing"
        ) as refused:
            await append(store, "acme", created(1, 2))
        assert refused.value.code == "LEDGER_BROKEN"


async def test_concurrent_appends_build_one_tree(ledger_place: LedgerPlace) -> None:
    async with ledger_place.opened() as store, ledger_place.opened() as other:
        await asyncio.gather(
            *(append(each, "acme", created(3, 3 * n)) for n in range(12) for each in (store, other))
        )
        assert len(await all_leaves(store, "acme")) == 36
        await assert_whole(store, "acme")


def _append_many(dsn: str, first: int) -> None:
    async def work() -> None:
        store = PostgresStore(dsn)
        await store.open()
        for n in range(20):
            await append(store, "acme", created(3, first + 3 * n))
        await store.close()

    asyncio.run(work())


async def test_two_processes_that_append_concurrently_build_one_tree(
    migrated_dsn: str, tmp_path: Path
) -> None:
    place = LedgerPlace("postgres", tmp_path, migrated_dsn)
    async with place.opened() as store:
        context = multiprocessing.get_context("spawn")
        # The two processes append overlapping runs. Each leaf must be stored once.
        both = [context.Process(target=_append_many, args=(migrated_dsn, first)) for first in (0, 30)]
        for process in both:
            process.start()
        for process in both:
            await asyncio.to_thread(process.join)
            assert process.exitcode == 0
        kept = await all_leaves(store, "acme")
        assert sorted(leaf.run_id or 0 for leaf in kept) == [RUN + n for n in range(90)]
        await assert_whole(store, "acme")
