"""Control of runs: cancel, pause, signal, resume and rerun them, and change their labels and metadata.

Laws:
1. The verbs follow rule 25 of the spec. A verb that does not fit the run's state is refused and changes nothing.
2. Many runs are canceled in two calls. The first one counts the matching runs and returns a token; the second one cancels them if the
   same runs still match.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any

import msgspec
from litestar import Response, patch, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody

from tenure import ids
from tenure.canonical import canonical
from tenure.clock import us
from tenure.engine import Engine
from tenure.errors import TenureError, field_error
from tenure.kernel.decide.idempotency import key_expired_error
from tenure.kernel.run_rows import CLOSED_RUN
from tenure.limits import CODE_CHARS_MAX, KEY_CHARS_MAX, NAME_CHARS_MAX
from tenure.reads.run_list import FOREVER_US, NEWEST, RunFilter, RunPosition, check_status, read_run_page
from tenure.server.error_responses import ApiError, api_error, to_tenure_error
from tenure.server.idempotency import idempotent, to_response
from tenure.server.request import ApiRequest
from tenure.server.routes.run_creation import IN_PROCESS
from tenure.services.idempotency import HeldRecord, StoredResponse
from tenure.services.run_creation import start_from_run
from tenure.shapes.runs import ReportStatement, RunCreated, RunMetadata, SignalResult

CANCELED_AT_ONCE_MAX = 10_000
SAMPLE_MAX = 20
_PAGE = 500


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a run is canceled."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=CODE_CHARS_MAX)] = "RUN_CANCELED"
    """A code, such as `superseded`."""


class RunControlResult(msgspec.Struct, frozen=True, kw_only=True):
    """A run's status after the request."""

    id: str
    status: str


class PauseState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a run is paused."""

    id: str
    paused: bool


class StepState(msgspec.Struct, frozen=True, kw_only=True):
    """A step's state after the request."""

    id: str
    step: str
    state: str


class RevokeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The step whose lease is revoked."""

    step: Name | None = None
    """Required if several steps are leased."""


class RevokedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the step whose lease was revoked."""

    id: str
    state: str


class ReportedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A statement that a run's outcome was reported."""

    id: str
    reported: bool
    """Whether the status reporter has reported the outcome. A statement does not change this."""
    statement: ReportStatement


class SignalRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event for a run."""

    data: Any = None
    event_id: Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_CHARS_MAX)] | None = None
    """An event with the same id counts once. The default is the request's idempotency key."""
    source: Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)] = ""


class ResumeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Outcomes of steps that were begun and may not simply be repeated."""

    happened: dict[str, Any] = {}
    """Step name -> what the step returned."""
    repeat: list[str] = []
    """Steps that may be executed again."""


class UpdateRunRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Labels and metadata to set by name; null removes a name."""

    labels: dict[str, str | None] | None = None
    metadata: dict[str, Any] | None = None


class CancelFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which runs to cancel. Runs that have ended never match."""

    status: str | None = None
    workflow: str | None = None
    label: str | list[str] | None = None
    """`key=value`, or a list of them: a run must have all."""
    repo: str | None = None
    created_before: datetime | None = None
    created_after: datetime | None = None


class CancelRunsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Runs to cancel."""

    filter: CancelFilter
    token: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    """The token that the same request without a token returned."""
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=CODE_CHARS_MAX)] = "RUN_CANCELED"


class CancelPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that would be canceled."""

    matched: int
    token: str
    sample: list[str]
    """Ids of some of them, newest first."""


class CancelFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A run that could not be canceled."""

    id: str
    error: ApiError


