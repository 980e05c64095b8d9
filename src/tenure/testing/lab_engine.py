"""An engine with a lab's clock: the lab sweeps, schedules and sends heartbeats."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from tenure.artifacts import ArtifactStore
from tenure.declared.step_resolver import StepResolver
from tenure.engine.engine import Engine
from tenure.govern.connector import Connector
from tenure.govern.evidence.sealer import RunSealer
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.scheduler import Scheduler
from tenure.orchestrator.sweeper import Sweeper
from tenure.store.postgres import PostgresStore
from tenure.store.sqlite import SqliteStore
from tenure.testing.crashes import CrashPlan
from tenure.testing.lab_clock import LabClock, LabTimers
from tenure.testing.work_source import LabWorkSource


class LabEngine(Engine):
    def __init__(
        self,
        url: str,
        folder: Path,
        clock: LabClock,
        timers: LabTimers,
        crashes: CrashPlan,
        connectors: Iterable[Connector] = (),
    ) -> None:
        super().__init__(url, sweep=False, connectors=connectors)
        self.runtime.artifacts = ArtifactStore(str(folder / "artifacts"))
        self._clock = clock
        self._timers = timers
        self._crashes = crashes
        self.shifted: PostgresStore | None = None

    async def __aenter__(self) -> Self:
        store: SqliteStore | PostgresStore
        if self.url.startswith("sqlite:"):
            store = SqliteStore(self.url.removeprefix("sqlite:"), clock=self._clock)
        else:
            store = self.shifted = PostgresStore(self.url)
            self.sync_clock()
        async with AsyncExitStack() as stack:
            await store.migrate()
            await store.open()
            stack.push_async_callback(store.close)
            orchestrator = Orchestrator(store, clock=self._clock)
            orchestrator.resolver = StepResolver(store, self.artifacts)
            await stack.enter_async_context(orchestrator)
            self.sweeper = Sweeper(orchestrator)
            self.scheduler = Scheduler(orchestrator)
            self.runtime.sealing = RunSealer(store, self.artifacts, None)
            self.runtime.open(store, orchestrator)
            self._stack = stack.pop_all()
        return self

    def sync_clock(self) -> None:
        """Set the clock of a PostgreSQL store to the lab's time."""
        if self.shifted is not None:
            self.shifted.shift_clock(self._clock.ahead_us)

    @property
    def work_source(self) -> LabWorkSource:
        if not isinstance(self._work_source, LabWorkSource):
            self._work_source = LabWorkSource(self, self._clock, self._timers, self._crashes)
        return self._work_source
