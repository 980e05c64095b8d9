"""The engine: one database, its orchestrator and its sweeper, and a run's whole life as methods.

Laws:
1. Everything that changes a run is one command to the orchestrator; everything else reads committed rows.
2. Ids at this surface are texts. An id that is not one, unknown, or of another tenant is RUN_NOT_FOUND.
3. Whoever asks is an opaque id, never a name; each call is its own cause.
"""

from __future__ import annotations

import asyncio
import copy
import secrets
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from tenure import ids, own_profiles
from tenure.artifacts import NOWHERE, Artifacts, is_reference, place_for
from tenure.clock import us
from tenure.config import choose_database, choose_patience
from tenure.declared.resolution import StepResolver
from tenure.durations import seconds
from tenure.embedded.by_hand import ByHand
from tenure.embedded.confirmations import LocalConfirmations
from tenure.embedded.costs import Costs
from tenure.embedded.evidence import Proving, sealed
from tenure.embedded.flows import POLL_SECONDS_HERE, POLL_SECONDS_MAX, POLL_SECONDS_MIN, Ends, Flows
from tenure.embedded.looking import Looking
from tenure.embedded.once_more import OnceMore
from tenure.embedded.options import Options, Said
from tenure.embedded.plan import PlanLike, make_plan, payload, request_hash
from tenure.embedded.receipts import Receipts
from tenure.embedded.undoing import Undoing
from tenure.errors import CODES, TenureError
from tenure.govern.connector import Connector
from tenure.govern.connectors.choosing import choose_connectors
from tenure.govern.connectors.registry import Connectors
from tenure.govern.evidence.sealer import Sealer, Sealing
from tenure.govern.governor import Governor
from tenure.govern.ledger.book import Book
from tenure.govern.ledger.keeper import Keeper
from tenure.govern.ledger.keys import Keys
from tenure.govern.policy.installing import installed
from tenure.govern.signing import configured
from tenure.kernel import commands as c
from tenure.kernel import profiles
from tenure.kernel.model import CLOSED_RUN, Cap, Run
from tenure.limits import SWEEP_SECONDS, SWEEP_TIMERS_MAX
from tenure.logs import get_logger
from tenure.orchestrator import Orchestrator
from tenure.orchestrator.process_watch import ProcessWatch
from tenure.orchestrator.schedules import Scheduler
from tenure.orchestrator.sweeper import Sweeper
from tenure.orchestrator.trimming import Trimmer
from tenure.orchestrator.views import (
    FOREVER_US,
    ApprovalView,
    EventView,
    RunPage,
    RunView,
    StepView,
    Views,
    decoded,
)
from tenure.orchestrator.why import Why, why
from tenure.sdk import codec
from tenure.store.connect import MigratableStore, open_store, seldom
from tenure.worker import LocalStation, Worker

if TYPE_CHECKING:
    from tenure.store.port import Store

log = get_logger(__name__)

RETENTION_PAGE = 200
SETTLE_ROUNDS_MAX = 100
"""How often `settle` looks for what was owed meanwhile."""