class CanceledRuns(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs were canceled."""

    canceled: int
    failed: list[CancelFailure]


# ------------------------------------------------------------------------------------------------ one run


@post("/runs/{run_id:str}/cancel", summary="Cancel a run", status_code=202)
async def cancel_run(
    request: ApiRequest, run_id: FromPath[str], data: JSONBody[CancelRequest | None] = None
) -> RunControlResult:
    """Request cancellation. The run is `canceled` if no worker holds it, otherwise `canceling` until its workers have stopped."""
    reason = CancelRequest().reason if data is None else data.reason
    return RunControlResult(
        id=run_id, status=await request.engine.cancel(run_id, reason=reason, involved=request.who.people)
    )


@post("/runs/{run_id:str}/pause", summary="Pause a run", status_code=200)
async def pause_run(request: ApiRequest, run_id: FromPath[str]) -> PauseState:
    """No more steps are leased. Steps under way and deadlines continue."""
    await request.engine.runs.pause(run_id)
    return PauseState(id=run_id, paused=True)


@post("/runs/{run_id:str}/unpause", summary="Unpause a run", status_code=200)
async def unpause_run(request: ApiRequest, run_id: FromPath[str]) -> PauseState:
    """Steps are leased again. Also unparks a parked run."""
    await request.engine.runs.unpause(run_id)
    return PauseState(id=run_id, paused=False)


@post("/runs/{run_id:str}/steps/{key:str}/cancel", summary="Cancel one step", status_code=202)
async def cancel_step(request: ApiRequest, run_id: FromPath[str], key: FromPath[str]) -> StepState:
    """Request cancellation of a step. Its worker is asked to stop."""
    return StepState(
        id=run_id,
        step=key,
        state=await request.engine.runs.cancel_step(run_id, key, involved=request.who.people),
    )


@post("/runs/{run_id:str}/revoke", summary="Revoke the lease of a step", status_code=200)
async def revoke_step(
    request: ApiRequest, run_id: FromPath[str], data: JSONBody[RevokeRequest | None] = None
) -> RevokedStep:
    """Later messages of the worker are ignored. The step is leased again while attempts are left."""
    step = None if data is None else data.step
    return RevokedStep(
        id=run_id, state=await request.engine.runs.revoke_lease(run_id, step, involved=request.who.people)
    )


@post("/runs/{run_id:str}/reported", summary="State that a run's outcome was reported", status_code=200)
async def report_run(request: ApiRequest, run_id: FromPath[str]) -> ReportedRun:
    """Record the caller's statement. The run's status does not change; the first statement counts."""
    statement = await request.engine.runs.mark_reported(run_id)
    row = await request.engine.scope.reader.row(ids.run_int(run_id))
    return ReportedRun(id=run_id, reported=row.reported_at is not None, statement=statement)


@patch("/runs/{run_id:str}", summary="Change labels and metadata")
async def update_run(
    request: ApiRequest, run_id: FromPath[str], data: JSONBody[UpdateRunRequest]
) -> RunMetadata:
    """Set the given names, remove those that are null, and keep all others. Also for a run that has ended."""
    return await request.engine.runs.update(
        run_id, labels=data.labels, metadata=data.metadata, involved=request.who.people
    )


@post(
    "/runs/{run_id:str}/signals/{name:str}",
    summary="Deliver an event to a run",
    status_code=200,
    responses=IN_PROCESS,
)
async def signal_run(
    request: ApiRequest,
    run_id: FromPath[str],
    name: FromPath[str],
    data: JSONBody[SignalRequest | None] = None,
) -> Response[SignalResult]:
    """A wait for the event takes it; otherwise it is buffered for a later wait. Under one key or event id it counts once."""
    body, engine, number = data or SignalRequest(), request.engine, ids.run_int(run_id)

    async def operation(held: HeldRecord | None) -> StoredResponse:
        event_id = body.event_id
        if event_id is None and held is not None:
            event_id = f"key:{sha256(held.record.name.encode()).hexdigest()}"
        result = await engine.signal(
            run_id, name, body.data, event_id=event_id, source=body.source, involved=request.who.people
        )
        if result.again and body.event_id is None and held is not None and held.first:
            raise key_expired_error(number, "received this event under an expired record")
        return StoredResponse.of(result, run_id=number)

    return await idempotent(request, operation, run_id=number)


@post(
    "/runs/{run_id:str}/resume",
    summary="Resume a run",
    status_code=201,
    responses={200: ResponseSpec(RunControlResult, description="The run's wait was ended"), **IN_PROCESS},
)
async def resume_run(
    request: ApiRequest, run_id: FromPath[str], data: JSONBody[ResumeRequest | None] = None
) -> Response[RunCreated]:
    """A finished run continues as a new run that reuses its results (201). For a run that waits for an event or a time, the wait is
    ended (200); an approval never is."""
    body, engine, number = data or ResumeRequest(), request.engine, ids.run_int(run_id)

    async def operation(held: HeldRecord | None) -> StoredResponse:
        command = await engine.runs.build_resumed(
            run_id, happened=body.happened, repeat=body.repeat, involved=request.who.people
        )
        if command is not None:
            return await start_from_run(engine.scope, command, request.who, request.request_id, held)
        return StoredResponse.of(
            RunControlResult(id=run_id, status=(await engine.scope.reader.row(number)).status), run_id=number
        )

    return await idempotent(request, operation, run_id=number)


@post("/runs/{run_id:str}/rerun", summary="Run again", status_code=201, responses=IN_PROCESS)
async def rerun_run(request: ApiRequest, run_id: FromPath[str]) -> Response[RunCreated]:
    """Start a new run of the same plan, linked to the finished run."""
    engine = request.engine

    async def operation(held: HeldRecord | None) -> StoredResponse:
        command = await engine.runs.build_rerun(run_id)
        return await start_from_run(engine.scope, command, request.who, request.request_id, held)

    return await idempotent(request, operation, run_id=ids.run_int(run_id))


# ------------------------------------------------------------------------------------------------ many runs


@post(
    "/runs/cancel",
    summary="Cancel many runs",
    status_code=202,
    responses={200: ResponseSpec(CancelPreview, description="How many runs match. Nothing was canceled.")},
)
async def cancel_runs(request: ApiRequest, data: JSONBody[CancelRunsRequest]) -> Response[CanceledRuns]:
    """Without a token nothing is canceled: the answer (200) says how many runs match, and has a token. With the token they are canceled
    (202), unless other runs match by now (409)."""
    engine = request.engine
    matching = await _find_matching(engine, data.filter)
    token = _token(engine.tenant, data.filter, matching)
    if data.token is None:
        return to_response(
            StoredResponse.of(
                CancelPreview(
                    matched=len(matching),
                    token=token,
                    sample=[ids.run_text(run_id) for run_id in matching[:SAMPLE_MAX]],
                )
            )
        )
    if data.token != token:
        raise TenureError(
            "FILTER_CHANGED", "the token is for another filter, or the runs that fit have changed"
        )
    failed: list[CancelFailure] = []

    async def cancel(run_id: int) -> None:
        text = ids.run_text(run_id)
        try:
            await engine.cancel(text, reason=data.reason, involved=request.who.people)
        except TenureError as refused:
            failed.append(
                CancelFailure(id=text, error=api_error(to_tenure_error(refused), request.request_id))
            )

    for begin in range(0, len(matching), _PAGE):
        await asyncio.gather(*map(cancel, matching[begin : begin + _PAGE]))
    return Response(CanceledRuns(canceled=len(matching) - len(failed), failed=failed), status_code=202)


async def _find_matching(engine: Engine, asked: CancelFilter) -> list[int]:
    """The ids of the matching runs, newest first."""
    wanted = RunFilter(
        status=asked.status,
        repo=asked.repo,
        workflow=asked.workflow,
        labels=_labels(asked.label),
        since_us=0 if asked.created_after is None else _moment("created_after", asked.created_after),
        before_us=FOREVER_US
        if asked.created_before is None
        else _moment("created_before", asked.created_before),
    )
    check_status(wanted, "filter.status")
    found: list[int] = []
    place: RunPosition | None = NEWEST
    while place is not None:
        runs, place = await read_run_page(engine.store, engine.tenant, wanted, place, _PAGE)
        found += [run.id for run in runs if run.status not in CLOSED_RUN and run.cancel_at is None]
        if len(found) > CANCELED_AT_ONCE_MAX:
            raise field_error("filter", f"more than {CANCELED_AT_ONCE_MAX} runs fit; narrow the filter")
    return found


def _labels(given: str | list[str] | None) -> dict[str, str]:
    parts = [one.partition("=") for one in ([given] if isinstance(given, str) else given or [])]
    if not all(name and equals for name, equals, _ in parts):
        raise field_error("filter.label", "must have the form key=value")
    return {name: value for name, _, value in parts}


def _moment(field: str, moment: datetime) -> int:
    if moment.tzinfo is None:
        raise field_error(f"filter.{field}", "must include a UTC offset, such as 2026-02-14T08:00:00Z")
    return us(moment.timestamp())


def _token(tenant: str, asked: CancelFilter, matching: list[int]) -> str:
    """A token that is bound to the tenant, the filter and the matching runs. It is not a secret."""
    body = canonical([tenant, msgspec.to_builtins(asked), [str(run_id) for run_id in sorted(matching)]])
    return sha256(b"tenure-cancel-1" + body).hexdigest()


HANDLERS = [
    cancel_run,
    cancel_runs,
    cancel_step,
    update_run,
    pause_run,
    report_run,
    rerun_run,
    resume_run,
    revoke_step,
    signal_run,
    unpause_run,
]
