"""Messages on their way to a server: collected while the last request is under way, and sent together.

Laws:
1. Messages of one lease go in the order in which they were said. One that has an answer of its own (`alone`) is in a batch
   with no other such of its lease: the server keeps the answer to a lease's last one, so each can be repeated.
2. Every message is answered once: by the server, or with the error its batch ended with. A batch that is refused as it is
   is divided until the guilty message is alone: the others have nothing to do with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from tenure.errors import CODES, TenureError
from tenure.futures import fail
from tenure.kernel.decide.leases import Reply
from tenure.orchestrator.heartbeats import LeaseKey
from tenure.worker import protocol as p
from tenure.worker.wording import heard

BATCH_BYTES_MAX = 768 * 1024
"""Below what a server takes as one body."""
BATCH_MESSAGES_MAX = 500
CLOSE_SECONDS = 5.0
ABOUT_THE_BODY = frozenset({"INVALID_INPUT", "REQUEST_MALFORMED", "PAYLOAD_TOO_LARGE"})
"""Refusals of a whole request that one message in it may have caused."""


class Spoken(msgspec.Struct, frozen=True):
    """A message, encoded."""

    content: bytes
    key: LeaseKey
    alone: bool


class Pipe:
    """See the laws above."""

    def __init__(self, send: Callable[[list[bytes]], Awaitable[list[p.Answer]]]) -> None:
        self._send = send
        self._waiting: list[tuple[Spoken, asyncio.Future[Reply]]] = []
        self._sending: asyncio.Task[None] | None = None

    def put(self, spoken: Spoken) -> asyncio.Future[Reply]:
        """Send a message with the next batch; the future is its answer."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        self._waiting.append((spoken, future))
        if self._sending is None or self._sending.done():
            self._sending = loop.create_task(self._pump())
        return future

    async def close(self) -> None:
        """Wait a while for what is on its way."""
        if self._sending is not None and not self._sending.done():
            await asyncio.wait((self._sending,), timeout=CLOSE_SECONDS)
            self._sending.cancel()
            with suppress(asyncio.CancelledError):
                await self._sending
        _fail(self._waiting, TenureError("UPSTREAM_UNAVAILABLE", "the worker stops"))
        self._waiting = []

    async def _pump(self) -> None:
        await asyncio.sleep(0)  # what is said in the same breath goes along
        while self._waiting:
            await self._say(self._take())

    async def _say(self, batch: list[tuple[Spoken, asyncio.Future[Reply]]]) -> None:
        try:
            answers = await self._send([spoken.content for spoken, _ in batch])
        except asyncio.CancelledError:
            _fail(batch, TenureError("UPSTREAM_UNAVAILABLE", "the worker stops"))
            raise
        except Exception as fault:
            about_it = isinstance(fault, TenureError) and fault.code in ABOUT_THE_BODY
            if not about_it or len(batch) == 1:
                _fail(batch, fault)
                return
            half = len(batch) // 2
            await self._say(batch[:half])
            await self._say(batch[half:])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            _settle(future, answer)

    def _take(self) -> list[tuple[Spoken, asyncio.Future[Reply]]]:
        """The next batch; see law 1."""
        batch: list[tuple[Spoken, asyncio.Future[Reply]]] = []
        left: list[tuple[Spoken, asyncio.Future[Reply]]] = []
        answering: set[LeaseKey] = set()
        behind: set[LeaseKey] = set()
        size = 0
        for at, (spoken, future) in enumerate(self._waiting):
            size += len(spoken.content) + 1
            if batch and (size > BATCH_BYTES_MAX or len(batch) >= BATCH_MESSAGES_MAX):
                left += self._waiting[at:]
                break
            key = spoken.key
            if key in behind or (spoken.alone and key in answering):
                behind.add(key)
                size -= len(spoken.content) + 1
                left.append((spoken, future))
                continue
            if spoken.alone:
                answering.add(key)
            batch.append((spoken, future))
        self._waiting = left
        return batch


def _fail(batch: list[tuple[Spoken, asyncio.Future[Reply]]], fault: Exception) -> None:
    for _, future in batch:
        fail(future, fault)


def _settle(future: asyncio.Future[Reply], answer: p.Answer) -> None:
    if future.done():
        return
    if answer.error is None:
        future.set_result(heard(answer))
    else:
        fail(future, error_of(answer.error))


def error_of(fault: p.Fault) -> TenureError:
    """What a message was refused with. A token that is not known any more is a lease that is not ours."""
    code = "LEASE_STALE" if fault.code == "UNAUTHENTICATED" else fault.code
    if code not in CODES:
        code = "UPSTREAM_UNAVAILABLE" if fault.retryable else "INTERNAL_ERROR"
    return TenureError(code, fault.message)
