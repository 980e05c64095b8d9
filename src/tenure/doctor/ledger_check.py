"""Whether a ledger is what it was, and tells what the database has: the look at it for the doctor (I51) and for `tenure ledger check`.

Laws:
1. Everything is recomputed from the leaves: their places, their bodies, the full subtrees over them, and the root at every
   size that a checkpoint names.
2. What a leaf says is compared with what is there: a run's first event, the length and head of its chain when it was sealed,
   the lines of the admin chain, the signing keys.
3. A run that a leaf tells of and that is not there was deleted after it was sealed, or dropped.
4. It only reads, a page at a time. What is appended meanwhile is looked at or not; what was there at the beginning is.
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
    """A flaw of a ledger: a code, where, and what it is."""

    code: str
    """LEAF_MISSING, LEAF_CHANGED, NODE_CHANGED, TRUNCATED, REWRITTEN, RUN_DROPPED, RUN_CHANGED, RUN_TRUNCATED, ROWS_CHANGED,
    PAYLOAD_CHANGED, ADMIN_CHANGED, ADMIN_TRUNCATED, KEYS_CHANGED."""
    place: str
    text: str


class RecomputedLedger(msgspec.Struct, kw_only=True):
    """The result of recomputing a ledger."""

    tenant: str
    size: int = 0
    roots: dict[int, bytes] = {}
    """Its root at its end and at the sizes that were asked for, if it has so many leaves."""
    runs: int = 0
    deleted: int = 0
    """Runs that were deleted after they were sealed."""
    flaws: list[LedgerFlaw] = []


async def find_broken_ledgers(store: QueryReader) -> list[tuple[str, LedgerFlaw]]:
    """The flaws of all ledgers, compared with each other and with their own checkpoints; signatures are not checked."""
    sizes: list[LedgerSize] = await store.read("ledger_sizes")
    found: list[tuple[str, LedgerFlaw]] = []
    for each in sizes:
        found += [(each.tenant, flaw) for flaw in (await recompute_ledger(store, each.tenant)).flaws]
    return found


async def recompute_ledger(store: QueryReader, tenant: str, sizes: Collection[int] = ()) -> RecomputedLedger:
    """Recompute a ledger, with its root at `sizes`."""
    seen = RecomputedLedger(tenant=tenant)
    await _Walk(store, seen, sizes).all()
    if tenant == "":
        seen.flaws += await _keys(store)
    return seen


class _Walk:
    """Reads the leaves of a ledger from the first to the last."""

    def __init__(self, store: QueryReader, seen: RecomputedLedger, asked: Collection[int]) -> None:
        self._store = store
        self._seen = seen
        self._asked = asked
        self._tree = merkle.GrowingTree()
        self._signed: list[SignedCheckpointRow] = []
        """Its own checkpoints that lie ahead, the nearest last."""

    async def all(self) -> None:
        seen = self._seen
        if 0 in self._asked:
            seen.roots[0] = merkle.EMPTY_ROOT
        after = -1
        await self._checkpoints(0)
        while page := await self._store.read("leaves_after", seen.tenant, after, PAGE_LEAVES):
            for pos, leaf in enumerate(page, after + 1):
                if leaf.pos != pos:
                    self._flaw("LEAF_MISSING", f"leaf {pos} of {ledger_name(seen.tenant)}", "it is not there")
                    seen.size = pos
                    return  # behind it nothing can be recomputed
            after = page[-1].pos
            await self._subtrees(page)
            sound = [leaf for leaf in page if self._is_sound(leaf)]
            await self._runs([leaf for leaf in sound if leaf.run_id is not None])
            await self._admins([leaf for leaf in sound if leaf.kind == "admin"])
        seen.size = self._tree.size
        seen.roots[seen.size] = self._tree.root()
        await self._beyond()
        await self._extra_nodes()

    async def _checkpoints(self, after: int) -> None:
        found: list[SignedCheckpointRow] = await self._store.read(
            "ledger_checkpoints_after", self._seen.tenant, after, PAGE_LEAVES
        )
        self._signed = found[::-1]

    async def _beyond(self) -> None:
        """A checkpoint over leaves that are not there; one for those that were appended meanwhile is none."""
        newest: list[SignedCheckpointRow] = await self._store.read(
            "ledger_checkpoints_before", self._seen.tenant, NEWEST, 1
        )
        head: list[LedgerLeafRow] = await self._store.read("ledger_head", self._seen.tenant)
        has = head[0].pos + 1 if head else 0
        if newest and newest[0].size > has:
            text = f"it has {has} leaves, and its own checkpoint was signed over {newest[0].size}: leaves were cut off"
            self._flaw("TRUNCATED", ledger_name(self._seen.tenant), text)

    def _flaw(self, code: str, place: str, text: str) -> None:
        self._seen.flaws.append(LedgerFlaw(code=code, place=place, text=text))

    def _is_sound(self, leaf: LedgerLeafRow) -> bool:
        problem = ledger_leaves.leaf_problem(leaf)
        if problem is not None:
            self._flaw("LEAF_CHANGED", f"leaf {leaf.pos} of {ledger_name(leaf.tenant)}", problem)
        return problem is None

    async def _subtrees(self, page: Sequence[LedgerLeafRow]) -> None:
        """The full subtrees that a page makes whole, against those that are kept."""
        made: dict[merkle.NodePlace, bytes] = {}
        for leaf in page:
            made.update(self._tree.add(merkle.leaf_hash(leaf.body)))
            size = self._tree.size
            if size in self._asked:
                self._seen.roots[size] = self._tree.root()
            if self._signed and self._signed[-1].size == size:
                if self._signed.pop().root != self._tree.root():
                    text = f"its first {size} leaves are not those that its own checkpoint was signed over"
                    self._flaw("REWRITTEN", ledger_name(leaf.tenant), text)
                if not self._signed:
                    await self._checkpoints(size)
        wanted = [(self._seen.tenant, level, pos) for level, pos in made]
        kept: list[LedgerNodeRow] = await self._store.read("nodes_at", rows=wanted) if wanted else []
        known = {(node.level, node.pos): node.hash for node in kept}
        for (level, pos), whole in made.items():
            if known.get((level, pos)) != whole:
                first, last = pos << level, ((pos + 1) << level) - 1
                what = "is not there" if (level, pos) not in known else "does not recompute"
                self._flaw(
                    "NODE_CHANGED",
                    f"leaves {first} to {last} of {ledger_name(self._seen.tenant)}",
                    f"the subtree over them {what}: one of them was changed, moved or put in, or the subtree was",
                )

    async def _extra_nodes(self) -> None:
        """A subtree over leaves that are not there is what truncation leaves behind."""
        tenant, after = self._seen.tenant, (0, -1)
        while page := await self._store.read("nodes_after", tenant, *after, PAGE_LEAVES):
            after = (page[-1].level, page[-1].pos)
            for node in page:
                if (node.pos + 1) << node.level > self._tree.size:
                    place = f"node {node.pos} of level {node.level} of {ledger_name(tenant)}"
                    if (await self._store.read("ledger_head", tenant))[0].pos + 1 < (
                        node.pos + 1
                    ) << node.level:
                        self._flaw(
                            "TRUNCATED", place, "it is over leaves that are not there: they were cut off"
                        )
                        return

    async def _runs(self, page: Sequence[LedgerLeafRow]) -> None:
        wanted = [(leaf.tenant, leaf.run_id or 0, _events(leaf)) for leaf in page]
        heads: list[LedgerRunHead] = await self._store.read("run_heads", rows=wanted) if wanted else []
        found = {(head.run_id, head.seq): head for head in heads}
        for leaf, (_, run_id, seq) in zip(page, wanted, strict=True):
            self._seen.runs += leaf.kind == "created"
            for code, text in self._run(leaf, found[run_id, seq]):
                self._flaw(code, ids.run_text(run_id), text)

    def _run(self, leaf: LedgerLeafRow, head: LedgerRunHead) -> Iterator[tuple[str, str]]:
        """Compare a leaf of a run with the run."""
        said = ledger_leaves.leaf_facts(leaf)
        if head.version is None:
            if leaf.kind == "created" and head.sealed:
                self._seen.deleted += 1
            elif leaf.kind == "created":
                yield (
                    "RUN_DROPPED",
                    f"leaf {leaf.pos} says that it was made, it was never sealed, and it is not there",
                )
            return
        if head.version < head.seq:
            yield (
                "RUN_TRUNCATED",
                f"leaf {leaf.pos} was sealed over {head.seq} events, and it has {head.version}",
            )
        elif head.hash is None or head.hash.hex() != said.get("hash", said.get("head")):
            yield "RUN_CHANGED", f"its event {head.seq} is not the one that leaf {leaf.pos} tells of"
        if leaf.kind == "sealed" and head.status != said.get("outcome"):
            yield (
                "RUN_CHANGED",
                f"it is {head.status}, and leaf {leaf.pos} was sealed over {said.get('outcome')}",
            )

    async def _admins(self, page: Sequence[LedgerLeafRow]) -> None:
        for leaf in page:
            said, place = (
                ledger_leaves.leaf_facts(leaf),
                f"the admin chain of {self._seen.tenant or 'the installation'}",
            )
            line: list[AdminEventRow] = await self._store.read(
                "admin_events_after", leaf.tenant, leaf.part - 1, 1
            )
            if not line or line[0].seq != leaf.part:
                newest = await self._store.read("admin_head", leaf.tenant)
                has = newest[0].seq if newest else 0
                text = f"leaf {leaf.pos} was sealed over {leaf.part} lines, and it has {has}"
                self._flaw("ADMIN_TRUNCATED", place, text)
            elif line[0].hash.hex() != said.get("head"):
                self._flaw(
                    "ADMIN_CHANGED",
                    place,
                    f"its line {leaf.part} is not the one that leaf {leaf.pos} tells of",
                )


async def _keys(store: QueryReader) -> list[LedgerFlaw]:
    """Compare the signing keys with the installation's ledger."""
    told: dict[str, tuple[Any, ...]] = {}
    after = -1
    while page := await store.read("key_leaves", after, PAGE_LEAVES):
        after = page[-1].pos
        for leaf in page:
            if ledger_leaves.leaf_problem(leaf) is None:
                said = ledger_leaves.leaf_facts(leaf)
                if said["action"] == "revoked":
                    told[said["key"]] = (*told.get(said["key"], (None, None))[:2], said["revoked_from"])
                else:
                    told[said["key"]] = (said["public"], said.get("by"), None)
    rows: list[SigningKeyRow] = await store.read("signing_keys")
    kept = {key.id: (encode_base64(key.public), key.endorsed_by, key.revoked_from) for key in rows}
    return [
        LedgerFlaw(
            code="KEYS_CHANGED",
            place=f"signing key {key[:12]}",
            text="what the database has of it is not what the installation's ledger tells",
        )
        for key in sorted({*told, *kept})
        if told.get(key) != kept.get(key)
    ]


def _events(leaf: LedgerLeafRow) -> int:
    """The event that a leaf of a run names by its hash."""
    said = ledger_leaves.leaf_facts(leaf)
    events = said.get("events", 1)
    return events if isinstance(events, int) and events > 0 else 1
