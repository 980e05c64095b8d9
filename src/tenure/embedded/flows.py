"""Starting workflows and waiting for what they come to.

Laws:
1. A run that is started where a worker of this process has room for it is that worker's at once: it is made and leased in
   one commit.
2. Who waits here for a run that ends here is told by its worker; anybody else looks at the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast

import msgspec

from tenure import clock, ids
from tenure.declared import Declared
from tenure.embedded.options import Options, Said
from tenure.embedded.plan import payload, request_hash
from tenure.embedded.schedules import Schedules
from tenure.errors import TenureError
from tenure.govern.uses import check_uses
from tenure.kernel import capability
from tenure.kernel import commands as c
from tenure.kernel.decide.plans import Created
from tenure.kernel.machines import RUN
from tenure.kernel.model import CLOSED_RUN
from tenure.sdk import codec
from tenure.sdk.definitions import Registry, Tool, Workflow, registry
from tenure.worker import Worker

if TYPE_CHECKING:
    from tenure.embedded.engine import Engine

R = TypeVar("R")
_NOTHING_SAID = Options()

POLL_SECONDS_MIN = 0.005
POLL_SECONDS_MAX = 0.25
"""Who waits for a run elsewhere looks again after pauses that grow so far."""
POLL_SECONDS_HERE = 1.0
"""Who waits for a run that a worker of this process holds is told by it, and looks all the same after so long."""


class Run(Generic[R]):
    """A run that was started, or is looked at."""

    def __init__(self, engine: Engine, run_id: str, workflow: Workflow[..., Any] | None = None) -> None:
        self._engine = engine
        self._workflow = workflow
        self.id = run_id

    async def result(self, *, wait: float | None = None) -> R:
        """What the workflow returned, or what it failed with raised; waits for it, at most `wait` seconds."""
        body = await self._engine.output(self.id, wait=wait)
        if self._workflow is not None:
            return cast("R", self._workflow.codec.decode(body))
        return cast("R", None if body is None else msgspec.json.decode(body))

    async def status(self) -> str:
        """The run's status."""
        return (await self._engine.get(self.id)).status

    async def reaches(self, *statuses: str, wait: float | None = None) -> str:
        """Wait until the run has one of these statuses, at most `wait` seconds; which one. RUN_TERMINAL_STATE where it has
        ended in another."""
        wanted = " or ".join(statuses)
        if not statuses or not set(statuses) <= set(RUN.states):
            raise TenureError("INVALID_INPUT", f"{wanted!r} is not among {', '.join(RUN.states)}")
        loop, pause = asyncio.get_running_loop(), POLL_SECONDS_MIN
        deadline = None if wait is None else loop.time() + wait
        while (status := await self.status()) not in statuses:
            if status in CLOSED_RUN:
                raise TenureError("RUN_TERMINAL_STATE", f"{self.id} is {status} and will not be {wanted}")
            left = pause if deadline is None else min(pause, deadline - loop.time())
            if left <= 0:
                raise TenureError("COMMAND_DEADLINE", f"{self.id} is still {status}", status=status)
            await asyncio.sleep(left)
            pause = min(pause * 1.5, POLL_SECONDS_MAX)
        return status

    async def cancel(self) -> str:
        """Request its cancellation."""
        return await self._engine.cancel(self.id)

    def __repr__(self) -> str:
        return f"<run {self.id}>"


