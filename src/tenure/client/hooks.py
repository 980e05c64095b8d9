"""The hooks of a server's tenant, and their deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.client.transport import RemoteGroup, join_path
from tenure.shapes.hooks import Delivery, DeliveryListItem, DeliveryStatus, Hook, HookKind

LISTED_MAX = 1_000
_List = list  # the method `list` hides the builtin in annotations of a class


class RemoteHooks(RemoteGroup):
    """`engine.hooks`, over HTTP."""

    async def list(self) -> _List[Hook]:
        """The hooks, newest first."""
        return await self._transport.pages("/hooks", Hook, limit=LISTED_MAX)

    async def get(self, hook_id: str) -> Hook:
        return await self._transport.get(join_path("hooks", hook_id), Hook)

    async def create(self, kind: HookKind, fields: Mapping[str, Any]) -> Hook:
        """Create a hook. `fields` are those of the HTTP API: name, secrets, rules, settings, ..."""
        return await self._transport.send("POST", "/hooks", Hook, {"kind": kind, **fields})

    async def deliveries(
        self, hook_id: str, *, set_aside: bool = False, limit: int = 50
    ) -> _List[DeliveryListItem]:
        """The newest deliveries of a hook. `set_aside`: only those that failed too often."""
        path, status = join_path("hooks", hook_id, "deliveries"), "set_aside" if set_aside else None
        return await self._transport.pages(path, DeliveryListItem, limit=limit, status=status)

    async def delivery(self, hook_id: str, delivery_id: str) -> Delivery:
        """A delivery with its headers and body."""
        return await self._transport.get(join_path("hooks", hook_id, "deliveries", delivery_id), Delivery)

    async def replay(self, hook_id: str, delivery_id: str) -> DeliveryStatus:
        """Carry out a delivery again, by the current rules of its hook. The owner of the key is involved in its run."""
        path = join_path("hooks", hook_id, "deliveries", delivery_id, "replay")
        return await self._transport.send("POST", path, DeliveryStatus)
