"""The signing keys of an installation: added, rotated, revoked.

Laws:
1. A key's row, its leaf in the installation's ledger and its line in the admin chain are one transaction.
2. The first key is trusted because it is the first. Every later key is endorsed by the previous one (`rotate`), or added by hand if that is lost.
   A key that only appears in the configuration signs nothing.
3. A revocation is permanent. Its time can only be moved earlier.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial

import msgspec

from tenure.errors import TenureError
from tenure.govern.signing import Signer
from tenure.kernel.governance_rows import SigningKeyRow
from tenure.proof import ledger_leaves
from tenure.proof.ledger_leaves import LedgerEntry
from tenure.proof.signatures import TrustedKey, TrustedKeys, endorsement
from tenure.store.identity import AdminChange, append_admin_event
from tenure.store.ledger import append_leaves
from tenure.store.port import Query, Store, Transaction
from tenure.store.transactions import run_transaction

PREFIX_MIN = 8
SYSTEM = "system:ledger"


class SigningKeys:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> list[SigningKeyRow]:
        return [*await self._store.read("signing_keys")]

    async def named(self, text: str) -> SigningKeyRow:
        """The key with this id, or the only key whose id begins with it."""
        matching = [key for key in await self.all() if len(text) >= PREFIX_MIN and key.id.startswith(text)]
        if len(matching) != 1:
            raise TenureError(
                "KEY_NOT_FOUND",
                f"there is no signing key {text[:64]!r}: `tenure signing-keys list` shows all keys",
            )
        return matching[0]

    async def trust(self) -> TrustedKeys:
        """The trusted keys according to this database. Anyone who can write to the database can change them: keep a copy elsewhere."""
        return TrustedKeys(as_trusted_key(key) for key in await self.all())

    async def ready(self, signer: Signer) -> None:
        """SIGNING_KEY_UNKNOWN unless this key may sign now. If there is no key yet, it becomes the first (law 2)."""
        known = await self.all() or await self._first(signer)
        mine = next((key for key in known if key.id == signer.id), None)
        if mine is None:
            raise TenureError(
                "SIGNING_KEY_UNKNOWN",
                f"key {signer.id[:12]} is configured here, but no key has endorsed it: run `tenure signing-keys rotate`",
            )
        if mine.revoked_from is not None and mine.revoked_from <= await self._now():
            raise TenureError(
                "SIGNING_KEY_UNKNOWN", f"key {signer.id[:12]} is revoked and can no longer sign"
            )

    async def _first(self, signer: Signer) -> list[SigningKeyRow]:
        """If several processes start with a new key, one of them adds it."""
        try:
            await self.add(signer, SYSTEM, first=True)
        except TenureError as refused:
            if refused.code not in ("ALREADY_EXISTS", "CHANGED_MEANWHILE"):
                raise
        return await self.all()

    async def add(self, signer: Signer, actor: str, *, first: bool = False) -> SigningKeyRow:
        """Trust a key because the operator says so. `first`: only if there is no other key."""
        now = await self._now()
        key = SigningKeyRow(signer.id, signer.public, None, None, now)
        leaf = ledger_leaves.key_leaf("added", key.id, key.public, now)
        return await self._save(
            key, leaf, actor, "signing_key.added", check=partial(_check_new, key, only=first)
        )

    async def rotate(self, old: Signer, new: Signer, actor: str) -> SigningKeyRow:
        await self.ready(old)
        now = await self._now()
        signature = await old.sign(endorsement(new.public, old.id, now))
        key = SigningKeyRow(new.id, new.public, old.id, signature, now)
        leaf = ledger_leaves.key_leaf(
            "rotated", key.id, key.public, now, by=old.id, endorsement=base64.b64encode(signature).decode()
        )
        return await self._save(
            key, leaf, actor, "signing_key.rotated", check=partial(_check_new, key), by=old.id
        )

    async def revoke(self, named: str, from_us: int | None, actor: str) -> SigningKeyRow:
        """Stop trusting a key for signatures from a time on (now by default) (law 3)."""
        key = await self.named(named)
        since = await self._now() if from_us is None else from_us
        if key.revoked_from is not None and key.revoked_from <= since:
            return key
        revoked = msgspec.structs.replace(key, revoked_from=since)
        leaf = ledger_leaves.key_leaf("revoked", key.id, key.public, await self._now(), revoked_from=since)
        return await self._save(revoked, leaf, actor, "signing_key.revoked", revoked_from=since)

    async def _save(
        self,
        key: SigningKeyRow,
        leaf: LedgerEntry,
        actor: str,
        kind: str,
        *,
        check: Callable[[list[SigningKeyRow]], None] = lambda _known: None,
        **about: object,
    ) -> SigningKeyRow:
        """Save a key with its line of the admin chain and its leaf (law 1). `check` refuses a key because of the known ones."""
        change = AdminChange(tenant="", kind=kind, actor=actor, about={"key": key.id, **about})

        def work() -> Transaction[SigningKeyRow]:
            now = (yield Query("now"))[0].now_us
            yield from append_admin_event(change, now)  # takes the lock of the chain
            check((yield Query("signing_keys")))
            yield Query("save_signing_key", scalars=msgspec.structs.astuple(key))
            yield from append_leaves("", [leaf], now)
            return key

        return await run_transaction(self._store, work)

    async def _now(self) -> int:
        return int((await self._store.read("now"))[0].now_us)


def as_trusted_key(key: SigningKeyRow) -> TrustedKey:
    return TrustedKey(
        id=key.id,
        public=base64.b64encode(key.public).decode(),
        created_at=key.created_at,
        endorsed_by=key.endorsed_by,
        endorsement=None if key.endorsement is None else base64.b64encode(key.endorsement).decode(),
        revoked_from=key.revoked_from,
    )


def _check_new(key: SigningKeyRow, known: list[SigningKeyRow], *, only: bool = False) -> None:
    if any(one.id == key.id for one in known):
        raise TenureError("ALREADY_EXISTS", f"signing key {key.id[:12]} is already known")
    if only and known:
        raise TenureError("CHANGED_MEANWHILE", "another signing key was added meanwhile")
