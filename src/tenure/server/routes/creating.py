"""Runs that are asked for: one, many at once, an agent's."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody

from tenure.errors import TenureError
from tenure.server.call import Call
from tenure.server.problems import Problem, named, problem_of
from tenure.server.runs.idempotency import (
    Answer,
    Held,
    InProcess,
    Request,
    check_key,
    hash_of,
    idempotent,
    key_text,
    keyed,
)
from tenure.server.runs.new_runs import Asking, NewRun, RunCreated, create, made, prepared
from tenure.server.runs.starting import Prepared
from tenure.server.work import LARGE_BYTES, run_aside

BATCH_MAX = 500
AGENTS = "agent-runs"
IN_PROCESS = {202: ResponseSpec(InProcess, description="The same request is in process")}


class BatchItem(NewRun, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of a batch."""

    idempotency_key: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    """As the header of that name with `POST /runs`: the same key there is the same run."""


class Batch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Runs that are asked for at once."""

    items: Annotated[list[BatchItem], msgspec.Meta(min_length=1, max_length=BATCH_MAX)]


class BatchResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one of them."""

    status: int
    """As `POST /runs` would have answered."""
    run: RunCreated | None = None
    error: Problem | None = None
    replayed: bool = False
    """Whether its key had made this run before."""


class BatchResults(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each, in their order."""

    results: list[BatchResult]


@post("/runs", summary="Start a run", status_code=201)
async def create_run(request: Call, data: JSONBody[NewRun]) -> Response[RunCreated]:
    """Start a run of a registered workflow. With a key, the same request again is answered with the same run."""
    asking = Asking(who=request.who, request_id=request.request_id)
    engine = request.service.engine_of(request.who, data.workspace)
    answer = await create(engine, data, asking, await keyed(request))
    return answer.response()


@post("/agents/run", summary="Start an agent's run", status_code=201)
async def run_agent(request: Call, data: JSONBody[NewRun]) -> Response[RunCreated]:
    """Start a run under the profile agent-runs. It is `requested`; what becomes of it is at `/runs/{id}/status`."""
    if data.profile not in (None, AGENTS):
        raise TenureError("INVALID_INPUT", f"an agent's run has the profile {AGENTS}, not {data.profile!r}")
    asking = Asking(who=request.who, request_id=request.request_id)
    engine = request.service.engine_of(request.who, data.workspace)
    new = msgspec.structs.replace(data, profile=AGENTS)
    answer = await create(engine, new, asking, await keyed(request), _requested)
    return answer.response()


def _requested(run: RunCreated) -> RunCreated:
    return msgspec.structs.replace(run, status="requested", shown="requested")


@post("/runs/batch", summary="Start many runs", status_code=200, responses=IN_PROCESS)
async def create_runs(request: Call, data: JSONBody[Batch]) -> Response[BatchResults]:
    """Start up to 500 runs at once: a result for each, in order. Each has its own fate, and its own key.

    A key in the headers is the whole batch's: the same batch again gets the same results.
    """
    raw: list[dict[str, Any]] = (await request.value())["items"]
    asking = Asking(who=request.who, request_id=request.request_id)

    async def operation(held: Held | None) -> Answer:
        whole = None if held is None else held.record.name
        keyed_items = [one if whole or one.get("idempotency_key") is not None else None for one in raw]
        large = len(await request.body()) > LARGE_BYTES
        hashes = await run_aside(_hashes, keyed_items) if large else _hashes(keyed_items)
        ready = [
            await _prepared(request, asking, new, hashes[i], whole, i) for i, new in enumerate(data.items)
        ]
        results = await asyncio.gather(*(_result(request, one) for one in ready))
        return Answer.of(BatchResults(results=list(results)))

    return await idempotent(request, operation)


def _hashes(items: list[dict[str, Any] | None]) -> list[bytes | TenureError | None]:
    """What makes each item with a key the same as another; of one that has no such form, why."""
    found: list[bytes | TenureError | None] = []
    for raw in items:
        try:
            asked = {field: value for field, value in (raw or {}).items() if field != "idempotency_key"}
            found.append(None if raw is None else hash_of("POST", "/runs", "/runs", asked))
        except TenureError as refused:
            found.append(refused)
    return found


_Ready = tuple[NewRun, Prepared | Answer, Request | None] | TenureError


async def _prepared(
    request: Call,
    asking: Asking,
    new: BatchItem,
    hashed: bytes | TenureError | None,
    whole: str | None,
    index: int,
) -> _Ready:
    """An item looked up and checked; no waiting but for a workflow that was not looked up lately."""
    who = request.who
    try:
        wanted, name = None, None
        if new.idempotency_key is not None:
            name = key_text(who.id, check_key(new.idempotency_key))
        elif whole is not None:
            name = f"{whole}:{index}"
        if isinstance(hashed, TenureError):
            return hashed
        if name is not None and hashed is not None:
            wanted = Request(tenant=who.tenant, source="api", name=name, hash=hashed)
        engine = request.service.engine_of(who, new.workspace)
        return new, await prepared(engine, new, asking, wanted), wanted
    except TenureError as refused:
        return refused


async def _result(request: Call, ready: _Ready) -> BatchResult:
    try:
        if isinstance(ready, TenureError):
            raise ready
        new, answer, wanted = ready
        if isinstance(answer, Prepared):
            answer = await made(request.service.engine_of(request.who, new.workspace), answer, wanted)
    except TenureError as refused:
        error = named(refused)
        return BatchResult(status=error.spec.status, error=problem_of(error, request.request_id))
    run = msgspec.json.decode(answer.body, type=RunCreated)
    return BatchResult(status=answer.status, run=run, replayed=answer.replayed)


HANDLERS = [create_run, create_runs, run_agent]
