"""Schedules: runs that start at the times of a cron expression, one for each slot."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, delete, get, post, put
from litestar.params import JSONBody, QueryParameter

from tenure import ids
from tenure.engine import Schedules
from tenure.kernel.separation_of_duties import join_people
from tenure.limits import CATCH_UP_RUNS_MAX, INTEGER_MAX, MOMENT_US_MAX, NAME_CHARS_MAX, SLOTS_SHOWN_MAX
from tenure.server.http.path_segments import decode_segment
from tenure.server.idempotency import idempotent
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, make_page
from tenure.server.request import ApiRequest
from tenure.server.routes.identity import ConfirmRequest
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.services.identity.ownership import resolve_owner
from tenure.services.paging import decode_place
from tenure.services.schedules import CATCH_UP_RUNS
from tenure.shapes.pages import Page
from tenure.shapes.runs import Run
from tenure.shapes.schedules import Schedule

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Slots = Annotated[
    int,
    QueryParameter(name="next", ge=0, le=SLOTS_SHOWN_MAX, description="How many of the next times to show."),
]


class ScheduleFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a schedule."""

    workflow: Name
    version: Name | None = None
    """By default the newest version now. It does not change later."""
    cron: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    zone: Name = "UTC"
    input: dict[str, Any] = {}
    profile: Name | None = None
    catch_up: Literal["skip", "last", "all"] = "skip"
    """What happens to slots that pass while no scheduler runs."""
    catch_up_max: Annotated[int, msgspec.Meta(ge=1, le=CATCH_UP_RUNS_MAX)] = CATCH_UP_RUNS
    pass_slot: bool = False
    """Whether the input gets the time of the slot under `slot`."""
    labels: dict[str, str] = {}
    owner: Name | None = None
    """The id of the person who requests its runs; by default its creator."""


class NewSchedule(ScheduleFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule to create."""

    name: Name
    workspace: Name = "default"
    paused: bool = False


class ScheduleUpdate(ScheduleFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new values of a schedule."""

    revision: Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]
    """The revision that was read."""


class ScheduleDetail(Schedule, frozen=True, kw_only=True):
    """A schedule with its next times."""

    next_times: list[datetime]
    """The next times, as if it were not paused."""


def _name(request: ApiRequest) -> str:
    """The name in `/schedules/NAME/...`, which may have any characters."""
    return decode_segment(request.scope, 1)


async def _read_fields(request: ApiRequest, text: ScheduleFields) -> dict[str, Any]:
    """The arguments of `Schedules.create` and `edit`, with the plan of the registered workflow."""
    who = request.who
    known = await request.engine.runtime.catalog.find(who.tenant, text.workflow, text.version)
    fields: dict[str, Any] = {
        "cron": text.cron,
        "zone": text.zone,
        "catch_up": text.catch_up,
        "catch_up_max": text.catch_up_max,
        "labels": text.labels,
        "owner": await resolve_owner(request.engine.scope, text.owner),
        "input": text.input,
        "profile": text.profile or known.profile,
        "pass_slot": text.pass_slot,
        "by": join_people(who.people, known.unconfirmed),  # its plan is written down now
    }
    if known.declared is not None:
        known.begin(text.input)  # what is wrong with it is named by its place in the request
        return {**fields, "workflow": known.declared}
    known.begin({**text.input, "slot": ""} if text.pass_slot else text.input)
    return {**fields, "workflow": known.name, "version": known.version, "plan": known.plan}


def _schedules(request: ApiRequest, workspace: str = "default") -> Schedules:
    return request.server.engine_of(request.who, workspace).schedules


