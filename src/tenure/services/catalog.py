"""The workflows that can be started by name: those of a tenant, and those shared by all tenants.

Laws:
1. A tenant's own workflows come before shared ones (`*`: registered by workers with database access). Without a version, the newest
   registered version is started.
2. The input is checked before a run is created: unknown names and missing required names are refused.
3. Descriptions by runners are not trusted. A malformed description is WORKFLOW_INVALID, at registration and at the start of a run.
4. Look-ups are cached for a second, so a newly registered version can be started after a second at the latest.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.canonical import canonical
from tenure.clock import to_datetime
from tenure.declared import DeclaredWorkflow, load_workflow
from tenure.errors import Detail, TenureError
from tenure.kernel import capability
from tenure.kernel.commands import DEFAULT_PROFILE, StepSpec
from tenure.kernel.registry_rows import SHARED_TENANT, WorkflowRow
from tenure.kernel.run_terms import NO_TERMS, RunTerms
from tenure.limits import PROBLEMS_MAX
from tenure.reads.payloads import decode_payload
from tenure.services.plans import encode_payload
from tenure.shapes.workflows import RegisteredWorkflow
from tenure.store.port import Store
from tenure.store.workflows import save_workflow
from tenure.work_pool import LARGE_STEPS, run_in_pool

if TYPE_CHECKING:
    from tenure.sdk.definitions import Workflow
    from tenure.services.scope import Scope

CACHE_SECONDS = 1.0
PAGE = 500
CACHED_WORKFLOWS_MAX = 2_000
REFERENCES_MAX = 20


class StartableWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a workflow that can be started."""

    name: str
    version: str
    profile: str
    timeout_seconds: float | None
    terms: RunTerms = NO_TERMS
    plan: tuple[StepSpec, ...] = ()
    """The plan of a workflow in Python, which is the same for every run."""
    names: frozenset[str] | None = None
    """The inputs of a workflow in Python. None: unknown."""
    required: frozenset[str] = frozenset()
    declared: DeclaredWorkflow | None = None
    unconfirmed: str = ""
    """Who is involved in its runs, because nobody has confirmed their registration."""

    def begin(self, given: Mapping[str, Any]) -> tuple[tuple[StepSpec, ...], bytes]:
        """The plan of a run with these inputs, and the encoded inputs; INVALID_INPUT if the inputs are wrong."""
        if self.declared is not None:
            bound = _bind(self.declared, given)
            return self.declared.plan(bound), encode_payload(bound, aside=True) or b"{}"
        if self.names is not None and not (self.required <= given.keys() <= self.names):
            self._refuse(given)
        return self.plan, msgspec.json.encode(given)

    @property
    def is_large(self) -> bool:
        """Whether planning a run would block the event loop."""
        return self.declared is not None and len(self.declared.steps) > LARGE_STEPS

    def _refuse(self, given: Mapping[str, Any]) -> None:
        assert self.names is not None
        has = ", ".join(sorted(self.names)) or "none"
        details = (
            *(
                Detail(f"input.{name}", f"{self.name} has no such input; its inputs: {has}")
                for name in sorted(given.keys() - self.names)[:PROBLEMS_MAX]
            ),
            *(Detail(f"input.{name}", "is required") for name in sorted(self.required - given.keys())),
        )
        raise TenureError("INVALID_INPUT", f"{details[0].path}: {details[0].problem}", details)


def _bind(workflow: DeclaredWorkflow, given: Mapping[str, Any]) -> dict[str, Any]:
    """The bound inputs. A problem is reported with its path in the request."""
    try:
        return workflow.bind(given)
    except TenureError as refused:
        placed = tuple(Detail(f"input{d.path.removeprefix('inputs')}", d.problem) for d in refused.details)
        message = f"{placed[0].path}: {placed[0].problem}" if placed else refused.message
        raise TenureError(refused.code, message, placed) from refused


