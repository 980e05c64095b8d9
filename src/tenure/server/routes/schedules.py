"""Schedules: runs that start by the clock, one per slot."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, delete, get, post, put
from litestar.params import FromPath, JSONBody, QueryParameter

from tenure import ids
from tenure.embedded import RunView, Schedules, ScheduleView
from tenure.embedded.schedules import CATCH_UP_RUNS
from tenure.errors import TenureError
from tenure.kernel.behind import joined
from tenure.limits import CATCH_UP_RUNS_MAX, INTEGER_MAX, MOMENT_US_MAX, NAME_CHARS_MAX, SLOTS_SHOWN_MAX
from tenure.server.call import Call
from tenure.server.http.segments import segment
from tenure.server.identity.owners import owner_of
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page, cursor_of, place_of
from tenure.server.routes.tenancy import Confirm, confirmations
from tenure.server.runs.idempotency import Answer, Held, idempotent
from tenure.server.runs.starting import catalog_of

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Slots = Annotated[
    int,
    QueryParameter(name="next", ge=0, le=SLOTS_SHOWN_MAX, description="How many of the next times to show."),
]


class ScheduleText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be said of a schedule."""

    workflow: Name
    """A registered one."""
    version: Name | None = None
    """The newest, unless said; it is written down, and stays."""
    cron: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    zone: Name = "UTC"
    input: dict[str, Any] = {}
    profile: Name | None = None
    catch_up: Literal["skip", "last", "all"] = "skip"
    """What becomes of slots that pass while no scheduler runs."""
    catch_up_max: Annotated[int, msgspec.Meta(ge=1, le=CATCH_UP_RUNS_MAX)] = CATCH_UP_RUNS
    pass_slot: bool = False
    """Whether the input gets the slot's moment under `slot`."""
    labels: dict[str, str] = {}
    owner: Name | None = None
    """The id of the person its runs are asked for by; else whoever makes it."""


class NewSchedule(ScheduleText, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule to be made."""

    name: Name
    workspace: Name = "default"
    paused: bool = False


class ChangedSchedule(ScheduleText, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule as it is to be from now on."""

    revision: Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]
    """Of the one that was looked at."""


class ScheduleShown(ScheduleView, frozen=True, kw_only=True):
    """A schedule, and when it is due."""

    next_times: list[datetime]
    """As if it were not paused."""


def _name(request: Call) -> str:
    """The name in `/schedules/NAME/...`, which may hold anything."""
    return segment(request.scope, 1)


async def _said(request: Call, text: ScheduleText) -> dict[str, Any]:
    """What its runs are, from the workflow's registration; see `Schedules.create`."""
    who = request.who
    known = await catalog_of(request.service.engine.store).find(who.tenant, text.workflow, text.version)
    said: dict[str, Any] = {
        "cron": text.cron,
        "zone": text.zone,
        "catch_up": text.catch_up,
        "catch_up_max": text.catch_up_max,
        "labels": text.labels,
        "owner": await owner_of(request, text.owner),
        "input": text.input,
        "profile": text.profile or known.profile,
        "pass_slot": text.pass_slot,
        "by": joined(who.people, known.unconfirmed),  # its plan is written down now
    }
    if known.declared is not None:
        known.begin(text.input)  # what is wrong with it is named by its place in the request
        return {**said, "workflow": known.declared}
    known.begin({**text.input, "slot": ""} if text.pass_slot else text.input)
    return {**said, "workflow": known.name, "version": known.version, "plan": known.plan}


def _schedules(request: Call, workspace: str = "default") -> Schedules:
    return request.service.engine_of(request.who, workspace).schedules


