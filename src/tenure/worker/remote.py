"""A station at a server: what a worker needs, over the runner protocol.

Laws:
1. What is said while the last request is under way goes with the next one. Messages of one lease go in order; of those that
   have an answer of their own only one is under way, so that it can be repeated: everything but checkpoints and lines.
2. A request without an answer is sent again as it was (the same claim id, the same sequence numbers): the server finds
   out whether it happened. After a while the sayer is told UPSTREAM_UNAVAILABLE, and may say it again.
3. A lease that the server does not know any more, or knows to have ended, is lost. Whether one is still ours while the
   server is out of reach the heart says, by the clock since boot.
4. The key goes to the server it was given for, in a header, and nowhere else.
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
from tenure.artifacts import Reference
from tenure.clock import HostClock, us
from tenure.errors import TenureError
from tenure.futures import fail, take_outcome
from tenure.kernel.beside import LogLine
from tenure.kernel.commands import Heartbeat, LeaseMessage, RecordCheckpoint
from tenure.kernel.decide.leases import Lease, Reply
from tenure.logs import get_logger
from tenure.orchestrator.heartbeats import LeaseKey
from tenure.processes import own_identity
from tenure.sdk.acting import Ask, Told
from tenure.sdk.definitions import Workflow
from tenure.sdk.past import Past
from tenure.store.acting import Acted
from tenure.store.port import Recorded, Waited
from tenure.worker import protocol as p
from tenure.worker import protocol_state as ps
from tenure.worker.heart import AGAIN, Heart
from tenure.worker.link import Link
from tenure.worker.pace import HOST_PACE, Pace
from tenure.worker.pipe import Pipe, Spoken
from tenure.worker.station import LOG_LINES_WAITING_MAX, LOG_PAUSE_SECONDS, SESSION_BITS, beat_of, key_of
from tenure.worker.values import lease_ints, lease_text, micros, moment, taken
from tenure.worker.wording import asked, heard, told, worded

log = get_logger(__name__)

PIPES = 2
"""As many as the server has lanes for its commits: one batch is carried out while the next is on its way."""
POLL_SECONDS = 5.0
"""How long the server keeps a claim waiting for work."""
REGISTER_SECONDS = 15.0
_HOST = HostClock()
_encode = msgspec.json.Encoder().encode
_MESSAGES = msgspec.json.Decoder(p.MessagesAnswer).decode
_CLAIMED = msgspec.json.Decoder(p.ClaimAnswer).decode
_STATE = msgspec.json.Decoder(ps.LeaseState).decode
_WAITS = msgspec.json.Decoder(list[ps.OpenedWait]).decode
_ACTED = msgspec.json.Decoder(ps.ActAnswer).decode
_UPLOADED = msgspec.json.Decoder(p.Uploaded).decode


class RemoteStation:
    """See the laws above. An async context manager."""

    pace: Pace = HOST_PACE

    def __init__(self, server: str, key: str) -> None:
        self._link = Link(server, key)
        self._make_beats = partial(_Beats, server, key, self)
        self._pipes = [Pipe(self.send) for _ in range(PIPES)]
        self.tokens: dict[LeaseKey, str] = {}
        self._actions: list[str] | None = None
        self.session = secrets.randbits(SESSION_BITS) if own_identity() is not None else None
        self._ids = ids.RunIds()
        self._ahead_us: int | None = None
        """The server's time, less the clock's since boot."""
        self._lines: dict[LeaseKey, list[p.LogEntry]] = {}
        self._waiting_lines = 0
        self._over: set[LeaseKey] = set()
        """Leases that have ended while lines of theirs wait."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._flushing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for pipe in self._pipes:
            await pipe.close()
        await self._link.close()

    # ----------------------------------------------------------------------------------------- claims

    async def claim(self, worker: str, queues: Sequence[str], limit: int, wait_seconds: float) -> list[Lease]:
        """Take up to `limit` steps, waiting at the server for some. Whoever is interrupted ends the claim there, and is
        given what it was granted."""
        wait_s = max(wait_seconds, POLL_SECONDS)
        wanted = p.ClaimRequest(
            claim_id=secrets.token_hex(12),
            capabilities=tuple(queues),
            max=limit,
            wait_s=wait_s,
            worker=worker,
            ack=True,
            session=self.session,
        )
        asked_at = clock.boot_seconds()
        asking = asyncio.ensure_future(self._claim(wanted, asked_at))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            end = msgspec.structs.replace(wanted, max=0, wait_s=0.0)
            ending = asyncio.ensure_future(self._claim(end, asked_at))
            ending.add_done_callback(take_outcome)
            try:
                return await asking or await ending
            finally:
                ending.cancel()

    async def _claim(self, wanted: p.ClaimRequest, asked_at: float) -> list[Lease]:
        answer = _CLAIMED(await self._link.claim(_encode(wanted), wanted.wait_s))
        self._heard_time(answer.now)
        return [self._granted(lease, micros(answer.now), asked_at) for lease in answer.leases]

    async def renew(self, lease: Lease) -> bool:
        """Extend a lease that may have ended; whether it is certainly ours."""
        try:
            (answer,) = await self.send([self._spoken(beat_of(lease, "")).content])
        except TenureError as refused:
            log.warning("lease_not_renewed", lease=lease_text(*key_of(lease)), error=refused.code)
            return False
        return answer.error is None and answer.state != "ignored"

    def _granted(self, told: p.GrantedLease, granted_at: int, asked_at: float) -> Lease:
        run_id, idx, n = lease_ints(told.id)
        self.tokens[run_id, idx, n] = told.token
        return Lease(
            run_id=run_id,
            idx=idx,
            n=n,
            tenant=told.tenant,
            workflow=told.workflow,
            code_version=told.code_version,
            profile=told.profile,
            name=told.step,
            kind=told.kind,
            tool=told.tool,
            idempotency_key=told.idempotency_key,
            expires_at=micros(told.expires_at),
            timeout_at=None if told.timeout_at is None else micros(told.timeout_at),
            heartbeat_seconds=told.heartbeat_seconds,
            lease_seconds=told.lease_seconds,
            input_ref=None,
            recorded=told.resumed,
            input=taken(told.input),
            trace=told.trace,
            granted_at=granted_at,
            asked_at=asked_at,
        )

    async def wait_for_work(self, wait_seconds: float) -> None:
        """The claim has waited at the server already."""
        del wait_seconds

    def let_go(self, lease: Lease) -> None:
        """Nothing more is said under a lease."""
        key = key_of(lease)
        if key in self._lines:
            self._over.add(key)
        else:
            self.tokens.pop(key, None)

    # ------------------------------------------------------------------------------------ conversation

    def say(self, message: LeaseMessage) -> asyncio.Future[Reply]:
        """Send a message of a lease; see law 1."""
        try:
            spoken = self._spoken(message)
        except TenureError as refused:
            failed: asyncio.Future[Reply] = self._loop.create_future()
            fail(failed, refused)
            return failed
        if spoken.alone and spoken.key in self._lines:
            self._flush(spoken.key)  # before a word that may be the last one: they are not late then
        return self._pipes[message.run_id % PIPES].put(spoken)

    def _spoken(self, message: LeaseMessage) -> Spoken:
        key = (message.run_id, message.idx, message.n)
        token = self.tokens.get(key)
        if token is None:
            raise TenureError("LEASE_STALE", "the lease is no longer ours")
        alone = not isinstance(message, RecordCheckpoint | Heartbeat)
        return Spoken(_encode(worded(message, lease_text(*key), token)), key, alone)

    async def send(self, contents: list[bytes]) -> list[p.Answer]:
        """Carry out a batch of messages."""
        body = b'{"messages":[' + b",".join(contents) + b"]}"
        answer = _MESSAGES(await self._link.post("/runner/messages", body))
        self._heard_time(answer.now)
        return answer.answers

    def heart(self, heard: Any) -> Heart:
        """Heartbeats in a thread of their own, over a connection of their own."""
        return Heart(self._make_beats, heard)

    # ------------------------------------------------------------------------------------------ looking

    async def _state(self, lease: Lease) -> ps.LeaseState:
        path = f"/runner/leases/{lease_text(*key_of(lease))}"
        state = _STATE(await self._link.get(path, self._token(lease)))
        self._heard_time(state.now)
        return state

    def _token(self, lease: Lease) -> str:
        token = self.tokens.get(key_of(lease))
        if token is None:
            raise TenureError("LEASE_STALE", "the lease is no longer ours")
        return token

    async def past(self, lease: Lease) -> Past:
        """What the step of a lease has recorded before."""
        state = await self._state(lease)
        return Past(
            [_recorded(row) for row in state.checkpoints],
            [_waited(row) for row in state.waits],
            [_acted(row) for row in state.acts],
        )

    async def waited(self, lease: Lease, first: int, last: int) -> list[Waited]:
        """The waits of a lease's step from one number to another, with their answers."""
        path = f"/runner/leases/{lease_text(*key_of(lease))}/waits?first={first}&last={last}"
        return [_waited(row) for row in _WAITS(await self._link.get(path, self._token(lease)))]

    async def act(self, lease: Lease, ask: Ask, held_until: Callable[[], float]) -> Told:
        """Have the server's governor do something: policy, secrets and the call stay there."""
        del held_until  # the server knows its leases better
        said = _encode(asked(ask))
        answer = await self._link.act(
            lease_text(*key_of(lease)), said, self._token(lease), ps.ACT_SECONDS_MAX
        )
        return told(_ACTED(answer))

    async def actions(self) -> Sequence[str]:
        """What the server's governor can do; asked once."""
        if self._actions is None:
            try:
                answer = await self._link.get("/runner/actions")
            except TenureError as refused:
                if refused.code != "NOT_FOUND":  # a server from before there were any
                    raise
                answer = b'{"actions":[]}'
            self._actions = msgspec.json.decode(answer, type=ps.Actions).actions
        return self._actions

    def own(self) -> Sequence[Workflow[..., Any]]:
        """None: what the system does itself is done beside its database."""
        return ()

    async def put_aside(self, lease: Lease, body: bytes) -> bytes:
        """Upload a large payload; what to store instead."""
        uploaded = _UPLOADED(await self._link.put(lease_text(*key_of(lease)), body, self._token(lease)))
        return _encode(uploaded.reference)

    async def fetch(self, lease: Lease, reference: bytes) -> bytes:
        """The payload behind a reference."""
        named = msgspec.json.decode(reference, type=Reference)
        path = f"/runner/leases/{lease_text(*key_of(lease))}/artifacts/{named.digest}?run={named.run}"
        return await self._link.get(path, self._token(lease))

    def now_us(self) -> int:
        """The server's time, as well as it is known here."""
        if self._ahead_us is None:
            return _HOST.now_us()
        return self._ahead_us + us(clock.boot_seconds())

    def _heard_time(self, now: Any) -> None:
        self._ahead_us = micros(now) - us(clock.boot_seconds())

    def new_run_id(self, tenant: str) -> int:
        """An id for a new run of this tenant."""
        return self._ids.new(self.now_us(), tenant)

    def succeeded(self, run_id: int, output: bytes | None) -> None:
        """Nobody in this process waits for runs."""

    def ended(self, run_id: int) -> None:
        """Likewise."""

    # --------------------------------------------------------------------------------------------- logs

    def log(self, lease: Lease, line: LogLine) -> None:
        """Keep a line of a run's log: collected, and sent in one go. Code in threads says it too."""
        if threading.get_ident() == self._thread:
            self._keep(lease, line)
        else:
            self._loop.call_soon_threadsafe(self._keep, lease, line)

    def _keep(self, lease: Lease, line: LogLine) -> None:
        if self._waiting_lines >= LOG_LINES_WAITING_MAX:
            return  # the server cannot keep up: work goes on, lines are lost
        entry = p.LogEntry(
            text=line.text,
            level=line.level,
            at=moment(line.at),
            step=line.step,
            fields=msgspec.json.decode(line.fields),
        )
        self._lines.setdefault(key_of(lease), []).append(entry)
        self._waiting_lines += 1
        if self._flushing is None or self._flushing.done():
            self._flushing = self._loop.create_task(self._flush_soon())

    async def _flush_soon(self) -> None:
        while self._lines:
            await asyncio.sleep(LOG_PAUSE_SECONDS)
            self.flush()

    def flush(self) -> None:
        """Send the lines that wait."""
        for key in tuple(self._lines):
            self._flush(key)

    def _flush(self, key: LeaseKey) -> None:
        entries = self._lines.pop(key)
        self._waiting_lines -= len(entries)
        token = self.tokens.get(key)
        for at in range(0, len(entries) if token else 0, p.LINES_MAX):
            lines = entries[at : at + p.LINES_MAX]
            said = p.ADDRESSED["log"](lease=lease_text(*key), token=token, lines=lines)
            self._pipes[key[0] % PIPES].put(Spoken(_encode(said), key, False)).add_done_callback(_logged)
        if key in self._over:
            self._over.discard(key)
            self.tokens.pop(key, None)

    # -------------------------------------------------------------------------------------- registering

    async def register(self, worker: str, queues: Sequence[str], slots: int) -> None:
        """Say that a worker is here."""
        me, process = own_identity(), None
        if me is not None and self.session is not None:
            process = p.ProcessInfo(
                session=self.session,
                boot_id=me.boot_id,
                namespaces=me.namespaces,
                pid=me.pid,
                start_ticks=me.start_ticks,
            )
        said = p.RegisterRequest(worker=worker, capabilities=tuple(queues), slots=slots, process=process)
        await self._link.post("/runner/register", _encode(said), give_up_seconds=REGISTER_SECONDS)

    async def register_workflows(self, workflows: list[p.WorkflowEntry]) -> list[str]:
        """Tell the server which workflows there are; what it refused, in words."""
        said = _encode(p.WorkflowsRequest(workflows=workflows))
        done = msgspec.json.decode(await self._link.post("/runner/workflows", said), type=p.Done)
        return done.refused

    async def leave(self, worker: str) -> None:
        """Say what is left to say, and that a worker stops in peace."""
        if self._flushing is not None:
            self._flushing.cancel()
            with suppress(asyncio.CancelledError):
                await self._flushing
        self.flush()
        for pipe in self._pipes:
            await pipe.close()
        said = p.RegisterRequest(worker=worker, capabilities=(), leaves=True)
        with suppress(TenureError):
            await self._link.post("/runner/register", _encode(said), give_up_seconds=1.0)


