"""The ledger of a server: its signed checkpoints, and what they prove without the database.

Laws:
1. The server is not trusted. A leaf is shown only if its proof leads to the checkpoint, and a ledger continues another only if a proof
   shows it. A check that needs the database is reported as not done.
2. It is the ledger of the key's tenant, up to its newest signed checkpoint.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from tenure.canonical import decode_base64
from tenure.clock import us
from tenure.doctor.ledger_check import LedgerFlaw
from tenure.errors import TenureError
from tenure.govern.ledger.audit import NO_CHECKPOINT, LedgerAudit
from tenure.govern.ledger.checkpoint_export import NOTHING_SIGNED, write_checkpoint
from tenure.kernel.governance_rows import SignedCheckpointRow
from tenure.proof import merkle, signed_notes
from tenure.proof.signatures import TrustedKeys

if TYPE_CHECKING:
    from tenure.client.transport import Transport
    from tenure.proof.signed_notes import LedgerCheckpoint

NO_DATABASE = (
    "whether runs, payloads and the admin chain are what the ledger says: this check needs the database"
)
NO_TRUST = "whether the keys are the right ones: they are what the server says; give --trust"


class _Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint as the server shows it."""

    note: str
    key_id: str
    signed_at: datetime


class RemoteLedger:
    """If a `tenant` is named, the key must be of that tenant."""

    def __init__(self, to: Transport, tenant: str | None = None) -> None:
        self._to = to
        self._tenant = tenant

    async def newest(self) -> LedgerCheckpoint | None:
        """The newest checkpoint; None if nothing is signed yet."""
        found = await self._signed()
        return None if found is None else signed_notes.parse_checkpoint(found.note)

    async def leaves(self, checkpoint: LedgerCheckpoint, count: int) -> list[dict[str, Any]]:
        """The last leaves below a checkpoint: their content, or what is wrong with their proof."""
        first = max(0, checkpoint.size - count)
        return list(
            await asyncio.gather(*(self._leaf(checkpoint, pos) for pos in range(first, checkpoint.size)))
        )

    async def export(self, to: str) -> SignedCheckpointRow:
        """Write the newest checkpoint to a file or an object. An older ledger never replaces a newer one."""
        newest = await self._signed()
        if newest is None:
            raise TenureError("NOT_READY", NOTHING_SIGNED)
        await write_checkpoint(self, to, newest)
        return newest

    async def check_prefix(self, size: int, root: bytes, here: int) -> None:
        """Raise LEDGER_BROKEN unless the ledger of the newest checkpoint begins with the ledger of this size and root."""
        newest = await self.newest()
        if newest is None or newest.size < max(size, here):
            there = 0 if newest is None else newest.size
            raise TenureError(
                "LEDGER_BROKEN",
                f"the server has signed {there} leaves, but a checkpoint was signed over {size}: its ledger was truncated, or an"
                " older backup was restored",
            )
        if not await self._is_continued(size, root, newest):
            raise TenureError(
                "LEDGER_BROKEN",
                f"the first {size} leaves of the server's ledger are not those that a checkpoint was signed over",
            )

    async def check(self, kept: LedgerCheckpoint | None, trust: TrustedKeys | None) -> LedgerAudit:
        """Check the newest checkpoint against trusted keys, and against a checkpoint that was kept elsewhere."""
        newest = await self.newest()
        keys = trust or TrustedKeys.parse((await self._to.ask("GET", "/ledger/trust")).content)
        flaws = await self._flaws(newest, kept, keys)
        gaps = ((NO_DATABASE, True), (NO_CHECKPOINT, kept is None), (NO_TRUST, trust is None))
        return LedgerAudit(
            tenant="" if newest is None else tenant_of_checkpoint(newest),
            size=0 if newest is None else newest.size,
            root="" if newest is None else newest.root.hex(),
            runs=None,
            deleted=None,
            checkpoints=0 if newest is None else 1,
            checked=[] if flaws or newest is None else _checked(newest, kept),
            flaws=flaws,
            unchecked=[text for text, applies in gaps if applies],
        )

    async def _flaws(
        self, newest: LedgerCheckpoint | None, kept: LedgerCheckpoint | None, trust: TrustedKeys
    ) -> list[LedgerFlaw]:
        place = "the server's ledger"
        for one, name in ((newest, "the newest checkpoint"), (kept, "the checkpoint")):
            try:
                if one is not None:
                    signed_notes.find_signer(one, trust)
            except TenureError as refused:
                return [LedgerFlaw(code="SIGNATURE_WRONG", place=name, text=refused.message)]
        if kept is None:
            return []
        if newest is None or newest.size < kept.size:
            size = 0 if newest is None else newest.size
            text = f"its first {size} leaves are signed, but the checkpoint was signed over {kept.size}: an older backup was restored"
            return [LedgerFlaw(code="RESTORED", place=place, text=text)]
        if newest.origin != kept.origin:
            text = f"the checkpoint is of {kept.origin}, and this is {newest.origin}"
            return [LedgerFlaw(code="OTHER_LEDGER", place=place, text=text)]
        if not await self._is_continued(kept.size, kept.root, newest):
            text = f"its first {kept.size} leaves are not those that the checkpoint was signed over"
            return [LedgerFlaw(code="REWRITTEN", place=place, text=text)]
        return []

    async def _is_continued(self, size: int, root: bytes, newest: LedgerCheckpoint) -> bool:
        """Whether a proof shows that the newest ledger begins with an older one (law 1)."""
        found = await self._to.get(
            "/ledger/consistency", dict[str, Any], **{"from": str(size), "to": str(newest.size)}
        )
        hashes = [decode_base64(one) or b"" for one in found["hashes"]]
        return merkle.is_consistent(size, root, newest.size, newest.root, hashes)

    async def _leaf(self, checkpoint: LedgerCheckpoint, pos: int) -> dict[str, Any]:
        params = {"index": str(pos), "size": str(checkpoint.size)}
        proof = signed_notes.parse_proof((await self._to.ask("GET", "/ledger/proof", params=params)).text)
        body = proof.body or b""
        wrong = signed_notes.find_inclusion_problem(body, proof, checkpoint)
        if wrong is None and proof.index != pos:
            wrong = f"the proof is of leaf {proof.index}"
        return {"pos": pos, **({"problem": wrong} if wrong else msgspec.json.decode(body))}

    async def _signed(self) -> SignedCheckpointRow | None:
        if self._tenant is not None:
            mine = (await self._to.get("/session", dict[str, Any]))["tenant"]
            if mine != self._tenant:
                raise TenureError("INVALID_INPUT", f"this key is of tenant {mine!r}, not of {self._tenant!r}")
        found = await self._to.pages("/ledger/checkpoints", _Shown, limit=1)
        if not found:
            return None
        [one], read = found, signed_notes.parse_checkpoint(found[0].note)
        at = us(one.signed_at.timestamp())
        return SignedCheckpointRow(
            tenant_of_checkpoint(read), read.size, read.root, read.note, one.key_id, at
        )


def _checked(newest: LedgerCheckpoint, kept: LedgerCheckpoint | None) -> list[str]:
    found = [f"a trusted key has signed the first {newest.size} leaves"]
    if kept is not None:
        found.append(
            f"the server proves that the ledger begins with the {kept.size} leaves that your checkpoint was signed over"
        )
    return found


def tenant_of_checkpoint(checkpoint: LedgerCheckpoint) -> str:
    """The tenant in a checkpoint's origin; '' for the installation's ledger."""
    parts = checkpoint.origin.split("/")
    return unquote(parts[2]) if len(parts) == 3 else ""