@get("/schedules", summary="The tenant's schedules")
async def list_schedules(
    request: ApiRequest, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[Schedule]:
    """Newest first."""
    of = (request.who.tenant, "schedules", None)
    place = decode_place(cursor, of, tuple[float, str], (MOMENT_US_MAX, ""))
    found = sorted(((one.created_at.timestamp(), one.name, one) for one in await _schedules(request).list()),
                   key=lambda row: row[:2], reverse=True)  # fmt: skip
    left = [row for row in found if row[:2] < place]
    return make_page(
        [row[2] for row in left[:limit]], of, list(left[limit - 1][:2]) if len(left) > limit else None
    )


@post("/schedules", summary="Create a schedule", status_code=201)
async def create_schedule(request: ApiRequest, data: JSONBody[NewSchedule]) -> Response[Schedule]:
    """Starts runs of a registered workflow at the slots of a cron expression in a time zone: one for each slot, however many
    schedulers run."""

    async def operation(_held: HeldRecord | None) -> StoredResponse:
        fields = await _read_fields(request, data)
        workflow, cron = fields.pop("workflow"), fields.pop("cron")
        made = await _schedules(request, data.workspace).create(
            data.name, workflow, cron, paused=data.paused, **fields
        )
        return StoredResponse.of(made, 201)

    return await idempotent(request, operation)


@get("/schedules/{name:str}", summary="A schedule")
async def get_schedule(request: ApiRequest, slots: Slots = 5) -> ScheduleDetail:
    """With its next times."""
    of, schedules = _name(request), _schedules(request)
    shown = await schedules.show(of)
    return ScheduleDetail(
        **{w: getattr(shown, w) for w in shown.__struct_fields__},
        next_times=await schedules.next(of, slots) if slots else [],
    )


@put("/schedules/{name:str}", summary="Change a schedule")
async def update_schedule(request: ApiRequest, data: JSONBody[ScheduleUpdate]) -> Schedule:
    """Replace all of its fields. Its next slot is in the future."""
    of, schedules = _name(request), _schedules(request)
    old = await schedules.show(of)
    fields = await _read_fields(request, data)
    if (
        data.owner is None and request.who.person is None
    ):  # a person who changes it requests its runs from now on
        fields["owner"] = old.owner
    return await schedules.edit(of, revision=data.revision, **fields)


class ConfirmedSchedule(Schedule, frozen=True, kw_only=True):
    """A schedule that somebody has confirmed."""

    confirmed: list[str]
    """The people whose changes were confirmed; empty if nothing was unconfirmed."""


@post("/schedules/{name:str}/confirm", summary="Confirm a schedule as a second person", status_code=200)
async def confirm_schedule(request: ApiRequest, data: JSONBody[ConfirmRequest]) -> ConfirmedSchedule:
    """From now on, people who created or changed the schedule are not involved in its runs for that reason alone. Its owner is."""
    made = await request.engine.confirmations.confirm_row("schedule", _name(request), data.revision)
    return ConfirmedSchedule(
        **msgspec.structs.asdict(await _schedules(request).show(_name(request))), confirmed=made.people
    )


@delete("/schedules/{name:str}", summary="Delete a schedule", status_code=204)
async def delete_schedule(request: ApiRequest) -> None:
    """Its runs stay."""
    await _schedules(request).delete(_name(request))


@post("/schedules/{name:str}/pause", summary="Pause a schedule", status_code=200)
async def pause_schedule(request: ApiRequest) -> Schedule:
    """It starts no runs until it is unpaused. Repeating the request changes nothing."""
    return await _schedules(request).pause(_name(request))


@post("/schedules/{name:str}/unpause", summary="Unpause a schedule", status_code=200)
async def unpause_schedule(request: ApiRequest) -> Schedule:
    """It continues with the next slot; slots that passed meanwhile are skipped. Repeating the request changes nothing."""
    return await _schedules(request).unpause(_name(request), by=request.who.people)


@post("/schedules/{name:str}/trigger", summary="Start a run now", status_code=201)
async def trigger_schedule(request: ApiRequest) -> Response[Run]:
    """In addition to the slots, and also while it is paused. A person who triggers it requests the run; otherwise its owner does."""

    async def operation(held: HeldRecord | None) -> StoredResponse:
        asked: dict[str, Any] = {}
        if held is not None:  # the process that takes over after a crash finds the same run
            mark = sha256(held.record.name.encode()).hexdigest()[:12]
            asked = {"mark": mark, "at_us": held.record.created_at}
        if request.who.person is not None:
            asked["requester"] = request.who.requester
        of, who = _name(request), request.who
        run_id = await _schedules(request).trigger(of, actor=who.actor, involved=who.people, **asked)
        run = await request.engine.get(run_id)
        return StoredResponse.of(run, 201, location=f"/runs/{run_id}", run_id=ids.run_int(run_id))

    return await idempotent(request, operation)


HANDLERS = [
    list_schedules,
    create_schedule,
    get_schedule,
    update_schedule,
    confirm_schedule,
    delete_schedule,
    pause_schedule,
    unpause_schedule,
    trigger_schedule,
]
