"""Requests under an idempotency key: each is carried out once, and every repeat gets the same answer.

Laws:
1. A key is sent as Idempotency-Key, X-Idempotency-Key or X-Request-ID (a setting switches the last one off). If two of them
   differ, the request is refused. A key belongs to the client, not to its credential: `api:CLIENT:KEY`.
2. Two requests are the same if method, route, path and canonical body are equal. Requests without a key are never the same.
3. A refused request (4xx) leaves its key unused. A failed one (5xx) may be tried three times.

A route that makes or delivers something::

    async def operation(held: HeldRecord | None) -> StoredResponse: ...

    return await idempotent(request, operation)

`held` is None if the request has no key. An operation that makes a run gives it the record's name as its key and the
record's hash (`held.record.name`, `.request_hash`), so that the process that takes over after a crash finds the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import structlog
from litestar import Response

from tenure.canonical import canonical
from tenure.errors import TenureError
from tenure.limits import KEY_CHARS_MAX
from tenure.server.error_responses import encode_error, to_tenure_error
from tenure.services.idempotency import (
    HeldRecord,
    IdempotencyRecords,
    KeyedRequest,
    StoredResponse,
    replay_response,
)
from tenure.work_pool import LARGE_BYTES, run_in_pool

if TYPE_CHECKING:
    from tenure.server.request import ApiRequest

log = structlog.get_logger(__name__)

_HEADERS = (b"idempotency-key", b"x-idempotency-key", b"x-request-id")

Operation = Callable[[HeldRecord | None], Awaitable[StoredResponse]]


def key_from_headers(headers: Iterable[tuple[bytes, bytes]], *, request_id_is_key: bool = True) -> str | None:
    """The key of a request (law 1)."""
    wanted = _HEADERS if request_id_is_key else _HEADERS[:2]
    found = {value for name, value in headers if name in wanted}
    if not found:
        return None
    if len(found) > 1:
        raise TenureError(
            "REQUEST_MALFORMED",
            "Idempotency-Key, X-Idempotency-Key and X-Request-ID differ; send one of them",
        )
    return check_key(found.pop().decode("latin-1"))


def check_key(key: str) -> str:
    if not 1 <= len(key) <= KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
        raise TenureError(
            "REQUEST_MALFORMED", f"an idempotency key has 1 to {KEY_CHARS_MAX} printable characters"
        )
    return key


def hash_request(method: str, route: str, path: str, body: Any) -> bytes:
    """The hash of a request (law 2). The body is decoded JSON; other bodies are hashed as their bytes."""
    digest = sha256()
    for part in (method.encode(), route.encode(), path.encode()):
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    digest.update(body if isinstance(body, bytes) else canonical(body))
    return digest.digest()


def format_key(client: str, key: str) -> str:
    """A caller's key, as records and runs store it."""
    return f"api:{client}:{key}"


async def key_request(
    scope: Any, key: str, value: Any, *, large: bool, run_id: int | None = None
) -> KeyedRequest:
    """A request under its caller's key. `value` is its decoded body, `scope` its ASGI scope."""
    who = scope["user"]
    name = scope["state"]["keyed"] = format_key(who.id, key)  # the middleware counts it with the answer
    parts = (scope["method"], scope["path_template"], scope["path"], value)
    hashed = await run_in_pool(hash_request, *parts) if large else hash_request(*parts)
    return KeyedRequest(tenant=who.tenant, source="api", name=name, hash=hashed, run_id=run_id)


async def keyed(request: ApiRequest, *, run_id: int | None = None) -> KeyedRequest | None:
    """The request under its caller's key, if it has one."""
    scope = request.scope
    key = key_from_headers(scope["headers"], request_id_is_key=request.server.settings.request_id_is_key)
    if key is None:
        return None
    body = await request.body()
    value = await request.value() if body else b""
    return await key_request(scope, key, value, large=len(body) > LARGE_BYTES, run_id=run_id)


async def idempotent(
    request: ApiRequest, operation: Operation, *, run_id: int | None = None
) -> Response[Any]:
    """Carry out a request once under its key; without a key, every time. `run_id`: the run it is about."""
    wanted = await keyed(request, run_id=run_id)
    return to_response(
        await _execute_once(request.server.keys, wanted, operation, request_id=request.request_id)
    )


async def create_once(request: ApiRequest, create: Callable[[], Awaitable[Any]], path: str) -> Response[Any]:
    """Create something with an id once under the request's key, and answer 201 with its location below `path`."""

    async def operation(_held: HeldRecord | None) -> StoredResponse:
        made = await create()
        return StoredResponse.of(made, 201, location=f"{path}/{made.id}")

    return await idempotent(request, operation)


def to_response(answer: StoredResponse) -> Response[Any]:
    return Response(
        answer.body, status_code=answer.status, media_type="application/json", headers=answer.headers()
    )


async def _execute_once(
    keys: IdempotencyRecords, wanted: KeyedRequest | None, operation: Operation, *, request_id: str
) -> StoredResponse:
    """Carry out an operation under its key. Once begun, it is finished even if the client disconnects."""
    if wanted is None:
        return await operation(None)
    begun = await keys.begin(wanted)
    if isinstance(begun, HeldRecord):
        return await asyncio.shield(
            asyncio.ensure_future(_execute(keys, begun, wanted, operation, request_id))
        )
    return replay_response(begun, wanted.hash)


async def _execute(
    keys: IdempotencyRecords, held: HeldRecord, wanted: KeyedRequest, operation: Operation, request_id: str
) -> StoredResponse:
    try:
        answer = await operation(held)
    except Exception as fault:
        error = to_tenure_error(fault)
        try:
            if error.spec.status < 500:
                await keys.drop(held)
            else:
                failed = StoredResponse(status=error.spec.status, body=encode_error(error, request_id))
                await keys.fail(held, failed.stores(), error.code)
        except TenureError as lost:  # the record's lock expires, and another request takes it over
            log.warning("idempotency_record_kept", request_id=request_id, error=lost.code)
        raise
    try:
        await keys.complete(held, wanted, answer.stores(), answer.run_id)
    except TenureError as lost:  # the work is done; a repeat gets the answer once the lock has expired
        log.warning("idempotency_record_kept", request_id=request_id, error=lost.code)
    return answer
