"""The work source of a remote worker: a server, over the runner protocol.

Laws:
1. Messages that are submitted while a request is under way go with the next one; see `MessageBatcher`. All but checkpoints, heartbeats
   and log lines are exclusive.
2. A request without a response is sent again unchanged (the same claim id, the same sequence numbers): the server finds out whether it
   was carried out. After a while the message fails with UPSTREAM_UNAVAILABLE, and may be submitted again.
3. A lease that the server does not know, or knows to have ended, is lost. While the server cannot be reached, the heartbeater decides by
   the clock since boot whether a lease is still ours.
4. The key is sent only to the server it was given for, in a header.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import msgspec

from tenure import clock, ids
from tenure.artifacts import ArtifactReference
from tenure.clock import HostClock, to_datetime, to_micros, us
from tenure.errors import TenureError
from tenure.futures import fail_future, ignore_outcome
from tenure.kernel.commands import Heartbeat, LeaseCommand, RecordCheckpoint
from tenure.kernel.lease_types import Lease, LeaseKey, LeaseReply
from tenure.kernel.registry_rows import LogLineRow
from tenure.logs import get_logger
from tenure.processes import own_identity
from tenure.sdk.act_request import ActRequest, ActResult
from tenure.sdk.definitions import Workflow
from tenure.sdk.replay_log import ReplayLog
from tenure.store.replay import ReplayWait
from tenure.worker import protocol as p
from tenure.worker.connection import RunnerConnection
from tenure.worker.heartbeat import REPLY_UNKNOWN, HeartbeatCallback, Heartbeater
from tenure.worker.message_batcher import EncodedMessage, MessageBatcher
from tenure.worker.protocol_codec import (
    ACT,
    ACT_CALL,
    ACT_REPLY,
    CHECKPOINT,
    GRANTED_LEASE,
    REPLY,
    WAIT,
    encode_message,
)
from tenure.worker.timers import HOST_TIMERS, Timers
from tenure.worker.wire_values import format_lease_id
from tenure.worker.work_source import (
    LOG_LINES_WAITING_MAX,
    LOG_PAUSE_SECONDS,
    SESSION_BITS,
    heartbeat_for,
    lease_key,
)

log = get_logger(__name__)

BATCHERS = 2
"""As many as the server has commit lanes: one batch is carried out while the next is on its way."""
POLL_SECONDS = 5.0
"""How long a claim waits for work at the server."""
REGISTER_SECONDS = 15.0
_HOST = HostClock()
_encode = msgspec.json.Encoder().encode
_decode_batch_reply = msgspec.json.Decoder(p.MessageBatchReply).decode
_decode_claim_reply = msgspec.json.Decoder(p.ClaimReply).decode
_decode_state = msgspec.json.Decoder(p.LeaseState).decode
_decode_waits = msgspec.json.Decoder(list[p.OpenedWait]).decode
_decode_act_reply = msgspec.json.Decoder(p.ActCallReply).decode
_decode_upload_reply = msgspec.json.Decoder(p.UploadReply).decode


class RemoteWorkSource:
    timers: Timers = HOST_TIMERS

    def __init__(self, server: str, key: str) -> None:
        self._connection = RunnerConnection(server, key)
        self._make_channel = partial(_ServerHeartbeatChannel, server, key, self)
        self._batchers = [MessageBatcher(self.send) for _ in range(BATCHERS)]
        self.tokens: dict[LeaseKey, str] = {}
        self._actions: list[str] | None = None
        self.session = secrets.randbits(SESSION_BITS) if own_identity() is not None else None
        self._ids = ids.RunIds()
        self._clock_offset_us: int | None = None
        """The server's time minus the clock since boot."""
        self._lines: dict[LeaseKey, list[p.LogEntry]] = {}
        self._line_count = 0
        self._ended: set[LeaseKey] = set()
        """Leases that have ended and still have lines to send."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._flushing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for batcher in self._batchers:
            await batcher.close()
        await self._connection.close()

    # ----------------------------------------------------------------------------------------- claims

    async def claim(self, worker: str, queues: Sequence[str], limit: int, wait_seconds: float) -> list[Lease]:
        """Lease up to `limit` steps; the claim waits for them at the server. A caller that is canceled ends the claim there, and still gets
        the leases that were granted."""
        wait_s = max(wait_seconds, POLL_SECONDS)
        request = p.ClaimRequest(
            claim_id=secrets.token_hex(12),
            capabilities=tuple(queues),
            max=limit,
            wait_s=wait_s,
            worker=worker,
            ack=True,
            session=self.session,
        )
        asked_at = clock.boot_seconds()
        claiming = asyncio.ensure_future(self._claim(request, asked_at))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            end = msgspec.structs.replace(request, max=0, wait_s=0.0)
            ending = asyncio.ensure_future(self._claim(end, asked_at))
            ending.add_done_callback(ignore_outcome)
            try:
                return await claiming or await ending
            finally:
                ending.cancel()

    async def _claim(self, request: p.ClaimRequest, asked_at: float) -> list[Lease]:
        reply = _decode_claim_reply(await self._connection.claim(_encode(request), request.wait_s))
        self._set_time(reply.now)
        return [self._accept(lease, to_micros(reply.now), asked_at) for lease in reply.leases]

    async def renew(self, lease: Lease) -> bool:
        try:
            (reply,) = await self.send([self._encode_message(heartbeat_for(lease, "")).content])
        except TenureError as refused:
            log.warning("lease_not_renewed", lease=format_lease_id(*lease_key(lease)), error=refused.code)
            return False
        return reply.error is None and reply.state != "ignored"

    def _accept(self, granted: p.GrantedLease, granted_at: int, asked_at: float) -> Lease:
        lease = GRANTED_LEASE.decode(granted, {"granted_at": granted_at, "asked_at": asked_at})
        self.tokens[lease_key(lease)] = granted.token
        return lease

    async def wait_for_work(self, wait_seconds: float) -> None:
        """The claim has waited at the server already."""
        del wait_seconds

    def forget_lease(self, lease: Lease) -> None:
        key = lease_key(lease)
        if key in self._lines:
            self._ended.add(key)
        else:
            self.tokens.pop(key, None)

    # ------------------------------------------------------------------------------------ messages

    def submit(self, message: LeaseCommand) -> asyncio.Future[LeaseReply]:
        try:
            encoded = self._encode_message(message)
        except TenureError as refused:
            failed: asyncio.Future[LeaseReply] = self._loop.create_future()
            fail_future(failed, refused)
            return failed
        if encoded.exclusive and encoded.key in self._lines:
            self._flush(encoded.key)  # this message may end the lease, and later lines would be late
        return self._batchers[message.run_id % BATCHERS].put(encoded)

    def _encode_message(self, message: LeaseCommand) -> EncodedMessage:
        key = (message.run_id, message.idx, message.n)
        token = self.tokens.get(key)
        if token is None:
            raise TenureError("LEASE_STALE", "the lease has ended")
        exclusive = not isinstance(message, RecordCheckpoint | Heartbeat)
        return EncodedMessage(_encode(encode_message(message, format_lease_id(*key), token)), key, exclusive)

    async def send(self, contents: list[bytes]) -> list[p.MessageReply]:
        body = b'{"messages":[' + b",".join(contents) + b"]}"
        reply = _decode_batch_reply(await self._connection.post("/runner/messages", body))
        self._set_time(reply.now)
        return reply.answers

    def make_heartbeater(self, on_replies: HeartbeatCallback) -> Heartbeater:
        return Heartbeater(self._make_channel, on_replies)

    # ------------------------------------------------------------------------------------------ reads

    async def _state(self, lease: Lease) -> p.LeaseState:
        path = f"/runner/leases/{format_lease_id(*lease_key(lease))}"
        state = _decode_state(await self._connection.get(path, self._token(lease)))
        self._set_time(state.now)
        return state

    def _token(self, lease: Lease) -> str:
        token = self.tokens.get(lease_key(lease))
        if token is None:
            raise TenureError("LEASE_STALE", "the lease has ended")
        return token

    async def load_replay_log(self, lease: Lease) -> ReplayLog:
        state = await self._state(lease)
        return ReplayLog(
            map(CHECKPOINT.decode, state.checkpoints),
            map(WAIT.decode, state.waits),
            map(ACT.decode, state.acts),
        )

    async def load_waits(self, lease: Lease, first: int, last: int) -> list[ReplayWait]:
        path = f"/runner/leases/{format_lease_id(*lease_key(lease))}/waits?first={first}&last={last}"
        return [
            WAIT.decode(row) for row in _decode_waits(await self._connection.get(path, self._token(lease)))
        ]

    async def act(self, lease: Lease, request: ActRequest, held_until: Callable[[], float]) -> ActResult:
        """Have the server's governor act: policy, secrets and the call stay there."""
        del held_until  # the server knows its leases
        body = _encode(ACT_CALL.encode(request))
        reply = await self._connection.act(
            format_lease_id(*lease_key(lease)), body, self._token(lease), p.ACT_SECONDS_MAX
        )
        return ACT_REPLY.decode(_decode_act_reply(reply))

    async def actions(self) -> Sequence[str]:
        """Asked for once."""
        if self._actions is None:
            try:
                reply = await self._connection.get("/runner/actions")
            except TenureError as refused:
                if refused.code != "NOT_FOUND":  # an older server without actions
                    raise
                reply = b'{"actions":[]}'
            self._actions = msgspec.json.decode(reply, type=p.ActionsReply).actions
        return self._actions

    def system_workflows(self) -> Sequence[Workflow[..., Any]]:
        """None: they need the database."""
        return ()

    async def store_artifact(self, lease: Lease, body: bytes) -> bytes:
        uploaded = _decode_upload_reply(
            await self._connection.put(format_lease_id(*lease_key(lease)), body, self._token(lease))
        )
        return _encode(uploaded.reference)

    async def load_artifact(self, lease: Lease, reference: bytes) -> bytes:
        artifact = msgspec.json.decode(reference, type=ArtifactReference)
        path = f"/runner/leases/{format_lease_id(*lease_key(lease))}/artifacts/{artifact.digest}?run={artifact.run}"
        return await self._connection.get(path, self._token(lease))

    def now_us(self) -> int:
        if self._clock_offset_us is None:
            return _HOST.now_us()
        return self._clock_offset_us + us(clock.boot_seconds())

    def _set_time(self, now: Any) -> None:
        self._clock_offset_us = to_micros(now) - us(clock.boot_seconds())

    def new_run_id(self, tenant: str) -> int:
        return self._ids.new(self.now_us(), tenant)

    def succeeded(self, run_id: int, output: bytes | None) -> None:
        """Nobody waits for runs in this process."""

    def ended(self, run_id: int) -> None:
        """Nobody waits for runs in this process."""

    # --------------------------------------------------------------------------------------------- logs

    def log(self, lease: Lease, line: LogLineRow) -> None:
        """Lines are collected and sent together."""
        if threading.get_ident() == self._thread:
            self._add_line(lease, line)
        else:
            self._loop.call_soon_threadsafe(self._add_line, lease, line)

    def _add_line(self, lease: Lease, line: LogLineRow) -> None:
        if self._line_count >= LOG_LINES_WAITING_MAX:
            return  # the server cannot keep up: lines are dropped, and work goes on
        entry = p.LogEntry(
            text=line.text,
            level=line.level,
            at=to_datetime(line.at),
            step=line.step,
            fields=msgspec.json.decode(line.fields),
        )
        self._lines.setdefault(lease_key(lease), []).append(entry)
        self._line_count += 1
        if self._flushing is None or self._flushing.done():
            self._flushing = self._loop.create_task(self._flush_soon())

    async def _flush_soon(self) -> None:
        while self._lines:
            await asyncio.sleep(LOG_PAUSE_SECONDS)
            self.flush()

    def flush(self) -> None:
        for key in tuple(self._lines):
            self._flush(key)

    def _flush(self, key: LeaseKey) -> None:
        entries = self._lines.pop(key)
        self._line_count -= len(entries)
        token = self.tokens.get(key)
        for at in range(0, len(entries) if token else 0, p.LINES_MAX):
            lines = entries[at : at + p.LINES_MAX]
            message = p.ADDRESSED_MESSAGES["log"](lease=format_lease_id(*key), token=token, lines=lines)
            self._batchers[key[0] % BATCHERS].put(
                EncodedMessage(_encode(message), key, False)
            ).add_done_callback(_warn_of_lost_lines)
        if key in self._ended:
            self._ended.discard(key)
            self.tokens.pop(key, None)

    # -------------------------------------------------------------------------------------- registering

    async def register(self, worker: str, queues: Sequence[str], slots: int) -> None:
        own, process = own_identity(), None
        if own is not None and self.session is not None:
            process = p.ProcessInfo(
                session=self.session,
                boot_id=own.boot_id,
                namespaces=own.namespaces,
                pid=own.pid,
                start_ticks=own.start_ticks,
            )
        request = p.RegisterRequest(worker=worker, capabilities=tuple(queues), slots=slots, process=process)
        await self._connection.post("/runner/register", _encode(request), give_up_seconds=REGISTER_SECONDS)

    async def register_workflows(self, workflows: list[p.WorkflowEntry]) -> list[str]:
        """Register workflows at the server, and return its refusals in words."""
        body = _encode(p.WorkflowsRequest(workflows=workflows))
        reply = await self._connection.post("/runner/workflows", body)
        return msgspec.json.decode(reply, type=p.RegisterReply).refused

    async def leave(self, worker: str) -> None:
        """Send what is left, and withdraw the worker."""
        if self._flushing is not None:
            self._flushing.cancel()
            with suppress(asyncio.CancelledError):
                await self._flushing
        self.flush()
        for batcher in self._batchers:
            await batcher.close()
        request = p.RegisterRequest(worker=worker, capabilities=(), leaves=True)
        with suppress(TenureError):
            await self._connection.post("/runner/register", _encode(request), give_up_seconds=1.0)


