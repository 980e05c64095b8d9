"""Which workflows can be started by their name: what is registered for a tenant, and for everybody.

Laws:
1. A tenant's own come first, then those for everybody (`*`: what workers with database access register). Without a version
   it is the newest that was registered.
2. What a workflow takes is checked before there is a run: names it does not have, and names it must have.
3. What runners say of their code is doubted: what has not the form of a description is WORKFLOW_INVALID, when it is
   registered and when it is started.
4. What was looked up is believed for a second: a version that is registered can be started so much later at the latest.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.clock import to_datetime
from tenure.declared import DeclaredWorkflow, load_workflow
from tenure.errors import Detail, TenureError
from tenure.kernel import capability
from tenure.kernel.commands import StepSpec
from tenure.kernel.registry_rows import SHARED_TENANT, WorkflowRow
from tenure.kernel.run_terms import NO_TERMS, RunTerms
from tenure.limits import PROBLEMS_MAX
from tenure.reads.payloads import decode_payload
from tenure.services.plans import encode_payload
from tenure.shapes.workflows import RegisteredWorkflow
from tenure.store.port import Store
from tenure.store.workflows import save_workflow
from tenure.work_pool import LARGE_STEPS, run_in_thread

if TYPE_CHECKING:
    from tenure.sdk.definitions import Workflow
    from tenure.services.scope import Scope

CACHE_SECONDS = 1.0
PAGE = 500
CACHED_WORKFLOWS_MAX = 2_000
REFERENCES_MAX = 20
"""In a schema, one behind another."""


class StartableWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a workflow that can be started."""

    name: str
    version: str
    profile: str
    timeout_seconds: float | None
    terms: RunTerms = NO_TERMS
    plan: tuple[StepSpec, ...] = ()
    """Of code: the same for every run."""
    names: frozenset[str] | None = None
    """Of code: the inputs it has; None where that is not known."""
    required: frozenset[str] = frozenset()
    declared: DeclaredWorkflow | None = None
    unconfirmed: str = ""
    """Who stands behind its runs, since nobody has confirmed what they registered."""

    def begin(self, given: Mapping[str, Any]) -> tuple[tuple[StepSpec, ...], bytes]:
        """The plan of a run with these inputs, and the inputs as they are stored; INVALID_INPUT where they do not fit."""
        if self.declared is not None:
            bound = _bound(self.declared, given)
            return self.declared.plan(bound), encode_payload(bound, aside=True) or b"{}"
        if self.names is not None and not (self.required <= given.keys() <= self.names):
            self._refuse(given)
        return self.plan, msgspec.json.encode(given)

    @property
    def is_large(self) -> bool:
        """Whether planning a run of it would hold the event loop."""
        return self.declared is not None and len(self.declared.steps) > LARGE_STEPS

    def _refuse(self, given: Mapping[str, Any]) -> None:
        assert self.names is not None
        has = ", ".join(sorted(self.names)) or "none"
        details = [
            Detail(f"input.{name}", f"{self.name} has no such input; its inputs: {has}")
            for name in sorted(given.keys() - self.names)[:PROBLEMS_MAX]
        ]
        details += [
            Detail(f"input.{name}", "it is required") for name in sorted(self.required - given.keys())
        ]
        first = details[0]
        raise TenureError("INVALID_INPUT", f"{first.path}: {first.problem}", tuple(details))


