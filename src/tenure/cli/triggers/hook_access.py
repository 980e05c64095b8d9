"""Hooks and their deliveries, in a database or on a server.

Laws:
1. `LocalHooks` and `RemoteHooks` have the same methods, so that commands do not know which they call.
2. On a database, this process replays a delivery by the hook's current rules; no server has to run. The account that owns the database is
   involved in the run, whatever `--by` says. On a server, it is the owner of the key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from tenure.cli.common.backend import call_either, caller_id
from tenure.errors import TenureError
from tenure.limits import MOMENT_US_MAX
from tenure.services.hooks.events import show_delivery, show_hook, summarize_delivery
from tenure.services.hooks.intake import DeliveryStatus, HookIntake
from tenure.shapes.hooks import Delivery, DeliveryListItem, Hook
from tenure.store.hook_deliveries import HookDeliveries
from tenure.store.identity import DATABASE_OWNER, AdminChange, Identity

if TYPE_CHECKING:
    from tenure.client import Client
    from tenure.engine import Engine
    from tenure.kernel.server_rows import HookRow

T = TypeVar("T")
LISTED_MAX = 1_000
REPLAY_SECONDS = 300.0
"""How long to wait for a replay. The delivery is locked for about as long."""


class LocalHooks:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._deliveries = HookDeliveries(engine.store)

    async def hooks(self) -> list[Hook]:
        rows = await self._engine.store.read("hooks_of", self._engine.tenant, MOMENT_US_MAX, "", LISTED_MAX)
        return [show_hook(row) for row in rows]

    async def hook(self, hook_id: str) -> Hook:
        return show_hook(await self._hook(hook_id))

    async def deliveries(self, hook_id: str, limit: int, *, set_aside: bool) -> list[DeliveryListItem]:
        hook = await self._hook(hook_id)
        query = "deliveries_set_aside" if set_aside else "deliveries_of"
        rows = await self._engine.store.read(query, hook.id, MOMENT_US_MAX, "", limit)
        return [summarize_delivery(row) for row in rows]

    async def delivery(self, hook_id: str, delivery_id: str) -> Delivery:
        hook = await self._hook(hook_id)
        row = await self._deliveries.get(hook.id, delivery_id)
        if row is None:
            raise TenureError("DELIVERY_NOT_FOUND", f"hook {hook_id} has no delivery {delivery_id!r}")
        return show_delivery(hook, row)

    async def replay(self, hook_id: str, delivery_id: str) -> DeliveryStatus:
        """Process a delivery again; see law 2."""
        hook = await self._hook(hook_id)
        identity = Identity(self._engine.store)
        intake = HookIntake(self._engine.runtime, identity, None, answer_seconds=REPLAY_SECONDS)
        change = AdminChange(
            tenant=self._engine.tenant,
            kind="hook.replayed",
            actor=f"{DATABASE_OWNER}:{self._engine.actor}",
            about={"hook": hook.id},
        )
        return await intake.replay(hook, delivery_id, change, by=caller_id())

    async def _hook(self, hook_id: str) -> HookRow:
        found = await self._deliveries.hook(hook_id)
        if found is None or found.tenant != self._engine.tenant:
            raise TenureError(
                "HOOK_NOT_FOUND", f"there is no hook {hook_id!r} of tenant {self._engine.tenant!r}"
            )
        return found


class RemoteHooks:
    def __init__(self, client: Client) -> None:
        self._to = client.transport

    async def hooks(self) -> list[Hook]:
        return await self._to.pages("/hooks", Hook, limit=LISTED_MAX)

    async def hook(self, hook_id: str) -> Hook:
        return await self._to.get(_path(hook_id), Hook)

    async def deliveries(self, hook_id: str, limit: int, *, set_aside: bool) -> list[DeliveryListItem]:
        status = "set_aside" if set_aside else None
        return await self._to.pages(
            f"{_path(hook_id)}/deliveries", DeliveryListItem, limit=limit, status=status
        )

    async def delivery(self, hook_id: str, delivery_id: str) -> Delivery:
        return await self._to.get(_path(hook_id, delivery_id), Delivery)

    async def replay(self, hook_id: str, delivery_id: str) -> DeliveryStatus:
        return await self._to.send("POST", f"{_path(hook_id, delivery_id)}/replay", DeliveryStatus)


Hooks = LocalHooks | RemoteHooks


def call_hooks(db: str | None, tenant: str, by: str | None, call: Callable[[Hooks], Awaitable[T]]) -> T:
    return call_either(
        db,
        tenant,
        lambda engine: call(LocalHooks(engine)),
        lambda client: call(RemoteHooks(client)),
        by=by,
    )


def _path(hook_id: str, delivery_id: str | None = None) -> str:
    path = f"/hooks/{quote(hook_id, safe='')}"
    return path if delivery_id is None else f"{path}/deliveries/{quote(delivery_id, safe='')}"
