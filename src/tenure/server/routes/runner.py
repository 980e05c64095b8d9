"""The runner protocol over HTTP, as `docs/runner-protocol.md` describes it.

Law: a claim needs a runner's key in the Authorization header, because the tokens of its leases are made with it. A message needs the
token of its lease. A token works while the key does: when the key is revoked, its leases cannot be continued.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from litestar import Response, get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, JSONBody, QueryParameter

from tenure.clock import to_datetime
from tenure.errors import TenureError
from tenure.kernel.commands import Claimant
from tenure.limits import ARTIFACT_BYTES_MAX, INTEGER_MAX
from tenure.server.file_responses import send_file
from tenure.server.http.path_segments import decode_rest_of_path
from tenure.server.request import ApiRequest
from tenure.server.routes.run_parts import ArtifactAttempt, ArtifactLate, ArtifactStep
from tenure.services.runners.credentials import LeaseCredential
from tenure.services.runners.leases import CONTENT_TYPE
from tenure.worker import protocol as p
from tenure.worker.protocol_codec import (
    ACT,
    ACT_CALL,
    ACT_REPLY,
    CHECKPOINT,
    GRANTED_LEASE,
    LEASE,
    WAIT,
    encode_payload,
    parse_lease_id,
)

_BEARER = re.compile(r"[Bb]earer +(tl_[A-Za-z0-9_-]{43})")


def _secret(request: ApiRequest) -> str:
    """The secret of the request's key, which authentication has checked."""
    key = request.headers.get("authorization", "").rpartition(" ")[2]
    secret = key.split("_", 2)[-1]
    if not key.startswith("tn_") or not secret:
        raise TenureError("UNAUTHENTICATED", "a runner needs a key")
    return secret


async def check_lease(request: ApiRequest, lease_id: str) -> LeaseCredential:
    """The credential of a lease whose token the request has."""
    authenticator = request.server.authenticator
    credentials = request.server.leases.credentials
    try:
        found = _BEARER.fullmatch(request.headers.get("authorization", "").strip())
        if found is None:
            raise TenureError("UNAUTHENTICATED", "the lease's token is missing or malformed")
        key = parse_lease_id(lease_id)
        if key not in credentials:
            authenticator.check_guess_rate(request.address)
            await credentials.load([key])
        credential = credentials.check(key, found[1])
    except TenureError as refused:
        if refused.code == "UNAUTHENTICATED":
            authenticator.note_refusal(request.address)
        raise
    if not await authenticator.allows(credential.key_id, "runner"):
        raise TenureError("UNAUTHENTICATED")
    authenticator.check_key_rate(credential.key_id)
    return credential


