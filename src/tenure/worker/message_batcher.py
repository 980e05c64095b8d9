"""Messages to a server: collected while a request is under way, and sent together in the next one.

Laws:
1. Messages of one lease are sent in order. A batch has at most one `exclusive` message of a lease: the server keeps the reply to a
   lease's last one, so that it can be repeated.
2. Every message gets one reply, or the error of its batch. If the server refuses a whole batch because of a message in it, the batch is
   halved until that message is alone, so that only it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from tenure.errors import CODES, TenureError
from tenure.futures import fail_future
from tenure.kernel.lease_types import LeaseKey, LeaseReply
from tenure.worker import protocol as p
from tenure.worker.protocol_codec import REPLY

BATCH_BYTES_MAX = 768 * 1024
"""Less than a server accepts as one body."""
BATCH_MESSAGES_MAX = 500
CLOSE_SECONDS = 5.0
BODY_REFUSED_CODES = frozenset({"INVALID_INPUT", "REQUEST_MALFORMED", "PAYLOAD_TOO_LARGE"})
"""Refusals of a whole request that a single message may have caused."""


class EncodedMessage(msgspec.Struct, frozen=True):
    content: bytes
    key: LeaseKey
    exclusive: bool
    """Whether its reply must be known before the lease's next such message is sent; see law 1."""


_Queued = tuple[EncodedMessage, asyncio.Future[LeaseReply]]


class MessageBatcher:
    def __init__(self, send: Callable[[list[bytes]], Awaitable[list[p.MessageReply]]]) -> None:
        self._send = send
        self._waiting: list[_Queued] = []
        self._sending: asyncio.Task[None] | None = None

    def put(self, message: EncodedMessage) -> asyncio.Future[LeaseReply]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[LeaseReply] = loop.create_future()
        self._waiting.append((message, future))
        if self._sending is None or self._sending.done():
            self._sending = loop.create_task(self._send_all())
        return future

    async def close(self) -> None:
        """Wait up to CLOSE_SECONDS for messages that are on their way, and fail the others."""
        if self._sending is not None and not self._sending.done():
            await asyncio.wait((self._sending,), timeout=CLOSE_SECONDS)
            self._sending.cancel()
            with suppress(asyncio.CancelledError):
                await self._sending
        _fail(self._waiting, TenureError("UPSTREAM_UNAVAILABLE", "the worker is stopping"))
        self._waiting = []

    async def _send_all(self) -> None:
        await asyncio.sleep(0)  # messages of the same turn of the loop share a batch
        while self._waiting:
            await self._send_batch(self._take_batch())

    async def _send_batch(self, batch: list[_Queued]) -> None:
        try:
            replies = await self._send([message.content for message, _ in batch])
        except asyncio.CancelledError:
            _fail(batch, TenureError("UPSTREAM_UNAVAILABLE", "the worker is stopping"))
            raise
        except Exception as fault:
            refused = isinstance(fault, TenureError) and fault.code in BODY_REFUSED_CODES
            if not refused or len(batch) == 1:
                _fail(batch, fault)
                return
            half = len(batch) // 2
            await self._send_batch(batch[:half])
            await self._send_batch(batch[half:])
            return
        for (_, future), reply in zip(batch, replies, strict=True):
            if reply.error is not None:
                fail_future(future, _to_lease_error(reply.error))
            elif not future.done():
                future.set_result(REPLY.decode(reply))

    def _take_batch(self) -> list[_Queued]:
        batch: list[_Queued] = []
        left: list[_Queued] = []
        exclusive: set[LeaseKey] = set()
        blocked: set[LeaseKey] = set()
        size = 0
        for at, (message, future) in enumerate(self._waiting):
            length = len(message.content) + 1
            if batch and (size + length > BATCH_BYTES_MAX or len(batch) >= BATCH_MESSAGES_MAX):
                left += self._waiting[at:]
                break
            if message.key in blocked or (message.exclusive and message.key in exclusive):
                blocked.add(message.key)
                left.append((message, future))
                continue
            if message.exclusive:
                exclusive.add(message.key)
            size += length
            batch.append((message, future))
        self._waiting = left
        return batch


def _fail(batch: list[_Queued], fault: Exception) -> None:
    for _, future in batch:
        fail_future(future, fault)


def _to_lease_error(fault: p.MessageFault) -> TenureError:
    """The error of a refused message. A token that the server does not know means that the lease has ended."""
    code = "LEASE_STALE" if fault.code == "UNAUTHENTICATED" else fault.code
    if code not in CODES:
        code = "UPSTREAM_UNAVAILABLE" if fault.retryable else "INTERNAL_ERROR"
    return TenureError(code, fault.message)
