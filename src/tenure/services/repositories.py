"""The repositories of a server process, and its row among the workers."""

from __future__ import annotations

from importlib.metadata import version

from tenure.services.idempotency import IdempotencyRecords
from tenure.store.feed import FeedCursors, FeedRepository
from tenure.store.identity import Identity
from tenure.store.port import Store
from tenure.store.subscriptions import SubscriptionRepository
from tenure.store.workers import delete_worker, register_worker

__all__ = ["FeedCursors", "FeedRepository", "Repositories"]


class Repositories:
    def __init__(self, store: Store, server: str) -> None:
        self._store = store
        self._server = server
        self.identity = Identity(store)
        self.keys = IdempotencyRecords(store, server)
        self.feed = FeedRepository(store)
        self.subscriptions = SubscriptionRepository(store)

    async def register_server(self) -> None:
        """Record that this server is alive, so that no other process takes over its requests."""
        await register_worker(self._store, self._server, (), 1, version("tenure"))

    async def delete_server(self) -> None:
        await delete_worker(self._store, self._server)

    def limit_read_seconds(self, seconds: float) -> None:
        """Limit how long a read waits for PostgreSQL. SQLite has no such limit."""
        if hasattr(self._store, "read_seconds"):
            self._store.read_seconds = seconds
