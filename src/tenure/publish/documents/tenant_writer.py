"""Writes what concerns a whole tenant: the counts of its inbox, its open proposals, and the digests of its keys.

Laws:
1. A document is written when its content has changed, and looked at every `LOOK_SECONDS`.
2. A key's document is deleted when the key, its owner or its tenant is closed. Every change of people or keys has a line in the tenant's admin
   chain; tenants with recent lines are read again.
3. A digest is that of a secret of 32 random bytes. No secret is published.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime

import msgspec

from tenure.clock import to_datetime, to_optional_datetime, us
from tenure.outbound.document_store import DocumentStore
from tenure.reads.approvals import read_approvals
from tenure.reads.run_list import FOREVER_US
from tenure.shapes.approvals import Approval, InboxStats
from tenure.shapes.pages import Page
from tenure.shapes.published import (
    KEYS_FOLDER,
    KeyDigest,
    inbox_path,
    key_path,
    proposals_path,
)
from tenure.store.port import Store
from tenure.store.publications import PublicationRepository, PublishedKey, TenantQuestions, TenantReceipts

LOOK_SECONDS = 1.0
KEY_OVERLAP_SECONDS = 60.0
"""How far the look at admin chains goes back: a commit may become visible later than others with later times."""
KEY_SYNC_SECONDS = 600.0
"""After this time all tenants are read again."""
PROPOSALS_MAX = 200
"""Proposals in proposals.json; the newest ones."""
CONCURRENT_WRITES_MAX = 16

_encode = msgspec.json.Encoder().encode


class TenantWriter:
    def __init__(self, store: Store, documents: DocumentStore) -> None:
        self._store = store
        self._rows = PublicationRepository(store)
        self._documents = documents
        self.tenants: set[str] = set()
        """Tenants whose runs were published. An embedded engine's tenant has no row of its own."""
        self._slots = asyncio.Semaphore(CONCURRENT_WRITES_MAX)
        self._inboxes: dict[str, bytes] = {}
        self._proposals: dict[str, tuple[int, ...]] = {}
        self._keys: dict[str, dict[str, bytes]] = {}
        """Tenant -> key -> the document that was written."""
        self._stray_keys: set[str] | None = None
        """Published keys that no tenant has claimed yet."""
        self._synced_at = float("-inf")
        self._looked_us = 0

    def forget(self) -> None:
        self._inboxes.clear()
        self._proposals.clear()
        self._keys.clear()
        self._stray_keys = None
        self._synced_at = float("-inf")

    async def look(self) -> None:
        """Write everything that has changed."""
        await self._write_keys()
        await self.write_inboxes(sorted({*await self._rows.list_tenants(), *self.tenants}))

    # ----------------------------------------------------------------------------------------------- inboxes

    async def write_inboxes(self, tenants: list[str]) -> None:
        """Write the inboxes and proposals of tenants, if they have changed."""
        questions: dict[str, dict[str, TenantQuestions]] = {}
        for row in await self._rows.count_questions(tenants):
            questions.setdefault(row.tenant, {})[row.kind] = row
        receipts = {row.tenant: row for row in await self._rows.count_receipts(tenants)}
        for tenant in tenants:
            found, unknown = questions.get(tenant, {}), receipts.get(tenant)
            approvals, proposals = found.get("approval"), found.get("proposal")
            stats = InboxStats(
                pending_approvals=0 if approvals is None else approvals.open,
                pending_proposals=0 if proposals is None else proposals.open,
                oldest_approval_at=_oldest(approvals),
                oldest_proposal_at=_oldest(proposals),
                unknown_receipts=0 if unknown is None else unknown.open,
                oldest_receipt_at=_oldest(unknown),
            )
            await self._write_proposals(tenant, proposals)
            body = _encode(stats)
            if self._inboxes.get(tenant) != body:
                await self._documents.put(inbox_path(tenant), body)
                self._inboxes[tenant] = body

    async def _write_proposals(self, tenant: str, counted: TenantQuestions | None) -> None:
        shown = () if counted is None else msgspec.structs.astuple(counted)[2:]
        if self._proposals.get(tenant) == shown:
            return
        rows = await self._store.read("approvals_page", tenant, "proposal", FOREVER_US, 0, 0, PROPOSALS_MAX)
        page: Page[Approval] = Page(items=await read_approvals(self._store, rows))
        await self._documents.put(proposals_path(tenant), _encode(page))
        self._proposals[tenant] = shown

    # -------------------------------------------------------------------------------------------------- keys

    async def _write_keys(self) -> None:
        now_us = (await self._store.read("now"))[0].now_us
        if time.monotonic() - self._synced_at >= KEY_SYNC_SECONDS:
            tenants = set(await self._rows.list_tenants()) | self._keys.keys()
            if self._stray_keys is None:
                self._stray_keys = {
                    name.removesuffix(".json") async for name in self._documents.names(KEYS_FOLDER)
                }
            for tenant in sorted(tenants):
                await self._write_tenant_keys(tenant)
            for key_id in self._stray_keys:
                await self._documents.delete(key_path(key_id))
            self._stray_keys = set()
            self._synced_at = time.monotonic()
        else:
            for tenant in await self._rows.list_changed_tenants(self._looked_us - us(KEY_OVERLAP_SECONDS)):
                await self._write_tenant_keys(tenant)
        self._looked_us = now_us

    async def _write_tenant_keys(self, tenant: str) -> None:
        published = self._keys.setdefault(tenant, {})
        wanted = {row.id: _encode(_digest(row)) for row in await self._rows.list_keys(tenant) if row.open}

        async def write(key_id: str, body: bytes) -> None:
            async with self._slots:
                await self._documents.put(key_path(key_id), body)
                published[key_id] = body

        for key_id in [one for one in published if one not in wanted]:
            await self._documents.delete(key_path(key_id))
            del published[key_id]
        await asyncio.gather(
            *(write(key_id, body) for key_id, body in wanted.items() if published.get(key_id) != body)
        )
        if self._stray_keys:
            self._stray_keys -= wanted.keys()


def _oldest(counted: TenantQuestions | TenantReceipts | None) -> datetime | None:
    return None if counted is None else to_datetime(counted.oldest_at)


def _digest(row: PublishedKey) -> KeyDigest:
    owned = msgspec.json.decode(row.roles, type=list[str])
    narrowed = owned if row.key_roles is None else msgspec.json.decode(row.key_roles, type=list[str])
    return KeyDigest(
        id=row.id,
        tenant=row.tenant,
        sha256=row.hash.hex(),
        roles=sorted(set(owned) & set(narrowed)),
        expires_at=to_optional_datetime(row.expires_at),
    )
