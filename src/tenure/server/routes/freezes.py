"""Freezes: every act of a tenant, a workflow or a connector is denied, from the next commit on."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from litestar import get, post
from litestar.params import JSONBody

from tenure.errors import Detail, TenureError
from tenure.limits import NAME_CHARS_MAX
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, page_of_list
from tenure.server.request import ApiRequest
from tenure.services.identity.ownership import require_person
from tenure.services.policies import Policies
from tenure.shapes.pages import Page
from tenure.shapes.policies import Freeze

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class FreezeScope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is frozen or thaws: a workflow, a connector, or (where neither is named) all of the tenant's."""

    workflow: Name | None = None
    connector: Name | None = None

    @property
    def text(self) -> str:
        """As it is kept."""
        if self.workflow is not None and self.connector is not None:
            what = "name a workflow or a connector, not both"
            raise TenureError("INVALID_INPUT", what, (Detail("connector", what),))
        if self.workflow is not None:
            return f"wf:{self.workflow}"
        return "*" if self.connector is None else f"cn:{self.connector}"


class ThawResult(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of something that somebody wants to thaw."""

    state: Literal["proposed", "thawed"]
    """`proposed`: another person has to say the same."""
    frozen: list[Freeze]
    """What still is."""


@get("/freezes", summary="What is frozen")
async def list_freezes(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[Freeze]:
    """The tenant as a whole first, then connectors and workflows by name."""
    found = await Policies(request.engine.scope).list_freezes()
    at = (request.who.tenant, "freezes", None)
    return page_of_list(found, lambda one: f"{one.scope} {one.name}", at, cursor, limit)


@post("/freezes", summary="Freeze actions", status_code=200)
async def freeze(request: ApiRequest, data: JSONBody[FreezeScope]) -> list[Freeze]:
    """From the next commit on nothing of it is called; what was called before goes on. All that is frozen then."""
    return await Policies(request.engine.scope).freeze(data.text)


@post("/freezes/thaw", summary="Thaw actions", status_code=200)
async def thaw(request: ApiRequest, data: JSONBody[FreezeScope]) -> ThawResult:
    """The first person (an admin) proposes it, a second one (an admin or an approver) makes it so by the same request."""
    state, frozen = await Policies(request.engine.scope).thaw(
        data.text, require_person(request.who), may_propose="admin" in request.who.roles
    )
    return ThawResult(state=state, frozen=frozen)


HANDLERS = [list_freezes, freeze, thaw]
