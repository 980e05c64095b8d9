"""What all routes share: the engine, who may ask, and the settings."""

from __future__ import annotations

from tenure.embedded import Engine
from tenure.server.gate import Gate
from tenure.server.principals import Principal
from tenure.server.settings import Settings
from tenure.store.identity import Identity


class Service:
    """One server process. Routes reach it as `request.service`."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self.identity = Identity(engine.store)
        self.gate = Gate(self.identity, settings)

    async def start(self) -> None:
        """Begin what runs beside the requests."""

    async def stop(self) -> None:
        """End it."""

    def engine_of(self, who: Principal, workspace: str = "default") -> Engine:
        """The engine as this caller sees it: its tenant's."""
        return self.engine.scoped(tenant=who.tenant, workspace=workspace, actor=who.actor)