class _ServerHeartbeatChannel:
    def __init__(self, server: str, key: str, work_source: RemoteWorkSource) -> None:
        self._connection = RunnerConnection(server, key, connections=1)
        self._tokens = work_source.tokens

    async def open(self) -> None:
        await self._connection.post("/runner/messages", b"{}", give_up_seconds=0.0)

    async def send(self, messages: list[Heartbeat]) -> dict[LeaseKey, LeaseReply]:
        replies: dict[LeaseKey, LeaseReply] = {}
        for at in range(0, len(messages), p.MESSAGES_MAX):
            replies |= await self._send_batch(messages[at : at + p.MESSAGES_MAX])
        return replies

    async def _send_batch(self, messages: list[Heartbeat]) -> dict[LeaseKey, LeaseReply]:
        sent = [
            (key, encode_message(message, format_lease_id(*key), token))
            for message in messages
            if (token := self._tokens.get(key := (message.run_id, message.idx, message.n))) is not None
        ]
        body = _encode(p.MessageBatch(messages=[message for _, message in sent]))
        answers = _decode_batch_reply(
            await self._connection.post("/runner/messages", body, give_up_seconds=0.0)
        ).answers
        replies: dict[LeaseKey, LeaseReply] = {}
        for (key, _), answer in zip(sent, answers, strict=True):
            if answer.error is None and answer.state != "ignored":
                replies[key] = REPLY.decode(answer)
            elif answer.error is None or answer.error.retryable:
                replies[key] = LeaseReply(REPLY_UNKNOWN)
        return replies

    async def close(self) -> None:
        await self._connection.close()


def _warn_of_lost_lines(future: asyncio.Future[LeaseReply]) -> None:
    if not future.cancelled() and (fault := future.exception()) is not None:
        log.warning("log_lines_lost", error=repr(fault))
