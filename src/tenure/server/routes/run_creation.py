"""Starting runs: one, a batch, or an agent's run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from litestar import Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, Operation, Reference, RequestBody
from litestar.params import JSONBody

from tenure.errors import TenureError
from tenure.server.context import ServerContext
from tenure.server.error_responses import ApiError, api_error, to_tenure_error
from tenure.server.idempotency import (
    check_key,
    format_key,
    hash_request,
    idempotent,
    key_from_headers,
    key_request,
    keyed,
    to_response,
)
from tenure.server.request import ApiRequest, decode_body
from tenure.services.idempotency import HeldRecord, KeyedRequest, RequestInProcess, StoredResponse
from tenure.services.run_creation import api_caller, start_with_answer
from tenure.shapes.runs import RunCreated, StartRun
from tenure.work_pool import LARGE_BYTES, run_in_pool

BATCH_MAX = 500
AGENTS = "agent-runs"
IN_PROCESS = {202: ResponseSpec(RequestInProcess, description="The same request is in process")}


async def start_run(server: ServerContext, scope: Any, body: bytes) -> StoredResponse:
    """Answer `POST /runs`, whether the request came through the router or not. `scope` is the ASGI scope with its user."""
    who, state = scope["user"], scope["state"]
    value, asked = await decode_body(body, StartRun)
    key = key_from_headers(scope["headers"], request_id_is_key=server.settings.request_id_is_key)
    keyed = None if key is None else await key_request(scope, key, value, large=len(body) > LARGE_BYTES)
    return await start_with_answer(
        server.engine_of(who, asked.workspace).scope,
        asked,
        api_caller(who, state["request_id"], keyed),
        keyed,
    )


@dataclass
class _StartRunOperation(Operation):
    """`start_run` decodes the body itself, so the framework does not know its type."""

    def __post_init__(self) -> None:
        self.request_body = RequestBody(
            content={
                "application/json": OpenAPIMediaType(schema=Reference(ref="#/components/schemas/StartRun"))
            },
            required=True,
        )


@post("/runs", summary="Start a run", status_code=201, operation_class=_StartRunOperation)
async def create_run(request: ApiRequest) -> Response[RunCreated]:
    """Start a run of a registered workflow. With a key, the same request again is answered with the same run."""
    return to_response(await start_run(request.server, request.scope, await request.body()))


@post("/agents/run", summary="Start an agent's run", status_code=201)
async def run_agent(request: ApiRequest, data: JSONBody[StartRun]) -> Response[RunCreated]:
    """Start a run under the profile agent-runs. Its first status is `requested`; `/runs/{id}/status` has the current one."""
    if data.profile not in (None, AGENTS):
        raise TenureError("INVALID_INPUT", f"an agent's run has the profile {AGENTS}, not {data.profile!r}")
    wanted = await keyed(request)
    caller = api_caller(request.who, request.request_id, wanted)
    scope = request.server.engine_of(request.who, data.workspace).scope
    return to_response(
        await start_with_answer(
            scope, msgspec.structs.replace(data, profile=AGENTS), caller, wanted, _show_requested
        )
    )


def _show_requested(run: RunCreated) -> RunCreated:
    return msgspec.structs.replace(run, status="requested", shown="requested")


class RunBatchItem(StartRun, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of a batch."""

    idempotency_key: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    """Like the header of that name of `POST /runs`: the same key is the same run there, too."""


class RunBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Runs to start."""

    items: Annotated[list[RunBatchItem], msgspec.Meta(min_length=1, max_length=BATCH_MAX)]


class RunBatchResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one run of a batch."""

    status: int
    """The status that `POST /runs` would have answered."""
    run: RunCreated | None = None
    error: ApiError | None = None
    replayed: bool = False
    """Whether the key had created this run before."""


class RunBatchResults(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each run, in order."""

    results: list[RunBatchResult]


@post("/runs/batch", summary="Start many runs", status_code=200, responses=IN_PROCESS)
async def create_runs(request: ApiRequest, data: JSONBody[RunBatch]) -> Response[RunBatchResults]:
    """Start up to 500 runs. There is a result for each, in order: each succeeds or fails by itself, and may have its own key.

    A key in the headers is for the whole batch: the same batch again gets the same results.
    """
    raw: list[dict[str, Any]] = (await request.value())["items"]

    async def operation(held: HeldRecord | None) -> StoredResponse:
        batch_key = None if held is None else held.record.name
        with_key = [one if batch_key or one.get("idempotency_key") is not None else None for one in raw]
        large = len(await request.body()) > LARGE_BYTES
        hashes = await run_in_pool(_hash_items, with_key) if large else _hash_items(with_key)
        started = (
            _start_item(request, item, hashes[i], None if batch_key is None else f"{batch_key}:{i}")
            for i, item in enumerate(data.items)
        )
        return StoredResponse.of(RunBatchResults(results=list(await asyncio.gather(*started))))

    return await idempotent(request, operation)


def _hash_items(items: list[dict[str, Any] | None]) -> list[bytes | TenureError | None]:
    """The hash of each item with a key, or why it has none."""
    found: list[bytes | TenureError | None] = []
    for raw in items:
        try:
            asked = {field: value for field, value in (raw or {}).items() if field != "idempotency_key"}
            found.append(None if raw is None else hash_request("POST", "/runs", "/runs", asked))
        except TenureError as refused:
            found.append(refused)
    return found


async def _start_item(
    request: ApiRequest, item: RunBatchItem, hashed: bytes | TenureError | None, default_key: str | None
) -> RunBatchResult:
    who = request.who
    try:
        name, wanted = default_key, None
        if item.idempotency_key is not None:
            name = format_key(who.id, check_key(item.idempotency_key))
        if isinstance(hashed, TenureError):
            raise hashed
        if name is not None and hashed is not None:
            wanted = KeyedRequest(tenant=who.tenant, source="api", name=name, hash=hashed)
        answer = await start_with_answer(
            request.server.engine_of(who, item.workspace).scope,
            item,
            api_caller(who, request.request_id, wanted),
            wanted,
        )
    except TenureError as refused:
        error = to_tenure_error(refused)
        return RunBatchResult(status=error.spec.status, error=api_error(error, request.request_id))
    return RunBatchResult(
        status=answer.status, run=msgspec.json.decode(answer.body, type=RunCreated), replayed=answer.replayed
    )


HANDLERS = [create_run, create_runs, run_agent]
