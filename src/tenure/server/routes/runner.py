"""The runner protocol over HTTP; `docs/runner-protocol.md` says how it is spoken.

Law: claims need a runner's key in the Authorization header (tokens are made with it), messages of a lease its token. A token
is good while the key is: whoever is shut out does not go on with what they hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from litestar import Response, get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, JSONBody, QueryParameter

from tenure.clock import to_datetime
from tenure.errors import TenureError
from tenure.limits import ARTIFACT_BYTES_MAX, INTEGER_MAX
from tenure.server.http.path_segments import decode_rest_of_path
from tenure.server.request import ApiRequest
from tenure.server.routes.run_parts import ArtifactAttempt, ArtifactLate, ArtifactStep
from tenure.server.runner.service import CONTENT_TYPE
from tenure.worker import protocol as p
from tenure.worker import protocol as ps

if TYPE_CHECKING:
    from tenure.store.remote_leases import LeaseCredential


def _secret(request: ApiRequest) -> str:
    """The secret of the key a request carries; the gate has checked it."""
    key = request.headers.get("authorization", "").rpartition(" ")[2]
    secret = key.split("_", 2)[-1]
    if not key.startswith("tn_") or not secret:
        raise TenureError("UNAUTHENTICATED", "a runner needs a key")
    return secret


async def _holder(request: ApiRequest, lease_id: str) -> LeaseCredential:
    """Who speaks for a lease."""
    service, gate = request.service, request.service.gate
    address = request.client.host if request.client else ""
    given = request.headers.get("authorization")
    try:
        ticket = await service.runners.tickets.by_header(
            lease_id, given, lambda: gate.check_guess_rate(address)
        )
    except TenureError as refused:
        if refused.code == "UNAUTHENTICATED":
            gate.note_refusal(address)
        raise
    if not await gate.allows(ticket.key_id, "runner"):
        raise TenureError("UNAUTHENTICATED")
    gate.check_key_rate(ticket.key_id)
    return ticket


@contextmanager
def _connected(request: ApiRequest) -> Iterator[Callable[[], bool]]:
    """Whether whoever asks is still there to be answered, and the server still wants to."""
    gone = asyncio.ensure_future(request.receive())
    stopping = request.service.stopping
    try:
        yield lambda: not (gone.done() or stopping.is_set())
    finally:
        gone.cancel()


@post("/runner/claim", status_code=200, summary="Take steps to work on")
async def claim_steps(request: ApiRequest, data: JSONBody[p.ClaimRequest]) -> p.ClaimReply:
    """Take up to `max` steps of the key's tenant that need one of these capabilities, and wait for some when there are
    none. The same `claim_id` again returns the same leases, as far as they are still live, and no others."""
    runners = request.service.runners
    with _connected(request) as connected:
        leases = await runners.claim(request.who, _secret(request), data, connected)
    return p.ClaimReply(leases=leases, now=to_datetime(await runners.now_us()))


@post("/runner/messages", status_code=200, summary="Send many messages of many leases")
async def send_messages(request: ApiRequest, data: JSONBody[p.MessageBatch]) -> p.MessageBatchReply:
    """Carry out messages, in order for each lease, and then a claim; one answer for each message, in order."""
    if len(data.messages) > p.MESSAGES_MAX:
        raise TenureError("INVALID_INPUT", f"a request has at most {p.MESSAGES_MAX} messages")
    runners = request.service.runners
    if data.claim is not None:
        data.claim.check()
    answers = await runners.handle_batch(request.who, data.messages)
    leases: list[p.GrantedLease] = []
    if data.claim is not None:
        with _connected(request) as connected:
            leases = await runners.claim(request.who, _secret(request), data.claim, connected)
    return p.MessageBatchReply(answers=answers, leases=leases, now=to_datetime(await runners.now_us()))


@get("/runner/leases/{lease_id:str}", summary="What a lease's holder goes on from")
async def get_lease(
    request: ApiRequest,
    lease_id: FromPath[str],
    run: Annotated[
        bool, QueryParameter(description="With the run's input and the outputs of its steps.")
    ] = False,
) -> ps.LeaseState:
    """Its input, what its step has recorded and waited for, and the events that nobody has taken yet."""
    runners = request.service.runners
    ticket = await _holder(request, lease_id)
    return await runners.state(ticket, with_run=run)


@get("/runner/leases/{lease_id:str}/waits", summary="What a lease's step waits and waited for")
async def list_lease_waits(
    request: ApiRequest,
    lease_id: FromPath[str],
    first: Annotated[int, QueryParameter(description="The lowest number.", ge=0, le=INTEGER_MAX)] = 0,
    last: Annotated[
        int, QueryParameter(description="The highest number.", ge=0, le=INTEGER_MAX)
    ] = INTEGER_MAX,
) -> list[ps.OpenedWait]:
    """Its waits from one number to another, with their answers."""
    ticket = await _holder(request, lease_id)
    return await request.service.runners.waits(ticket, first, last)


def _verb(verb: str, body: type[p.RunnerMessage]) -> HTTPRouteHandler:
    async def handle(request: ApiRequest, lease_id: FromPath[str], data: Any) -> p.MessageReply:
        runners = request.service.runners
        ticket = await _holder(request, lease_id)
        return await runners.say(ticket, data)

    handle.__annotations__ = {
        "request": ApiRequest,
        "lease_id": FromPath[str],
        "data": JSONBody[body],  # type: ignore[misc, valid-type]  # known when it runs
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


@post("/runner/leases/{lease_id:str}/act", status_code=200, summary="Have something done to the world")
async def perform_act(
    request: ApiRequest, lease_id: FromPath[str], data: JSONBody[ps.ActCallMessage]
) -> ps.ActCallReply:
    """Have the server do an action, as the policy of the lease's tenant allows it. The same label again is the same act: it is
    done once, and answered with what became of it."""
    ticket = await _holder(request, lease_id)
    return await request.service.runners.act(ticket, data)


@get("/runner/actions", summary="What the server can do to the world")
async def list_actions(request: ApiRequest) -> ps.ActionsReply:
    """The actions of its connectors: a worker that names them (`tool:connector.operation`) is given steps that use them."""
    return ps.ActionsReply(actions=await request.service.runners.actions())


@put(
    "/runner/leases/{lease_id:str}/artifacts/{name:path}",
    status_code=200,
    summary="Upload an artifact",
    request_max_body_size=ARTIFACT_BYTES_MAX,
)
async def upload_artifact(
    request: ApiRequest, lease_id: FromPath[str], name: FromPath[Path]
) -> p.UploadReply:
    """The body is the file, as it is. Under a name that is its digest (`sha256:<hex>`) it is a payload that is too large
    for a message: send `reference` in its place. After the lease's end it is accepted for ten minutes, and marked late."""
    del name  # routing decodes it; this is as it was sent
    runners = request.service.runners
    ticket = await _holder(request, lease_id)
    kind = request.headers.get("content-type", "")
    return await runners.upload(ticket, decode_rest_of_path(request.scope, 4), await request.body(), kind)


