"""Runs, looked at: lists of them, one by one, how they are and what they came to."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, HeaderParameter, QueryParameter

from tenure import ids
from tenure.embedded import RunLine, RunView
from tenure.errors import Detail, TenureError
from tenure.kernel import profiles
from tenure.kernel.model import Run
from tenure.orchestrator import documents
from tenure.orchestrator.listing import FOREVER_US, Wanted, check_status, page, runs_cursor, runs_place
from tenure.orchestrator.status_json import StatusDocument
from tenure.server.call import Call
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page
from tenure.server.problems import ErrorBody, failure_body
from tenure.server.runs.results import WAIT_SECONDS_MAX, Failure, Output, Unfinished, outcome
from tenure.server.runs.statuses import StatusView, look

ProfileName = Annotated[
    str | None,
    QueryParameter(
        max_length=64,
        description="Show runs in the words of this profile; git-with-intent and agent-runs have shapes of their own.",
    ),
]


@get("/runs", summary="Runs, newest first")
async def list_runs(
    request: Call,
    status: FromQuery[str | None] = None,
    workflow: FromQuery[str | None] = None,
    repo: FromQuery[str | None] = None,
    label: Annotated[
        list[Annotated[str, msgspec.Meta(pattern="^[^=]+=")]] | None,
        QueryParameter(description="`key=value`; may be repeated: a run has all of them.", max_items=20),
    ] = None,
    created_after: Annotated[
        datetime | None, QueryParameter(description="Made at this moment or later.")
    ] = None,
    created_before: Annotated[datetime | None, QueryParameter(description="Made before this moment.")] = None,
    parked: FromQuery[bool] = False,
    profile: ProfileName = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[RunLine | documents.RunDocument]:
    """The runs that fulfil all conditions.

    A page may have fewer than `limit` items, even none, and still a `next_cursor`: labels and workflows are looked for over a
    bounded number of runs at a time.
    """
    check_status(status)
    if profile is not None:
        profiles.get(profile)
    wanted = Wanted(
        status=status,
        repo=repo,
        workflow=workflow,
        labels=_labels(label or []),
        parked=parked,
        since_us=0 if created_after is None else _us(created_after),
        before_us=FOREVER_US if created_before is None else _us(created_before),
    )
    tenant, engine = request.who.tenant, request.engine
    runs, more = await page(engine.store, tenant, wanted, runs_place(cursor, tenant, wanted), limit)
    return Page(
        items=await _shown(request, runs, profile),
        next_cursor=runs_cursor(tenant, wanted, more),
    )


async def _shown(
    request: Call, runs: list[Run], profile: str | None
) -> list[RunLine | documents.RunDocument]:
    views, store = request.engine.views, request.engine.store
    if profile != documents.PROFILE:
        return [*await views.lines(runs, profile)]
    return [await documents.document(views, store, run.id, profile) for run in runs]


def _labels(given: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for one in given:
        key, parted, value = one.partition("=")
        if not parted or not key:
            raise TenureError(
                "INVALID_INPUT", f"{one!r} is no label", (Detail("label", "has the form key=value"),)
            )
        labels[key] = value
    return labels


def _us(moment: datetime) -> int:
    """A moment in microseconds; one without a zone is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    whole = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds


@get("/runs/{run_id:str}", summary="A run")
async def get_run(
    request: Call,
    run_id: FromPath[str],
    profile: ProfileName = None,
    at: Annotated[
        str | None,
        QueryParameter(
            max_length=1_200,
            description="With `profile=git-with-intent`: what lies below the document, `steps/KEY`, `checkpoints/KEY` or"
            " `idempotency/KEY`; or all of a kind.",
        ),
    ] = None,
) -> (
    RunView
    | documents.RunDocument
    | documents.StepDocument
    | documents.CheckpointDocument
    | documents.IdempotencyDocument
    | list[documents.Below]
):
    """A run with its input, output and error."""
    engine, number = request.engine, ids.run_int(run_id)
    if profile == documents.PROFILE:
        found: Any = await documents.document(engine.views, engine.store, number, profile, at)
        return found  # type: ignore[no-any-return]  # one of the documents above
    if at is not None:
        raise TenureError(
            "INVALID_INPUT",
            f"only {documents.PROFILE} has documents below a run",
            (Detail("at", f"goes with profile={documents.PROFILE}"),),
        )
    if profile is not None:
        profiles.get(profile)
    return await engine.views.run(number, profile)


@get(
    "/runs/{run_id:str}/status",
    summary="How a run is",
    responses={304: ResponseSpec(data_container=None, description="As it was when it had this ETag")},
)
async def get_status(
    request: Call,
    run_id: FromPath[str],
    profile: ProfileName = None,
    if_none_match: Annotated[
        str | None, HeaderParameter(name="If-None-Match", description="The ETag of what was seen last.")
    ] = None,
) -> Response[StatusView | StatusDocument]:
    """Cheap, for asking often: with `If-None-Match` the answer is 304 until something has changed."""
    looked = await look(request.service, request.who.tenant, run_id, profile, if_none_match)
    if looked.body is None:
        nothing: Any = b""
        return Response(content=nothing, status_code=304, headers=looked.headers)
    return Response(content=looked.body, headers=looked.headers)


_FAILURES = {
    code: ResponseSpec(data_container=ErrorBody, description=text)
    for code, text in {
        409: "The run was canceled",
        500: "The run has failed",
        502: "The run has failed: something behind it could not be reached",
        504: "The run has failed: it took too long",
    }.items()
}


@get(
    "/runs/{run_id:str}/result",
    summary="What a run came to",
    responses={
        202: ResponseSpec(data_container=Unfinished, description="It has not ended yet"),
        **_FAILURES,
    },
)
async def get_result(
    request: Call,
    run_id: FromPath[str],
    wait: Annotated[
        float,
        QueryParameter(ge=0, le=WAIT_SECONDS_MAX, description="Seconds to wait for its end."),
    ] = 0.0,
) -> Response[Output]:
    """Its output once it has succeeded, its error once it has failed, and 202 until then."""
    found = await outcome(request.service, request.who.tenant, run_id, wait)
    if isinstance(found, Failure):
        body: Any = failure_body(found.error, request.request_id)
        return Response(content=body, status_code=found.status, media_type="application/json")
    if isinstance(found, Unfinished):
        unfinished: Any = found  # it is told of among the other answers
        return Response(content=unfinished, status_code=202)
    return Response(content=found)


HANDLERS = [list_runs, get_run, get_status, get_result]
