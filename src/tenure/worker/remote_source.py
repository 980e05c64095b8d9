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
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any, Self

import msgspec

from tenure import clock, ids
from tenure.artifacts import ArtifactReference
from tenure.clock import to_datetime, to_micros, us
from tenure.errors import TenureError
from tenure.futures import fail_future, ignore_outcome
from tenure.kernel.commands import Heartbeat, LeaseCommand, RecordCheckpoint
from tenure.kernel.lease_types import Lease, LeaseKey, LeaseReply
from tenure.kernel.registry_rows import LogLineRow
from tenure.logs import get_logger
from tenure.processes import own_identity
from tenure.sdk.act_request import ActRequest, ActResult
from tenure.sdk.replay_log import ReplayLog
from tenure.store.replay import ReplayWait
from tenure.worker import protocol as p
from tenure.worker.connection import RESPONSE_SECONDS, RunnerConnection
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
    format_lease_id,
)
from tenure.worker.work_source import HOST_CLOCK, WorkSource, heartbeat_for, lease_key

log = get_logger(__name__)

BATCHERS = 2
"""As many as the server has commit lanes: the server commits one batch while the next is on its way."""
POLL_SECONDS = 5.0
"""How long a claim waits for work at the server."""
REGISTER_SECONDS = 15.0
_encode = msgspec.json.Encoder().encode
_decode_batch_reply = msgspec.json.Decoder(p.MessageBatchReply).decode
_decode_claim_reply = msgspec.json.Decoder(p.ClaimReply).decode


