"""Recomputes ledgers and compares them with the database, for the doctor (I51) and for `tenure ledger check`.

Laws:
1. Everything is recomputed from the leaves: their places, their bodies, the full subtrees over them, and the root at every
   size that a checkpoint names.
2. The facts in a leaf are compared with the database: a run's first event, the length and head of its chain when it was sealed,
   the lines of the admin chain, the signing keys.
3. A run that a leaf names and that does not exist was deleted after it was sealed, or it was dropped.
4. The check only reads, one page at a time. It covers every leaf that existed when it began. Later leaves may be left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from tenure import ids
from tenure.canonical import encode_base64
from tenure.kernel.governance_rows import LedgerLeafRow, LedgerNodeRow, SignedCheckpointRow, SigningKeyRow
from tenure.kernel.identity_rows import AdminEventRow
from tenure.proof import ledger_leaves, merkle
from tenure.store.ledger import LedgerRunHead, LedgerSize, ledger_name
from tenure.store.port import QueryReader

PAGE_LEAVES = 500
NEWEST = 2**62


class LedgerFlaw(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    """LEAF_MISSING, LEAF_CHANGED, NODE_CHANGED, TRUNCATED, REWRITTEN, RUN_DROPPED, RUN_CHANGED, RUN_TRUNCATED, ROWS_CHANGED,
    PAYLOAD_CHANGED, ADMIN_CHANGED, ADMIN_TRUNCATED, KEYS_CHANGED."""
    place: str
    text: str


class RecomputedLedger(msgspec.Struct, kw_only=True):
    tenant: str
    size: int = 0
    roots: dict[int, bytes] = {}
    """Size -> root, for its full size and for those requested sizes that it has."""
    runs: int = 0
    deleted: int = 0
    """Runs that were deleted after they were sealed."""
    flaws: list[LedgerFlaw] = []


async def find_broken_ledgers(store: QueryReader) -> list[tuple[str, LedgerFlaw]]:
    """(tenant, flaw) for all ledgers, which are compared with the database and with their own checkpoints. Signatures are not checked."""
    sizes: list[LedgerSize] = await store.read("ledger_sizes")
    return [
        (each.tenant, flaw) for each in sizes for flaw in (await recompute_ledger(store, each.tenant)).flaws
    ]


async def recompute_ledger(store: QueryReader, tenant: str, sizes: Collection[int] = ()) -> RecomputedLedger:
    """Recompute a ledger, with its root at `sizes`."""
    seen = RecomputedLedger(tenant=tenant)
    await _LeafWalk(store, seen, sizes).run()
    if tenant == "":
        seen.flaws += await _key_flaws(store)
    return seen


class _LeafWalk:
    """Reads the leaves of a ledger from the first to the last."""

    def __init__(self, store: QueryReader, seen: RecomputedLedger, asked: Collection[int]) -> None:
        self._store = store
        self._seen = seen
        self._asked = asked
        self._tree = merkle.GrowingTree()
        self._signed: list[SignedCheckpointRow] = []
        """Its own checkpoints of larger sizes, in descending order."""

    async def run(self) -> None:
        seen = self._seen
        if 0 in self._asked:
            seen.roots[0] = merkle.EMPTY_ROOT
        after = -1
        await self._load_checkpoints(0)
        while page := await self._store.read("leaves_after", seen.tenant, after, PAGE_LEAVES):
            for pos, leaf in enumerate(page, after + 1):
                if leaf.pos != pos:
                    self._flaw("LEAF_MISSING", f"leaf {pos} of {ledger_name(seen.tenant)}", "it is missing")
                    seen.size = pos
                    return  # nothing after it can be recomputed
            after = page[-1].pos
            await self._check_subtrees(page)
            sound = [leaf for leaf in page if self._is_sound(leaf)]
            await self._check_runs([leaf for leaf in sound if leaf.run_id is not None])
            await self._check_admin_chain([leaf for leaf in sound if leaf.kind == "admin"])
        seen.size = self._tree.size
        seen.roots[seen.size] = self._tree.root()
        await self._check_newest_checkpoint()
        await self._check_extra_nodes()

    async def _load_checkpoints(self, after: int) -> None:
        found: list[SignedCheckpointRow] = await self._store.read(
            "ledger_checkpoints_after", self._seen.tenant, after, PAGE_LEAVES
        )
        self._signed = found[::-1]

    async def _check_newest_checkpoint(self) -> None:
        """Report a checkpoint over more leaves than there are now, including those that were appended meanwhile."""
        newest: list[SignedCheckpointRow] = await self._store.read(
            "ledger_checkpoints_before", self._seen.tenant, NEWEST, 1
        )
        head: list[LedgerLeafRow] = await self._store.read("ledger_head", self._seen.tenant)
        has = head[0].pos + 1 if head else 0
        if newest and newest[0].size > has:
            text = f"it has {has} leaves, but its own checkpoint was signed over {newest[0].size}: leaves were removed"
            self._flaw("TRUNCATED", ledger_name(self._seen.tenant), text)

    def _flaw(self, code: str, place: str, text: str) -> None:
        self._seen.flaws.append(LedgerFlaw(code=code, place=place, text=text))

    def _is_sound(self, leaf: LedgerLeafRow) -> bool:
        problem = ledger_leaves.leaf_problem(leaf)
        if problem is not None:
            self._flaw("LEAF_CHANGED", f"leaf {leaf.pos} of {ledger_name(leaf.tenant)}", problem)
        return problem is None

    async def _check_subtrees(self, page: Sequence[LedgerLeafRow]) -> None:
        """Compare the full subtrees that a page completes with the stored ones."""
        computed: dict[merkle.NodePlace, bytes] = {}
        for leaf in page:
            computed.update(self._tree.add(merkle.leaf_hash(leaf.body)))
            size = self._tree.size
            if size in self._asked:
                self._seen.roots[size] = self._tree.root()
            if self._signed and self._signed[-1].size == size:
                if self._signed.pop().root != self._tree.root():
                    text = f"its first {size} leaves are not those that its own checkpoint was signed over"
                    self._flaw("REWRITTEN", ledger_name(leaf.tenant), text)
                if not self._signed:
                    await self._load_checkpoints(size)
        wanted = [(self._seen.tenant, level, pos) for level, pos in computed]
        rows: list[LedgerNodeRow] = await self._store.read("nodes_at", rows=wanted) if wanted else []
        stored = {(node.level, node.pos): node.hash for node in rows}
        for (level, pos), expected in computed.items():
            if stored.get((level, pos)) != expected:
                first, last = pos << level, ((pos + 1) << level) - 1
                what = "is missing" if (level, pos) not in stored else "does not recompute"
                self._flaw(
                    "NODE_CHANGED",
                    f"leaves {first} to {last} of {ledger_name(self._seen.tenant)}",
                    f"the subtree over them {what}: a leaf was changed, moved or inserted, or the subtree was",
                )

    async def _check_extra_nodes(self) -> None:
        """Report a subtree over missing leaves, which a truncation leaves behind."""
        tenant, after = self._seen.tenant, (0, -1)
        while page := await self._store.read("nodes_after", tenant, *after, PAGE_LEAVES):
            after = (page[-1].level, page[-1].pos)
            for node in page:
                end = (node.pos + 1) << node.level
                if end > self._tree.size and (await self._store.read("ledger_head", tenant))[0].pos + 1 < end:
                    place = f"node {node.pos} of level {node.level} of {ledger_name(tenant)}"
                    self._flaw("TRUNCATED", place, "leaves under it are missing: they were removed")
                    return

    async def _check_runs(self, page: Sequence[LedgerLeafRow]) -> None:
        wanted = [(leaf.tenant, leaf.run_id or 0, _event_number(leaf)) for leaf in page]
        heads: list[LedgerRunHead] = await self._store.read("run_heads", rows=wanted) if wanted else []
        found = {(head.run_id, head.seq): head for head in heads}
        for leaf, (_, run_id, seq) in zip(page, wanted, strict=True):
            self._seen.runs += leaf.kind == "created"
            for code, text in self._run_flaws(leaf, found[run_id, seq]):
                self._flaw(code, ids.run_text(run_id), text)

    def _run_flaws(self, leaf: LedgerLeafRow, head: LedgerRunHead) -> Iterator[tuple[str, str]]:
        """Compare a leaf of a run with the run."""
        facts = ledger_leaves.leaf_facts(leaf)
        if head.version is None:
            if leaf.kind == "created" and head.sealed:
                self._seen.deleted += 1
            elif leaf.kind == "created":
                yield (
                    "RUN_DROPPED",
                    f"leaf {leaf.pos} records its creation, it was never sealed, and it does not exist",
                )
            return
        if head.version < head.seq:
            yield (
                "RUN_TRUNCATED",
                f"leaf {leaf.pos} was sealed over {head.seq} events, but the run has {head.version}",
            )
        elif head.hash is None or head.hash.hex() != facts.get("hash", facts.get("head")):
            yield "RUN_CHANGED", f"its event {head.seq} is not the one that leaf {leaf.pos} records"
        if leaf.kind == "sealed" and head.status != facts.get("outcome"):
            yield (
                "RUN_CHANGED",
                f"it is {head.status}, but leaf {leaf.pos} was sealed over {facts.get('outcome')}",
            )

    async def _check_admin_chain(self, page: Sequence[LedgerLeafRow]) -> None:
        place = f"the admin chain of {self._seen.tenant or 'the installation'}"
        for leaf in page:
            line: list[AdminEventRow] = await self._store.read(
                "admin_events_after", leaf.tenant, leaf.part - 1, 1
            )
            if not line or line[0].seq != leaf.part:
                newest = await self._store.read("admin_head", leaf.tenant)
                has = newest[0].seq if newest else 0
                text = f"leaf {leaf.pos} was sealed over {leaf.part} lines, but the chain has {has}"
                self._flaw("ADMIN_TRUNCATED", place, text)
            elif line[0].hash.hex() != ledger_leaves.leaf_facts(leaf).get("head"):
                text = f"its line {leaf.part} is not the one that leaf {leaf.pos} records"
                self._flaw("ADMIN_CHANGED", place, text)


async def _key_flaws(store: QueryReader) -> list[LedgerFlaw]:
    """Compare the signing keys with the installation's ledger."""
    recorded: dict[str, tuple[Any, ...]] = {}
    after = -1
    while page := await store.read("key_leaves", after, PAGE_LEAVES):
        after = page[-1].pos
        for leaf in page:
            if ledger_leaves.leaf_problem(leaf) is None:
                facts = ledger_leaves.leaf_facts(leaf)
                key = facts["key"]
                if facts["action"] == "revoked":
                    recorded[key] = (*recorded.get(key, (None, None))[:2], facts["revoked_from"])
                else:
                    recorded[key] = (facts["public"], facts.get("by"), None)
    rows: list[SigningKeyRow] = await store.read("signing_keys")
    stored = {row.id: (encode_base64(row.public), row.endorsed_by, row.revoked_from) for row in rows}
    return [
        LedgerFlaw(
            code="KEYS_CHANGED",
            place=f"signing key {key[:12]}",
            text="its row in the database differs from the installation's ledger",
        )
        for key in sorted({*recorded, *stored})
        if recorded.get(key) != stored.get(key)
    ]


def _event_number(leaf: LedgerLeafRow) -> int:
    """The event that a leaf of a run names by its hash."""
    events = ledger_leaves.leaf_facts(leaf).get("events", 1)
    return events if isinstance(events, int) and events > 0 else 1
