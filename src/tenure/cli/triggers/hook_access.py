"""Where hooks and their deliveries are looked after: in a database, or over a server.

Laws:
1. Both have the same words, so that a command does not know which it is.
2. Beside a database a replay is carried out here, by the hook's rules of now; no server need run. Whatever name is given, it is the
   account that has the database who stands behind its run. Over a server it is whoever the key belongs to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from tenure.cli.common.session import caller_id
from tenure.cli.identity.shared import call_local_or_server, database_owner
from tenure.errors import TenureError
from tenure.limits import MOMENT_US_MAX
from tenure.services.hooks.events import show_delivery, show_hook, summarize_delivery
from tenure.services.hooks.intake import DeliveryStatus, HookIntake
from tenure.shapes.hooks import Delivery, DeliveryListItem, Hook
from tenure.store.hook_deliveries import HookDeliveries
from tenure.store.identity import AdminChange, Identity

if TYPE_CHECKING:
    from tenure.client.transport import Transport
    from tenure.engine import Engine
    from tenure.kernel.server_rows import HookRow

T = TypeVar("T")
LISTED_MAX = 1_000
REPLAY_SECONDS = 300.0
"""How long a replay is waited for; it is locked for about as long."""


class LocalHooks:
    """The hooks of a tenant, in a database."""

    def __init__(self, engine: Engine, tenant: str, by: str | None) -> None:
        self._engine = engine
        self._tenant = tenant
        self._actor = database_owner(by)
        self._deliveries = HookDeliveries(engine.store)

    async def hooks(self) -> list[Hook]:
        """All of them, newest first."""
        rows = await self._engine.store.read("hooks_of", self._tenant, MOMENT_US_MAX, "", LISTED_MAX)
        return [show_hook(row) for row in rows]

    async def hook(self, hook_id: str) -> Hook:
        """One of them."""
        return show_hook(await self._hook(hook_id))

    async def deliveries(self, hook_id: str, limit: int, *, set_aside: bool) -> list[DeliveryListItem]:
        """What a hook was told, newest first; or of that what was set aside."""
        hook = await self._hook(hook_id)
        query = "deliveries_set_aside" if set_aside else "deliveries_of"
        rows = await self._engine.store.read(query, hook.id, MOMENT_US_MAX, "", limit)
        return [summarize_delivery(row) for row in rows]

    async def delivery(self, hook_id: str, delivery_id: str) -> Delivery:
        """One delivery, with what it said."""
        hook = await self._hook(hook_id)
        row = await self._deliveries.get(hook.id, delivery_id)
        if row is None:
            raise TenureError("DELIVERY_NOT_FOUND", f"hook {hook_id} has no delivery {delivery_id!r}")
        return show_delivery(hook, row)

    async def replay(self, hook_id: str, delivery_id: str) -> DeliveryStatus:
        """Carry a delivery out again; see law 2."""
        hook = await self._hook(hook_id)
        identity = Identity(self._engine.store)
        intake = HookIntake(self._engine.runtime, identity, None, answer_seconds=REPLAY_SECONDS)
        about = {"hook": hook.id}
        change = AdminChange(tenant=self._tenant, kind="hook.replayed", actor=self._actor, about=about)
        return await intake.replay(hook, delivery_id, change, by=caller_id(None))

    async def _hook(self, hook_id: str) -> HookRow:
        found = await self._deliveries.hook(hook_id)
        if found is None or found.tenant != self._tenant:
            raise TenureError("HOOK_NOT_FOUND", f"there is no hook {hook_id!r} of tenant {self._tenant!r}")
        return found


class RemoteHooks:
    """The hooks of the key's tenant, over a server."""

    def __init__(self, to: Transport) -> None:
        self._to = to

    async def hooks(self) -> list[Hook]:
        """All of them, newest first."""
        return await self._to.pages("/hooks", Hook, limit=LISTED_MAX)

    async def hook(self, hook_id: str) -> Hook:
        """One of them."""
        return await self._to.get(_path(hook_id), Hook)

    async def deliveries(self, hook_id: str, limit: int, *, set_aside: bool) -> list[DeliveryListItem]:
        """What a hook was told, newest first; or of that what was set aside."""
        status = "set_aside" if set_aside else None
        return await self._to.pages(
            f"{_path(hook_id)}/deliveries", DeliveryListItem, limit=limit, status=status
        )

    async def delivery(self, hook_id: str, delivery_id: str) -> Delivery:
        """One delivery, with what it said."""
        return await self._to.get(_path(hook_id, delivery_id), Delivery)

    async def replay(self, hook_id: str, delivery_id: str) -> DeliveryStatus:
        """Have a delivery carried out again."""
        return await self._to.send("POST", f"{_path(hook_id, delivery_id)}/replay", DeliveryStatus)


Hooks = LocalHooks | RemoteHooks


def call_hooks(db: str | None, tenant: str, by: str | None, call: Callable[[Hooks], Awaitable[T]]) -> T:
    """One call about a tenant's hooks."""

    def here(engine: Engine) -> Awaitable[T]:
        return call(LocalHooks(engine, tenant, by))

    return call_local_or_server(db, here, lambda to: call(RemoteHooks(to)))


def _path(hook_id: str, delivery_id: str | None = None) -> str:
    path = f"/hooks/{quote(hook_id, safe='')}"
    return path if delivery_id is None else f"{path}/deliveries/{quote(delivery_id, safe='')}"