class Catalog:
    """Finds workflows to start; see the laws above."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cached: dict[tuple[str, str, str | None], tuple[float, StartableWorkflow]] = {}
        self._loaded: dict[tuple[str, str, str, str], StartableWorkflow] = {}
        """By tenant, name, version and digest: a document is parsed once."""
        self._lookups: dict[tuple[str, str, str | None], asyncio.Future[StartableWorkflow]] = {}

    async def find(self, tenant: str, name: str, version: str | None = None) -> StartableWorkflow:
        """A workflow; WORKFLOW_NOT_FOUND if it is not registered."""
        key, now = (tenant, name, version), time.monotonic()
        cached = self._cached.get(key)
        if cached is not None and cached[0] > now:
            return cached[1]
        # Concurrent callers share one look-up.
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = self._lookups[key] = asyncio.ensure_future(self._look_up(key, now))
            lookup.add_done_callback(lambda _: self._lookups.pop(key, None))
        return await asyncio.shield(lookup)

    async def _look_up(self, key: tuple[str, str, str | None], now: float) -> StartableWorkflow:
        row = await self._row(*key)
        known = msgspec.structs.replace(await self._load(row), unconfirmed=row.unconfirmed)
        if len(self._cached) >= CACHED_WORKFLOWS_MAX:
            self._cached.clear()
        self._cached[key] = (now + CACHE_SECONDS, known)
        return known

    def forget(self) -> None:
        """Clear the cache, because a workflow was registered in this process."""
        self._cached.clear()

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

    async def _load(self, row: WorkflowRow) -> StartableWorkflow:
        key = (row.tenant, row.name, row.version, row.digest)
        known = self._loaded.get(key)
        if known is None:
            known = await run_in_pool(load_registered, row)
            if len(self._loaded) >= CACHED_WORKFLOWS_MAX:
                self._loaded.clear()
            self._loaded[key] = known
        return known


def load_registered(row: WorkflowRow) -> StartableWorkflow:
    """The workflow of a registration; WORKFLOW_INVALID if it could not be started (law 3)."""
    try:
        about = msgspec.json.decode(row.definition)
    except msgspec.DecodeError:
        about = {}
    about = about if isinstance(about, dict) else {}
    return _load_declared(row, about) if row.kind == "declared" else _load_code(row, about)


def _load_declared(row: WorkflowRow, about: dict[str, Any]) -> StartableWorkflow:
    text = about.get("document")
    # Other programs register the document itself.
    found = load_workflow(text if isinstance(text, str) else row.definition, row.name)
    return StartableWorkflow(
        name=row.name,
        version=row.version,
        profile=found.profile,
        timeout_seconds=found.timeout_seconds,
        terms=found.terms,
        declared=msgspec.structs.replace(found, version=row.version),
    )


class _CodeDescription(msgspec.Struct, frozen=True, kw_only=True):
    queue: str | None = None
    profile: str | None = None
    timeout_seconds: float | None = None
    lease_seconds: float | None = None
    terms: RunTerms = NO_TERMS
    inputs: Any = None


def _load_code(row: WorkflowRow, raw: dict[str, Any]) -> StartableWorkflow:
    try:
        about = msgspec.convert(raw, _CodeDescription)
        names, required = _input_names(about.inputs)
    except msgspec.ValidationError as fault:
        raise TenureError("WORKFLOW_INVALID", f"{row.name}: the description is invalid: {fault}") from fault
    queue = capability.capability(about.queue or "default", capability.flow(row.name, row.version))
    return StartableWorkflow(
        name=row.name,
        version=row.version,
        profile=about.profile or DEFAULT_PROFILE,
        timeout_seconds=about.timeout_seconds,
        terms=about.terms,
        plan=(StepSpec(name="main", kind="body", queue=queue, lease_seconds=about.lease_seconds),),
        names=names,
        required=required,
    )


def _input_names(schema: Any) -> tuple[frozenset[str] | None, frozenset[str]]:
    """The names of the inputs in a JSON Schema, and of the required ones."""
    if not isinstance(schema, dict):
        return None, frozenset()
    found = msgspec.convert(schema, _Schema)
    defs = found.defs
    for _ in range(REFERENCES_MAX):  # references may form a cycle
        if found.ref is None:
            break
        found = msgspec.convert(defs.get(found.ref.rpartition("/")[2], {}), _Schema)
    if found.ref is not None:
        raise msgspec.ValidationError("the references in its inputs form a cycle")
    if found.properties is None:
        return None, frozenset()
    return frozenset(found.properties), frozenset(found.required)


class _Schema(msgspec.Struct, frozen=True):
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
        rows = await self._scope.store.read(
            "workflows_page", self._scope.tenant, SHARED_TENANT, name, version, limit + 1
        )
        shown = [*map(show_workflow, rows[:limit])]
        return shown, [shown[-1].name, shown[-1].version] if len(rows) > limit else []

    async def register_declared(
        self, workflow: DeclaredWorkflow, *, registered_by: str, unconfirmed: str
    ) -> tuple[RegisteredWorkflow, bool]:
        """Register a workflow from a file. Returns it, and whether its version is new."""
        scope, name = self._scope, workflow.name
        before: _List[WorkflowRow] = await scope.store.read("workflow_named", scope.tenant, name)
        definition = await run_in_pool(_encode_definition, workflow)
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


async def register_definition(
    scope: Scope, workflow: Workflow[..., Any] | DeclaredWorkflow, tenant: str, *, registered_by: str
) -> WorkflowRow:
    """Register one version of a workflow. WORKFLOW_CHANGED if that version has another definition."""
    about = describe_workflow(workflow)
    digest = about.get("digest") or sha256(canonical(msgspec.to_builtins(about))).hexdigest()
    return await save_workflow(
        scope.store,
        tenant,
        about["name"],
        about["version"],
        about["kind"],
        msgspec.json.encode(about, order="sorted").decode(),
        digest,
        registered_by=registered_by,
    )


def describe_workflow(workflow: Workflow[..., Any] | DeclaredWorkflow) -> dict[str, Any]:
    if isinstance(workflow, DeclaredWorkflow):
        return {
            "name": workflow.name,
            "version": workflow.version,
            "kind": "declared",
            "profile": workflow.profile,
            "digest": workflow.digest,
            "inputs": msgspec.to_builtins(workflow.inputs),
            "steps": [{"id": step.id, "kind": step.kind, "queue": step.queue} for step in workflow.steps],
            **({} if workflow.planner is None else {"planner": msgspec.to_builtins(workflow.planner)}),
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