@contextmanager
def _watch_connection(request: ApiRequest) -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether the client is still connected and the server is not stopping."""
    disconnected = asyncio.ensure_future(request.receive())
    stopping = request.server.stopping
    try:
        yield lambda: not (disconnected.done() or stopping.is_set())
    finally:
        disconnected.cancel()


async def _claim(request: ApiRequest, data: p.ClaimRequest) -> list[p.GrantedLease]:
    data.check()
    with _watch_connection(request) as is_connected:
        granted = await request.server.leases.claim(
            request.who,
            _secret(request),
            data.claim_id,
            Claimant(data.worker or request.who.id, data.ack, data.session),
            data.capabilities,
            limit=data.max,
            wait_seconds=data.wait_s,
            slots=data.slots,
            is_connected=is_connected,
        )
    return [GRANTED_LEASE.encode(lease, {"token": token}) for lease, token in granted]


@post("/runner/claim", status_code=200, summary="Claim steps")
async def claim_steps(request: ApiRequest, data: JSONBody[p.ClaimRequest]) -> p.ClaimReply:
    """Lease up to `max` steps of the key's tenant that need one of these capabilities; wait if there are none. The same `claim_id` again
    returns the same leases, as far as they have not ended, and no others."""
    return p.ClaimReply(
        leases=await _claim(request, data), now=to_datetime(await request.server.leases.now_us())
    )


@post("/runner/messages", status_code=200, summary="Send a batch of messages")
async def send_messages(request: ApiRequest, data: JSONBody[p.MessageBatch]) -> p.MessageBatchReply:
    """Carries out the messages, in order for each lease, and then a claim. There is one answer for each message, in order."""
    if len(data.messages) > p.MESSAGES_MAX:
        raise TenureError("INVALID_INPUT", f"a request must have at most {p.MESSAGES_MAX} messages")
    if data.claim is not None:
        data.claim.check()
    answers = await request.server.messages.handle_batch(request.who, data.messages)
    leases = [] if data.claim is None else await _claim(request, data.claim)
    return p.MessageBatchReply(
        answers=answers, leases=leases, now=to_datetime(await request.server.leases.now_us())
    )


@get("/runner/leases/{lease_id:str}", summary="What the holder of a lease resumes from")
async def get_lease(
    request: ApiRequest,
    lease_id: FromPath[str],
    run: Annotated[
        bool, QueryParameter(description="With the run's input and the outputs of its steps.")
    ] = False,
) -> p.LeaseState:
    """The input, the checkpoints, waits and actions of the step, and the events that no wait has taken yet."""
    leases = request.server.leases
    held = await leases.read_records(await check_lease(request, lease_id))
    facts = None
    if run:
        found = await leases.read_run_facts(held.lease.run_id)
        facts = p.RunFacts(
            input=encode_payload(found.input),
            outputs={
                name: None if body is None else encode_payload(body) for name, body in found.outputs.items()
            },
            version=found.version,
            repo=found.repo,
            trigger=found.trigger,
        )
    return p.LeaseState(
        lease=LEASE.encode(held.lease),
        cancel=held.cancel,
        checkpoints=[CHECKPOINT.encode(row) for row in held.checkpoints],
        waits=[WAIT.encode(row) for row in held.waits],
        events=[
            p.BufferedEvent(
                name=row.name,
                event_id=row.event_id,
                source=row.source,
                received_at=to_datetime(row.received_at),
                payload=encode_payload(payload),
            )
            for row, payload in held.events
        ],
        acts=[ACT.encode(row) for row in held.acts],
        run=facts,
        now=to_datetime(held.now_us),
    )


@get("/runner/leases/{lease_id:str}/waits", summary="The waits of a lease's step")
async def list_lease_waits(
    request: ApiRequest,
    lease_id: FromPath[str],
    first: Annotated[int, QueryParameter(description="The lowest number.", ge=0, le=INTEGER_MAX)] = 0,
    last: Annotated[
        int, QueryParameter(description="The highest number.", ge=0, le=INTEGER_MAX)
    ] = INTEGER_MAX,
) -> list[p.OpenedWait]:
    """The waits from one number to another, with their results."""
    rows = await request.server.leases.read_waits(await check_lease(request, lease_id), first, last)
    return [WAIT.encode(row) for row in rows]


def _verb(verb: str, body: type[p.RunnerMessage]) -> HTTPRouteHandler:
    async def handle(request: ApiRequest, lease_id: FromPath[str], data: Any) -> p.MessageReply:
        return await request.server.messages.handle(await check_lease(request, lease_id), data)

    handle.__annotations__ = {
        "request": ApiRequest,
        "lease_id": FromPath[str],
        "data": JSONBody[body],  # type: ignore[misc, valid-type]  # known at run time
        "return": p.MessageReply,
    }
    handle.__name__ = f"say_{verb.replace('-', '_')}"
    handle.__doc__ = body.__doc__
    made = post(
        f"/runner/leases/{{lease_id:str}}/{verb}",
        status_code=200,
        summary=(body.__doc__ or verb).split("\n")[0],
    )
    return made(handle)


@post("/runner/leases/{lease_id:str}/act", status_code=200, summary="Perform an action")
async def perform_act(
    request: ApiRequest, lease_id: FromPath[str], data: JSONBody[p.ActCallMessage]
) -> p.ActCallReply:
    """The server performs an action if the policy of the lease's tenant allows it. The same label again is the same action: it is performed
    once, and the answer has its outcome."""
    lease, held_until = await request.server.leases.get_held(await check_lease(request, lease_id))
    acting = asyncio.ensure_future(
        request.server.engine.work_source.act(lease, ACT_CALL.decode(data), lambda: held_until)
    )
    # An act that was begun continues if the client disconnects. A repeated request gets its result.
    return ACT_REPLY.encode(await asyncio.shield(acting))


@get("/runner/actions", summary="The actions of the server")
async def list_actions(request: ApiRequest) -> p.ActionsReply:
    """The actions of its connectors. A worker that names them as capabilities (`tool:connector.operation`) gets steps that use them."""
    return p.ActionsReply(actions=sorted(await request.server.engine.work_source.actions()))


@put(
    "/runner/leases/{lease_id:str}/artifacts/{name:path}",
    status_code=200,
    summary="Upload an artifact",
    request_max_body_size=ARTIFACT_BYTES_MAX,
)
async def upload_artifact(request: ApiRequest, lease_id: FromPath[str]) -> p.UploadReply:
    """The body is the file. Under its digest as name (`sha256:<hex>`) it is a payload that is too large for a message: send `reference`
    in its place. For ten minutes after the lease's end it is accepted and marked late."""
    credential = await check_lease(request, lease_id)
    wanted, body = decode_rest_of_path(request.scope, 4), await request.body()
    stored = await request.server.leases.upload(
        credential, wanted, body, request.headers.get("content-type", "")
    )
    return p.UploadReply(
        name=wanted,
        size=len(body),
        digest=stored.digest,
        late=stored.late,
        reference=msgspec.json.decode(stored.reference),
    )


