"""An engine by a lab's clock: nothing sweeps, schedules or beats by itself."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from tenure.artifacts import Artifacts
from tenure.declared.resolution import StepResolver
from tenure.embedded.engine import Engine
from tenure.govern.connector import Connector
from tenure.govern.evidence.sealer import Sealing
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.schedules import Scheduler
from tenure.orchestrator.sweeper import Sweeper
from tenure.store.postgres import PostgresStore
from tenure.store.sqlite import SqliteStore
from tenure.testing.clock import Alarms, LabClock
from tenure.testing.crashes import Crashes
from tenure.testing.station import LabStation


class LabEngine(Engine):
    """An engine whose clock is a lab's."""

    def __init__(
        self,
        url: str,
        folder: Path,
        clock: LabClock,
        alarms: Alarms,
        crashes: Crashes,
        connectors: Iterable[Connector] = (),
    ) -> None:
        super().__init__(url, sweep=False, connectors=connectors)
        self.artifacts = Artifacts(str(folder / "artifacts"))
        self._clock = clock
        self._alarms = alarms
        self._crashes = crashes
        self.shifted: PostgresStore | None = None

    async def __aenter__(self) -> Self:
        store: SqliteStore | PostgresStore
        if self.url.startswith("sqlite:"):
            store = SqliteStore(self.url.removeprefix("sqlite:"), clock=self._clock)
        else:
            store = self.shifted = PostgresStore(self.url)
            self.pin()
        async with AsyncExitStack() as stack:
            await store.migrate()
            await store.open()
            stack.push_async_callback(store.close)
            orchestrator = Orchestrator(store, clock=self._clock)
            orchestrator.resolver = StepResolver(store, self.artifacts)
            self._orchestrator = await stack.enter_async_context(orchestrator)
            self.sweeper = Sweeper(orchestrator)
            self.scheduler = Scheduler(orchestrator)
            self.sealing = Sealing(store, self.artifacts, None)
            self._store = store
            self._stack = stack.pop_all()
        return self

    def pin(self) -> None:
        """Bring a database with a clock of its own to the lab's time."""
        if self.shifted is not None:
            self.shifted.shift(self._clock.ahead_us)

    @property
    def station(self) -> LabStation:
        """Where the lab's workers get their work."""
        if not isinstance(self._station, LabStation):
            self._station = LabStation(self, self._clock, self._alarms, self._crashes)
        return self._station
