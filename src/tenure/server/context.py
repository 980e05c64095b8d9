"""What all routes of a server process share: the engine, authentication, limits, metrics and background tasks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.kernel.registry_rows import SERVER_MARK
from tenure.limits import WORKER_BEAT_SECONDS
from tenure.orchestrator.periodic_task import PeriodicTask
from tenure.outbound.address_rules import AllowedNetworks
from tenure.processes import make_process_name
from tenure.publish import WebhookDispatcher
from tenure.publish.firestore.client import FirestoreClient, FirestoreSettings
from tenure.publish.firestore.mirror import FirestoreMirror
from tenure.publish.slack_cards import SlackCardPublisher
from tenure.publish.vcs_reporter import VcsReporter
from tenure.reads.metrics import read_gauges
from tenure.reads.status_batch import StatusBatcher
from tenure.sdk.definitions import Registry
from tenure.secrets import Secrets
from tenure.server.auth.authentication import Authenticator
from tenure.server.live.feed_follower import FeedFollower
from tenure.server.load_limits import LoadLimits
from tenure.server.observe.metrics import Metrics
from tenure.server.observe.observer import Observer
from tenure.server.observe.structured_logs import RunEventLog
from tenure.server.runner_messages import RunnerMessages
from tenure.server.settings import Settings
from tenure.services.hooks.intake import HookIntake
from tenure.services.hooks.verification import HookVerifier
from tenure.services.idempotency import SWEEP_RECORDS_MAX
from tenure.services.identity.principals import Principal
from tenure.services.repositories import Repositories
from tenure.services.runners.job_storage import RunnerStorage
from tenure.services.runners.leases import RunnerLeases
from tenure.work_pool import POOL

KEY_SWEEP_SECONDS = 60.0
ACTION_SLOTS = 16
SCOPED_MAX = 1_000
"""Engines of callers that are cached."""


class ServerContext:
    """One server process. Routes reach it as `request.server`."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self.stopping = asyncio.Event()
        """Set when the process stops: streams end, waiting requests are answered, and nothing new begins."""
        self.name = f"{SERVER_MARK}{make_process_name()}"
        """The name of this process in the worker table, and as the holder of idempotency records."""
        self._repositories = repositories = Repositories(engine.store, self.name)
        repositories.limit_read_seconds(settings.store_seconds)
        self.identity, self.keys = repositories.identity, repositories.keys
        self.feed, self.subscriptions = repositories.feed, repositories.subscriptions
        self.metrics = Metrics(partial(read_gauges, engine.store))
        self.observer = Observer(
            engine.orchestrator, self.metrics, RunEventLog() if settings.log_runs else None
        )
        if engine.sealer is not None:
            self.observer.add_sealer(engine.sealer)
        self.load = LoadLimits(settings)
        self.authenticator = Authenticator(repositories, settings, self.load)
        self.intake = engine.runtime.hook_intake = HookIntake(
            engine.runtime, self.identity, self.name, answer_seconds=settings.hook_answer_seconds
        )
        self.intake.on_taken = self.observer.record_key_use
        self.status_batcher = StatusBatcher(engine.store)
        self.leases = RunnerLeases(engine.runtime)
        self.storage = RunnerStorage(engine.runtime, self.leases)
        self.messages = RunnerMessages(self.leases)
        self.follower = FeedFollower(self.feed, self.stopping)
        self.mirror = self._make_mirror()
        self._add_metrics()
        self.secrets = Secrets(folder=settings.secrets_folder, shared=settings.secrets_shared)
        self.hook_verifier = HookVerifier(repositories, self.intake.deliveries, self.secrets)
        reach = AllowedNetworks(settings.webhooks_to_loopback, settings.webhooks_to_private)
        self.publisher = WebhookDispatcher(self.feed, self.subscriptions, reach, self.secrets)
        self.cards = SlackCardPublisher(
            engine.store,
            self.secrets,
            reach=reach,
            slack_url=settings.slack_url,
            public_url=settings.public_url,
        )
        vcs = settings.vcs
        self.reporter = (
            None if vcs is None else VcsReporter(engine.orchestrator, vcs, public_url=settings.public_url)
        )
        """Reports runs to the VCS, if the settings name one."""
        self.action_worker = (
            engine.worker(Registry(), slots=ACTION_SLOTS) if any(engine.connectors.actions()) else None
        )
        """Runs what only a trusted process may do: actions of declared steps, and undos."""
        self._scoped: dict[tuple[Principal, str], Engine] = {}
        self._key_sweep = PeriodicTask("keys", self.keys.sweep, KEY_SWEEP_SECONDS, SWEEP_RECORDS_MAX)
        self._beats = PeriodicTask("server", self.beat, WORKER_BEAT_SECONDS, 1)

    def _make_mirror(self) -> FirestoreMirror | None:
        settings = self.settings
        if settings.firestore_project is None:
            return None
        firestore = FirestoreSettings(
            project=settings.firestore_project,
            database=settings.firestore_database,
            credentials=settings.firestore_credentials,
            emulator=settings.firestore_emulator,
        )
        return FirestoreMirror(
            self.engine.store, self.feed, FirestoreClient(firestore), tenants=settings.firestore_tenants
        )

    def _add_metrics(self) -> None:
        load, metrics = self.load, self.metrics
        if (mirror := self.mirror) is not None:
            metrics.counters["tenure_firestore_documents_refused"] = (
                "Documents that Firestore has refused, and that are left out of the mirror",
                lambda: float(mirror.refused),
            )
        metrics.counters["tenure_deliveries_set_aside"] = (
            "Deliveries of hooks that were tried too often and are left to people",
            lambda: float(self.intake.set_aside),
        )
        metrics.gauges |= {
            "tenure_stream_listeners": ("Listeners of live status in this process", self.follower.__len__),
            "tenure_http_connections": ("Connections to this process", lambda: load.connections),
            "tenure_http_bodies_half_sent": (
                "Bodies that have begun and are not complete",
                lambda: load.half_sent,
            ),
            "tenure_http_body_bytes": (
                "Bytes that the headers and bodies of requests under way hold",
                lambda: load.body_bytes,
            ),
            "tenure_work_under_way": (
                "Pieces of heavy work that are done or wait for a thread",
                lambda: POOL.under_way,
            ),
        }
        metrics.refused = POOL.refused = load.refused

    async def beat(self) -> int:
        await self._repositories.register_server()
        return 0

    async def start(self) -> None:
        """Start the background tasks."""
        await self.beat()
        await self._beats.__aenter__()
        await self.intake.start()
        self.observer.start()
        await self.feed.open()
        self.engine.orchestrator.on_feed.append(self.follower.wake)
        self.follower.start()
        self.engine.orchestrator.on_feed.append(self.publisher.wake)
        await self.publisher.start()
        if self.mirror is not None:
            self.engine.orchestrator.on_feed.append(self.mirror.wake)
            await self.mirror.start()
        await self.cards.start()
        if self.reporter is not None:
            self.engine.orchestrator.on_feed.append(self.reporter.wake)
            await self.reporter.start()
        if self.action_worker is not None:
            await self.action_worker.start()
        await self._key_sweep.__aenter__()

    async def stop(self) -> None:
        if self.action_worker is not None:
            await self.action_worker.stop()
        await self.intake.stop()
        self.observer.stop()
        await self.follower.stop()
        await self.publisher.stop()
        if self.mirror is not None:
            await self.mirror.stop()
        await self.cards.stop()
        if self.reporter is not None:
            await self.reporter.stop()
        await self.authenticator.close()
        await self._key_sweep.__aexit__()
        await self._beats.__aexit__()
        with suppress(TenureError):  # if the database is away, the row expires by itself
            await self._repositories.delete_server()

    def engine_of(self, who: Principal, workspace: str = "default") -> Engine:
        """The engine with the caller's tenant, workspace and actor."""
        seen = (who, workspace)
        scoped = self._scoped.get(seen)
        if scoped is None:
            if len(self._scoped) >= SCOPED_MAX:
                self._scoped.clear()
            scoped = self._scoped[seen] = self.engine.scoped(
                tenant=who.tenant, workspace=workspace, caller=who
            )
        return scoped
