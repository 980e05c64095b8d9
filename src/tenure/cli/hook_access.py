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

from tenure.cli.identity import asked, database_owner
from tenure.cli.session import who
from tenure.errors import TenureError
from tenure.limits import MOMENT_US_MAX
from tenure.server.hooks.intake import Intake, Received
from tenure.server.hooks.views import (
    DeliveryItem,
    DeliveryView,
    HookView,
    delivery_item,
    delivery_view,
    hook_view,
)
from tenure.server.settings import Settings
from tenure.store.deliveries import Deliveries
from tenure.store.identity import Change, Identity

if TYPE_CHECKING:
    from tenure.client.transport import Transport
    from tenure.embedded import Engine
    from tenure.kernel.service import Hook

T = TypeVar("T")
LISTED_MAX = 1_000
REPLAY_SECONDS = 300.0
"""How long a replay is waited for; it is locked for about as long."""


class HooksInDatabase:
    """The hooks of a tenant, in a database."""

    def __init__(self, engine: Engine, tenant: str, by: str | None) -> None:
        self._engine = engine
        self._tenant = tenant
        self._actor = database_owner(by)
        self._deliveries = Deliveries(engine.store)

    async def hooks(self) -> list[HookView]:
        """All of them, newest first."""
        rows = await self._engine.store.read("hooks_of", self._tenant, MOMENT_US_MAX, "", LISTED_MAX)
        return [hook_view(row) for row in rows]

    async def hook(self, hook_id: str) -> HookView:
        """One of them."""
        return hook_view(await self._hook(hook_id))

    async def deliveries(self, hook_id: str, limit: int, *, set_aside: bool) -> list[DeliveryItem]:
        """What a hook was told, newest first; or of that what was set aside."""
        hook = await self._hook(hook_id)
        query = "deliveries_set_aside" if set_aside else "deliveries_of"
        rows = await self._engine.store.read(query, hook.id, MOMENT_US_MAX, "", limit)
        return [delivery_item(row) for row in rows]

    async def delivery(self, hook_id: str, delivery_id: str) -> DeliveryView:
        """One delivery, with what it said."""
        hook = await self._hook(hook_id)
        row = await self._deliveries.get(hook.id, delivery_id)
        if row is None:
            raise TenureError("DELIVERY_NOT_FOUND", f"hook {hook_id} has no delivery {delivery_id!r}")
        return delivery_view(hook, row)

    async def replay(self, hook_id: str, delivery_id: str) -> Received:
        """Carry a delivery out again; see law 2."""
        hook = await self._hook(hook_id)
        settings = Settings(hook_answer_seconds=REPLAY_SECONDS)
        intake = Intake(self._engine, settings, Identity(self._engine.store), None)
        about = {"hook": hook.id}
        change = Change(tenant=self._tenant, kind="hook.replayed", actor=self._actor, about=about)
        return await intake.replay(hook, delivery_id, change, by=who(None))

    async def _hook(self, hook_id: str) -> Hook:
        found = await self._deliveries.hook(hook_id)
        if found is None or found.tenant != self._tenant:
            raise TenureError("HOOK_NOT_FOUND", f"there is no hook {hook_id!r} of tenant {self._tenant!r}")
        return found


class HooksOverServer:
    """The hooks of the key's tenant, over a server."""

    def __init__(self, to: Transport) -> None:
        self._to = to

    async def hooks(self) -> list[HookView]:
        """All of them, newest first."""
        return await self._to.pages("/hooks", HookView, limit=LISTED_MAX)

    async def hook(self, hook_id: str) -> HookView:
        """One of them."""
        return await self._to.get(_path(hook_id), HookView)

    async def deliveries(self, hook_id: str, limit: int, *, set_aside: bool) -> list[DeliveryItem]:
        """What a hook was told, newest first; or of that what was set aside."""
        status = "set_aside" if set_aside else None
        return await self._to.pages(f"{_path(hook_id)}/deliveries", DeliveryItem, limit=limit, status=status)

    async def delivery(self, hook_id: str, delivery_id: str) -> DeliveryView:
        """One delivery, with what it said."""
        return await self._to.get(_path(hook_id, delivery_id), DeliveryView)

    async def replay(self, hook_id: str, delivery_id: str) -> Received:
        """Have a delivery carried out again."""
        return await self._to.send("POST", f"{_path(hook_id, delivery_id)}/replay", Received)


Hooks = HooksInDatabase | HooksOverServer


def ask_hooks(db: str | None, tenant: str, by: str | None, call: Callable[[Hooks], Awaitable[T]]) -> T:
    """One call about a tenant's hooks."""

    def here(engine: Engine) -> Awaitable[T]:
        return call(HooksInDatabase(engine, tenant, by))

    return asked(db, here, lambda to: call(HooksOverServer(to)))


def _path(hook_id: str, delivery_id: str | None = None) -> str:
    path = f"/hooks/{quote(hook_id, safe='')}"
    return path if delivery_id is None else f"{path}/deliveries/{quote(delivery_id, safe='')}"