class RemoteWorkSource(WorkSource):
    def __init__(self, server: str, key: str) -> None:
        super().__init__(lambda _run, _output: None, lambda _run: None)  # this process has no waiters
        self._connection = RunnerConnection(server, key)
        self._make_channel = partial(_ServerHeartbeatChannel, server, key, self)
        self._batchers = [MessageBatcher(self.send) for _ in range(BATCHERS)]
        self.tokens: dict[LeaseKey, str] = {}
        self._actions: list[str] | None = None
        self._ids = ids.RunIds()
        self._clock_offset_us: int | None = None
        """The server's time minus the clock since boot."""
        self._lines: dict[LeaseKey, list[p.LogEntry]] = {}
        self._ended: set[LeaseKey] = set()
        """Leases that have ended and still have lines to send."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for batcher in self._batchers:
            await batcher.close()
        await self._connection.close()

    # ----------------------------------------------------------------------------------------- claims

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> list[Lease]:
        """Lease up to `limit` steps; the claim waits for them at the server. A caller that is canceled ends the claim there, and still gets
        the leases that were granted."""
        request = p.ClaimRequest(
            claim_id=secrets.token_hex(12),
            capabilities=tuple(queues),
            max=limit,
            wait_s=POLL_SECONDS,
            worker=worker,
            ack=True,
            session=self.session,
        )
        asked_at = clock.boot_seconds()
        claiming = asyncio.ensure_future(self._claim(request, asked_at))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            ending = asyncio.ensure_future(
                self._claim(msgspec.structs.replace(request, max=0, wait_s=0.0), asked_at)
            )
            ending.add_done_callback(ignore_outcome)
            try:
                return await claiming or await ending
            finally:
                ending.cancel()

    async def _claim(self, request: p.ClaimRequest, asked_at: float) -> list[Lease]:
        body = await self._connection.request(
            "POST", "/runner/claim", _encode(request), wait_seconds=request.wait_s, give_up_seconds=None
        )
        reply = _decode_claim_reply(body)
        self._set_time(reply.now)
        times = {"granted_at": to_micros(reply.now), "asked_at": asked_at}
        leases = [GRANTED_LEASE.decode(granted, times) for granted in reply.leases]
        for lease, granted in zip(leases, reply.leases, strict=True):
            self.tokens[lease_key(lease)] = granted.token
        return leases

    async def renew(self, lease: Lease) -> bool:
        try:
            (reply,) = await self.send([self._encode_message(heartbeat_for(lease)).content])
        except TenureError as refused:
            log.warning("lease_not_renewed", lease=format_lease_id(*lease_key(lease)), error=refused.code)
            return False
        return reply.error is None and reply.state != "ignored"

    async def wait_for_work(self, wait_seconds: float) -> None:
        """Nothing to wait for: the claim has waited at the server."""

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
        key = lease_key(message)
        content = _encode(encode_message(message, format_lease_id(*key), self._token(key)))
        return EncodedMessage(content, key, exclusive=not isinstance(message, RecordCheckpoint | Heartbeat))

    def _token(self, key: LeaseKey) -> str:
        token = self.tokens.get(key)
        if token is None:
            raise TenureError("LEASE_STALE", "the lease has ended")
        return token

    async def send(self, contents: list[bytes]) -> list[p.MessageReply]:
        body = b'{"messages":[' + b",".join(contents) + b"]}"
        reply = _decode_batch_reply(await self._connection.request("POST", "/runner/messages", body))
        self._set_time(reply.now)
        return reply.answers

    def make_heartbeater(self, on_replies: HeartbeatCallback) -> Heartbeater:
        return Heartbeater(self._make_channel, on_replies)

    # --------------------------------------------------------------------------------- requests of a lease

    async def _request(
        self,
        lease: Lease,
        method: str,
        path: str = "",
        content: bytes | None = None,
        *,
        content_type: str = "application/json",
        wait_seconds: float = 0.0,
    ) -> bytes:
        key = lease_key(lease)
        return await self._connection.request(
            method,
            f"/runner/leases/{format_lease_id(*key)}{path}",
            content,
            content_type=content_type,
            token=self._token(key),
            wait_seconds=wait_seconds,
        )

    async def load_replay_log(self, lease: Lease) -> ReplayLog:
        state = msgspec.json.decode(await self._request(lease, "GET"), type=p.LeaseState)
        self._set_time(state.now)
        return ReplayLog(
            map(CHECKPOINT.decode, state.checkpoints),
            map(WAIT.decode, state.waits),
            map(ACT.decode, state.acts),
        )

    async def load_waits(self, lease: Lease, first: int, last: int) -> list[ReplayWait]:
        body = await self._request(lease, "GET", f"/waits?first={first}&last={last}")
        return [WAIT.decode(row) for row in msgspec.json.decode(body, type=list[p.OpenedWait])]

    async def act(self, lease: Lease, request: ActRequest, held_until: Callable[[], float]) -> ActResult:
        """Have the server's governor act: policy, secrets and the call stay there. A repeated request finds the act that was begun."""
        del held_until  # the server knows its leases
        reply = await self._request(
            lease, "POST", "/act", _encode(ACT_CALL.encode(request)), wait_seconds=p.ACT_SECONDS_MAX
        )
        return ACT_REPLY.decode(msgspec.json.decode(reply, type=p.ActCallReply))

    async def store_artifact(self, lease: Lease, body: bytes) -> bytes:
        reply = await self._request(
            lease,
            "PUT",
            f"/artifacts/sha256:{sha256(body).hexdigest()}",
            body,
            content_type="application/octet-stream",
            wait_seconds=RESPONSE_SECONDS,
        )
        return _encode(msgspec.json.decode(reply, type=p.UploadReply).reference)

    async def load_artifact(self, lease: Lease, reference: bytes) -> bytes:
        artifact = msgspec.json.decode(reference, type=ArtifactReference)
        return await self._request(lease, "GET", f"/artifacts/{artifact.digest}?run={artifact.run}")

    # ------------------------------------------------------------------------------ what the worker asks for

    async def actions(self) -> Sequence[str]:
        """The actions of the server's governor. The server is asked once."""
        if self._actions is None:
            try:
                reply = await self._connection.request("GET", "/runner/actions")
            except TenureError as refused:
                if refused.code != "NOT_FOUND":  # an older server without actions
                    raise
                reply = b'{"actions":[]}'
            self._actions = msgspec.json.decode(reply, type=p.ActionsReply).actions
        return self._actions

    def now_us(self) -> int:
        if self._clock_offset_us is None:
            return HOST_CLOCK.now_us()
        return self._clock_offset_us + us(clock.boot_seconds())

    def _set_time(self, now: Any) -> None:
        self._clock_offset_us = to_micros(now) - us(clock.boot_seconds())

    def new_run_id(self, tenant: str) -> int:
        return self._ids.new(self.now_us(), tenant)

    # --------------------------------------------------------------------------------------------- logs

    def _buffer_line(self, lease: Lease, line: LogLineRow) -> None:
        entry = p.LogEntry(
            text=line.text,
            level=line.level,
            at=to_datetime(line.at),
            step=line.step,
            fields=msgspec.json.decode(line.fields),
        )
        self._lines.setdefault(lease_key(lease), []).append(entry)

    async def flush(self) -> None:
        for key in tuple(self._lines):
            self._flush(key)

    def _flush(self, key: LeaseKey) -> None:
        entries = self._lines.pop(key)
        self._lines_waiting -= len(entries)
        token = self.tokens.get(key)
        for at in range(0, len(entries) if token else 0, p.LINES_MAX):
            message = p.ADDRESSED_MESSAGES["log"](
                lease=format_lease_id(*key), token=token, lines=entries[at : at + p.LINES_MAX]
            )
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
        await self._register(request, REGISTER_SECONDS)

    async def _register(self, request: p.RegisterRequest, give_up_seconds: float) -> None:
        await self._connection.request(
            "POST", "/runner/register", _encode(request), give_up_seconds=give_up_seconds
        )

    async def register_workflows(self, workflows: list[p.WorkflowEntry]) -> list[str]:
        """Register workflows at the server, and return its refusals in words."""
        request = _encode(p.WorkflowsRequest(workflows=workflows))
        reply = await self._connection.request("POST", "/runner/workflows", request)
        return msgspec.json.decode(reply, type=p.RegisterReply).refused

    async def leave(self, worker: str) -> None:
        await self._flush_last_lines()
        for batcher in self._batchers:
            await batcher.close()
        with suppress(TenureError):
            await self._register(p.RegisterRequest(worker=worker, capabilities=(), leaves=True), 1.0)


