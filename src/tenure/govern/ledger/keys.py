"""The keys that sign for an installation: added, rotated, revoked.

Laws:
1. A key's row, the leaf that says so in the installation's ledger and the line in its admin chain are one transaction.
2. The first key is believed because it is the first. Every later one is endorsed by the one before (`rotate`), or added by
   hand where that is lost; a key that merely appears in the configuration signs nothing.
3. A revocation is for good, and moves to an earlier moment only.
"""

from __future__ import annotations

import base64

import msgspec

from tenure.errors import TenureError
from tenure.govern.signing import Signer, Trust, TrustedKey, endorsement
from tenure.kernel import leaves
from tenure.kernel.governance import SigningKey
from tenure.kernel.leaves import Entry
from tenure.store.beside import settled
from tenure.store.identity import Change, told
from tenure.store.ledger import appended
from tenure.store.port import Query, Store, Transaction

PREFIX_MIN = 8
SYSTEM = "system:ledger"


class Keys:
    """See the laws above."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> list[SigningKey]:
        """All of them, oldest first."""
        found: list[SigningKey] = await self._store.read("signing_keys")
        return found

    async def named(self, text: str) -> SigningKey:
        """The key with this id, or the only one whose id begins so."""
        known = await self.all()
        fitting = [key for key in known if len(text) >= PREFIX_MIN and key.id.startswith(text)]
        if len(fitting) != 1:
            raise TenureError(
                "KEY_NOT_FOUND",
                f"there is no signing key {text[:64]!r}: `tenure signing-keys list` shows which there are",
            )
        return fitting[0]

    async def trust(self) -> Trust:
        """What is known here of whom to believe. (Whoever can write the database can write this too: keep a copy elsewhere.)"""
        return Trust(trusted(key) for key in await self.all())

    async def ready(self, signer: Signer) -> None:
        """SIGNING_KEY_UNKNOWN unless this key may sign now; where there is none yet, it becomes the first (law 2)."""
        known = await self.all() or await self._first(signer)
        mine = next((key for key in known if key.id == signer.id), None)
        if mine is None:
            raise TenureError(
                "SIGNING_KEY_UNKNOWN",
                f"key {signer.id[:12]} is configured here, and nobody has endorsed it: `tenure signing-keys rotate`",
            )
        if mine.revoked_from is not None and mine.revoked_from <= await self._now():
            raise TenureError(
                "SIGNING_KEY_UNKNOWN", f"key {signer.id[:12]} is revoked: it signs nothing more"
            )

    async def _first(self, signer: Signer) -> list[SigningKey]:
        """Of several processes that start with it at once, one enters it."""
        try:
            await self.add(signer, SYSTEM, first=True)
        except TenureError as refused:
            if refused.code not in ("ALREADY_EXISTS", "CHANGED_MEANWHILE"):
                raise
        return await self.all()

    async def add(self, signer: Signer, actor: str, *, first: bool = False) -> SigningKey:
        """Believe a key because whoever looks after the installation says so. `first`: unless another is there by now."""
        now = await self._now()
        key = SigningKey(signer.id, signer.public, None, None, now)
        said = leaves.key("added", key.id, key.public, now)
        return await self._written(key, said, actor, "signing_key.added", only_first=first)

    async def rotate(self, old: Signer, new: Signer, actor: str) -> SigningKey:
        """Let a key endorse the one that signs from now on."""
        await self.ready(old)
        now = await self._now()
        signature = await old.sign(endorsement(new.public, old.id, now))
        key = SigningKey(new.id, new.public, old.id, signature, now)
        said = leaves.key(
            "rotated", key.id, key.public, now, by=old.id, endorsement=base64.b64encode(signature).decode()
        )
        return await self._written(key, said, actor, "signing_key.rotated", by=old.id)

    async def revoke(self, named: str, from_us: int | None, actor: str) -> SigningKey:
        """From a moment on (now, if none is given) what a key signs is not believed (law 3)."""
        key = await self.named(named)
        since = await self._now() if from_us is None else from_us
        if key.revoked_from is not None and key.revoked_from <= since:
            return key
        revoked = msgspec.structs.replace(key, revoked_from=since)
        said = leaves.key("revoked", key.id, key.public, await self._now(), revoked_from=since)

        def work() -> Transaction[SigningKey]:
            now = (yield Query("now"))[0].now_us
            yield from told(_line("signing_key.revoked", actor, key.id, revoked_from=since), now)
            yield Query("save_signing_key", scalars=msgspec.structs.astuple(revoked))
            yield from appended("", [said], now)
            return revoked

        return await settled(self._store, work)

    async def _written(
        self,
        key: SigningKey,
        said: Entry,
        actor: str,
        kind: str,
        *,
        only_first: bool = False,
        **about: str,
    ) -> SigningKey:
        def work() -> Transaction[SigningKey]:
            now = (yield Query("now"))[0].now_us
            yield from told(_line(kind, actor, key.id, **about), now)  # takes the lock of the chain
            known: list[SigningKey] = yield Query("signing_keys")
            if any(one.id == key.id for one in known):
                raise TenureError("ALREADY_EXISTS", f"signing key {key.id[:12]} is known here already")
            if only_first and known:
                raise TenureError("CHANGED_MEANWHILE", "another signing key was added meanwhile")
            yield Query("save_signing_key", scalars=msgspec.structs.astuple(key))
            yield from appended("", [said], now)
            return key

        return await settled(self._store, work)

    async def _now(self) -> int:
        now: int = (await self._store.read("now"))[0].now_us
        return now


def trusted(key: SigningKey) -> TrustedKey:
    """A key as a trust file has it."""
    return TrustedKey(
        id=key.id,
        public=base64.b64encode(key.public).decode(),
        created_at=key.created_at,
        endorsed_by=key.endorsed_by,
        endorsement=None if key.endorsement is None else base64.b64encode(key.endorsement).decode(),
        revoked_from=key.revoked_from,
    )


def _line(kind: str, actor: str, key_id: str, **about: object) -> Change:
    return Change(tenant="", kind=kind, actor=actor, about={"key": key_id, **about})
