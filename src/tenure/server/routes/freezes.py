"""Freezes: every act of a tenant, a workflow or a connector is denied, from the next commit on."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from litestar import get, post
from litestar.params import JSONBody

from tenure.errors import Detail, TenureError
from tenure.govern.policy.views import FreezeView, freeze_views
from tenure.limits import NAME_CHARS_MAX
from tenure.server.call import Call
from tenure.server.identity.owners import person_asking
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page
from tenure.server.runs.pieces import piece
from tenure.store.policies import Governing

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class Scope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class Thaw(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of something that somebody wants to thaw."""

    state: Literal["proposed", "thawed"]
    """`proposed`: another person has to say the same."""
    frozen: list[FreezeView]
    """What still is."""


def _office(request: Call) -> Governing:
    return Governing(request.service.engine.store, request.who.tenant)


@get("/freezes", summary="What is frozen")
async def list_freezes(
    request: Call, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[FreezeView]:
    """The tenant as a whole first, then connectors and workflows by name."""
    found = freeze_views(await _office(request).governance())
    at = (request.who.tenant, "freezes", None)
    return piece(found, lambda one: f"{one.scope} {one.name}", at, cursor, limit)


@post("/freezes", summary="Freeze actions", status_code=200)
async def freeze(request: Call, data: JSONBody[Scope]) -> list[FreezeView]:
    """From the next commit on nothing of it is called; what was called before goes on. All that is frozen then."""
    return freeze_views(await _office(request).freeze(data.text, request.who.actor, request.who.people))


@post("/freezes/thaw", summary="Thaw actions", status_code=200)
async def thaw(request: Call, data: JSONBody[Scope]) -> Thaw:
    """The first person (an admin) proposes it, a second one (an admin or an approver) makes it so by the same request."""
    stands = await _office(request).thaw(
        data.text, person_asking(request.who), may_propose="admin" in request.who.roles
    )
    return Thaw(
        state="thawed" if stands.step == "done" else "proposed", frozen=freeze_views(stands.governance)
    )


HANDLERS = [list_freezes, freeze, thaw]
