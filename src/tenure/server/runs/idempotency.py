"""Requests under a key: done once, and answered the same however often they come.

Laws:
1. A key is given as Idempotency-Key, X-Idempotency-Key or X-Request-ID (which a setting switches off); two of them that
   differ are refused. It belongs to the client, not to its credential: `api:CLIENT:KEY`.
2. Two requests are the same if method, route, path and canonical body are. Without a key no request is.
3. An answer is stored as the bytes that were sent: a replay repeats status, Location and body, and says that it is one.
4. What is refused (4xx) leaves the key unused. What fails (5xx) may be tried three times.
5. A request in process answers the same one 202 and any other 409; a finished one any other 422.

For what makes or delivers something::

    async def operation(held: Held | None) -> Answer: ...

    return await idempotent(request, operation)                  # the caller's key
    answer = await once(service.keys, Request(...), operation)   # a key of one's own (hooks)

`held` is None where there is no key. An operation that makes a run gives it the record's name as its key and the
request's hash as its own (`held.record.name`, `.request_hash`), so that whoever takes over after a crash finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from typing import Any

import msgspec
import structlog
from litestar import Response

from tenure import ids
from tenure.canonical import canonical
from tenure.errors import TenureError
from tenure.kernel.decide.keyed import refused
from tenure.kernel.model import Idempotency
from tenure.limits import KEY_CHARS_MAX
from tenure.server.call import Call
from tenure.server.problems import body_of, named
from tenure.server.work import LARGE_BYTES, run_aside
from tenure.store.keys import Held, Keys, Request

log = structlog.get_logger(__name__)

__all__ = ["Answer", "Held", "InProcess", "Keys", "Request", "given_key", "hash_of", "idempotent", "once"]

_HEADERS = (b"idempotency-key", b"x-idempotency-key", b"x-request-id")
IN_PROCESS_RETRY_SECONDS = 1


class InProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The same request is being processed."""

    status: str = "processing"
    run_id: str | None = None
    """The run it is about, where that is known."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is answered, as it is stored and sent."""

    status: int
    body: bytes
    """JSON."""
    location: str | None = None
    run_id: int | None = None
    """The run it made or is about."""
    replayed: bool = False
    retry_after: int | None = None

    @classmethod
    def of(
        cls, value: Any, status: int = 200, *, location: str | None = None, run_id: int | None = None
    ) -> Answer:
        """An answer with this value as its body."""
        return cls(status=status, body=msgspec.json.encode(value), location=location, run_id=run_id)

    @classmethod
    def stored(cls, record: Idempotency) -> Answer:
        """The answer that a record keeps."""
        head, _, body = (record.response or b"").partition(b"\n")
        status, _, location = head.decode().partition(" ")
        return cls(
            status=int(status), body=body, location=location or None, run_id=record.run_id, replayed=True
        )

    def stores(self) -> bytes:
        """As a record keeps it: a line with status and Location, then the body's bytes."""
        head = str(self.status) if self.location is None else f"{self.status} {self.location}"
        return head.encode() + b"\n" + self.body

    def headers(self) -> dict[str, str]:
        """What is sent besides."""
        headers: dict[str, str] = {}
        if self.location is not None:
            headers["Location"] = self.location
        if self.replayed:
            headers["Idempotency-Replayed"] = "true"
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        return headers

    def response(self) -> Response[Any]:
        """As it is sent."""
        return Response(
            self.body, status_code=self.status, media_type="application/json", headers=self.headers()
        )


Operation = Callable[[Held | None], Awaitable[Answer]]


def given_key(headers: Iterable[tuple[bytes, bytes]], *, request_id_is_key: bool = True) -> str | None:
    """The key a request comes with (law 1)."""
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
    """A key that can be one."""
    if not 1 <= len(key) <= KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
        raise TenureError(
            "REQUEST_MALFORMED", f"an idempotency key has 1 to {KEY_CHARS_MAX} printable characters"
        )
    return key


def hash_of(method: str, route: str, path: str, body: Any) -> bytes:
    """What makes two requests the same one (law 2); the body is decoded JSON, or other bytes as they are."""
    digest = sha256()
    for part in (method.encode(), route.encode(), path.encode()):
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    digest.update(body if isinstance(body, bytes) else canonical(body))
    return digest.digest()


def key_text(client: str, key: str) -> str:
    """A caller's key as records and runs have it."""
    return f"api:{client}:{key}"


async def keyed(request: Call, *, run_id: int | None = None) -> Request | None:
    """The request under its caller's key, if it has one."""
    key = given_key(request.scope["headers"], request_id_is_key=request.service.settings.request_id_is_key)
    if key is None:
        return None
    who, scope = request.who, request.scope
    body = await request.body()
    asked = (scope["method"], scope["path_template"], scope["path"], await request.value() if body else b"")
    hashed = await run_aside(hash_of, *asked) if len(body) > LARGE_BYTES else hash_of(*asked)
    name = key_text(who.id, key)
    scope["state"]["keyed"] = name  # to be counted with its answer
    return Request(tenant=who.tenant, source="api", name=name, hash=hashed, run_id=run_id)


async def idempotent(request: Call, operation: Operation, *, run_id: int | None = None) -> Response[Any]:
    """Do what the caller asks once under its key; without one, just do it. `run_id`: the run it is about."""
    wanted = await keyed(request, run_id=run_id)
    answer = await once(request.service.keys, wanted, operation, request_id=request.request_id)
    return answer.response()


async def once(keys: Keys, wanted: Request | None, operation: Operation, *, request_id: str = "") -> Answer:
    """Do something once under a key; see the laws. Who asked may go away: what was begun is finished all the same."""
    if wanted is None:
        return await operation(None)
    begun = await keys.begin(wanted)
    if isinstance(begun, Held):
        return await asyncio.shield(asyncio.ensure_future(_do(keys, begun, wanted, operation, request_id)))
    return replayed(begun, wanted.hash)


def replayed(record: Idempotency, asked: bytes) -> Answer:
    """What a request is answered whose key somebody has (law 5)."""
    run = None if record.run_id is None else ids.run_text(record.run_id)
    if record.request_hash != asked:
        raise refused(record)
    if record.status == "processing":
        body = msgspec.json.encode(InProcess(run_id=run))
        return Answer(status=202, body=body, run_id=record.run_id, retry_after=IN_PROCESS_RETRY_SECONDS)
    return Answer.stored(record)


async def _do(keys: Keys, held: Held, wanted: Request, operation: Operation, request_id: str) -> Answer:
    try:
        answer = await operation(held)
    except Exception as fault:
        error = named(fault)
        try:
            if error.spec.status < 500:
                await keys.drop(held)
            else:
                failed = Answer(status=error.spec.status, body=body_of(error, request_id))
                await keys.fail(held, failed.stores(), error.code)
        except TenureError as lost:  # the lock expires, and somebody takes over
            log.warning("idempotency_record_kept", request_id=request_id, error=lost.code)
        raise
    try:
        await keys.complete(held, wanted, answer.stores(), answer.run_id)
    except TenureError as lost:  # it is done; whoever asks again is told so once the lock has expired
        log.warning("idempotency_record_kept", request_id=request_id, error=lost.code)
    return answer