class _Beats:
    """Heartbeats to a server."""

    def __init__(self, server: str, key: str, station: RemoteStation) -> None:
        self._link = Link(server, key, connections=1)
        self._tokens = station.tokens

    async def open(self) -> None:
        """Connect."""
        await self._link.post("/runner/messages", b"{}", give_up_seconds=0.0)

    async def beat(self, messages: list[Heartbeat]) -> dict[LeaseKey, Reply]:
        """In as few requests as they fit into."""
        replies: dict[LeaseKey, Reply] = {}
        for at in range(0, len(messages), p.MESSAGES_MAX):
            replies |= await self._some(messages[at : at + p.MESSAGES_MAX])
        return replies

    async def _some(self, messages: list[Heartbeat]) -> dict[LeaseKey, Reply]:
        said = [
            (key, worded(message, lease_text(*key), token))
            for message in messages
            if (token := self._tokens.get(key := (message.run_id, message.idx, message.n))) is not None
        ]
        body = _encode(p.Messages(messages=[one for _, one in said]))
        answers = _MESSAGES(await self._link.post("/runner/messages", body, give_up_seconds=0.0)).answers
        replies: dict[LeaseKey, Reply] = {}
        for (key, _), answer in zip(said, answers, strict=True):
            if answer.error is None and answer.state != "ignored":
                replies[key] = heard(answer)
            elif answer.error is None or answer.error.retryable:
                replies[key] = Reply(AGAIN)
        return replies

    async def close(self) -> None:
        """Let go of the connection."""
        await self._link.close()


