"""Registered workflows, which can be started by name.

Law: a version never changes. Another document under the same version is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from litestar import Response, get, post, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema
from litestar.params import FromPath, JSONBody

from tenure.declared import load_workflow
from tenure.errors import Detail, TenureError
from tenure.limits import NAME_CHARS_MAX
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, make_page
from tenure.server.request import ApiRequest
from tenure.services.catalog import show_workflow
from tenure.services.paging import decode_place
from tenure.shapes.pages import Page
from tenure.shapes.workflows import RegisteredWorkflow
from tenure.work_pool import run_in_pool

_YAML = "application/yaml"
_KINDS = frozenset({_YAML, "text/yaml", "application/x-yaml", "text/x-yaml", "application/json"})


@dataclass
class _Document(Operation):
    """Describes the body, which is a document in YAML or JSON."""

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
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[RegisteredWorkflow]:
    """The tenant's own workflows, and those that workers have registered for all tenants."""
    of = (request.who.tenant, "workflows", None)
    name, version = decode_place(cursor, of, tuple[str, str], ("", ""))
    items, last = await request.engine.workflows.page(name, version, limit)
    return make_page(items, of, last)


@get("/workflows/{name:str}", summary="All versions of a workflow")
async def get_workflow(request: ApiRequest, name: FromPath[str]) -> Page[RegisteredWorkflow]:
    """Newest first; the tenant's own versions come before those for all tenants."""
    found = await request.engine.workflows.versions(name)
    if not found:
        raise TenureError("WORKFLOW_NOT_FOUND")
    return Page(items=found)


@put(
    "/workflows/{name:str}",
    summary="Register a workflow",
    status_code=201,
    operation_class=_Document,
    responses={200: ResponseSpec(RegisteredWorkflow, description="This version was registered before")},
)
async def put_workflow(request: ApiRequest, name: FromPath[str]) -> Response[RegisteredWorkflow]:
    """The body is the document, in YAML or JSON. If it has no `version`, its digest is the version."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise TenureError("UNSUPPORTED_MEDIA_TYPE", f"a workflow is sent as {_YAML} or application/json")
    try:
        text = (await request.body()).decode()
    except UnicodeDecodeError as fault:
        raise TenureError("WORKFLOW_INVALID", "the document is not UTF-8 text") from fault
    found = await run_in_pool(load_workflow, text, name)
    if found.name != name:
        raise TenureError(
            "WORKFLOW_INVALID",
            f"the document is of {found.name!r}, the address of {name!r}",
            (Detail("name", f"is {found.name!r}, not {name!r}"),),
        )
    shown, is_new = await request.engine.workflows.register_declared(
        found, registered_by=request.who.actor, unconfirmed=request.who.people
    )
    return Response(shown, status_code=201 if is_new else 200)


class ConfirmWorkflowRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The version that is confirmed, with its digest."""

    version: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    digest: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class ConfirmedWorkflow(RegisteredWorkflow, frozen=True, kw_only=True):
    """A version of a workflow that somebody has confirmed."""

    confirmed: list[str]
    """The people whose changes were confirmed; empty if nothing was unconfirmed."""


@post(
    "/workflows/{name:str}/confirm",
    summary="Confirm a version of a workflow as a second person",
    status_code=200,
)
async def confirm_workflow(
    request: ApiRequest, name: FromPath[str], data: JSONBody[ConfirmWorkflowRequest]
) -> ConfirmedWorkflow:
    """From now on, the people who registered it are not involved in its runs for that reason alone."""
    made = await request.engine.confirmations.confirm_row("workflow", name, data.digest, version=data.version)
    request.engine.runtime.catalog.forget()
    return ConfirmedWorkflow(**msgspec.structs.asdict(show_workflow(made.row)), confirmed=made.people)


HANDLERS = [confirm_workflow, get_workflow, list_workflows, put_workflow]