@get("/schedules", summary="The tenant's schedules")
async def list_schedules(
    request: Call, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[ScheduleView]:
    """Newest first."""
    tenant = request.who.tenant
    place: tuple[float, str] = (MOMENT_US_MAX, "")
    if cursor is not None:
        try:
            place = msgspec.convert(place_of(cursor, tenant, "schedules", None), tuple[float, str])
        except msgspec.ValidationError:
            raise TenureError("CURSOR_INVALID") from None
    found = sorted(((one.created_at.timestamp(), one.name, one) for one in await _schedules(request).list()),
                   key=lambda row: row[:2], reverse=True)  # fmt: skip
    left = [row for row in found if row[:2] < place]
    more = cursor_of(tenant, "schedules", None, list(left[limit - 1][:2])) if len(left) > limit else None
    return Page(items=[row[2] for row in left[:limit]], next_cursor=more)


@post("/schedules", summary="Make a schedule", status_code=201)
async def make_schedule(request: Call, data: JSONBody[NewSchedule]) -> Response[ScheduleView]:
    """Runs of a registered workflow at the slots of a cron expression in a time zone: one per slot, however many
    schedulers run."""

    async def operation(_held: Held | None) -> Answer:
        said = await _said(request, data)
        workflow, cron = said.pop("workflow"), said.pop("cron")
        made = await _schedules(request, data.workspace).create(
            data.name, workflow, cron, paused=data.paused, **said
        )
        return Answer.of(made, 201)

    return await idempotent(request, operation)


@get("/schedules/{name:str}", summary="A schedule")
async def get_schedule(request: Call, name: FromPath[str], slots: Slots = 5) -> ScheduleShown:
    """With the times it is due next."""
    del name
    of, schedules = _name(request), _schedules(request)
    shown = await schedules.show(of)
    times = await schedules.next(of, slots) if slots else []
    return ScheduleShown(**{w: getattr(shown, w) for w in shown.__struct_fields__}, next_times=times)


@put("/schedules/{name:str}", summary="Change a schedule")
async def change_schedule(
    request: Call, name: FromPath[str], data: JSONBody[ChangedSchedule]
) -> ScheduleView:
    """Replace all that can be said of it; the next slot lies ahead from then on."""
    del name
    of, schedules = _name(request), _schedules(request)
    old = await schedules.show(of)
    said = await _said(request, data)
    if data.owner is None and request.who.person is None:  # a person asks for what it does from now on
        said["owner"] = old.owner
    return await schedules.edit(of, revision=data.revision, **said)


class ConfirmedSchedule(ScheduleView, frozen=True, kw_only=True):
    """A schedule that somebody has confirmed."""

    confirmed: list[str]
    """Whose work this has confirmed; nobody's where nothing was unconfirmed."""


@post("/schedules/{name:str}/confirm", summary="Confirm a schedule as a second person", status_code=200)
async def confirm_schedule(request: Call, name: FromPath[str], data: JSONBody[Confirm]) -> ConfirmedSchedule:
    """Whoever made or changed it does not stand behind its runs from now on, for that reason alone; its owner does."""
    del name
    made = await confirmations(request).schedule(_name(request), data.revision)
    found = await _schedules(request).show(_name(request))
    return ConfirmedSchedule(**msgspec.structs.asdict(found), confirmed=made.people)


@delete("/schedules/{name:str}", summary="Delete a schedule", status_code=204)
async def delete_schedule(request: Call, name: FromPath[str]) -> None:
    """Its runs stay."""
    del name
    await _schedules(request).delete(_name(request))


@post("/schedules/{name:str}/pause", summary="Start nothing until it is unpaused", status_code=200)
async def pause_schedule(request: Call, name: FromPath[str]) -> ScheduleView:
    """Again is the same."""
    del name
    return await _schedules(request).pause(_name(request))


@post("/schedules/{name:str}/unpause", summary="Go on with the next slot from now", status_code=200)
async def unpause_schedule(request: Call, name: FromPath[str]) -> ScheduleView:
    """What passed meanwhile is not caught up. Again is the same."""
    del name
    return await _schedules(request).unpause(_name(request), by=request.who.people)


@post("/schedules/{name:str}/trigger", summary="Start a run now", status_code=201)
async def trigger_schedule(request: Call, name: FromPath[str]) -> Response[RunView]:
    """Beside the slots, and also while it is paused. A person who does has asked for the run; else its owner has."""
    del name

    async def operation(held: Held | None) -> Answer:
        asked: dict[str, Any] = {}
        if held is not None:  # whoever takes over after a crash finds the same run
            mark = sha256(held.record.name.encode()).hexdigest()[:12]
            asked = {"mark": mark, "at_us": held.record.created_at}
        if request.who.person is not None:
            asked["requester"] = request.who.requester
        of, who = _name(request), request.who
        run_id = await _schedules(request).trigger(of, actor=who.actor, behind=who.people, **asked)
        run = await request.engine.get(run_id)
        return Answer.of(run, 201, location=f"/runs/{run_id}", run_id=ids.run_int(run_id))

    return await idempotent(request, operation)


HANDLERS = [
    list_schedules,
    make_schedule,
    get_schedule,
    change_schedule,
    confirm_schedule,
    delete_schedule,
    pause_schedule,
    unpause_schedule,
    trigger_schedule,
]
