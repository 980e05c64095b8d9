"""A tenant's ledger: its leaves, its checkpoints, and proofs.

Laws:
1. A checkpoint is signed over all leaves, and only if the ledger still begins with those of the last checkpoint. A ledger that was changed below
   it is not signed: LEDGER_BROKEN, until someone has examined it.
2. A proof is for an existing leaf and a checkpoint that covers it.
"""

from __future__ import annotations

import msgspec

from tenure import ids
from tenure.errors import TenureError
from tenure.govern.signing import Signer, sign_checkpoint
from tenure.kernel.governance_rows import LedgerLeafRow, SignedCheckpointRow
from tenure.proof import merkle, signed_notes
from tenure.proof.signed_notes import LedgerCheckpoint
from tenure.store.ledger import ledger_name, read_range_hashes
from tenure.store.port import Query, Store, Transaction
from tenure.store.transactions import run_transaction

NEWEST = 2**62


class TenantLedger:
    """Implements the laws above. The tenant '' is the installation itself."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self.tenant = tenant

    async def size(self) -> int:
        head: list[LedgerLeafRow] = await self._store.read("ledger_head", self.tenant)
        return head[0].pos + 1 if head else 0

    async def root(self, size: int) -> bytes:
        (root,) = await read_range_hashes(self._store, self.tenant, [(0, size)])
        return root

    async def origin(self) -> str | None:
        """The name of the ledger, or None if no key was ever registered, so that nothing was signed."""
        first: list[LedgerLeafRow] = await self._store.read("leaves_after", "", -1, 1)
        known = first and first[0].pos == 0
        return signed_notes.ledger_origin(merkle.leaf_hash(first[0].body), self.tenant) if known else None

    async def newest(self) -> SignedCheckpointRow | None:
        found: list[SignedCheckpointRow] = await self._store.read(
            "ledger_checkpoints_before", self.tenant, NEWEST, 1
        )
        return found[0] if found else None

    async def leaves_of(self, run_id: int) -> list[LedgerLeafRow]:
        return [*await self._store.read("leaves_of_run", self.tenant, run_id)]

    # ------------------------------------------------------------------------------------------ signing

    async def sign(self, signer: Signer) -> SignedCheckpointRow | None:
        """Sign all leaves, or return None if nothing is new. The caller has checked the key (`SigningKeys.ready`)."""
        size, last = await self.size(), await self.newest()
        if last is not None:
            await self.check_prefix(last.size, last.root, size)
        if size == (0 if last is None else last.size):
            return None
        origin = await self.origin()
        assert origin is not None, "a key that is ready has its leaf"
        root = await self.root(size)
        now: int = (await self._store.read("now"))[0].now_us
        signed = await sign_checkpoint(signer, origin, size, root, now)
        row = SignedCheckpointRow(self.tenant, size, root, signed.note, signer.id, now)

        def work() -> Transaction[None]:
            yield Query("save_ledger_checkpoint", scalars=msgspec.structs.astuple(row))

        await run_transaction(self._store, work)
        return row

    async def check_prefix(self, size: int, root: bytes, here: int) -> None:
        """LEDGER_BROKEN unless the ledger begins with the leaves of a checkpoint of this size and root (law 1)."""
        if size > here:
            raise TenureError(
                "LEDGER_BROKEN",
                (
                    f"{ledger_name(self.tenant)} has {here} leaves, but a checkpoint was signed over {size}: it was truncated, or an"
                    " older backup was restored"
                ),
            )
        if await self.root(size) != root:
            raise TenureError(
                "LEDGER_BROKEN",
                f"the first {size} leaves of {ledger_name(self.tenant)} differ from those of a signed checkpoint",
            )

    # ------------------------------------------------------------------------------------------ proving

    async def proof(self, leaf: LedgerLeafRow, checkpoint: LedgerCheckpoint | None = None) -> str:
        """The proof of a leaf for a checkpoint, by default the newest. NOT_READY if none covers it yet."""
        if checkpoint is None:
            newest = await self.newest()
            if newest is None or newest.size <= leaf.pos:
                raise TenureError(
                    "NOT_READY",
                    (
                        f"no checkpoint covers leaf {leaf.pos} of {ledger_name(self.tenant)} yet: one is signed within a minute"
                        " if a signing key is configured"
                    ),
                )
            checkpoint = signed_notes.parse_checkpoint(newest.note)
        elif checkpoint.origin != await self.origin():
            raise TenureError(
                "LEDGER_CHECKPOINT_INVALID",
                f"the checkpoint belongs to {checkpoint.origin}, not to {ledger_name(self.tenant)}",
            )
        await self.check_prefix(checkpoint.size, checkpoint.root, await self.size())
        if checkpoint.size <= leaf.pos:
            raise TenureError(
                "NOT_READY",
                f"the checkpoint has {checkpoint.size} leaves and does not cover leaf {leaf.pos}: use a newer checkpoint",
            )
        hashes = await read_range_hashes(
            self._store, self.tenant, merkle.inclusion_ranges(leaf.pos, checkpoint.size)
        )
        return signed_notes.format_proof(leaf.pos, hashes, leaf.body, checkpoint)

    async def run_proof(self, run_id: int, part: int = 0, checkpoint: LedgerCheckpoint | None = None) -> str:
        """The proof that a run's first seal, or a supplement of it, is in the ledger."""
        kind = "supplement" if part else "sealed"
        for leaf in await self.leaves_of(run_id):
            if (leaf.kind, leaf.part) == (kind, part):
                return await self.proof(leaf, checkpoint)
        raise TenureError(
            "RUN_NOT_SEALED", f"{ids.run_text(run_id)} has no leaf {kind} {part or ''}".rstrip()
        )

    async def consistency(self, old: int, new: int) -> list[bytes]:
        """The proof that the ledger of the new size begins with that of the old size."""
        if not 0 <= old <= new <= await self.size():
            raise TenureError(
                "INVALID_INPUT",
                f"{ledger_name(self.tenant)} has {await self.size()} leaves: `from` and `to` must satisfy 0 <= from <= to <= that number",
            )
        return await read_range_hashes(self._store, self.tenant, merkle.consistency_ranges(old, new))
