"""Workflows that can be started by name: registered, listed, looked at.

Law: a version is what it was registered as, for good. Another document under the same version is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from litestar import Response, get, post, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema
from litestar.params import FromPath, JSONBody

from tenure.declared import Declared, load
from tenure.embedded.describing import described
from tenure.embedded.looking import EVERYBODY, WorkflowView, workflow_view
from tenure.errors import Detail, TenureError
from tenure.kernel.beside import RegisteredWorkflow
from tenure.limits import NAME_CHARS_MAX
from tenure.server.call import Call
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page, cursor_of, place_of
from tenure.server.routes.tenancy import confirmations
from tenure.server.runs.starting import catalog_of
from tenure.server.work import run_aside

_YAML = "application/yaml"
_KINDS = frozenset({_YAML, "text/yaml", "application/x-yaml", "text/x-yaml", "application/json"})


@dataclass
class _Document(Operation):
    """The body is a document, not a structure of ours."""

    def __post_init__(self) -> None:
        text = OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))
        self.request_body = RequestBody(
            description="The workflow's document.",
            content={
                _YAML: text,
                "application/json": OpenAPIMediaType(schema=Schema(type=OpenAPIType.OBJECT)),
            },
            required=True,
        )


@get("/workflows", summary="Workflows, by name and version")
async def list_workflows(
    request: Call, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[WorkflowView]:
    """The tenant's own, and those that workers have registered for everybody."""
    tenant = request.who.tenant
    place = ["", ""] if cursor is None else place_of(cursor, tenant, "workflows", None)
    if len(place) != 2 or not all(isinstance(part, str) for part in place):
        raise TenureError("CURSOR_INVALID")
    rows: list[RegisteredWorkflow] = await request.engine.store.read(
        "workflows_page", tenant, EVERYBODY, *place, limit + 1
    )
    shown, more = rows[:limit], len(rows) > limit
    last = [shown[-1].name, shown[-1].version] if more else []
    return Page(
        items=[workflow_view(row) for row in shown],
        next_cursor=cursor_of(tenant, "workflows", None, last) if more else None,
    )


@get("/workflows/{name:str}", summary="All versions of a workflow")
async def get_workflow(request: Call, name: FromPath[str]) -> Page[WorkflowView]:
    """Newest first; the tenant's own come before those for everybody."""
    found = await request.engine.workflow(name)
    if not found:
        raise TenureError("WORKFLOW_NOT_FOUND")
    return Page(items=found)


@put(
    "/workflows/{name:str}",
    summary="Register a workflow",
    status_code=201,
    operation_class=_Document,
    responses={200: ResponseSpec(WorkflowView, description="It was registered already")},
)
async def put_workflow(request: Call, name: FromPath[str]) -> Response[WorkflowView]:
    """The body is its document: YAML, or the same as JSON. Without a `version` in it, its digest is that."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise TenureError("UNSUPPORTED_MEDIA_TYPE", f"a workflow is sent as {_YAML} or application/json")
    try:
        text = (await request.body()).decode()
    except UnicodeDecodeError as fault:
        raise TenureError("WORKFLOW_INVALID", "the document is not UTF-8 text") from fault
    found = await run_aside(load, text, name)
    if found.name != name:
        raise TenureError(
            "WORKFLOW_INVALID",
            f"the document is of {found.name!r}, the address of {name!r}",
            (Detail("name", f"is {found.name!r}, not {name!r}"),),
        )
    store, tenant = request.engine.store, request.who.tenant
    before: list[RegisteredWorkflow] = await store.read("workflow_named", tenant, name)
    definition = await run_aside(_definition, found)
    row = await store.put_workflow(
        tenant, name, found.version, "declared", definition, found.digest,
        registered_by=request.who.actor, unconfirmed=request.who.people,
    )  # fmt: skip
    catalog_of(store).forget()
    new = all(other.version != found.version for other in before)
    return Response(workflow_view(row), status_code=201 if new else 200)


class ConfirmVersion(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is confirmed: a version as it was looked at."""

    version: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    digest: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class ConfirmedVersion(WorkflowView, frozen=True, kw_only=True):
    """A version of a workflow that somebody has confirmed."""

    confirmed: list[str]
    """Whose work this has confirmed; nobody's where nothing was unconfirmed."""


@post(
    "/workflows/{name:str}/confirm",
    summary="Confirm a version of a workflow as a second person",
    status_code=200,
)
async def confirm_workflow(
    request: Call, name: FromPath[str], data: JSONBody[ConfirmVersion]
) -> ConfirmedVersion:
    """Whoever registered it does not stand behind its runs from now on, for that reason alone."""
    made = await confirmations(request).workflow(name, data.version, data.digest)
    catalog_of(request.engine.store).forget()
    return ConfirmedVersion(**msgspec.structs.asdict(workflow_view(made.row)), confirmed=made.people)


def _definition(found: Declared) -> str:
    return msgspec.json.encode(described(found), order="sorted").decode()


HANDLERS = [confirm_workflow, get_workflow, list_workflows, put_workflow]
