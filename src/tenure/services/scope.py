"""What every service works on: the resources of the process, and the tenant and actor of its calls.

Laws:
1. A service sees and changes only what belongs to its scope's tenant. Another tenant's run looks exactly like a missing one.
2. Services take and return ids as texts. The actor is an opaque id, never a name. Each call is its own cause.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tenure import ids
from tenure.artifacts import ArtifactStore
from tenure.errors import TenureError
from tenure.govern.connectors.registry import Connectors
from tenure.govern.evidence.sealer import RunSealer
from tenure.kernel import commands as c
from tenure.orchestrator import Orchestrator
from tenure.reads.runs import RunReader
from tenure.sdk import codec
from tenure.services.catalog import Catalog
from tenure.services.identity.principals import Principal
from tenure.services.run_waiters import RunWaiters
from tenure.store.identity import DATABASE_OWNER, AdminActor
from tenure.store.port import Store

if TYPE_CHECKING:
    from tenure.ci.settings import CiSettings
    from tenure.services.hooks.intake import HookIntake

NOT_OPEN = "the engine is not running: use `async with Engine(…)`"


class LocalWorker(Protocol):
    """What services need of a worker in this process."""

    def holds(self, tenant: str, run_id: int) -> bool: ...

    def heartbeat_now(self, run_id: int) -> None: ...


class Runtime:
    """The resources that the services of one process share. The owner of the database connection calls `open`."""

    def __init__(
        self,
        artifacts: ArtifactStore,
        choose_connectors: Callable[[], Connectors],
        *,
        only_reads: bool = False,
        seals: bool = False,
        ci_file: str | None = None,
    ) -> None:
        """`ci_file` has the repositories of CI."""
        self.artifacts = artifacts
        self.only_reads = only_reads
        """No command is sent, because the database may be read-only."""
        self.seals = seals
        self.workers: list[LocalWorker] = []
        """The workers of this process, which learn of a cancellation immediately."""
        self.waiters = RunWaiters()
        self.hook_intake: HookIntake | None = None
        """The intake of a server, which also carries out replays."""
        self.sealing: RunSealer
        self.catalog: Catalog
        self._choose_connectors = choose_connectors
        self._connectors: Connectors | None = None
        self._ci_file = ci_file
        self._ci: CiSettings | None = None
        self._store: Store | None = None
        self._orchestrator: Orchestrator | None = None

    def open(self, store: Store, orchestrator: Orchestrator | None) -> None:
        self._store, self._orchestrator = store, orchestrator
        self.catalog = Catalog(store)

    def close(self) -> None:
        self._store = self._orchestrator = None

    @property
    def store(self) -> Store:
        if self._store is None:
            raise TenureError("STORE_UNAVAILABLE", NOT_OPEN)
        return self._store

    async def check_database(self) -> None:
        await self.store.read("now")

    @property
    def orchestrator(self) -> Orchestrator:
        """The only writer of runs."""
        if self.only_reads:
            raise TenureError("STORE_READ_ONLY", "this engine was opened for reading only")
        if self._orchestrator is None:
            raise TenureError("STORE_UNAVAILABLE", NOT_OPEN)
        return self._orchestrator

    @property
    def connectors(self) -> Connectors:
        """The connectors for governed actions, loaded when they are first needed."""
        if self._connectors is None:
            self._connectors = self._choose_connectors()
        return self._connectors

    @property
    def ci(self) -> CiSettings | None:
        """The repositories of CI, loaded when they are first needed; None if this process has none."""
        if self._ci is None and self._ci_file is not None:
            from tenure.ci.settings import load_settings_file  # few processes have repositories

            self._ci = load_settings_file(Path(self._ci_file))
        return self._ci


class Scope:
    """A runtime, seen by one actor of one tenant and workspace."""

    def __init__(
        self,
        runtime: Runtime,
        tenant: str,
        workspace: str,
        actor: str,
        caller: Principal | None = None,
        initiator: c.Initiator = "user",
    ) -> None:
        """`caller` is the credential of a request to a server. Without one, the actor is the account that owns the database. `initiator`
        is what a run's history calls the actor, unless a command says otherwise."""
        self.runtime = runtime
        self.caller = caller
        self.tenant = tenant
        self.workspace = workspace
        self.actor = actor
        self.initiator = initiator

    @property
    def store(self) -> Store:
        return self.runtime.store

    @property
    def orchestrator(self) -> Orchestrator:
        return self.runtime.orchestrator

    @property
    def artifacts(self) -> ArtifactStore:
        return self.runtime.artifacts

    @property
    def reader(self) -> RunReader:
        return RunReader(self.store, self.tenant)

    @property
    def admin_actor(self) -> AdminActor:
        caller = self.caller
        if caller is None:  # the local account owns the database, whatever name it gives
            name, account = f"{DATABASE_OWNER}:{self.actor}", f"uid:{os.getuid()}"
            return AdminActor(actor=name, people=account, breaks_glass=True)
        if caller.kind == "operator":
            return AdminActor(actor=caller.actor, people="", breaks_glass=True)
        return AdminActor(actor=caller.actor, people=caller.people)

    def context(
        self, actor: str | None = None, initiator: c.Initiator | None = None, cause: str = ""
    ) -> c.Context:
        """Who acts and why, as a run's history records it."""
        return c.Context(
            actor or self.actor, initiator or self.initiator, cause or f"req:{secrets.token_hex(8)}"
        )

    def address(
        self, run_id: str, actor: str | None = None, initiator: c.Initiator | None = None
    ) -> dict[str, Any]:
        """The fields that every command to a run begins with."""
        return {
            "run_id": ids.run_int(run_id),
            "tenant": self.tenant,
            "context": self.context(actor, initiator),
        }

    async def now_us(self) -> int:
        """The time of the database's clock."""
        now: int = (await self.store.read("now"))[0].now_us
        return now

    async def send(self, command: c.RunCommand) -> dict[str, Any]:
        """Carry out a command on one run."""
        answer: dict[str, Any] | None = await self.orchestrator.send(command)
        return answer or {}

    async def create(self, command: c.CreateRun) -> str:
        """Create a run, and return its id."""
        return ids.run_text((await self.orchestrator.create(command)).run_id)

    async def read_payload(self, run_id: int, ref: int | None) -> bytes | None:
        rows = [] if ref is None else await self.store.read("payload", run_id, ref)
        return rows[0].body if rows else None

    async def store_payload(self, body: bytes | None, run_id: str) -> bytes | None:
        """A payload for the database. A large one, or one that looks like a reference, is stored as an artifact."""
        if body is None or (len(body) <= codec.INLINE_BYTES_MAX and not body.startswith(codec.RESERVED)):
            return body
        return await self.artifacts.put(body, run_id)

    def notify_workers(self, run_id: int) -> None:
        """Tell workers of this process about a cancellation now, before their next heartbeat."""
        for worker in self.runtime.workers:
            worker.heartbeat_now(run_id)


class Service:
    """The base of services: calls in one scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
