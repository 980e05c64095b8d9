"""The logs and test reports of CI jobs."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from typing import Annotated, Any

from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, QueryParameter

from tenure import ids
from tenure.limits import LOG_BYTES_PER_ATTEMPT_MAX, LOG_READ_BYTES_MAX
from tenure.reads.job_logs import read_job_log, read_step_tests
from tenure.server.file_responses import parse_range
from tenure.server.http.path_segments import step_key
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, page_of_list
from tenure.server.request import ApiRequest
from tenure.server.routes.run_parts import ArtifactAttempt
from tenure.services.runs import LOG_POLL_SECONDS
from tenure.shapes.job_logs import JobLog
from tenure.shapes.pages import Page
from tenure.shapes.test_reports import StepTests

TAIL_LINES_MAX = 10_000
WAIT_SECONDS_MAX = 30.0


@get(
    "/runs/{run_id:str}/steps/{key:str}/log",
    media_type="text/plain",
    summary="The log of a job",
    responses={206: ResponseSpec(data_container=None, description="The range that was asked for")},
)
async def get_job_log(
    request: ApiRequest,
    run_id: FromPath[str],
    key: FromPath[str],
    attempt: ArtifactAttempt = None,
    offset: Annotated[
        int, QueryParameter(description="The first byte.", ge=0, le=LOG_BYTES_PER_ATTEMPT_MAX)
    ] = 0,
    limit: Annotated[
        int, QueryParameter(description="How many bytes at most.", ge=1, le=LOG_READ_BYTES_MAX)
    ] = LOG_READ_BYTES_MAX,
    tail: Annotated[
        int | None,
        QueryParameter(description="Only the last lines, so many at most.", ge=1, le=TAIL_LINES_MAX),
    ] = None,
    late: Annotated[
        bool, QueryParameter(description="true: also what arrived after the end of the lease.")
    ] = False,
    wait: Annotated[
        float,
        QueryParameter(
            description="If there is nothing after `offset` yet, wait so many seconds.",
            ge=0,
            le=WAIT_SECONDS_MAX,
        ),
    ] = 0.0,
) -> Response[Any]:
    """The bytes that a job has written, of its newest attempt unless another is named. `Tenure-Log` says which bytes these are:
    `attempt=2; offset=0; next=512; size=512; late=0; ended=false`. To follow a log, send the request again with `offset` as `next`
    until `ended` is true and nothing is left."""
    key, engine = step_key(request.scope), request.engine
    run = (await engine.scope.reader.row(ids.run_int(run_id))).id

    async def read(offset: int, limit: int) -> JobLog:
        return await read_job_log(
            engine.store, engine.artifacts, run, key,
            attempt=attempt, offset=offset, limit=limit, tail=tail, late=late,
        )  # fmt: skip

    if request.headers.get("range") and tail is None:
        whole = await read(0, 1)
        asked = parse_range(request.headers["range"], whole.size + (whole.late_size if late else 0))
        if asked is not None:
            found = await read(asked[0], asked[1] - asked[0] + 1)
            size = found.size + (found.late_size if late else 0)
            place = f"bytes {found.offset}-{found.next_offset - 1}/{size}"
            return _send(found, {"Content-Range": place}, 206)
    loop, stopping = asyncio.get_running_loop(), request.server.stopping
    until = loop.time() + wait
    with request.server.load.hold_stream(request.who.key_id, request.who.tenant) if wait else nullcontext():
        while True:
            found = await read(offset, limit)
            left = until - loop.time()
            if found.data or found.ended or left <= 0 or stopping.is_set():
                return _send(found)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), min(LOG_POLL_SECONDS, left))


def _send(found: JobLog, headers: dict[str, str] | None = None, status: int = 200) -> Response[Any]:
    place = (
        f"attempt={found.attempt}; offset={found.offset}; next={found.next_offset}; size={found.size};"
        f" late={found.late_size}; ended={str(found.ended).lower()}"
    )
    return Response(
        content=found.data,
        status_code=status,
        media_type="text/plain; charset=utf-8",
        headers={
            **(headers or {}),
            "Tenure-Log": place,
            "Content-Security-Policy": "sandbox; default-src 'none'",
        },
    )


@get("/runs/{run_id:str}/tests", summary="The test reports of a run")
async def list_run_tests(
    request: ApiRequest, run_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[StepTests]:
    """Counts and failed tests of its jobs, by step and attempt."""
    return await _tests(request, run_id, None, limit, cursor)


@get("/runs/{run_id:str}/steps/{key:str}/tests", summary="The test reports of a job")
async def list_step_tests(
    request: ApiRequest,
    run_id: FromPath[str],
    key: FromPath[str],
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[StepTests]:
    """Counts and failed tests of each attempt."""
    key = step_key(request.scope)
    return await _tests(request, run_id, key, limit, cursor)


async def _tests(
    request: ApiRequest, run_id: str, step: str | None, limit: int, cursor: str | None
) -> Page[StepTests]:
    run = (await request.engine.scope.reader.row(ids.run_int(run_id))).id
    items = await read_step_tests(request.engine.store, run, step)
    of = (request.who.tenant, f"tests {run_id}", step)
    return page_of_list(items, lambda one: [one.step, one.attempt], of, cursor, limit)


HANDLERS = [get_job_log, list_run_tests, list_step_tests]