@get(
    "/runner/leases/{lease_id:str}/artifacts/{name:path}",
    media_type=CONTENT_TYPE,
    summary="Download an artifact",
)
async def download_artifact(
    request: ApiRequest,
    lease_id: FromPath[str],
    run: Annotated[
        str | None, QueryParameter(description="The id of another run of the tenant.", max_length=100)
    ] = None,
    step: ArtifactStep = None,
    attempt: ArtifactAttempt = None,
    late: ArtifactLate = None,
) -> Response[Any]:
    """A file by its name, as GET /runs/{id}/artifacts/{name} finds it, or a payload by its digest (`sha256:<hex>`)."""
    credential, wanted = await check_lease(request, lease_id), decode_rest_of_path(request.scope, 4)
    found = await request.server.leases.download(
        credential, wanted, run, step=step, attempt=attempt, late=late
    )
    return Response(found, media_type=CONTENT_TYPE) if isinstance(found, bytes) else send_file(request, found)


@post("/runner/register", status_code=200, summary="Register a worker")
async def register_worker(request: ApiRequest, data: JSONBody[p.RegisterRequest]) -> p.RegisterReply:
    """A worker sends its capabilities when it starts and every ten seconds, so that `why` knows which workers could take a step."""
    registration, process = request.server.leases.registration, data.process
    if data.leaves:
        await registration.delete_worker(request.who, data.worker)
    else:
        if process is not None:
            process.check()
        await registration.register_worker(
            request.who,
            data.worker,
            data.capabilities,
            data.slots,
            version=data.version,
            process=None if process is None else msgspec.structs.astuple(process),
        )
    return p.RegisterReply(refused=[])


@post("/runner/workflows", status_code=200, summary="Register the workflows of a worker")
async def register_workflows(request: ApiRequest, data: JSONBody[p.WorkflowsRequest]) -> p.RegisterReply:
    """The workflows that a worker serves. A version that is registered with another definition is refused and does not change."""
    register = request.server.leases.registration.register_workflow
    refused = [
        await register(request.who, one.name, one.version, one.kind, one.definition, one.digest)
        for one in data.workflows
    ]
    return p.RegisterReply(refused=[why for why in refused if why is not None])


HANDLERS = [
    claim_steps,
    send_messages,
    get_lease,
    list_lease_waits,
    *(_verb(verb, body) for verb, body in p.MESSAGES.items()),
    perform_act,
    list_actions,
    upload_artifact,
    download_artifact,
    register_worker,
    register_workflows,
]