def _bound(workflow: DeclaredWorkflow, given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs as the document has them; what is wrong is named by its place in the request."""
    try:
        return workflow.bind(given)
    except TenureError as refused:
        placed = tuple(Detail(f"input{d.path.removeprefix('inputs')}", d.problem) for d in refused.details)
        said = f"{placed[0].path}: {placed[0].problem}" if placed else refused.message
        raise TenureError(refused.code, said, placed) from refused


class Catalog:
    """See the laws above."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._believed: dict[tuple[str, str, str | None], tuple[float, StartableWorkflow]] = {}
        self._made: dict[tuple[str, str, str, str], StartableWorkflow] = {}
        """By tenant, name, version and digest: a text is read once."""
        self._looking: dict[tuple[str, str, str | None], asyncio.Future[StartableWorkflow]] = {}

    async def find(self, tenant: str, name: str, version: str | None = None) -> StartableWorkflow:
        """A workflow, or WORKFLOW_NOT_FOUND."""
        key, now = (tenant, name, version), time.monotonic()
        believed = self._believed.get(key)
        if believed is not None and believed[0] > now:
            return believed[1]
        # Of all that come while it is looked up, one looks.
        looking = self._looking.get(key)
        if looking is None:
            looking = self._looking[key] = asyncio.ensure_future(self._look(key, now))
            looking.add_done_callback(lambda _: self._looking.pop(key, None))
        return await asyncio.shield(looking)

    async def _look(self, key: tuple[str, str, str | None], now: float) -> StartableWorkflow:
        row = await self._row(*key)
        known = msgspec.structs.replace(await self._known(row), unconfirmed=row.unconfirmed)
        if len(self._believed) >= CACHED_WORKFLOWS_MAX:
            self._believed.clear()
        self._believed[key] = (now + CACHE_SECONDS, known)
        return known

    def forget(self) -> None:
        """Look everything up anew: something was registered here."""
        self._believed.clear()

    async def _row(self, tenant: str, name: str, version: str | None) -> WorkflowRow:
        versions: list[str] = []
        for owner in (tenant, SHARED_TENANT):
            rows: list[WorkflowRow] = await self._store.read("workflow_named", owner, name)
            for row in rows:
                if version is None or row.version == version:
                    return row
                versions.append(row.version)
        which = f" of version {version!r}" if version is not None else ""
        has = f"; there are {', '.join(dict.fromkeys(versions))}" if versions else ""
        raise TenureError("WORKFLOW_NOT_FOUND", f"no workflow {name[:200]!r}{which} is registered{has}")

    async def _known(self, row: WorkflowRow) -> StartableWorkflow:
        key = (row.tenant, row.name, row.version, row.digest)
        known = self._made.get(key)
        if known is None:
            known = await run_in_thread(_declared if row.kind == "declared" else _code, row)
            if len(self._made) >= CACHED_WORKFLOWS_MAX:
                self._made.clear()
            self._made[key] = known
        return known


def _about(row: WorkflowRow) -> dict[str, Any]:
    try:
        about = msgspec.json.decode(row.definition)
    except msgspec.DecodeError:
        return {}
    return about if isinstance(about, dict) else {}


def _declared(row: WorkflowRow) -> StartableWorkflow:
    text = _about(row).get("document")
    if not isinstance(text, str):  # a document as others register it
        text = row.definition
    found = load_workflow(text, row.name)
    return StartableWorkflow(
        name=row.name,
        version=row.version,
        profile=found.profile,
        timeout_seconds=found.timeout_seconds,
        terms=found.terms,
        declared=msgspec.structs.replace(found, version=row.version),
    )


class _Described(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be known of code to start it."""

    queue: str | None = None
    profile: str | None = None
    timeout_seconds: float | None = None
    lease_seconds: float | None = None
    terms: RunTerms = NO_TERMS
    inputs: Any = None


def check_registration(row: WorkflowRow) -> None:
    """Refuse what could not be started (law 3)."""
    if row.kind == "declared":
        _declared(row)
    else:
        _code(row)


def _code(row: WorkflowRow) -> StartableWorkflow:
    try:
        about = msgspec.convert(_about(row), _Described)
        names, required = _inputs(about.inputs)
    except msgspec.ValidationError as fault:
        raise TenureError("WORKFLOW_INVALID", f"{row.name}: its description is none: {fault}") from fault
    queue = capability.capability(about.queue or "default", capability.flow(row.name, row.version))
    return StartableWorkflow(
        name=row.name,
        version=row.version,
        profile=about.profile or "agent-runs",
        timeout_seconds=about.timeout_seconds,
        terms=about.terms,
        plan=(StepSpec(name="main", kind="body", queue=queue, lease_seconds=about.lease_seconds),),
        names=names,
        required=required,
    )


def _inputs(schema: Any) -> tuple[frozenset[str] | None, frozenset[str]]:
    """The names of the inputs in a JSON Schema, and of those that must be given."""
    if not isinstance(schema, dict):
        return None, frozenset()
    found = msgspec.convert(schema, _Schema)
    defs = found.defs
    for _ in range(REFERENCES_MAX):  # they may lead in a circle
        if found.ref is None:
            break
        found = msgspec.convert(defs.get(found.ref.rpartition("/")[2], {}), _Schema)
    if found.ref is not None:
        raise msgspec.ValidationError("the references in its inputs lead nowhere")
    if found.properties is None:
        return None, frozenset()
    return frozenset(found.properties), frozenset(found.required)


class _Schema(msgspec.Struct, frozen=True):
    """As much of a JSON Schema."""

    defs: dict[str, Any] = msgspec.field(default={}, name="$defs")
    ref: str | None = msgspec.field(default=None, name="$ref")
    properties: dict[str, Any] | None = None
    required: list[str] = []


# ------------------------------------------------------------------------------- registered workflows


_List = list  # `Workflows.list` hides the builtin in annotations of the class


class Workflows:
    """The workflows that a scope's tenant can start: its own, and those shared by all tenants."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def list(self) -> _List[RegisteredWorkflow]:
        """All registered versions, by name and version."""
        scope, found = self._scope, dict[tuple[str, str], RegisteredWorkflow]()
        for tenant in (SHARED_TENANT, scope.tenant):
            rows: _List[WorkflowRow] = await scope.store.read("workflows_of", tenant, "", PAGE)
            found |= {(row.name, row.version): show_workflow(row) for row in rows}
        return [found[key] for key in sorted(found)]

    async def versions(self, name: str) -> _List[RegisteredWorkflow]:
        """The registered versions of a workflow, newest first; the tenant's own come before shared ones."""
        scope, found = self._scope, dict[str, RegisteredWorkflow]()
        for tenant in (scope.tenant, SHARED_TENANT):
            rows: _List[WorkflowRow] = await scope.store.read("workflow_named", tenant, name)
            for row in rows:
                found.setdefault(row.version, show_workflow(row))
        return list(found.values())

    async def page(self, name: str, version: str, limit: int) -> tuple[_List[RegisteredWorkflow], _List[str]]:
        """Registered versions after a name and version; and the place of the last one if there are more."""
        rows: _List[WorkflowRow] = await self._scope.store.read(
            "workflows_page", self._scope.tenant, SHARED_TENANT, name, version, limit + 1
        )
        shown = [show_workflow(row) for row in rows[:limit]]
        return shown, [shown[-1].name, shown[-1].version] if len(rows) > limit else []

    async def register_declared(
        self, workflow: DeclaredWorkflow, *, registered_by: str, unconfirmed: str
    ) -> tuple[RegisteredWorkflow, bool]:
        """Register a workflow from a file; and whether its version is new."""
        scope, name = self._scope, workflow.name
        before: _List[WorkflowRow] = await scope.store.read("workflow_named", scope.tenant, name)
        definition = await run_in_thread(_encode_definition, workflow)
        row = await save_workflow(
            scope.store,
            scope.tenant,
            name,
            workflow.version,
            "declared",
            definition,
            workflow.digest,
            registered_by=registered_by,
            unconfirmed=unconfirmed,
        )
        scope.runtime.catalog.forget()
        return show_workflow(row), all(other.version != workflow.version for other in before)


def _encode_definition(workflow: DeclaredWorkflow) -> str:
    return msgspec.json.encode(describe_workflow(workflow), order="sorted").decode()


def show_workflow(row: WorkflowRow) -> RegisteredWorkflow:
    """A registered workflow, as the API shows it."""
    return RegisteredWorkflow(
        name=row.name,
        version=row.version,
        kind=row.kind,
        digest=row.digest,
        registered_at=to_datetime(row.registered_at),
        registered_by=row.registered_by,
        unconfirmed=row.unconfirmed.split(),
        definition=decode_payload(row.definition.encode()),
    )


def describe_workflow(workflow: Workflow[..., Any] | DeclaredWorkflow) -> dict[str, Any]:
    """A workflow as it is registered and shown."""
    if isinstance(workflow, DeclaredWorkflow):
        return {
            "name": workflow.name,
            "version": workflow.version,
            "kind": "declared",
            "profile": workflow.profile,
            "digest": workflow.digest,
            "inputs": msgspec.to_builtins(workflow.inputs),
            "steps": [{"id": step.id, "kind": step.kind, "queue": step.queue} for step in workflow.steps],
            "document": workflow.text,
        }
    return {
        "name": workflow.name,
        "version": workflow.version,
        "accepts": list(workflow.accepts),
        "kind": "code",
        "profile": workflow.profile.name,
        "queue": workflow.queue,
        "timeout_seconds": workflow.timeout_seconds,
        "lease_seconds": workflow.lease_seconds,
        "terms": workflow.terms.fields(),
        "doc": inspect.getdoc(workflow.function) or "",
        "inputs": workflow.parameters.schema,
    }