class _ServerHeartbeatChannel:
    def __init__(self, server: str, key: str, work_source: RemoteWorkSource) -> None:
        self._connection = RunnerConnection(server, key, connections=1)
        self._tokens = work_source.tokens

    async def open(self) -> None:
        await self._post_messages(b"{}")

    async def close(self) -> None:
        await self._connection.close()

    async def _post_messages(self, body: bytes) -> bytes:
        return await self._connection.request("POST", "/runner/messages", body, give_up_seconds=0.0)

    async def send(self, messages: list[Heartbeat]) -> dict[LeaseKey, LeaseReply]:
        replies: dict[LeaseKey, LeaseReply] = {}
        for at in range(0, len(messages), p.MESSAGES_MAX):
            replies |= await self._send_batch(messages[at : at + p.MESSAGES_MAX])
        return replies

    async def _send_batch(self, messages: list[Heartbeat]) -> dict[LeaseKey, LeaseReply]:
        sent = [
            (key, encode_message(message, format_lease_id(*key), token))
            for message in messages
            if (token := self._tokens.get(key := lease_key(message))) is not None
        ]
        body = _encode(p.MessageBatch(messages=[message for _, message in sent]))
        answers = _decode_batch_reply(await self._post_messages(body)).answers
        replies: dict[LeaseKey, LeaseReply] = {}
        for (key, _), answer in zip(sent, answers, strict=True):
            if answer.error is None and answer.state != "ignored":
                replies[key] = REPLY.decode(answer)
            elif answer.error is None or answer.error.retryable:
                replies[key] = LeaseReply(REPLY_UNKNOWN)
        return replies


def _warn_of_lost_lines(future: asyncio.Future[LeaseReply]) -> None:
    if not future.cancelled() and (fault := future.exception()) is not None:
        log.warning("log_lines_lost", error=repr(fault))
