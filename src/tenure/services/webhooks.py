"""Outgoing webhooks: the subscriptions of a tenant, and the events that could not be delivered. (`tenure.publish` delivers them.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from tenure.errors import TenureError
from tenure.kernel.server_rows import NoticeRow, SubscriptionRow
from tenure.limits import INTEGER_MAX
from tenure.services.identity.principals import new_id
from tenure.services.paging import NEWEST_CREATED, CreationPlace, Place, created_place, read_page
from tenure.services.scope import Scope
from tenure.shapes.pages import Page
from tenure.store.feed import CURSOR_PATTERN, FeedRepository
from tenure.store.identity import AdminChange
from tenure.store.subscriptions import SubscriptionRepository

__all__ = ["CURSOR_PATTERN", "Webhooks"]

V = TypeVar("V")
SUBSCRIPTIONS_MAX = 100
"""Of one tenant."""
POS_MAX = 2**62


class Webhooks:
    """The webhooks of a scope's tenant."""

    def __init__(self, scope: Scope, feed: FeedRepository, subscriptions: SubscriptionRepository) -> None:
        self._scope = scope
        self._feed = feed
        self._subscriptions = subscriptions

    def _entry(self, what: str, webhook_id: str, **about: Any) -> AdminChange:
        about = {"webhook": webhook_id, **about}
        return AdminChange(
            tenant=self._scope.tenant, kind=f"webhook.{what}", actor=self._scope.actor, about=about
        )

    async def page(
        self, show: Callable[[SubscriptionRow], V], limit: int, cursor: str | None = None
    ) -> Page[V]:
        """A page of the webhooks, newest first."""
        tenant = self._scope.tenant

        async def read(place: Place, count: int) -> list[SubscriptionRow]:
            return await self._subscriptions.list_page(tenant, (place[0], place[1]), count)

        of = (tenant, "webhooks", None)
        return await read_page(
            of, CreationPlace, NEWEST_CREATED, read, created_place, show, limit=limit, cursor=cursor
        )

    async def find(self, webhook_id: str) -> SubscriptionRow:
        row = None
        if "\0" not in webhook_id:
            row = await self._subscriptions.find(self._scope.tenant, webhook_id)
        if row is None:
            raise TenureError("WEBHOOK_NOT_FOUND")
        return row

    async def create(self, **columns: Any) -> SubscriptionRow:
        """Create a webhook for the events from now on. The caller has checked its columns: url, secret, types, workflow."""
        tenant = self._scope.tenant
        existing = await self._subscriptions.list_page(tenant, NEWEST_CREATED, SUBSCRIPTIONS_MAX)
        if len(existing) >= SUBSCRIPTIONS_MAX:
            raise TenureError("LIMIT_EXCEEDED", f"a tenant has at most {SUBSCRIPTIONS_MAX} webhooks")
        now, head = await self._subscriptions.now_us(), (await self._feed.bounds()).head
        row = SubscriptionRow(
            tenant=tenant,
            id=new_id("wh_", 20),
            owner=self._scope.actor,
            pos=head,
            created_at=now,
            updated_at=now,
            **columns,
        )
        await self._subscriptions.save(row, self._entry("created", row.id, types=columns["types"]))
        return row

    async def update(self, old: SubscriptionRow, revision: int, **columns: Any) -> SubscriptionRow:
        """Replace the columns of a webhook, if it still has this revision. The caller has checked them."""
        now = await self._subscriptions.now_us()
        row = msgspec.structs.replace(old, revision=revision + 1, updated_at=now, **columns)
        changed = [name for name in columns if getattr(row, name) != getattr(old, name)]
        written = None
        if revision == old.revision:
            written = await self._subscriptions.save(row, self._entry("changed", row.id, changed=changed))
        if written is None:
            raise TenureError("CHANGED_MEANWHILE", f"the webhook does not have revision {revision} any more")
        return written

    async def delete(self, webhook_id: str) -> None:
        """Delete a webhook with its undelivered events."""
        row = await self.find(webhook_id)
        await self._subscriptions.delete(row.tenant, row.id, self._entry("deleted", row.id))

    async def page_of_dead(
        self, webhook_id: str, show: Callable[[str, NoticeRow], V], limit: int, cursor: str | None = None
    ) -> Page[V]:
        """A page of the events that could not be delivered, newest first; `show` is called with an id and a row."""
        row = await self.find(webhook_id)
        cursors = await self._feed.cursors()

        def id_of(notice: NoticeRow) -> str:
            return cursors.encode(row.tenant, notice.pos, notice.part)

        async def read(place: Place, count: int) -> list[NoticeRow]:
            before = (cursors.decode(row.tenant, place[0]) or (-1, -1)) if place else (POS_MAX, 0)
            if not (0 <= before[0] <= POS_MAX and 0 <= before[1] <= INTEGER_MAX):
                raise TenureError("CURSOR_INVALID")
            return await self._subscriptions.list_dead_notices(row.tenant, row.id, before, count)

        return await read_page(
            (row.tenant, f"dead/{webhook_id}", None),
            tuple[str],
            (),
            read,
            lambda notice: [id_of(notice)],
            lambda notice: show(id_of(notice), notice),
            limit=limit,
            cursor=cursor,
        )

    async def retry_dead(self, webhook_id: str, notice_id: str | None = None) -> int:
        """Try an event that could not be delivered again, or all of them. Returns how many."""
        row = await self.find(webhook_id)
        which = None
        if notice_id is not None:
            pos, part = (await self._feed.cursors()).decode(row.tenant, notice_id) or (0, 0)
            which = f"{pos}-{part}" if pos <= POS_MAX and part <= INTEGER_MAX else "0-0"
        return await self._subscriptions.revive_notices(row.tenant, row.id, which)
