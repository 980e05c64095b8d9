"""A tenant's ledger: what it has, its checkpoints, and proofs from it.

Laws:
1. A checkpoint is signed over what is there, and only where the last one that was signed is still the beginning of it. What was
   changed beneath it is not signed over: LEDGER_BROKEN, until somebody has looked.
2. A proof is of a leaf that is there, for a checkpoint that covers it.
"""

from __future__ import annotations

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.govern.ledger import notes
from tenure.govern.ledger.notes import Checkpoint
from tenure.govern.signing import Signer
from tenure.kernel import merkle
from tenure.kernel.governance import Leaf, Signed
from tenure.store.beside import settled
from tenure.store.ledger import hashes_of, ledger_name
from tenure.store.port import Query, Store, Transaction

NEWEST = 2**62


class Book:
    """See the laws above. `tenant` '' is the installation's own."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self.tenant = tenant

    async def size(self) -> int:
        """How many leaves it has."""
        head: list[Leaf] = await self._store.read("ledger_head", self.tenant)
        return head[0].pos + 1 if head else 0

    async def root(self, size: int) -> bytes:
        """What its root was when it had so many."""
        (root,) = await hashes_of(self._store, self.tenant, [(0, size)])
        return root

    async def origin(self) -> str | None:
        """Its name; None: no key was ever registered here, so nothing was signed."""
        first: list[Leaf] = await self._store.read("leaves_after", "", -1, 1)
        if not first or first[0].pos != 0:
            return None
        return notes.origin_of(merkle.leaf_hash(first[0].body), self.tenant)

    async def newest(self) -> Signed | None:
        """The last checkpoint that was signed."""
        found: list[Signed] = await self._store.read("signed_before", self.tenant, NEWEST, 1)
        return found[0] if found else None

    async def leaves_of(self, run_id: int) -> list[Leaf]:
        """What it says of a run."""
        found: list[Leaf] = await self._store.read("leaves_of_run", self.tenant, run_id)
        return found

    # ------------------------------------------------------------------------------------------ signing

    async def sign(self, signer: Signer) -> Signed | None:
        """Sign for all that is there now; None: nothing is new. The key has been asked about (`Keys.ready`)."""
        size, last = await self.size(), await self.newest()
        if last is not None:
            await self.check_prefix(last.size, last.root, size)
        if size == (0 if last is None else last.size):
            return None
        origin = await self.origin()
        assert origin is not None, "a key that is ready has its leaf"
        root = await self.root(size)
        now: int = (await self._store.read("now"))[0].now_us
        made = await notes.signed(signer, origin, size, root, now)
        row = Signed(self.tenant, size, root, made.note, signer.id, now)

        def work() -> Transaction[None]:
            yield Query("save_signed", scalars=msgspec.structs.astuple(row))

        await settled(self._store, work)
        return row

    async def check_prefix(self, size: int, root: bytes, here: int) -> None:
        """LEDGER_BROKEN unless it begins with what a checkpoint of this size and root was signed over (law 1)."""
        if size > here:
            raise TenureError(
                "LEDGER_BROKEN",
                f"{ledger_name(self.tenant)} has {here} leaves, and a checkpoint was signed over {size}: it was cut off, or an"
                " older backup was put back",
            )
        if await self.root(size) != root:
            raise TenureError(
                "LEDGER_BROKEN",
                f"the first {size} leaves of {ledger_name(self.tenant)} are not those that a checkpoint was signed over",
            )

    # ------------------------------------------------------------------------------------------ proving

    async def proof(self, leaf: Leaf, checkpoint: Checkpoint | None = None) -> str:
        """A leaf's proof for a checkpoint; without one for the newest that there is. NOT_READY: none covers it yet."""
        if checkpoint is None:
            newest = await self.newest()
            if newest is None or newest.size <= leaf.pos:
                raise TenureError(
                    "NOT_READY",
                    f"no checkpoint covers leaf {leaf.pos} of {ledger_name(self.tenant)} yet: it is signed within a minute"
                    " where a signing key is configured",
                )
            checkpoint = notes.parse(newest.note)
        elif checkpoint.origin != await self.origin():
            raise TenureError(
                "LEDGER_CHECKPOINT_INVALID",
                f"the checkpoint is of {checkpoint.origin}, which is not {ledger_name(self.tenant)}",
            )
        await self.check_prefix(checkpoint.size, checkpoint.root, await self.size())
        if checkpoint.size <= leaf.pos:
            raise TenureError(
                "NOT_READY",
                f"the checkpoint has {checkpoint.size} leaves, and this is leaf {leaf.pos}: it came later; take a newer one",
            )
        hashes = await hashes_of(self._store, self.tenant, merkle.inclusion(leaf.pos, checkpoint.size))
        return notes.proof_text(leaf.pos, hashes, leaf.body, checkpoint)

    async def run_proof(self, run_id: int, part: int = 0, checkpoint: Checkpoint | None = None) -> str:
        """The proof that a run is sealed in it: its first seal, or a supplement of it."""
        kind = "supplement" if part else "sealed"
        for leaf in await self.leaves_of(run_id):
            if (leaf.kind, leaf.part) == (kind, part):
                return await self.proof(leaf, checkpoint)
        raise TenureError(
            "RUN_NOT_SEALED", f"{ids.run_text(run_id)} has no leaf {kind} {part or ''}".rstrip()
        )

    async def consistency(self, old: int, new: int) -> list[bytes]:
        """The proof that the ledger of one size begins with that of another."""
        if not 0 <= old <= new <= await self.size():
            raise TenureError(
                "INVALID_INPUT",
                f"{ledger_name(self.tenant)} has {await self.size()} leaves: 0 <= from <= to <= that",
            )
        return await hashes_of(self._store, self.tenant, merkle.consistency(old, new))