@get(
    "/runner/leases/{lease_id:str}/artifacts/{name:path}",
    media_type=CONTENT_TYPE,
    summary="Download an artifact",
)
async def download_artifact(
    request: ApiRequest,
    lease_id: FromPath[str],
    name: FromPath[Path],
    run: Annotated[
        str | None, QueryParameter(description="Of another run of the tenant: its id.", max_length=100)
    ] = None,
    step: ArtifactStep = None,
    attempt: ArtifactAttempt = None,
    late: ArtifactLate = None,
) -> Response[bytes]:
    """A file of the run by its name, as GET /runs/{id}/artifacts/{name} finds it, or a payload by its digest (`sha256:<hex>`)."""
    del name  # routing decodes it; this is as it was sent
    runners = request.service.runners
    ticket = await _holder(request, lease_id)
    wanted = decode_rest_of_path(request.scope, 4)
    body = await runners.download(ticket, wanted, run, step=step, attempt=attempt, late=late)
    return Response(body, media_type=CONTENT_TYPE)


@post("/runner/register", status_code=200, summary="Say that a worker is here")
async def register_worker(request: ApiRequest, data: JSONBody[p.RegisterRequest]) -> p.RegisterReply:
    """A worker says what it can do, when it starts and every ten seconds, so that `why` can tell who could take a step."""
    runners = request.service.runners
    if data.leaves:
        await runners.left(request.who, data.worker)
    else:
        await runners.seen(
            request.who, data.worker, data.capabilities, data.slots, data.version, data.process
        )
    return p.RegisterReply(refused=[])


@post("/runner/workflows", status_code=200, summary="Register the workflows of a worker")
async def register_workflows(request: ApiRequest, data: JSONBody[p.WorkflowsRequest]) -> p.RegisterReply:
    """A worker's workflows, for people to look at. A version that is registered as something else stays as it is."""
    return p.RegisterReply(refused=await request.service.runners.register(request.who, data.workflows))


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