class Flows:
    """What an engine does with workflows; see the laws above."""

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
        decorators have collected.

        `commands`: it executes the commands of workflow files, where they cannot see its secrets and database; as `command_user`, if it
        is root. COMMANDS_UNCONFINED where that is not to be had here, unless it is allowed."""
        engine = cast("Engine", self)
        made = Worker(
            engine.station,
            *definitions,
            slots=slots,
            queues=queues,
            commands=commands,
            name=name,
            command_user=command_user,
            allow_unconfined_commands=allow_unconfined_commands,
        )
        engine.local.append(made)
        return made

    @property
    def schedules(self) -> Schedules:
        """What starts runs by the clock."""
        return Schedules(cast("Engine", self))

    async def start(self, workflow: Workflow[..., Any], *args: Any, **kwargs: Any) -> Run[Any]:
        """Start a workflow with these arguments and go on. `submit` has all the options."""
        return await self._create(workflow, workflow.parameters.bind(args, kwargs))

    async def submit(
        self,
        workflow: Workflow[..., Any] | Declared | str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word users know it by
        *,
        profile: str | None = None,
        version: str | None = None,
        **options: Unpack[Said],
    ) -> Run[Any]:
        """Start a workflow with an input by names, and any of the options (`Options` lists them). With a `key`, the same
        request again answers the same run."""
        said = Options(**options)
        if isinstance(workflow, Declared):
            return await self._create_declared(workflow, input or {}, said, profile)
        if isinstance(workflow, str):
            found = registry.workflows.get(workflow)
            if found is None:
                raise TenureError(
                    "INVALID_INPUT",
                    f"there is no workflow {workflow!r} here; import the module that defines it",
                )
            workflow = found
        body = payload(dict(input or {}), aside=True) or b"{}"
        workflow.parameters.check(body)
        return await self._create(workflow, body, said, profile, version)

    async def _create(
        self,
        workflow: Workflow[..., Any],
        body: bytes,
        said: Options = _NOTHING_SAID,
        profile: str | None = None,
        version: str | None = None,
    ) -> Run[Any]:
        engine = cast("Engine", self)
        plan = workflow.plan
        if version is not None and version != workflow.version:  # for workers that have that one
            own = capability.capability(workflow.queue, capability.flow(workflow.name, version))
            plan = (msgspec.structs.replace(plan[0], queue=own),)
        fields: dict[str, Any] = {"timeout_seconds": workflow.timeout_seconds, **workflow.terms.fields()}
        if said is not _NOTHING_SAID:
            fields |= said.fields()
        run_id = engine.orchestrator.new_id(engine.tenant)
        keyed = said.key is not None
        stored = await engine.kept(body, ids.run_text(run_id))
        worker = by = None
        if not keyed:
            for worker in engine.local:
                by = worker.reserve(plan[0].queue)
                if by is not None:
                    break
        command = c.CreateRun(
            context=engine.context(said.actor),
            run_id=run_id,
            tenant=engine.tenant,
            workspace=engine.workspace,
            workflow=workflow.name,
            code_version=version or workflow.version,
            profile=profile or workflow.profile.name,
            plan=plan,
            input=stored,
            eager=by,
            **fields,
        )
        if keyed:  # of what was asked, not of where it is kept
            meant = request_hash(msgspec.structs.replace(command, input=body))
            command = msgspec.structs.replace(command, request_hash=meant)
        if by is None or worker is None:
            created = await engine.orchestrator.create(command)
        else:
            # Whoever asked may go away; the lease is the worker's all the same.
            created = await asyncio.shield(asyncio.ensure_future(_taken(engine, worker, command)))
        return Run(engine, ids.run_text(created.run_id), workflow)

    async def _create_declared(
        self,
        workflow: Declared,
        inputs: Mapping[str, Any],
        said: Options,
        profile: str | None,
    ) -> Run[Any]:
        engine = cast("Engine", self)
        bound = workflow.bind(inputs)
        tools = {
            name for known in (registry, *(each.registry for each in engine.local)) for name in known.tools
        }
        check_uses(workflow, engine.connectors, tools)
        command = c.CreateRun(
            context=engine.context(said.actor),
            run_id=engine.orchestrator.new_id(engine.tenant),
            tenant=engine.tenant,
            workspace=engine.workspace,
            workflow=workflow.name,
            code_version=workflow.version,
            profile=profile or workflow.profile,
            plan=workflow.plan(bound),
            input=payload(bound),
            **{"timeout_seconds": workflow.timeout_seconds, **workflow.terms.fields(), **said.fields()},
        )
        if command.idempotency_key is not None:
            command = msgspec.structs.replace(command, request_hash=request_hash(command))
        created = await engine.orchestrator.create(command)
        return Run(engine, ids.run_text(created.run_id))

    async def kept(self, body: bytes | None, run_id: str) -> bytes | None:
        """A payload as it is stored: a large one, and one that looks like a reference of ours, lies among the
        artifacts."""
        if body is None or (len(body) <= codec.INLINE_BYTES_MAX and not body.startswith(codec.RESERVED)):
            return body
        return await cast("Engine", self).artifacts.put(body, run_id)

    def run(self, run_id: str, workflow: Workflow[..., Any] | None = None) -> Run[Any]:
        """A handle on a run that exists."""
        return Run(cast("Engine", self), run_id, workflow)


async def _taken(engine: Engine, worker: Worker, command: c.CreateRun) -> Created:
    """Make a run for which a worker here keeps a slot, and give it the lease."""
    lease = None
    asked_at = clock.boot_seconds()
    try:
        created = await engine.orchestrator.create(command)
        lease = created.lease
    finally:
        if lease is not None:
            lease.input = command.input
            lease.asked_at = asked_at
        worker.take(lease)
    return created


class Ending:
    """What is known in this process of a run that somebody here waits for."""

    __slots__ = ("_asking", "_told", "output", "succeeded", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.succeeded = False
        self.output: bytes | None = None
        self._told = False
        self._asking: list[asyncio.Future[None]] = []

    def tell(self) -> None:
        """There may be something to see."""
        self._told = True
        for asking in self._asking:
            _wake(asking)

    async def news(self, seconds: float) -> None:
        """Wait for news, or for so long."""
        if not self._told:
            loop = asyncio.get_running_loop()
            asking: asyncio.Future[None] = loop.create_future()
            self._asking.append(asking)
            timer = loop.call_later(seconds, _wake, asking)
            try:
                await asking
            finally:
                timer.cancel()
                self._asking.remove(asking)
        self._told = False


def _wake(asking: asyncio.Future[None]) -> None:
    if not asking.done():
        asking.set_result(None)


class Ends:
    """The runs somebody in this process waits for."""

    def __init__(self) -> None:
        self._awaited: dict[int, Ending] = {}

    def succeeded(self, run_id: int, output: bytes | None) -> None:
        """A run has succeeded here."""
        ending = self._awaited.get(run_id)
        if ending is not None:
            ending.succeeded, ending.output = True, output
            ending.tell()

    def ended(self, run_id: int) -> None:
        """Nothing more is done about a run here."""
        ending = self._awaited.get(run_id)
        if ending is not None:
            ending.tell()

    @contextmanager
    def waiting(self, run_id: int) -> Iterator[Ending]:
        """Wait for a run's end."""
        ending = self._awaited.setdefault(run_id, Ending())
        ending.waiting += 1
        try:
            yield ending
        finally:
            ending.waiting -= 1
            if not ending.waiting:
                del self._awaited[run_id]
