"""The parts of a run: steps and attempts, history, logs, checkpoints, artifacts, and why the run makes no progress."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, QueryParameter

from tenure import ids
from tenure.kernel import profiles
from tenure.limits import NAME_CHARS_MAX
from tenure.reads import run_documents
from tenure.reads.artifacts import (
    FIRST_POSITION,
    artifact_position,
    find_artifact,
    list_artifacts,
    to_artifact,
)
from tenure.reads.file_stream import open_artifact
from tenure.reads.history import check_step_exists, read_attempts, read_checkpoints
from tenure.server.file_responses import send_file
from tenure.server.http.path_segments import decode_rest_of_path, step_key
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Int31, Limit, make_page, page_of_list
from tenure.server.request import ApiRequest
from tenure.server.routes.runs import ProfileName
from tenure.services.paging import decode_place, read_page
from tenure.shapes.documents import CheckpointDocument, StepDocument
from tenure.shapes.events import Event
from tenure.shapes.pages import Page
from tenure.shapes.runs import Artifact, Explanation, RunLogLine
from tenure.shapes.steps import Attempt, Checkpoint, FailedAttempt, Step

After = Annotated[
    int, QueryParameter(ge=0, le=(1 << 31) - 1, description="Only what comes after this number.")
]
ArtifactStep = Annotated[str | None, QueryParameter(description="Of this step.", max_length=NAME_CHARS_MAX)]
ArtifactAttempt = Annotated[
    int | None, QueryParameter(ge=1, le=(1 << 31) - 1, description="Of this attempt.")
]
ArtifactLate = Annotated[
    bool | None,
    QueryParameter(description="true: uploaded after the lease's end; false: uploaded in time."),
]
_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,80}/[A-Za-z0-9!#$&^_.+-]{1,80}(?:; ?charset=[A-Za-z0-9-]{1,40})?")
_CHUNK = 1_000
ArtifactName = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]


async def _run_number(request: ApiRequest, run_id: str) -> int:
    """The number of a run of the caller's tenant."""
    return (await request.engine.scope.reader.row(ids.run_int(run_id))).id