class Engine(Looking, Flows, OnceMore, ByHand, LocalConfirmations, Receipts, Costs, Proving, Undoing):
    """See the laws above. An async context manager; `url` is `sqlite:PATH`, a path, or a postgresql:// DSN."""

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
        wait_for_database: str | float | timedelta = 0,
    ) -> None:
        own_profiles.load()
        self.url = _address(url)
        self.tenant = tenant
        self.workspace = workspace
        self.actor = actor
        self._migrate = migrate
        self._sweep = sweep
        self._sweep_seconds = sweep_seconds
        self._listen_url = listen_url
        """Where wake-ups are listened for, if `url` is behind a pooler; else TENURE_LISTEN_DB says so."""
        self._wait_seconds = seconds(wait_for_database)
        """How long PostgreSQL may be away when the engine starts."""
        self._only_reads = only_reads
        """No command is sent, nothing is swept: the database may be one that cannot be written."""
        self.seals = evidence or signing_key is not None
        """Whether runs that end are sealed with evidence; signed where there is a key (a reference: see `govern.signing`)."""
        self._signing_key = signing_key
        self._stack = AsyncExitStack()
        self._store: Store | None = None
        self._orchestrator: Orchestrator | None = None
        self._connectors = connectors
        self._policy = policy
        """A file, or its text, that is made active: for a tenant without people (see `govern.policy.installing`)."""
        self._chosen: Connectors | None = None
        self.local: list[Worker] = []
        """Workers of this process: told at once when a run of theirs is canceled."""
        self.artifacts = Artifacts(place_for(self.url))
        self.sealing: Sealing
        """How evidence is made, of any run that has ended."""
        self.sealer: Sealer | None = None
        self.ends = Ends()
        self._station: LocalStation | None = None

    async def __aenter__(self) -> Self:
        store = open_store(self.url, only_reads=self._only_reads, listen_dsn=self._listen_url)
        async with AsyncExitStack() as stack:
            await self._open(store)
            stack.push_async_callback(store.close)
            signer = None
            if self._signing_key is not None:
                signer = await asyncio.to_thread(configured, self._signing_key)
            if signer is not None and not self._only_reads:
                await Keys(store).ready(signer)  # a key that nobody has endorsed seals nothing
            self.sealing = Sealing(store, self.artifacts, signer)
            if not self._only_reads:
                orchestrator = Orchestrator(store, command_seconds=choose_patience())
                orchestrator.resolver = StepResolver(store, self.artifacts)
                self._orchestrator = await stack.enter_async_context(orchestrator)
                self.sweeper = Sweeper(self._orchestrator, seconds=self._sweep_seconds)
                if self._sweep:
                    await stack.enter_async_context(self.sweeper)
                    await stack.enter_async_context(ProcessWatch(self._orchestrator))
                    await stack.enter_async_context(Scheduler(self._orchestrator))
                    await stack.enter_async_context(Trimmer(store))
                    if self.seals:
                        if not self.artifacts.is_somewhere:
                            raise TenureError("INVALID_INPUT", NOWHERE)
                        sealer = Sealer(self._orchestrator, self.sealing)
                        self.sealer = await stack.enter_async_context(sealer)
                        await stack.enter_async_context(Keeper(store, signer=lambda: signer))
            if self._policy is not None:
                await installed(store, self.tenant, self._policy, self.connectors)
            self._store = store
            self._stack = stack.pop_all()
        return self

    async def _open(self, store: MigratableStore) -> None:
        """Open the store; its database may be away, and go away again meanwhile, for as long as we wait for it."""
        deadline = time.monotonic() + self._wait_seconds
        tell = seldom(lambda why: log.info("waiting_for_database", why=why))
        while True:
            if self._wait_seconds:
                await store.wait_until_there(max(0.0, deadline - time.monotonic()), tell)
            try:
                if self._migrate and not self._only_reads:
                    await store.migrate()
                await store.open()
            except TenureError as fault:
                if fault.code != "STORE_UNAVAILABLE" or time.monotonic() >= deadline:
                    raise
            else:
                return

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()
        self._store = self._orchestrator = None

    def scoped(self, *, tenant: str, workspace: str = "default", actor: str | None = None) -> Engine:
        """The same engine for another tenant: what a server answers its callers with. It is not to be entered."""
        other = copy.copy(self)
        other.tenant, other.workspace = tenant, workspace
        other.actor = actor or self.actor
        return other

    def tell_risks(self) -> None:
        """Log what is set in the database so that it may lose commits; for processes that stay."""
        undurable: str | None = getattr(self.store, "undurable", None)
        if undurable:
            log.warning("database_not_durable", settings=undurable)

    @property
    def store(self) -> Store:
        """The database, for reading."""
        if self._store is None:
            raise TenureError("STORE_UNAVAILABLE", "the engine is not running: use `async with Engine(…)`")
        return self._store

    @property
    def orchestrator(self) -> Orchestrator:
        """The only writer."""
        if self._only_reads:
            raise TenureError("STORE_READ_ONLY", "this engine was opened to read only")
        if self._orchestrator is None:
            raise TenureError("STORE_UNAVAILABLE", "the engine is not running: use `async with Engine(…)`")
        return self._orchestrator

    @property
    def station(self) -> LocalStation:
        """Where workers of this process get their work."""
        if self._station is None:
            governor = Governor(self.orchestrator, self.artifacts, self.connectors)
            ends = self.ends
            self._station = LocalStation(
                self.url, self.orchestrator, self.artifacts, ends.succeeded, ends.ended, governor
            )
        return self._station

    @property
    def connectors(self) -> Connectors:
        """What runs can do to the world, as far as policies allow it: those given, or of the file that is named."""
        if self._chosen is None:
            self._chosen = choose_connectors(self._connectors)
        return self._chosen

    @property
    def views(self) -> Views:
        """The read side, for this engine's tenant."""
        return Views(self.store, self.tenant)

    def context(
        self, actor: str | None = None, initiator: c.Initiator = "user", cause: str = ""
    ) -> c.Context:
        return c.Context(actor or self.actor, initiator, cause or f"req:{secrets.token_hex(8)}")

    # -------------------------------------------------------------------------------------- beginnings

    async def create(
        self,
        workflow: str,
        plan: PlanLike | None,
        *,
        input: Any = None,  # noqa: A002 - the word users know it by
        profile: str = "agent-runs",
        code_version: str = "1",
        **options: Unpack[Said],
    ) -> str:
        """Start a run and answer its id; `Options` has what else may be said. Without a plan it waits for `plan_ready`
        or `plan_failed`.

        With a `key`, the same request again answers the same run.
        """
        said = Options(**options)
        command = c.CreateRun(
            context=self.context(said.actor),
            run_id=self.orchestrator.new_id(self.tenant),
            tenant=self.tenant,
            workspace=self.workspace,
            workflow=workflow,
            code_version=code_version,
            profile=profile,
            plan=None if plan is None else make_plan(plan),
            input=payload(input),
            **said.fields(),
        )
        if said.key is not None:
            command = msgspec.structs.replace(command, request_hash=request_hash(command))
        created = await self.orchestrator.create(command)
        return ids.run_text(created.run_id)

    async def plan_ready(self, run_id: str, plan: PlanLike) -> None:
        """The planner's answer for a run that was created without a plan."""
        await self._send(c.PlanReady(**self._to(run_id), plan=make_plan(plan)))

    async def plan_failed(self, run_id: str, message: str = "", *, code: str = "PLAN_FAILED") -> None:
        """The planner gave up: the run fails."""
        await self._send(c.PlanFailed(**self._to(run_id), code=code, message=message.encode()))

    async def add_steps(self, run_id: str, plan: PlanLike) -> None:
        """More steps for a run under way."""
        await self._send(c.AddSteps(**self._to(run_id), plan=make_plan(plan)))

    # ------------------------------------------------------------------------------------------ reading

    async def get(self, run_id: str, profile: str | None = None) -> RunView:
        """The run, with its input, output and error; in the words of its own profile, unless another is named."""
        return await self.views.run(ids.run_int(run_id), profile)

    async def runs(
        self,
        *,
        status: str | None = None,
        repo: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        """The newest runs; see `list_runs`."""
        return await self.list_runs(status=status, repo=repo, limit=limit, cursor=cursor)

    async def steps(self, run_id: str, profile: str | None = None) -> list[StepView]:
        """The run's steps and checkpoints."""
        return await self.views.steps(ids.run_int(run_id), profile)

    async def events(self, run_id: str, *, after: int = 0) -> list[EventView]:
        """The run's history."""
        return await self.views.events(ids.run_int(run_id), after=after)

    async def approvals(self, run_id: str | None = None) -> list[ApprovalView]:
        """The questions of a run, or all that are open now."""
        if run_id is None:
            return await self.views.open_approvals(self.tenant)
        return await self.views.approvals(ids.run_int(run_id))

    async def why(self, run_id: str) -> Why:
        """Why the run is not moving, in one reason."""
        views, number = self.views, ids.run_int(run_id)
        return await why(self.store, await views.row(number), await views.spec(number))

    async def result(self, run_id: str, *, wait: float | None = 0.0) -> Any:
        """What the run came to: its output, or its error raised. `wait` seconds for it to end; None: for ever.

        A run that has not ended by then is COMMAND_DEADLINE.
        """
        return decoded(await self.output(run_id, wait=wait))

    async def output(self, run_id: str, *, wait: float | None = 0.0) -> bytes | None:
        """The output's bytes; a run that was restarted is followed to its last."""
        followed = False
        while True:
            body = await self._output(ids.run_int(run_id), wait, owed=followed)
            followed = True
            if body is None or not body.startswith(codec.RESERVED):
                return body
            if is_reference(body):
                return await self.artifacts.get(body)
            run_id = codec.restarted_as(body)

    async def _status(self, number: int, owed: bool) -> Run | None:
        """The run's row; None for one that is owed by another and not made yet."""
        try:
            return await self.views.row(number)
        except TenureError as refused:
            if owed and refused.code == "RUN_NOT_FOUND":
                return None
            raise

    async def _output(self, number: int, wait: float | None, *, owed: bool) -> bytes | None:
        loop = asyncio.get_running_loop()
        deadline = None if wait is None else loop.time() + wait
        pause = POLL_SECONDS_MIN
        run: Run | None = None
        with self.ends.waiting(number) as ending:
            while not ending.succeeded:
                here = any(worker.holds(self.tenant, number) for worker in self.local)
                if not here:  # else its worker tells
                    run = await self._status(number, owed)
                    if run is not None and run.status in CLOSED_RUN:
                        break
                left = POLL_SECONDS_HERE if here else pause
                if deadline is not None:
                    left = min(left, deadline - loop.time())
                if left <= 0:
                    run = run or await self._status(number, owed)
                    status = "owed" if run is None else run.status
                    told = f"{ids.run_text(number)} is still {status}"
                    raise TenureError("COMMAND_DEADLINE", told, status=status)
                await ending.news(left)
                pause = min(pause * 1.5, POLL_SECONDS_MAX)
            if ending.succeeded:
                return ending.output
        assert run is not None
        if run.status == "succeeded":
            return await self._body(run, run.output_ref)
        raise await self._failure(run)

    async def _body(self, run: Run, ref: int | None) -> bytes | None:
        rows = [] if ref is None else await self.store.read("payload", run.id, ref)
        return rows[0].body if rows else None

    async def _failure(self, run: Run) -> TenureError:
        """How a run that did not succeed is raised; a code of the user's own is kept beside ours."""
        reason = run.reason or "STEP_FAILED"
        code = "RUN_CANCELED" if run.status == "canceled" else reason if reason in CODES else "STEP_FAILED"
        error = decoded(await self._body(run, run.error_ref))
        said = f": {error}" if error is not None else ""
        message = f"{ids.run_text(run.id)} {run.status} ({reason}){said}"
        return TenureError(code, message, status=run.status, reason=reason, error=error)

    # ------------------------------------------------------------------------------------ interventions

    def _to(self, run_id: str, actor: str | None = None, initiator: c.Initiator = "user") -> dict[str, Any]:
        return {
            "run_id": ids.run_int(run_id),
            "tenant": self.tenant,
            "context": self.context(actor, initiator),
        }

    async def _send(self, command: c.RunCommand) -> dict[str, Any]:
        answer: dict[str, Any] | None = await self.orchestrator.send(command)
        return answer or {}

    async def cancel(
        self, run_id: str, *, reason: str = "RUN_CANCELED", actor: str | None = None, behind: str = ""
    ) -> str:
        """Request the run's cancellation; the status it led to (`canceling` while work is asked to stop)."""
        answer = await self._send(c.RequestCancel(**self._to(run_id, actor), reason=reason, behind=behind))
        self._hurry(run_id)
        return str(answer["status"])

    async def cancel_step(self, run_id: str, name: str, *, actor: str | None = None, behind: str = "") -> str:
        """Cancel one step; the state it led to."""
        answer = await self._send(c.CancelStep(**self._to(run_id, actor), name=name, behind=behind))
        self._hurry(run_id)
        return str(answer["state"])

    def _hurry(self, run_id: str) -> None:
        """Workers of this process need not wait for their next heartbeat to learn of a cancel."""
        for worker in self.local:
            worker.hurry(ids.run_int(run_id))

    async def pause(self, run_id: str, *, actor: str | None = None) -> None:
        """Give out no step of the run from now on; work under way and deadlines go on."""
        await self._send(c.Pause(**self._to(run_id, actor)))

    async def unpause(self, run_id: str, *, actor: str | None = None) -> None:
        """Give out steps again, also of a run that was parked."""
        await self._send(c.Unpause(**self._to(run_id, actor)))

    async def approve(self, run_id: str, *, approver: str, **answer: Any) -> str:
        """Say yes to a question; the approval's status after it (`requested` while more people are needed).

        `no` names the question where the run has several; `digest` and `revision` what was shown; `reason` why.
        """
        return await self._decide(run_id, approver, approve=True, **answer)

    async def reject(self, run_id: str, *, approver: str, **answer: Any) -> str:
        """Say no to a question; the arguments are those of `approve`."""
        return await self._decide(run_id, approver, approve=False, **answer)

    async def _decide(
        self,
        run_id: str,
        approver: str,
        *,
        approve: bool,
        no: int | None = None,
        digest: str = "",
        revision: int | None = None,
        reason: str | None = None,
    ) -> str:
        command = c.DecideApproval(
            **self._to(run_id, approver, "approval"),
            no=no if no is not None else await self._the_question(run_id),
            approver=approver,
            approve=approve,
            revision=revision,
            digest=digest,
            reason=payload(reason),
        )
        return str((await self._send(command))["status"])

    async def _the_question(self, run_id: str) -> int:
        """The run's open question, if there is one only; else its last, so that a repeated answer is told so."""
        asked = await self.approvals(run_id)
        is_open = [a.no for a in asked if a.status == "requested"]
        if len(is_open) > 1:
            listed = ", ".join(f"{a.no} ({a.step})" for a in asked if a.no in is_open)
            raise TenureError("INVALID_INPUT", f"the run asks several questions; name one of {listed}")
        if not asked:
            raise TenureError("APPROVAL_NOT_FOUND", f"{run_id} asks nobody anything")
        return is_open[0] if is_open else asked[-1].no

    async def deliver(
        self,
        run_id: str,
        event: str,
        data: Any = None,
        *,
        event_id: str | None = None,
        source: str = "",
        actor: str | None = None,
    ) -> bool:
        """Tell the run that something happened; whether a wait has taken it (else it is kept for one).

        The same `event_id` never counts twice; without one, every call is its own event.
        """
        told = await self.signal(run_id, event, data, event_id=event_id, source=source, actor=actor)
        return told.taken

    async def put_caps(self, caps: list[Cap]) -> None:
        """Set caps and weights of tenants, workspaces and workflows."""
        await self.orchestrator.put_caps(caps)

    async def settle(self) -> None:
        """Do what is due now and deliver what runs owe each other: for programs that do not stay to sweep."""
        await self.sweeper.sweep()
        for _ in range(SETTLE_ROUNDS_MAX):  # what is delivered may owe something in turn
            owed = await self.store.read("outbox_pending", FOREVER_US, SWEEP_TIMERS_MAX)
            if not await self.orchestrator.deliver(owed):
                return

    # ----------------------------------------------------------------------------------------- retention

    async def delete_finished(self, before: datetime) -> int:
        """Retention: seal, then delete the runs that had ended before a moment; how many those were."""
        limit_us, deleted = us(before.timestamp()), 0
        for status in sorted(CLOSED_RUN):
            while (found := await self._delete_some(status, limit_us)) > 0:
                deleted += found
        return deleted

    async def _delete_some(self, status: str, before_us: int) -> int:
        """One pass over the runs of a status, newest first; what shares its moment with a page's end is left for the
        next pass, and what has a profile that is not here for a process that has it."""
        deleted, at = 0, before_us
        while rows := await self.store.read("runs_by_status", self.tenant, status, at, RETENTION_PAGE):
            due = [r for r in rows if profiles.find(r.profile) and (r.finished_at or before_us) < before_us]
            if self.seals or await Book(self.store, self.tenant).size() > 0:
                for run in due:
                    await sealed(self, self.sealing, run.id)
            for command in (c.Seal, c.DeleteRun):
                context = self.context(initiator="policy", cause="retention")
                orders = [command(run_id=run.id, tenant=self.tenant, context=context) for run in due]
                await asyncio.gather(*(self.orchestrator.send(order) for order in orders))
            for run in due:
                await self.artifacts.delete(ids.run_text(run.id))
            deleted += len(due)
            at = rows[-1].created_at
        return deleted


def _address(url: str | None) -> str:
    """The database to use: see `tenure.config`."""
    chosen = choose_database(url)
    return chosen.address if chosen.kind == "postgres" else f"sqlite:{chosen.address}"
