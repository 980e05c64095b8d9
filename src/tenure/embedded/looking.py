"""What an engine can be asked besides a run's own state: lists, logs, what is registered, and what became of an event."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tenure import ids
from tenure.embedded.evidence import sealed
from tenure.embedded.plan import payload
from tenure.govern.ledger.book import Book
from tenure.kernel import commands as c
from tenure.kernel.beside import LogLine, RegisteredWorkflow
from tenure.kernel.model import Wait
from tenure.limits import ARTIFACTS_PER_RUN_MAX
from tenure.orchestrator.artifact_views import (
    ArtifactView,
    artifact_view,
    find_artifact,
    list_artifacts,
    reference_to,
)
from tenure.orchestrator.documents import document
from tenure.orchestrator.tries import TryView
from tenure.orchestrator.views import RunPage, decoded, moment

if TYPE_CHECKING:
    from tenure.embedded.engine import Engine

EVERYBODY = "*"
"""The tenant of what workers with database access register: they serve everybody."""
PAGE = 500


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a run's code has logged."""

    no: int
    at: datetime
    step: str
    level: str
    text: str
    fields: dict[str, Any] = {}


class WorkflowView(msgspec.Struct, frozen=True, kw_only=True):
    """A registered version of a workflow."""

    name: str
    version: str
    kind: str
    digest: str
    registered_at: datetime
    registered_by: str
    """Whose credential, or which local account, has registered it."""
    unconfirmed: list[str]
    """The people who stand behind it, until a second person confirms it."""
    definition: Any
    """Of a declared one its document; of code what is known of it."""


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an event that was delivered."""

    taken: bool
    """Whether a wait has taken it; else it is kept for one."""
    again: bool
    """Whether this event had been delivered before."""
    awaited: tuple[str, ...] = ()
    """The other events that the run waits for now, where nobody has taken this one."""


def log_view(line: LogLine) -> LogView:
    """A line as people see it."""
    fields = decoded(line.fields.encode())
    return LogView(
        no=line.no,
        at=moment(line.at),
        step=line.step,
        level=line.level,
        text=line.text,
        fields=fields if isinstance(fields, dict) else {},
    )


def workflow_view(row: RegisteredWorkflow) -> WorkflowView:
    """A registered workflow as people see it; others may register documents of another form."""
    return WorkflowView(
        name=row.name,
        version=row.version,
        kind=row.kind,
        digest=row.digest,
        registered_at=moment(row.registered_at),
        registered_by=row.registered_by,
        unconfirmed=row.unconfirmed.split(),
        definition=decoded(row.definition.encode()),
    )


class Looking:
    """See above; the other half of an engine."""

    async def version(self, run_id: str) -> int:
        """How long a run's history is: whether there is something new."""
        return (await self._engine.views.row(ids.run_int(run_id))).version

    async def list_runs(
        self,
        *,
        status: str | None = None,
        repo: str | None = None,
        workflow: str | None = None,
        labels: Mapping[str, str] | None = None,
        parked: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        """The newest runs that fulfil all conditions; with the `next_cursor` of a list, those that follow it."""
        engine = self._engine
        return await engine.views.list_runs(
            engine.tenant,
            status=status,
            repo=repo,
            workflow=workflow,
            labels=labels,
            parked=parked,
            limit=limit,
            cursor=cursor,
        )

    async def tries(self, run_id: str) -> list[TryView]:
        """The tries of a run's steps that did not succeed."""
        return await self._engine.views.tries(ids.run_int(run_id))

    async def logs(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogView]:
        """What a run's code has logged, after a line."""
        run = await self._engine.views.row(ids.run_int(run_id))
        lines: list[LogLine] = await self._engine.store.read("log_lines_of", run.id, after, limit)
        return [log_view(line) for line in lines]

    async def document(self, run_id: str, profile: str, at: str | None = None) -> Any:
        """A run as the document of a profile, or what lies below that."""
        engine = self._engine
        return await document(engine.views, engine.store, ids.run_int(run_id), profile, at)

    async def signal(
        self,
        run_id: str,
        event: str,
        data: Any = None,
        *,
        event_id: str | None = None,
        source: str = "",
        actor: str | None = None,
        behind: str = "",
    ) -> Delivered:
        """Deliver an event, and say what became of it and what else the run waits for. Whoever sends it, and everybody in `behind`
        (`id id`), stands behind the run once it takes the event."""
        engine, number = self._engine, ids.run_int(run_id)
        await engine.views.row(number)  # nothing is kept for a run that is not there
        command = c.DeliverEvent(
            run_id=number,
            tenant=engine.tenant,
            context=engine.context(actor),
            name=event,
            event_id=event_id or f"evt:{secrets.token_hex(8)}",
            source=source,
            payload=await engine.kept(payload(data, aside=True), run_id),
            behind=behind,
        )
        answer = await engine.orchestrator.send(command)
        taken = bool(answer["taken"])
        waits: list[Wait] = [] if taken else await engine.store.read("waits_of", number)
        names = (w.name for w in waits if w.state == "open" and w.kind == "event" and w.name != event)
        return Delivered(taken=taken, again=bool(answer["again"]), awaited=tuple(dict.fromkeys(names)))

    async def list_artifacts(self, run_id: str) -> list[ArtifactView]:
        """The files that its runners have uploaded, by name, step and attempt; those that came late too."""
        engine, number = self._engine, ids.run_int(run_id)
        await engine.views.row(number)  # another tenant's is none
        lines = await list_artifacts(engine.store, number, limit=ARTIFACTS_PER_RUN_MAX)
        return [artifact_view(line) for line in lines]

    async def artifact(
        self,
        run_id: str,
        name: str,
        *,
        step: str | None = None,
        attempt: int | None = None,
        late: bool | None = None,
    ) -> bytes:
        """The accepted file of this name; ARTIFACT_AMBIGUOUS where several steps have one: name the step, and the attempt."""
        engine, number = self._engine, ids.run_int(run_id)
        await engine.views.row(number)
        line = await find_artifact(engine.store, number, name, step=step, attempt=attempt, late=late)
        return await engine.artifacts.get(reference_to(line))

    async def delete(self, run_id: str, *, actor: str | None = None) -> None:
        """Seal and delete a finished run with its history and payloads, for good."""
        engine = self._engine
        to: dict[str, Any] = {
            "run_id": ids.run_int(run_id),
            "tenant": engine.tenant,
            "context": engine.context(actor),
        }
        if engine.seals or await Book(engine.store, engine.tenant).size() > 0:
            await engine.views.row(to["run_id"])  # another tenant's is none
            await sealed(engine, engine.sealing, to["run_id"])
        for command in (c.Seal, c.DeleteRun):
            await engine.orchestrator.send(command(**to))
        await engine.artifacts.delete(run_id)

    async def workflows(self) -> list[WorkflowView]:
        """What is registered: this tenant's own, and what is for everybody."""
        engine, found = self._engine, dict[tuple[str, str], WorkflowView]()
        for tenant in (EVERYBODY, engine.tenant):
            rows: list[RegisteredWorkflow] = await engine.store.read("workflows_of", tenant, "", PAGE)
            found |= {(row.name, row.version): workflow_view(row) for row in rows}
        return [found[key] for key in sorted(found)]

    async def workflow(self, name: str) -> list[WorkflowView]:
        """All registered versions of a workflow, newest first; this tenant's own come before those for everybody."""
        engine, found = self._engine, dict[str, WorkflowView]()
        for tenant in (engine.tenant, EVERYBODY):
            rows: list[RegisteredWorkflow] = await engine.store.read("workflow_named", tenant, name)
            for row in rows:
                found.setdefault(row.version, workflow_view(row))
        return list(found.values())

    @property
    def _engine(self) -> Engine:
        return cast("Engine", self)
