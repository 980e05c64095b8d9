"""The engine: one database with its orchestrator, its background tasks and the services over them, in one process."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from tenure import clock, custom_profiles, ids
from tenure.artifacts import NO_PLACE_MESSAGE, ArtifactStore, artifact_place
from tenure.config import choose_ci_file, choose_database, choose_patience
from tenure.declared import DeclaredWorkflow
from tenure.declared.step_resolver import StepResolver
from tenure.durations import parse_duration
from tenure.engine.run_handle import RunHandle
from tenure.errors import TenureError
from tenure.govern.connector import Connector
from tenure.govern.connectors.registry import Connectors, choose_connectors
from tenure.govern.evidence.sealer import RunSealer, SealerTask
from tenure.govern.governor import Governor
from tenure.govern.ledger.keeper import LedgerKeeper
from tenure.govern.ledger.signing_keys import SigningKeys
from tenure.govern.policy.connector_check import install_policy
from tenure.govern.signing import configured_signer
from tenure.govern.uses_check import check_uses
from tenure.kernel import capability
from tenure.kernel import commands as c
from tenure.kernel.decide.creation import CreatedRun
from tenure.kernel.new_run import with_request_hash
from tenure.kernel.run_rows import Cap
from tenure.limits import SWEEP_SECONDS, SWEEP_TIMERS_MAX
from tenure.logs import get_logger
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.feed_trimmer import FeedTrimmer
from tenure.orchestrator.nats_queue import NatsQueue
from tenure.orchestrator.process_watch import ProcessWatch
from tenure.orchestrator.scheduler import Scheduler
from tenure.orchestrator.sweeper import Sweeper
from tenure.reads.run_list import FOREVER_US
from tenure.sdk.definitions import Registry, Tool, Workflow, registry
from tenure.services.approvals import Approvals
from tenure.services.catalog import Workflows
from tenure.services.ci_runs import CiRuns
from tenure.services.confirmations import Confirmations
from tenure.services.costs import Costs
from tenure.services.evidence import Evidence
from tenure.services.file_sweeper import FileSweeper
from tenure.services.hooks.registry import Hooks
from tenure.services.identity.clients import Clients
from tenure.services.identity.keys import Keys
from tenure.services.identity.people import People
from tenure.services.identity.principals import Principal
from tenure.services.identity.tenants import Tenants
from tenure.services.plans import PlanLike, Planner, encode_payload, make_plan, make_planned_later
from tenure.services.policies import Freezes, Policies
from tenure.services.receipts import Receipts, Undos
from tenure.services.reports import Reports
from tenure.services.run_creation import RunCaller, StartOptionsDict, build_command, read_options
from tenure.services.runs import Runs
from tenure.services.schedules import Schedules
from tenure.services.scope import Runtime, Scope
from tenure.shapes.runs import Run, SignalResult, StartRun
from tenure.store.factory import MigratableStore, open_store, throttle_messages
from tenure.store.port import Store
from tenure.worker import LocalWorkSource, Worker

if TYPE_CHECKING:
    from tenure.publish.documents import DocumentPublisher

log = get_logger(__name__)

SETTLE_ROUNDS_MAX = 100
"""How often `settle` delivers what the last delivery made due."""


class Engine:
    """A database and everything that can be done with its runs. An async context manager.

    `url` is `sqlite:PATH`, a path, or a postgresql:// DSN. The everyday calls are methods of the engine; the others are in
    groups: `runs`, `approvals`, `receipts`, `schedules`, `workflows`, `costs`, `evidence`, `undos`, `policies`,
    `freezes`, `hooks`, `ci`, `reports`, `confirmations`, `people`, `clients`, `keys`, `tenants`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str = "default",
        workspace: str = "default",
        actor: str = "embedded",
        migrate: bool = True,
        sweep: bool = True,
        sweep_seconds: float = SWEEP_SECONDS,
        only_reads: bool = False,
        evidence: bool = False,
        signing_key: str | None = None,
        connectors: Connectors | Iterable[Connector] | str | Path | None = None,
        policy: str | Path | None = None,
        listen_url: str | None = None,
        queue: str | None = None,
        wait_for_database: str | float | timedelta = 0,
        publish: str | None = None,
        ci: str | Path | None = None,
    ) -> None:
        """`only_reads`: send no command and sweep nothing; the database may be read-only. `evidence`: seal runs that end,
        signed if there is a `signing_key` (a reference, see `proof.signatures`). `policy`: a file, or its text, that
        becomes the active policy of a tenant without people. `listen_url`: where to listen for wake-ups if `url` is behind
        a pooler (default: TENURE_LISTEN_DB). `queue`: the address of NATS, whose messages wake claims. `wait_for_database`: how
        long PostgreSQL may be away at the start. `publish`: a folder or s3://bucket/prefix for the documents of agent runs.
        `ci`: a file with the repositories of CI.
        """
        custom_profiles.load_custom_profiles()
        self.url = _address(url)
        self.runtime = Runtime(
            ArtifactStore(artifact_place(self.url)),
            lambda: choose_connectors(connectors),
            only_reads=only_reads,
            seals=evidence or signing_key is not None,
            ci_file=choose_ci_file(None if ci is None else str(ci)),
        )
        self.scope = Scope(self.runtime, tenant, workspace, actor)
        self.sealer: SealerTask | None = None
        self.workers: list[Worker] = []
        """Workers of this process."""
        self._migrate = migrate
        self._sweep = sweep
        self._sweep_seconds = sweep_seconds
        self._listen_url = listen_url
        self._queue_url = queue
        self._wait_seconds = parse_duration(wait_for_database)
        self._signing_key = signing_key
        self._policy = policy
        self._publish = publish
        self.publisher: DocumentPublisher | None = None
        """Publishes the documents of agent runs, if this process may be the one that does."""
        self._stack = AsyncExitStack()
        self._work_source: LocalWorkSource | None = None

    async def __aenter__(self) -> Self:
        runtime = self.runtime
        store = open_store(self.url, only_reads=runtime.only_reads, listen_dsn=self._listen_url)
        async with AsyncExitStack() as stack:
            await self._open(store)
            stack.push_async_callback(store.close)
            signer = None
            if self._signing_key is not None:
                signer = await asyncio.to_thread(configured_signer, self._signing_key)
            if signer is not None and not runtime.only_reads:
                await SigningKeys(store).ready(signer)  # a key without an endorsement signs nothing
            runtime.sealing = RunSealer(store, runtime.artifacts, signer)
            orchestrator: Orchestrator | None = None
            if not runtime.only_reads:
                orchestrator = Orchestrator(store, command_seconds=choose_patience())
                orchestrator.resolver = StepResolver(store, runtime.artifacts)
                await stack.enter_async_context(orchestrator)
                if self._queue_url is not None:
                    orchestrator.external_queue = await stack.enter_async_context(NatsQueue(self._queue_url))
                self.sweeper = Sweeper(orchestrator, seconds=self._sweep_seconds)
                if self._sweep:
                    await stack.enter_async_context(self.sweeper)
                    await stack.enter_async_context(ProcessWatch(orchestrator))
                    await stack.enter_async_context(Scheduler(orchestrator))
                    await stack.enter_async_context(FeedTrimmer(store))
                    await stack.enter_async_context(FileSweeper(store, runtime.artifacts))
                    if runtime.seals:
                        if not runtime.artifacts.is_configured:
                            raise TenureError("INVALID_INPUT", NO_PLACE_MESSAGE)
                        sealer = SealerTask(orchestrator, runtime.sealing)
                        self.sealer = await stack.enter_async_context(sealer)
                        await stack.enter_async_context(LedgerKeeper(store, signer=lambda: signer))
                if self._publish is not None:
                    from tenure.publish.documents import DocumentPublisher  # few programs publish

                    self.publisher = DocumentPublisher(store, self._publish)
                    await stack.enter_async_context(self.publisher)
                    orchestrator.on_feed.append(self.publisher.wake)
            if self._policy is not None:
                await install_policy(store, self.tenant, self._policy, runtime.connectors)
            runtime.open(store, orchestrator)
            self._stack = stack.pop_all()
        return self

    async def _open(self, store: MigratableStore) -> None:
        """Open the store. Its database may be unreachable, even repeatedly, until the wait is over."""
        deadline = time.monotonic() + self._wait_seconds
        tell = throttle_messages(lambda why: log.info("waiting_for_database", why=why))
        while True:
            if self._wait_seconds:
                await store.wait_until_reachable(max(0.0, deadline - time.monotonic()), tell)
            try:
                if self._migrate and not self.runtime.only_reads:
                    await store.migrate()
                await store.open()
            except TenureError as fault:
                if fault.code != "STORE_UNAVAILABLE" or time.monotonic() >= deadline:
                    raise
            else:
                return

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()
        self.runtime.close()

    def scoped(
        self,
        *,
        tenant: str,
        workspace: str = "default",
        actor: str | None = None,
        caller: Principal | None = None,
    ) -> Engine:
        """The same engine for another tenant, or for the caller of a server. Do not enter it."""
        other = copy.copy(self)
        other.__dict__ = {name: value for name, value in self.__dict__.items() if name not in _GROUPS}
        name = actor or (self.actor if caller is None else caller.actor)
        other.scope = Scope(self.runtime, tenant, workspace, name, caller)
        return other

    # ------------------------------------------------------------------------------------------ groups

    @cached_property
    def runs(self) -> Runs:
        return Runs(self.scope)

    @cached_property
    def approvals(self) -> Approvals:
        return Approvals(self.scope)

    @cached_property
    def receipts(self) -> Receipts:
        return Receipts(self.scope)

    @cached_property
    def schedules(self) -> Schedules:
        return Schedules(self.scope)

    @cached_property
    def workflows(self) -> Workflows:
        return Workflows(self.scope)

    @cached_property
    def costs(self) -> Costs:
        return Costs(self.scope)

    @cached_property
    def evidence(self) -> Evidence:
        return Evidence(self.scope)

    @cached_property
    def undos(self) -> Undos:
        return Undos(self.scope)

    @cached_property
    def policies(self) -> Policies:
        return Policies(self.scope)

    @cached_property
    def freezes(self) -> Freezes:
        return Freezes(self.scope)

    @cached_property
    def hooks(self) -> Hooks:
        return Hooks(self.scope)

    @cached_property
    def ci(self) -> CiRuns:
        return CiRuns(self.scope)

    @cached_property
    def reports(self) -> Reports:
        return Reports(self.scope)

    @cached_property
    def confirmations(self) -> Confirmations:
        return Confirmations(self.scope)

    @cached_property
    def people(self) -> People:
        return People(self.scope)

    @cached_property
    def clients(self) -> Clients:
        return Clients(self.scope)

    @cached_property
    def keys(self) -> Keys:
        return Keys(self.scope)

    @cached_property
    def tenants(self) -> Tenants:
        return Tenants(self.scope)

    # --------------------------------------------------------------------------------------- resources

    @property
    def tenant(self) -> str:
        return self.scope.tenant

    @property
    def workspace(self) -> str:
        return self.scope.workspace

    @property
    def actor(self) -> str:
        return self.scope.actor

    @property
    def store(self) -> Store:
        """The database, for reading."""
        return self.runtime.store

    @property
    def orchestrator(self) -> Orchestrator:
        """The only writer of runs."""
        return self.runtime.orchestrator

    @property
    def artifacts(self) -> ArtifactStore:
        return self.runtime.artifacts

    @property
    def connectors(self) -> Connectors:
        return self.runtime.connectors

    @property
    def work_source(self) -> LocalWorkSource:
        """Where workers of this process get their work."""
        if self._work_source is None:
            governor = Governor(self.orchestrator, self.artifacts, self.connectors)
            waiters = self.runtime.waiters
            self._work_source = LocalWorkSource(
                self.url, self.orchestrator, self.artifacts, waiters.succeeded, waiters.ended, governor
            )
        return self._work_source

    def log_durability_risks(self) -> None:
        """Warn about database settings that may lose commits; for long-running processes."""
        undurable: str | None = getattr(self.store, "undurable", None)
        if undurable:
            log.warning("database_not_durable", settings=undurable)

    # ------------------------------------------------------------------------------------ everyday calls

    async def start(self, workflow: Workflow[..., Any], *args: Any, **kwargs: Any) -> RunHandle[Any]:
        """Start a workflow with these arguments. `submit` takes the input by names, and options."""
        asked, caller = StartRun(workflow=workflow.name), RunCaller(context=self.scope.context())
        return await self._start(workflow, workflow.parameters.bind(args, kwargs), asked, caller)

    async def submit(
        self,
        workflow: Workflow[..., Any] | DeclaredWorkflow | str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word users know it by
        *,
        profile: str | None = None,
        version: str | None = None,
        **options: Unpack[StartOptionsDict],
    ) -> RunHandle[Any]:
        """Start a workflow with an input by names and the options of `StartOptionsDict`. With a `key`, the same request again
        returns the same run."""
        if isinstance(workflow, str):
            found = registry.workflows.get(workflow)
            if found is None:
                raise TenureError(
                    "INVALID_INPUT",
                    f"no workflow {workflow!r} is imported; import the module that defines it",
                )
            workflow = found
        asked, caller = read_options(self.scope, workflow.name, options, profile=profile, version=version)
        if isinstance(workflow, DeclaredWorkflow):
            return await self._start_declared(workflow, input or {}, asked, caller)
        body = encode_payload(dict(input or {}), aside=True) or b"{}"
        workflow.parameters.check(body)
        return await self._start(workflow, body, asked, caller)

    async def create(
        self,
        workflow: str,
        plan: PlanLike | None = None,
        *,
        planner: Planner | Mapping[str, Any] | None = None,
        input: Any = None,  # noqa: A002 - the word users know it by
        profile: str = c.DEFAULT_PROFILE,
        code_version: str = "1",
        **options: Unpack[StartOptionsDict],
    ) -> str:
        """Start a run of a plan of steps, with the options of `StartOptionsDict`. Returns its id. In place of a plan, a `planner`
        names the tool whose result is the plan, as in `{"tool": "plan_release"}`. With a `key`, the same request again returns
        the same run."""
        if (plan is None) == (planner is None):
            raise TenureError("INVALID_INPUT", "give either a plan or a planner")
        asked, caller = read_options(self.scope, workflow, options)
        command = build_command(
            self.scope,
            asked,
            caller,
            version=code_version,
            profile=profile,
            plan=make_plan(plan or ()) if planner is None else make_planned_later(planner),
            body=encode_payload(input),
        )
        created = await self.orchestrator.create(with_request_hash(command))
        return ids.run_text(created.run_id)

    def run(self, run_id: str, workflow: Workflow[..., Any] | None = None) -> RunHandle[Any]:
        """A handle on a run that exists."""
        return RunHandle(self, run_id, workflow)

    async def get(self, run_id: str, profile: str | None = None) -> Run:
        """The run with its input, output and error; in the words of its own profile, unless another is named."""
        return await self.runs.get(run_id, profile)

    async def result(self, run_id: str, *, wait: float | None = 0.0) -> Any:
        """The run's output, or its error raised; see `runs.result`."""
        return await self.runs.result(run_id, wait=wait)

    async def approve(self, run_id: str, *, approver: str, **answer: Any) -> str:
        """Approve a question of the run; see `approvals.approve`."""
        return await self.approvals.approve(run_id, approver=approver, **answer)

    async def reject(self, run_id: str, *, approver: str, **answer: Any) -> str:
        """Reject a question of the run; see `approvals.reject`."""
        return await self.approvals.reject(run_id, approver=approver, **answer)

    async def signal(self, run_id: str, event: str, data: Any = None, **options: Any) -> SignalResult:
        """Deliver an event to the run; see `runs.signal`."""
        return await self.runs.signal(run_id, event, data, **options)

    async def cancel(self, run_id: str, **options: Any) -> str:
        """Request cancellation; see `runs.cancel`."""
        return await self.runs.cancel(run_id, **options)

    async def put_caps(self, caps: list[Cap]) -> None:
        """Set caps and weights of tenants, workspaces and workflows."""
        await self.orchestrator.put_caps(caps)

    async def settle(self) -> None:
        """Do what is due now and deliver what runs owe each other: for programs that do not stay to sweep."""
        await self.sweeper.sweep()
        for _ in range(SETTLE_ROUNDS_MAX):  # a delivery may make another one due
            pending = await self.store.read("outbox_pending", FOREVER_US, SWEEP_TIMERS_MAX)
            if not await self.orchestrator.deliver(pending):
                return

    # ------------------------------------------------------------------------------------------ workers

    def worker(
        self,
        *definitions: Workflow[..., Any] | Tool | Registry,
        slots: int = 100,
        queues: tuple[str, ...] | None = None,
        commands: bool = False,
        name: str | None = None,
        command_user: str | None = None,
        allow_unconfined_commands: bool = False,
    ) -> Worker:
        """A worker in this process: `async with engine.worker(): …`. Without definitions it serves everything that
        decorators have registered.

        `commands`: it runs the commands of workflow files, confined so that they see neither its secrets nor its database; as
        `command_user` if it is root. COMMANDS_UNCONFINED if confinement is impossible here, unless that is allowed.
        """
        made = Worker(
            self.work_source,
            *definitions,
            slots=slots,
            queues=queues,
            commands=commands,
            name=name,
            command_user=command_user,
            allow_unconfined_commands=allow_unconfined_commands,
        )
        self.add_worker(made)
        return made

    def add_worker(self, worker: Worker) -> None:
        """Let a worker of this process take new runs at once, and learn of cancellations at once."""
        self.workers.append(worker)
        self.runtime.workers.append(worker)

    def remove_worker(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self.runtime.workers.remove(worker)

    # ----------------------------------------------------------------------------------------- starting

    async def _start(
        self, workflow: Workflow[..., Any], body: bytes, asked: StartRun, caller: RunCaller
    ) -> RunHandle[Any]:
        """Start a workflow. A worker of this process with a free slot leases the run in the commit that creates it."""
        scope, plan, version = self.scope, workflow.plan, asked.version or workflow.version
        if version != workflow.version:  # only workers with that version can run it
            own = capability.capability(workflow.queue, capability.flow(workflow.name, version))
            plan = (msgspec.structs.replace(plan[0], queue=own),)
        run_id = self.orchestrator.new_id(scope.tenant)
        stored = await scope.store_payload(body, ids.run_text(run_id))
        worker = claimant = None
        if caller.key is None:
            for worker in self.workers:
                claimant = worker.reserve(plan[0].queue)
                if claimant is not None:
                    break
        command = build_command(
            scope,
            asked,
            caller,
            version=version,
            profile=workflow.profile.name,
            plan=plan,
            body=body,
            timeout_seconds=workflow.timeout_seconds,
            terms=workflow.terms,
            run_id=run_id,
            eager=claimant,
        )
        if caller.key is not None:
            command = with_request_hash(command)
        if stored is not body:  # the hash covers the input itself, not its reference
            command = msgspec.structs.replace(command, input=stored)
        if claimant is None or worker is None:
            created = await self.orchestrator.create(command)
        else:
            # If the caller is canceled, the worker still has to get its lease.
            created = await asyncio.shield(asyncio.ensure_future(self._create_leased(worker, command)))
        return RunHandle(self, ids.run_text(created.run_id), workflow)

    async def _create_leased(self, worker: Worker, command: c.CreateRun) -> CreatedRun:
        """Create a run for which a worker has reserved a slot, and hand the worker its lease."""
        lease = None
        asked_at = clock.boot_seconds()
        try:
            created = await self.orchestrator.create(command)
            lease = created.lease
        finally:
            if lease is not None:
                lease.input = command.input
                lease.asked_at = asked_at
            worker.take(lease)
        return created

    async def _start_declared(
        self, workflow: DeclaredWorkflow, inputs: Mapping[str, Any], asked: StartRun, caller: RunCaller
    ) -> RunHandle[Any]:
        bound = workflow.bind(inputs)
        registries = (registry, *(each.registry for each in self.workers))
        check_uses(workflow, self.connectors, {name for known in registries for name in known.tools})
        command = build_command(
            self.scope,
            asked,
            caller,
            version=workflow.version,
            profile=workflow.profile,
            plan=workflow.plan(bound),
            body=encode_payload(bound),
            timeout_seconds=workflow.timeout_seconds,
            terms=workflow.terms,
        )
        created = await self.orchestrator.create(with_request_hash(command))
        return RunHandle(self, ids.run_text(created.run_id))


_GROUPS = frozenset(name for name, value in vars(Engine).items() if isinstance(value, cached_property))


def _address(url: str | None) -> str:
    """The database to use: see `tenure.config`."""
    chosen = choose_database(url)
    return chosen.address if chosen.kind == "postgres" else f"sqlite:{chosen.address}"