def _logged(future: asyncio.Future[Reply]) -> None:
    if not future.cancelled() and (fault := future.exception()) is not None:
        log.warning("log_lines_lost", error=repr(fault))


def _us(at: Any) -> int | None:
    return None if at is None else micros(at)


def _recorded(row: ps.RecordedCheckpoint) -> Recorded:
    output = taken(row.output)
    return Recorded(
        name=row.name,
        no=row.no,
        state=row.state,
        n=row.attempt,
        resumable=row.resumable,
        idempotent=row.idempotent,
        arguments=bytes.fromhex(row.arguments),
        at=micros(row.at),
        tries=row.tries,
        next_at=_us(row.next_at),
        error=row.error,
        meta=None if row.meta is None else _encode(row.meta).decode(),
        output_ref=0 if output is not None or row.erased else None,
        output=output,
    )


def _acted(row: ps.ActReceipt) -> Acted:
    connector, _, operation = row.action.partition(".")
    return Acted(
        label=row.label,
        no=row.no,
        try_no=row.tries,
        own=row.own,
        connector=connector,
        operation=operation,
        name=row.key,
        digest=b"",
        state=row.state,
        n=row.attempt,
        repeats="",
        intent_at=micros(row.intent_at),
        call_by=0,
        settled_at=_us(row.settled_at),
        by_person=False,
        eligible_at=_us(row.eligible_at),
        error=row.error,
        wait_no=row.wait,
        request=taken(row.request),
        result=taken(row.result),
    )


def _waited(row: ps.OpenedWait) -> Waited:
    return Waited(
        no=row.no,
        label=row.label,
        kind=row.kind,
        name=str(ids.run_int(row.name)) if row.kind == "child" else row.name,
        state=row.state,
        outcome=row.outcome,
        opened_at=micros(row.opened_at),
        expires_at=_us(row.expires_at),
        settled_at=_us(row.settled_at),
        result=taken(row.result),
        revision=row.revision,
        decided_by=row.decided_by,
        reason=taken(row.reason),
        child_id=None if row.child_id is None else ids.run_int(row.child_id),
        child_outcome=row.child_outcome,
        child_code=row.child_code,
        child_output=taken(row.child_output),
        child_error=taken(row.child_error),
    )