@get("/runs/{run_id:str}/steps", summary="The steps of a run")
async def list_steps(
    request: ApiRequest,
    run_id: FromPath[str],
    profile: ProfileName = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[Step | StepDocument]:
    """Leased steps, gates, checkpoints, waits and children, in the order in which they began."""
    engine, number = request.engine, ids.run_int(run_id)
    at = (request.who.tenant, f"steps {run_id}", profile)
    if profile == run_documents.PROFILE:
        below = await run_documents.read_document(engine.scope.reader, engine.store, number, profile, "steps")
        return page_of_list(below, lambda one: one.id, at, cursor, limit)
    if profile is not None:
        profiles.get(profile)
    items: list[Any] = await engine.scope.reader.steps(number, profile)
    return page_of_list(items, lambda one: f"{one.within or ''} {one.name}", at, cursor, limit)


@get("/runs/{run_id:str}/steps/{key:str}/attempts", summary="The attempts of a step")
async def list_attempts(
    request: ApiRequest,
    run_id: FromPath[str],
    key: FromPath[str],
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[Attempt]:
    """The first attempt first. The key is percent-encoded: `plan/review#2` is `plan%2Freview%232`."""
    key = step_key(request.scope)
    items = await read_attempts(request.engine.store, await _run_number(request, run_id), key)
    return page_of_list(
        items, lambda one: one.n, (request.who.tenant, f"attempts {run_id}", key), cursor, limit
    )


@get("/runs/{run_id:str}/steps/{key:str}/logs", summary="The log of a step")
async def list_step_logs(
    request: ApiRequest,
    run_id: FromPath[str],
    key: FromPath[str],
    after: After = 0,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[RunLogLine]:
    """In order. The key is percent-encoded: `plan/review#2` is `plan%2Freview%232`."""
    key = step_key(request.scope)
    await check_step_exists(request.engine.store, await _run_number(request, run_id), key)
    return await _logs(request, run_id, key, after, limit, cursor)


@get("/runs/{run_id:str}/logs", summary="The log of a run")
async def list_logs(
    request: ApiRequest,
    run_id: FromPath[str],
    after: After = 0,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[RunLogLine]:
    """In order. To follow a log, send the request again with `after` the last number."""
    return await _logs(request, run_id, None, after, limit, cursor)


async def _logs(
    request: ApiRequest, run_id: str, key: str | None, after: int, limit: int, cursor: str | None
) -> Page[RunLogLine]:
    of = (request.who.tenant, f"logs {run_id}", key)
    [after] = decode_place(cursor, of, tuple[Int31], (after,))
    found: list[RunLogLine] = []
    while len(found) <= limit:  # at most `limits.LOG_LINES_PER_RUN_MAX` lines in all
        chunk = limit + 1 if key is None else _CHUNK
        lines = await request.engine.runs.logs(run_id, after=after, limit=chunk)
        found += [line for line in lines if key in (None, line.step)]
        if len(lines) < chunk:
            break
        after = lines[-1].no
    return make_page(found[:limit], of, [found[limit - 1].no] if len(found) > limit else None)


@get("/runs/{run_id:str}/tries", summary="The failed attempts of a run")
async def list_tries(
    request: ApiRequest, run_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[FailedAttempt]:
    """Attempts that failed or were lost, and the workers that took over, in order of time."""
    return page_of_list(
        await request.engine.scope.reader.tries(ids.run_int(run_id)),
        lambda one: [one.step, one.attempt, one.state],
        (request.who.tenant, f"tries {run_id}", None),
        cursor,
        limit,
    )


@get("/runs/{run_id:str}/events", summary="The history of a run")
async def list_events(
    request: ApiRequest,
    run_id: FromPath[str],
    after: After = 0,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[Event]:
    """In order. Each event has the hash that chains it to the event before."""
    of = (request.who.tenant, f"events {run_id}", None)
    [after] = decode_place(cursor, of, tuple[Int31], (after,))
    found = await request.engine.scope.reader.events(ids.run_int(run_id), after=after, limit=limit + 1)
    return make_page(found[:limit], of, [found[limit - 1].seq] if len(found) > limit else None)


@get("/runs/{run_id:str}/checkpoints", summary="The checkpoints of a run")
async def list_checkpoints(
    request: ApiRequest,
    run_id: FromPath[str],
    profile: ProfileName = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[Checkpoint | CheckpointDocument]:
    """The results that its steps have recorded, in order."""
    engine, number = request.engine, await _run_number(request, run_id)
    at = (request.who.tenant, f"checkpoints {run_id}", profile)
    if profile == run_documents.PROFILE:
        below = await run_documents.read_document(
            engine.scope.reader, engine.store, number, profile, "checkpoints"
        )
        return page_of_list(below, lambda one: one.step_id, at, cursor, limit)
    if profile is not None:
        profiles.get(profile)
    items: list[Any] = await read_checkpoints(engine.store, number)
    return page_of_list(items, lambda one: [one.step, one.key], at, cursor, limit)


@get("/runs/{run_id:str}/why", summary="Why a run makes no progress")
async def get_why(request: ApiRequest, run_id: FromPath[str]) -> Explanation:
    """One reason: what has to change first."""
    return await request.engine.runs.explain(run_id)


# ---------------------------------------------------------------------------------------------- artifacts


@get("/runs/{run_id:str}/artifacts", summary="The artifacts of a run")
async def list_run_artifacts(
    request: ApiRequest, run_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[Artifact]:
    """By name, step and attempt, including late ones."""
    store, number = request.engine.store, await _run_number(request, run_id)
    return await read_page(
        (request.who.tenant, f"artifacts {run_id}", None),
        tuple[ArtifactName, Int31, Int31, bool],
        FIRST_POSITION,
        lambda place, count: list_artifacts(store, number, after=place, limit=count),
        lambda row: list(artifact_position(row)),
        to_artifact,
        limit=limit,
        cursor=cursor,
    )


@get(
    "/runs/{run_id:str}/artifacts/{name:path}",
    summary="An artifact's bytes",
    media_type="*/*",
    responses={
        206: ResponseSpec(data_container=None, description="The range that was asked for"),
        304: ResponseSpec(data_container=None, description="The digest has not changed"),
    },
)
async def get_artifact(
    request: ApiRequest,
    run_id: FromPath[str],
    step: ArtifactStep = None,
    attempt: ArtifactAttempt = None,
    late: ArtifactLate = None,
) -> Response[Any]:
    """The accepted file with this name. If several steps have one, the answer is 409 ARTIFACT_AMBIGUOUS. A `Range` of bytes may be asked
    for. Browsers save it and never display it, because its content comes from a runner."""
    number, wanted = await _run_number(request, run_id), decode_rest_of_path(request.scope, 3)
    line = await find_artifact(request.engine.store, number, wanted, step=step, attempt=attempt, late=late)
    headers = {
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(line.name.rpartition('/')[2], safe='')}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Tenure-Artifact": f"step={quote(line.step, safe='')}; attempt={line.n}; state={line.state}",
    }
    kind = line.content_type if _TYPE.fullmatch(line.content_type) else "application/octet-stream"
    return send_file(request, await open_artifact(request.engine.store, line), headers, kind)


HANDLERS = [
    list_steps,
    list_attempts,
    list_step_logs,
    list_logs,
    list_tries,
    list_events,
    list_checkpoints,
    get_why,
    list_run_artifacts,
    get_artifact,
]
