"""Reading runs: lists, single runs, their status and their result."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, HeaderParameter, QueryParameter

from tenure import ids
from tenure.errors import Detail, TenureError
from tenure.kernel import profiles
from tenure.kernel.run_rows import RunRow
from tenure.reads import run_documents
from tenure.reads.run_list import (
    FOREVER_US,
    RunFilter,
    check_status,
    decode_runs_cursor,
    encode_runs_cursor,
    read_run_page,
)
from tenure.server.error_responses import ErrorBody, encode_run_failure
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit
from tenure.server.request import ApiRequest
from tenure.server.run_status import RunStatus, read_status
from tenure.services.run_results import WAIT_SECONDS_MAX, RunFailure, RunOutput, UnfinishedRun, await_result
from tenure.shapes.documents import (
    CheckpointDocument,
    DocumentPart,
    IdempotencyDocument,
    RunDocument,
    StatusDocument,
    StepDocument,
)
from tenure.shapes.pages import Page
from tenure.shapes.runs import Run, RunSummary

ProfileName = Annotated[
    str | None,
    QueryParameter(
        max_length=64,
        description="Show runs in the words of this profile; git-with-intent and agent-runs have shapes of their own.",
    ),
]


@get("/runs", summary="Runs, newest first")
async def list_runs(
    request: ApiRequest,
    status: Annotated[
        str | None,
        QueryParameter(
            max_length=64, description="A status of the kernel; with `profile`, a word of that profile."
        ),
    ] = None,
    workflow: FromQuery[str | None] = None,
    repo: FromQuery[str | None] = None,
    label: Annotated[
        list[Annotated[str, msgspec.Meta(pattern="^[^=]+=")]] | None,
        QueryParameter(
            description="`key=value`; may be repeated: a run must have all of them.", max_items=20
        ),
    ] = None,
    created_after: Annotated[
        datetime | None, QueryParameter(description="Created at this time or later.")
    ] = None,
    created_before: Annotated[
        datetime | None, QueryParameter(description="Created before this time.")
    ] = None,
    parked: FromQuery[bool] = False,
    profile: ProfileName = None,
    shape: Annotated[
        Literal["summary"] | None,
        QueryParameter(
            description="`summary`: short items under every profile, also where it has documents."
        ),
    ] = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[RunSummary | RunDocument]:
    """The runs that match all conditions.

    A page may have fewer than `limit` items, even none, and still a `next_cursor`: each request searches a bounded number of runs for
    labels and workflows.
    """
    wanted = RunFilter(
        status=status,
        profile=profile,
        repo=repo,
        workflow=workflow,
        labels=_labels(label or []),
        parked=parked,
        since_us=0 if created_after is None else _us(created_after),
        before_us=FOREVER_US if created_before is None else _us(created_before),
    )
    check_status(wanted)
    tenant, engine = request.who.tenant, request.engine
    runs, more = await read_run_page(
        engine.store, tenant, wanted, decode_runs_cursor(cursor, tenant, wanted), limit
    )
    return Page(
        items=await _shown(request, runs, profile, is_short=shape is not None),
        next_cursor=encode_runs_cursor(tenant, wanted, more),
    )


async def _shown(
    request: ApiRequest, runs: list[RunRow], profile: str | None, *, is_short: bool
) -> list[RunSummary | RunDocument]:
    views, store = request.engine.scope.reader, request.engine.store
    if is_short or profile != run_documents.PROFILE:
        return [*await views.lines(runs, profile)]
    return [await run_documents.read_document(views, store, run.id, profile) for run in runs]


def _labels(given: list[str]) -> dict[str, str]:
    parts = [one.partition("=") for one in given]
    wrong = next(("".join(part) for part in parts if not (part[0] and part[1])), None)
    if wrong is not None:
        raise TenureError(
            "INVALID_INPUT",
            f"{wrong!r} is not a label: write key=value",
            (Detail("label", "must have the form key=value"),),
        )
    return {key: value for key, _, value in parts}


def _us(moment: datetime) -> int:
    """A time in microseconds; without a zone it is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    whole = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds


@get("/runs/{run_id:str}", summary="A run")
async def get_run(
    request: ApiRequest,
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
) -> Run | RunDocument | StepDocument | CheckpointDocument | IdempotencyDocument | list[DocumentPart]:
    """A run with its input, output and error."""
    engine, number = request.engine, ids.run_int(run_id)
    if profile == run_documents.PROFILE:
        found: Any = await run_documents.read_document(engine.scope.reader, engine.store, number, profile, at)
        return found  # type: ignore[no-any-return]  # one of the documents above
    if at is not None:
        raise TenureError(
            "INVALID_INPUT",
            f"only {run_documents.PROFILE} has documents below a run",
            (Detail("at", f"can only be used with profile={run_documents.PROFILE}"),),
        )
    if profile is not None:
        profiles.get(profile)
    return await engine.scope.reader.run(number, profile)


@get(
    "/runs/{run_id:str}/status",
    summary="The status of a run",
    responses={304: ResponseSpec(data_container=None, description="Nothing has changed since this ETag")},
)
async def get_status(
    request: ApiRequest,
    run_id: FromPath[str],
    profile: ProfileName = None,
    if_none_match: Annotated[
        str | None, HeaderParameter(name="If-None-Match", description="The ETag of the last answer.")
    ] = None,
) -> Response[RunStatus | StatusDocument]:
    """Cheap enough for frequent polling. With `If-None-Match` the answer is 304 until something changes. An agent run is shown as its status.json;
    `profile=tenure` shows it like other runs."""
    looked = await read_status(request.server, request.who.tenant, run_id, profile, if_none_match)
    if looked.body is None:
        nothing: Any = b""
        return Response(content=nothing, status_code=304, headers=looked.headers)
    return Response(content=looked.body, headers=looked.headers)


_FAILURES = {
    code: ResponseSpec(data_container=ErrorBody, description=text)
    for code, text in {
        409: "The run was canceled",
        500: "The run has failed",
        502: "The run has failed: another service could not be reached",
        504: "The run has failed: it took too long",
    }.items()
}


@get(
    "/runs/{run_id:str}/result",
    summary="The result of a run",
    responses={
        202: ResponseSpec(data_container=UnfinishedRun, description="The run has not ended yet"),
        **_FAILURES,
    },
)
async def get_result(
    request: ApiRequest,
    run_id: FromPath[str],
    wait: Annotated[
        float,
        QueryParameter(ge=0, le=WAIT_SECONDS_MAX, description="Seconds to wait for the end of the run."),
    ] = 0.0,
) -> Response[RunOutput]:
    """The output of a run that has succeeded, the error of one that has failed, and 202 until then."""
    found = await await_result(
        request.engine.scope, run_id, wait, request.server.status_batcher, request.server.stopping
    )
    if isinstance(found, RunFailure):
        body: Any = encode_run_failure(found.error, request.request_id)
        return Response(content=body, status_code=found.status, media_type="application/json")
    if isinstance(found, UnfinishedRun):
        unfinished: Any = found  # `responses` has its type
        return Response(content=unfinished, status_code=202)
    return Response(content=found)


HANDLERS = [list_runs, get_run, get_status, get_result]
