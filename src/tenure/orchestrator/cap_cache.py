"""The tenants' caps, cached for creations. Claims read caps under the tenant's lock instead."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tenure.kernel.run_rows import Cap

if TYPE_CHECKING:
    from tenure.orchestrator.core import Orchestrator

CAPS_SECONDS = 2.0
"""How old cached caps may be."""
NO_CAPS: dict[str, Cap] = {}


class CapCache:
    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator
        self._by_tenant: dict[str, dict[str, Cap]] = {}
        self.until = -1.0
        """When the cache expires, by the loop's clock."""
        self.refreshing = False

    def of(self, tenant: str) -> dict[str, Cap] | None:
        """A tenant's caps by scope. None: the cache has expired, and the transaction reads them."""
        if self.until >= asyncio.get_running_loop().time():
            return self._by_tenant.get(tenant, NO_CAPS)
        if not self.refreshing:
            self.refreshing = True
            self._orchestrator.spawn(self._refresh())
        return None

    async def _refresh(self) -> None:
        try:
            await self.read()
        finally:
            self.refreshing = False

    async def read(self) -> None:
        caps: dict[str, dict[str, Cap]] = {}
        for cap in await self._orchestrator.store.read("all_caps"):
            caps.setdefault(cap.tenant, {})[cap.scope] = cap
        self._by_tenant = caps
        self.until = asyncio.get_running_loop().time() + CAPS_SECONDS
