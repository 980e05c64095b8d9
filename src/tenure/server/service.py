"""What all routes share: the engine, who may ask, and the settings."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from contextlib import suppress
from importlib.metadata import version

from tenure.embedded import Engine
from tenure.errors import TenureError
from tenure.kernel.beside import SERVER_MARK
from tenure.limits import WORKER_BEAT_SECONDS
from tenure.orchestrator.rounds import Rounds
from tenure.publish import Publisher, Reach
from tenure.publish.cards import CardPublisher
from tenure.sdk.definitions import Registry
from tenure.secrets import Secrets
from tenure.server.hooks.intake import Intake
from tenure.server.identity.gate import Gate
from tenure.server.identity.principals import Principal
from tenure.server.live.tail import Tail
from tenure.server.load import Load
from tenure.server.observe.logs import Chronicle
from tenure.server.observe.metrics import Metrics
from tenure.server.observe.observing import Observer
from tenure.server.runner.runners import Runners
from tenure.server.runs.looks import Looks
from tenure.server.settings import Settings
from tenure.server.work import POOL
from tenure.store.feeding import Feeding
from tenure.store.identity import Identity
from tenure.store.keys import SWEEP_RECORDS_MAX, Keys
from tenure.store.postgres.store import PostgresStore

KEY_SWEEP_SECONDS = 60.0
HAND_SLOTS = 16
SCOPED_MAX = 1_000
"""Engines as callers see them that are kept."""


class Service:
    """One server process. Routes reach it as `request.service`."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self.stopping = asyncio.Event()
        """Set when the process is told to end: streams end, whoever waits is answered, nothing new is begun."""
        if isinstance(engine.store, PostgresStore):
            engine.store.read_seconds = settings.store_seconds
        self.metrics = Metrics(engine.store)
        self.observer = Observer(
            engine.orchestrator, self.metrics, Chronicle() if settings.log_runs else None
        )
        if engine.sealer is not None:
            self.observer.seals(engine.sealer)
        self.identity = Identity(engine.store)
        self.load = Load(settings)
        self.gate = Gate(self.identity, settings, self.load)
        self.name = f"{SERVER_MARK}{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(4)}"
        """How this process is named among the workers, and as the holder of requests that are being done."""
        self.intake = Intake(engine, settings, self.identity, self.name)
        self.intake.on_taken = self.observer.taken
        self.metrics.counters["tenure_deliveries_set_aside"] = (
            "Deliveries of hooks that were tried too often and are left to people",
            lambda: float(self.intake.set_aside),
        )
        self.keys = Keys(engine.store, self.name)
        self.looks = Looks(engine.store)
        self.feeding = Feeding(engine.store)
        self.runners = Runners(engine)
        self.tail = Tail(self.feeding, self.stopping)
        self.metrics.gauges["tenure_stream_listeners"] = (
            "Who listens to live status here",
            self.tail.__len__,
        )
        load = self.load
        self.metrics.gauges |= {
            "tenure_http_connections": ("Connections to this process", lambda: load.connections),
            "tenure_http_bodies_half_sent": (
                "Bodies that have begun and are not complete",
                lambda: load.half_sent,
            ),
            "tenure_http_body_bytes": (
                "Bytes that the headers and bodies of requests under way hold",
                lambda: load.body_bytes,
            ),
        }
        self.metrics.gauges["tenure_work_under_way"] = (
            "Pieces of heavy work that are done or wait for a thread",
            lambda: POOL.under_way,
        )
        self.metrics.refused = POOL.refused = load.refused
        self.secrets = Secrets(folder=settings.secrets_folder, shared=settings.secrets_shared)
        reach = Reach(settings.webhooks_to_loopback, settings.webhooks_to_private)
        self.publisher = Publisher(self.feeding, reach, self.secrets)
        self.cards = CardPublisher(
            engine.store,
            self.secrets,
            reach=reach,
            slack_url=settings.slack_url,
            public_url=settings.public_url,
        )
        self.hand = engine.worker(Registry(), slots=HAND_SLOTS) if any(engine.connectors.actions()) else None
        """Does what only a trusted process may: actions of declared steps, and undos."""
        self._scoped: dict[tuple[str, str, str], Engine] = {}
        self._key_sweep = Rounds("keys", self.keys.sweep, KEY_SWEEP_SECONDS, SWEEP_RECORDS_MAX)
        self._beats = Rounds("server", self.beat, WORKER_BEAT_SECONDS, 1)

    async def beat(self) -> int:
        """Say that this server is there: what it has in process is not taken over while it does."""
        await self.engine.store.put_worker(self.name, (), 1, version("tenure"))
        return 0

    async def start(self) -> None:
        """Begin what runs beside the requests."""
        await self.beat()
        await self._beats.__aenter__()
        await self.intake.start()
        self.observer.start()
        await self.feeding.open()
        self.engine.orchestrator.on_told.append(self.tail.wake)
        self.tail.start()
        self.engine.orchestrator.on_told.append(self.publisher.wake)
        await self.publisher.start()
        await self.cards.start()
        if self.hand is not None:
            await self.hand.start()
        await self._key_sweep.__aenter__()

    async def stop(self) -> None:
        """End it."""
        if self.hand is not None:
            await self.hand.stop()
        await self.intake.stop()
        self.observer.stop()
        await self.tail.stop()
        await self.publisher.stop()
        await self.cards.stop()
        await self.gate.close()
        await self._key_sweep.__aexit__()
        await self._beats.__aexit__()
        with suppress(TenureError):  # the database is away: the row grows old by itself
            await self.engine.store.drop_worker(self.name)

    def engine_of(self, who: Principal, workspace: str = "default") -> Engine:
        """The engine as this caller sees it: its tenant's."""
        seen = (who.tenant, workspace, who.actor)
        scoped = self._scoped.get(seen)
        if scoped is None:
            if len(self._scoped) >= SCOPED_MAX:
                self._scoped.clear()
            scoped = self._scoped[seen] = self.engine.scoped(
                tenant=who.tenant, workspace=workspace, actor=who.actor
            )
        return scoped
