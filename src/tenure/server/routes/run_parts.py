"""The parts of a run: its steps and their tries, its history, logs, checkpoints and artifacts, and why it does not move."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, QueryParameter

from tenure import ids
from tenure.embedded import EventView, StepView, Why
from tenure.embedded.looking import LogView, log_view
from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.kernel.beside import LogLine
from tenure.limits import NAME_CHARS_MAX
from tenure.orchestrator import documents
from tenure.orchestrator.artifact_views import (
    BEFORE_ALL,
    ArtifactPlace,
    ArtifactView,
    artifact_view,
    find_artifact,
    list_artifacts,
    place_of_line,
    reference_to,
)
from tenure.orchestrator.parts import AttemptView, CheckpointView, attempts_of, checkpoints_of, known_step
from tenure.orchestrator.tries import TryView
from tenure.server.call import Call
from tenure.server.http.segments import rest_of_path, step_key
from tenure.server.paging import LIMIT_DEFAULT, Cursor, Limit, Page, cursor_of, place_of
from tenure.server.routes.runs import ProfileName
from tenure.server.runs.pieces import piece

After = Annotated[
    int, QueryParameter(ge=0, le=(1 << 31) - 1, description="Only what comes after this number.")
]
ArtifactStep = Annotated[str | None, QueryParameter(description="Of this step.", max_length=NAME_CHARS_MAX)]
ArtifactAttempt = Annotated[
    int | None, QueryParameter(ge=1, le=(1 << 31) - 1, description="Of this attempt.")
]
ArtifactLate = Annotated[
    bool | None,
    QueryParameter(description="true: what came after the lease's end; false: what came in time."),
]
_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,80}/[A-Za-z0-9!#$&^_.+-]{1,80}(?:; ?charset=[A-Za-z0-9-]{1,40})?")
_CHUNK = 1_000


@get("/runs/{run_id:str}/steps", summary="The steps of a run")
async def list_steps(
    request: Call,
    run_id: FromPath[str],
    profile: ProfileName = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[StepView | documents.StepDocument]:
    """Leased steps, gates, checkpoints, waits and children, in the order in which they began."""
    engine, number = request.engine, ids.run_int(run_id)
    at = (request.who.tenant, f"steps {run_id}", profile)
    if profile == documents.PROFILE:
        below = await documents.document(engine.views, engine.store, number, profile, "steps")
        return piece(below, lambda one: one.id, at, cursor, limit)
    if profile is not None:
        profiles.get(profile)
    items: list[Any] = await engine.views.steps(number, profile)
    return piece(items, lambda one: f"{one.within or ''} {one.name}", at, cursor, limit)


@get("/runs/{run_id:str}/steps/{key:str}/attempts", summary="The tries of a step")
async def list_attempts(
    request: Call,
    run_id: FromPath[str],
    key: FromPath[str],
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[AttemptView]:
    """First one first. The key is percent-encoded: `plan/review#2` is `plan%2Freview%232`."""
    number, key = (await request.engine.views.row(ids.run_int(run_id))).id, step_key(request.scope)
    items = await attempts_of(request.engine.store, number, key)
    return piece(items, lambda one: one.n, (request.who.tenant, f"attempts {run_id}", key), cursor, limit)


@get("/runs/{run_id:str}/steps/{key:str}/logs", summary="What a step has logged")
async def list_step_logs(
    request: Call,
    run_id: FromPath[str],
    key: FromPath[str],
    after: After = 0,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[LogView]:
    """In order. The key is percent-encoded: `plan/review#2` is `plan%2Freview%232`."""
    key = step_key(request.scope)
    number = (await request.engine.views.row(ids.run_int(run_id))).id
    await known_step(request.engine.store, number, key)
    return await _logs(request, run_id, key, after, limit, cursor)


@get("/runs/{run_id:str}/logs", summary="What a run has logged")
async def list_logs(
    request: Call,
    run_id: FromPath[str],
    after: After = 0,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[LogView]:
    """In order; to follow a log, ask again `after` the last number."""
    return await _logs(request, run_id, None, after, limit, cursor)


async def _logs(
    request: Call, run_id: str, key: str | None, after: int, limit: int, cursor: str | None
) -> Page[LogView]:
    number = (await request.engine.views.row(ids.run_int(run_id))).id
    at = (request.who.tenant, f"logs {run_id}", key)
    after = after if cursor is None else _number(place_of(cursor, *at))
    found: list[LogLine] = []
    while len(found) <= limit:  # at most `limits.LOG_LINES_PER_RUN_MAX` lines in all
        chunk = limit + 1 if key is None else _CHUNK
        lines: list[LogLine] = await request.engine.store.read("log_lines_of", number, after, chunk)
        found += [line for line in lines if key in (None, line.step)]
        if len(lines) < chunk:
            break
        after = lines[-1].no
    more = len(found) > limit
    found = found[:limit]
    return Page(
        items=[log_view(line) for line in found],
        next_cursor=cursor_of(*at, [found[-1].no]) if more else None,
    )


def _number(place: list[Any]) -> int:
    if len(place) != 1 or not isinstance(place[0], int) or not 0 <= place[0] < 1 << 31:
        raise TenureError("CURSOR_INVALID")
    return place[0]


@get("/runs/{run_id:str}/tries", summary="The tries of a run's steps that did not succeed")
async def list_tries(
    request: Call, run_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[TryView]:
    """What failed or was lost, and who took over, in order of time."""
    items = await request.engine.views.tries(ids.run_int(run_id))
    at = (request.who.tenant, f"tries {run_id}", None)
    return piece(items, lambda one: [one.step, one.attempt, one.state], at, cursor, limit)


@get("/runs/{run_id:str}/events", summary="The history of a run")
async def list_events(
    request: Call,
    run_id: FromPath[str],
    after: After = 0,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[EventView]:
    """In order, each with the hash that chains it to the one before."""
    at = (request.who.tenant, f"events {run_id}", None)
    after = after if cursor is None else _number(place_of(cursor, *at))
    found = await request.engine.views.events(ids.run_int(run_id), after=after, limit=limit + 1)
    items = found[:limit]
    return Page(items=items, next_cursor=cursor_of(*at, [items[-1].seq]) if len(found) > limit else None)


@get("/runs/{run_id:str}/checkpoints", summary="The checkpoints of a run")
async def list_checkpoints(
    request: Call,
    run_id: FromPath[str],
    profile: ProfileName = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[CheckpointView | documents.CheckpointDocument]:
    """What its steps have recorded, in the order of recording."""
    engine = request.engine
    number = (await engine.views.row(ids.run_int(run_id))).id
    at = (request.who.tenant, f"checkpoints {run_id}", profile)
    if profile == documents.PROFILE:
        below = await documents.document(engine.views, engine.store, number, profile, "checkpoints")
        return piece(below, lambda one: one.step_id, at, cursor, limit)
    if profile is not None:
        profiles.get(profile)
    items: list[Any] = await checkpoints_of(engine.store, number)
    return piece(items, lambda one: [one.step, one.key], at, cursor, limit)


@get("/runs/{run_id:str}/why", summary="Why a run does not move")
async def get_why(request: Call, run_id: FromPath[str]) -> Why:
    """In one reason: what would have to change first."""
    return await request.engine.why(run_id)


# ---------------------------------------------------------------------------------------------- artifacts


@get("/runs/{run_id:str}/artifacts", summary="The artifacts of a run")
async def list_run_artifacts(
    request: Call, run_id: FromPath[str], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Page[ArtifactView]:
    """By name, step and attempt; those that came late too."""
    number = (await request.engine.views.row(ids.run_int(run_id))).id
    at = (request.who.tenant, f"artifacts {run_id}", None)
    after = BEFORE_ALL if cursor is None else _artifact_place(place_of(cursor, *at))
    found = await list_artifacts(request.engine.store, number, after=after, limit=limit + 1)
    items = found[:limit]
    return Page(
        items=[artifact_view(line) for line in items],
        next_cursor=cursor_of(*at, list(place_of_line(items[-1]))) if len(found) > limit else None,
    )


def _artifact_place(place: list[Any]) -> ArtifactPlace:
    try:
        name, idx, n, late = msgspec.convert(place, tuple[str, int, int, bool])
    except msgspec.ValidationError as wrong:
        raise TenureError("CURSOR_INVALID") from wrong
    if not name.isprintable() or not (0 <= idx < 1 << 31 and 0 <= n < 1 << 31):
        raise TenureError("CURSOR_INVALID")
    return name, idx, n, late


@get(
    "/runs/{run_id:str}/artifacts/{name:path}",
    summary="An artifact's bytes",
    media_type="*/*",
    responses={304: ResponseSpec(data_container=None, description="It has this digest still")},
)
async def get_artifact(
    request: Call,
    run_id: FromPath[str],
    name: FromPath[Path],
    step: ArtifactStep = None,
    attempt: ArtifactAttempt = None,
    late: ArtifactLate = None,
) -> Response[bytes]:
    """The accepted file of this name. Where several steps have one: 409 ARTIFACT_AMBIGUOUS. Always to be saved, never to be shown
    in place: what it holds is a runner's, not ours."""
    del name  # routing decodes it; this is as it was sent
    number = (await request.engine.views.row(ids.run_int(run_id))).id
    wanted = rest_of_path(request.scope, 3)
    line = await find_artifact(request.engine.store, number, wanted, step=step, attempt=attempt, late=late)
    tag = f'"{line.digest}"'
    headers = {
        "ETag": tag,
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(line.name.rpartition('/')[2], safe='')}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Tenure-Artifact": f"step={quote(line.step, safe='')}; attempt={line.n}; state={line.state}",
    }
    if request.headers.get("if-none-match") == tag:
        return Response(content=b"", status_code=304, headers=headers)
    kind = line.content_type if _TYPE.fullmatch(line.content_type) else "application/octet-stream"
    body = await request.engine.artifacts.get(reference_to(line))
    return Response(content=body, media_type=kind, headers=headers)


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
