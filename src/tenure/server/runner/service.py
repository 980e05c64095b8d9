"""Remote runners: claims, and the messages of lease holders, one by one and in batches.

Laws:
1. A runner claims only in its own tenant, and a message concerns only its own lease. Everything else is as for a local worker: the kernel
   decides.
2. A repeated message gets the same reply, also after a lost response, a restart, or from another server process.
3. Messages of one lease are carried out in the order of the batch. If one fails with a retryable error, those after it fail too, so that
   they can be repeated together.
4. What a holder uploads or logs within `LATE_UPLOAD_SECONDS` after the lease's end is kept and marked late; it changes nothing.
5. A runner cannot reach another tenant's runs by a made-up name; see `tenure.server.runner.authorization`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec

from tenure import clock, ids
from tenure.artifacts import ArtifactReference
from tenure.canonical import canonical
from tenure.clock import to_datetime, to_micros, us
from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.kernel import capability, profiles
from tenure.kernel import commands as c
from tenure.kernel.artifact_rules import artifact_name_problem
from tenure.kernel.decide.validation import check_command, is_name
from tenure.kernel.lease_types import Lease, LeaseKey, LeaseReply
from tenure.kernel.registry_rows import LogLineRow, WorkerProcessRow, WorkflowRow
from tenure.kernel.run_rows import InboxRow, RunRow, RunSpecRow
from tenure.kernel.separation_of_duties import MORE_PEOPLE, involved_people
from tenure.kernel.server_rows import ArtifactRow
from tenure.limits import CLAIM_STEPS_MAX, HEARTBEATS_PER_LEASE_MIN, NAME_CHARS_MAX, WORKER_BEAT_SECONDS
from tenure.orchestrator.claims import Claim, RemoteClaim, hash_token
from tenure.orchestrator.heartbeats import extend_leases
from tenure.orchestrator.outbox import UNDO_VERSION, UNDO_WORKFLOW
from tenure.reads.artifacts import artifact_reference, find_artifact
from tenure.reads.resume_state import ALL_WAITS
from tenure.sdk import codec
from tenure.server.error_responses import to_tenure_error
from tenure.server.runner.authorization import RunnerAuthorization, needs_authorization
from tenure.server.runner.lease_tokens import LeaseTickets
from tenure.services.catalog import load_registered
from tenure.services.identity.principals import Principal
from tenure.store.artifacts import put_artifact
from tenure.store.log_lines import append_log_lines, write_log_lines
from tenure.store.port import Transaction
from tenure.store.remote_leases import LeaseCredential, RemoteLeaseDetail
from tenure.store.transactions import run_transaction
from tenure.store.workers import delete_worker, register_worker
from tenure.store.workflows import save_workflow
from tenure.work_pool import run_in_thread
from tenure.worker import protocol as p
from tenure.worker.protocol_codec import (
    ACT,
    ACT_CALL,
    ACT_REPLY,
    CHECKPOINT,
    GRANTED_LEASE,
    LEASE,
    REPLY,
    WAIT,
    decode_message,
    encode_payload,
    format_lease_id,
    parse_lease_id,
)

LATE_UPLOAD_SECONDS = 600.0
CLAIMS_ENDED_MAX = 10_000
SLOTS_MAX = 100_000
RESTARTED = codec.encode_restart("").partition(b":")[0]
CONTENT_TYPE = "application/octet-stream"
_DIGEST = "sha256:"
_UNDOES = {capability.flow(UNDO_WORKFLOW, UNDO_VERSION)}


class RunnerService:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.tickets = LeaseTickets(engine.store)
        self._authorization = RunnerAuthorization(engine.store)
        self._ended: dict[str, None] = {}
        """Claims that were ended: a request that waits under their name returns."""
        self._seen_until: dict[str, float] = {}

    # ----------------------------------------------------------------------------------------- claims

    async def claim(
        self, who: Principal, secret: str, request: p.ClaimRequest, connected: Callable[[], bool]
    ) -> list[p.GrantedLease]:
        """Lease steps to a runner, or return the leases that the same claim was granted before."""
        request.check()
        if _UNDOES & {capability.split(each)[1] for each in request.capabilities}:
            raise TenureError(
                "INVALID_INPUT",
                f"runners may not claim {UNDO_WORKFLOW}: only workers with database access have the receipts",
            )
        worker = request.worker or who.id
        remote = RemoteClaim(f"{who.key_id}/{request.claim_id}", secret.encode())
        if request.max == 0:
            self._end(remote.name)
        if request.slots is not None:
            await self._seen_again(who, request)
        wanted = Claim(
            c.Claimant(worker, request.ack, request.session),
            tuple(dict.fromkeys(request.capabilities)),
            request.max,
            who.tenant,
            remote,
        )

        async def goes_on() -> bool:
            return connected() and remote.name not in self._ended

        wait = request.wait_s if request.max else 0.0
        claimed = await self._engine.orchestrator.claims.remote(wanted, wait, goes_on)
        granted = [row.run_id for row in claimed.before] + [lease.run_id for lease in claimed.leases]
        await self._involve_people(who, granted)
        if claimed.before:
            return await self._before(claimed.before, remote)
        found = []
        for lease in claimed.leases:
            key = (lease.run_id, lease.idx, lease.n)
            token = remote.token(*key)
            self.tickets.keep(
                LeaseCredential(*key, lease.tenant, remote.name, hash_token(token), worker, lease.name)
            )
            found.append(GRANTED_LEASE.encode(lease, {"token": token}))
        return found

    async def _involve_people(self, who: Principal, run_ids: Sequence[int]) -> None:
        """Record a person who claims with their own key as a person behind the runs, before the leases are handed out. If this fails, the
        repeated claim records it."""
        if who.kind != "person":
            return
        store = self._engine.store
        context = c.Context(who.actor, "user", "runner/claim")
        for run_id in dict.fromkeys(run_ids):
            specs: list[RunSpecRow] = await store.read("get_spec", run_id)
            known = involved_people(specs[0]) if specs else frozenset({MORE_PEOPLE})
            if MORE_PEOPLE not in known and not known.issuperset(who.people.split()):
                await self._engine.orchestrator.send(
                    c.InvolvePeople(run_id=run_id, context=context, involved=who.people)
                )

    async def _before(self, rows: list[Any], remote: RemoteClaim) -> list[p.GrantedLease]:
        """The leases that a claim was granted before and that have not ended."""
        held = await self._held([(row.run_id, row.idx, row.n) for row in rows])
        live = (one for one in held if one.over_since is None)
        return [
            GRANTED_LEASE.encode(_make_lease(one), {"token": remote.token(one.run_id, one.idx, one.n)})
            for one in live
        ]

    async def seen(
        self,
        who: Principal,
        worker: str,
        capabilities: Sequence[str],
        slots: int,
        version: str = "",
        process: p.ProcessInfo | None = None,
    ) -> None:
        """Record that a worker is alive. Its process counts only for leases of its own tenant."""
        if not is_name(worker) or len(capabilities) > CLAIM_STEPS_MAX:
            raise TenureError(
                "INVALID_INPUT",
                f"worker must have 1 to 200 printable characters and at most {CLAIM_STEPS_MAX} capabilities",
            )
        for one in capabilities:
            capability.check(one)
        name = f"@{who.tenant}/{worker}"[:NAME_CHARS_MAX]
        row = None
        if process is not None:
            process.check()
            about = (process.boot_id, process.namespaces, process.pid, process.start_ticks)
            row = WorkerProcessRow(process.session, who.tenant, name, *about)
        await register_worker(
            self._engine.store, name, capabilities, min(max(slots, 1), SLOTS_MAX), version, row
        )

    async def _seen_again(self, who: Principal, request: p.ClaimRequest) -> None:
        """Record a worker that claims with its slots, every WORKER_BEAT_SECONDS at most."""
        name, now = f"{who.tenant}/{request.worker or who.id}", time.monotonic()
        if self._seen_until.get(name, 0.0) < now:
            if len(self._seen_until) >= CLAIMS_ENDED_MAX:
                self._seen_until.clear()
            self._seen_until[name] = now + WORKER_BEAT_SECONDS
            await self.seen(who, request.worker or who.id, request.capabilities, request.slots or 1)

    async def left(self, who: Principal, worker: str) -> None:
        await delete_worker(self._engine.store, f"@{who.tenant}/{worker}"[:NAME_CHARS_MAX])

    def _end(self, name: str) -> None:
        while len(self._ended) >= CLAIMS_ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        self._ended[name] = None

    async def _held(self, keys: list[LeaseKey]) -> list[RemoteLeaseDetail]:
        store = self._engine.store
        now = (await store.read("now"))[0].now_us
        found: list[RemoteLeaseDetail] = await store.read("remote_lease_details", now, rows=keys)
        return found

    async def now_us(self) -> int:
        estimate = self._engine.store.estimate_us()
        if estimate is not None:
            return estimate
        now: int = (await self._engine.store.read("now"))[0].now_us
        return now

    # --------------------------------------------------------------------------------------- messages

    async def say(self, ticket: LeaseCredential, message: p.RunnerMessage) -> p.MessageReply:
        if isinstance(message, p.LogMessage):
            return await self._log(ticket, message)
        command = self._command(ticket, message)
        if isinstance(command, c.Heartbeat) and not isinstance(message, p.RunningMessage):
            return REPLY.encode(await self._engine.orchestrator.heartbeat(command))
        await self._authorization.check(ticket, command)
        reply: LeaseReply = await self._engine.orchestrator.send(command)
        return REPLY.encode(reply)

    def _command(self, ticket: LeaseCredential, message: p.RunnerMessage) -> c.LeaseCommand:
        key = (ticket.run_id, ticket.idx, ticket.n)
        given = {
            "run_id": ticket.run_id,
            "idx": ticket.idx,
            "n": ticket.n,
            "tenant": ticket.tenant,
            "context": c.Context(f"worker:{ticket.owner}", "system", format_lease_id(*key)),
            "new_id": partial(self._engine.orchestrator.new_id, ticket.tenant),
        }
        command = decode_message(message, given)
        if isinstance(command, c.Heartbeat):
            check_command(command)  # the kernel checks the others; heartbeats do not pass through it
        return command

    async def handle_batch(self, who: Principal, messages: list[Any]) -> list[p.MessageReply]:
        """Carry out a batch: one reply each, in order; see law 3."""
        answers: list[p.MessageReply | None] = [None] * len(messages)
        by_lease: dict[str, list[int]] = {}
        for at, message in enumerate(messages):
            by_lease.setdefault(message.lease, []).append(at)
        keys: dict[str, LeaseKey] = {}
        for lease in by_lease:
            try:
                keys[lease] = parse_lease_id(lease)
            except TenureError:
                continue  # it is refused below
        await self.tickets.look_up(keys.values())
        asked: list[tuple[int, asyncio.Future[LeaseReply]]] = []
        in_turn: list[Awaitable[None]] = []
        for lease, places in by_lease.items():
            if len(places) > 1 or not self._at_once(
                who, keys.get(lease), messages[places[0]], places[0], asked
            ):
                in_turn.append(self._in_turn(who, keys.get(lease), messages, places, answers))
        if in_turn:
            await asyncio.gather(*in_turn)
        for at, future in asked:
            try:
                answers[at] = REPLY.encode(await future)
            except Exception as fault:
                answers[at] = _refused(fault)
        return [answer for answer in answers if answer is not None]

    def _at_once(
        self,
        who: Principal,
        key: LeaseKey | None,
        message: Any,
        at: int,
        asked: list[tuple[int, asyncio.Future[LeaseReply]]],
    ) -> bool:
        """Submit the only message of a lease without a task, if it needs nothing but a commit."""
        if key is None or isinstance(message, p.LogMessage | p.StartChildMessage | p.RunningMessage):
            return False
        try:
            ticket = self._ticket(who, key, message.token)
            command = self._command(ticket, message)
            if needs_authorization(command):
                return False
            orchestrator = self._engine.orchestrator
            if isinstance(command, c.Heartbeat):
                asked.append((at, orchestrator.heartbeat(command)))
            else:
                asked.append((at, orchestrator.submit(command)))
        except TenureError:
            return False  # `_in_turn` reports the error
        return True

    async def _in_turn(
        self,
        who: Principal,
        key: LeaseKey | None,
        messages: list[Any],
        places: list[int],
        answers: list[p.MessageReply | None],
    ) -> None:
        for place, at in enumerate(places):
            message = messages[at]
            try:
                if key is None:
                    raise TenureError("UNAUTHENTICATED")
                answers[at] = await self.say(self._ticket(who, key, message.token), message)
            except Exception as fault:
                answers[at] = refused = _refused(fault)
                if refused.error is not None and refused.error.retryable:
                    for behind in places[place + 1 :]:
                        answers[behind] = refused
                    return

    def _ticket(self, who: Principal, key: LeaseKey, token: str) -> LeaseCredential:
        ticket = self.tickets.check(key, token)
        if ticket.tenant != who.tenant:
            raise TenureError("UNAUTHENTICATED")
        return ticket

    async def act(self, ticket: LeaseCredential, asked: p.ActCallMessage) -> p.ActCallReply:
        """Do an act for the holder of a lease: policy, secrets and the call stay here. An act that was begun goes on when the client is gone; a
        repeated request gets its result."""
        before = clock.boot_seconds()
        held = await self.look(ticket)
        if held.over_since is not None:
            raise _stale(held)
        until = before + (held.expires_at - held.now_us) / 1e6
        acting = asyncio.ensure_future(
            self._engine.work_source.act(_make_lease(held), ACT_CALL.decode(asked), lambda: until)
        )
        return ACT_REPLY.encode(await asyncio.shield(acting))

    async def actions(self) -> list[str]:
        return sorted(await self._engine.work_source.actions())

    # ------------------------------------------------------------------------------------------- logs

    async def _log(self, ticket: LeaseCredential, message: p.LogMessage) -> p.MessageReply:
        """Add lines to the log. With a `seq` they are written in the transaction that records it, so once."""
        if len(message.lines) > p.LINES_MAX:
            raise TenureError(
                "INVALID_INPUT", f"a log message has at most {p.LINES_MAX} lines, not {len(message.lines)}"
            )
        held = await self.look(ticket)
        if held.over_since is not None:
            self.check_late_or_stale(held)
            await append_log_lines(self._engine.store, _lines(ticket, message, held.now_us, late=True))
            return p.MessageReply(state="ok", cancel=True, late=True)
        if held.lease != "active" or held.state not in ("running", "uploading", "canceling"):
            raise TenureError("LEASE_NOT_ACTIVE", "send `running` before the first log line")
        lines = _lines(ticket, message, held.now_us)
        if message.seq == 0:
            await append_log_lines(self._engine.store, lines)
            return p.MessageReply(state="ok", cancel=held.state == "canceling")
        key = (ticket.run_id, ticket.idx, ticket.n)
        beating = c.Heartbeat(run_id=key[0], idx=key[1], n=key[2], seq=message.seq, tenant=ticket.tenant)
        check_command(beating)

        def work() -> Transaction[LeaseReply | None]:
            replies: dict[LeaseKey, LeaseReply] = yield from extend_leases([beating])
            if key in replies and lines:
                yield from write_log_lines(lines)
            return replies.get(key)

        reply = await run_transaction(self._engine.store, work)
        if reply is None:  # this `seq` was recorded before, or the lease has just ended
            return REPLY.encode(await self._engine.orchestrator.heartbeat(beating))
        self._engine.orchestrator.update_lease(beating, reply)
        return REPLY.encode(reply)

    # -------------------------------------------------------------------------------------- reads

    async def look(self, ticket: LeaseCredential) -> RemoteLeaseDetail:
        found = await self._held([(ticket.run_id, ticket.idx, ticket.n)])
        if not found:
            raise TenureError("UNAUTHENTICATED")  # its run is no more
        return found[0]

    def check_late_or_stale(self, held: RemoteLeaseDetail) -> bool:
        """Whether a lease has ended, so that an upload is late. Raises LEASE_STALE after LATE_UPLOAD_SECONDS."""
        if held.over_since is None:
            return False
        if held.now_us - held.over_since > us(LATE_UPLOAD_SECONDS):
            raise _stale(held)
        return True

    async def state(self, ticket: LeaseCredential, *, with_run: bool) -> p.LeaseState:
        held = await self.look(ticket)
        if held.over_since is not None:
            raise _stale(held)
        lease, read = _make_lease(held), self._engine.store.read
        checkpoints, waits, acts, inbox = await asyncio.gather(
            read("resume_checkpoints", held.run_id, held.idx),
            read("resume_waits", held.run_id, held.idx, *ALL_WAITS),
            read("resume_acts", held.run_id, held.idx),
            read("inbox_of", held.run_id),
        )
        return p.LeaseState(
            lease=LEASE.encode(lease),
            cancel=held.state == "canceling",
            checkpoints=[CHECKPOINT.encode(row) for row in checkpoints],
            waits=[WAIT.encode(row) for row in waits],
            events=[await self._event(row) for row in inbox if row.wait_no is None],
            acts=[ACT.encode(row) for row in acts],
            run=await self._run(lease) if with_run else None,
            now=to_datetime(held.now_us),
        )

    async def waits(self, ticket: LeaseCredential, first: int, last: int) -> list[p.OpenedWait]:
        held = await self.look(ticket)
        if held.over_since is not None:
            raise _stale(held)
        rows = await self._engine.store.read("resume_waits", held.run_id, held.idx, first, last)
        return [WAIT.encode(row) for row in rows]

    async def _run(self, lease: Lease) -> p.RunFacts:
        input_, outputs, facts = await self._engine.work_source.outputs(lease)
        bodies = {name: None if body is None else encode_payload(body) for name, body in outputs.items()}
        return p.RunFacts(
            input=encode_payload(input_),
            outputs=bodies,
            version=facts["version"],
            repo=facts["repo"],
            trigger=facts["trigger"],
        )

    async def _event(self, row: InboxRow) -> p.BufferedEvent:
        return p.BufferedEvent(
            name=row.name,
            event_id=row.event_id,
            source=row.source,
            received_at=to_datetime(row.received_at),
            payload=encode_payload(await self._payload(row.run_id, row.payload_ref)),
        )

    async def _payload(self, run_id: int, ref: int | None) -> bytes | None:
        rows = [] if ref is None else await self._engine.store.read("payload", run_id, ref)
        return rows[0].body if rows else None

    async def register(self, who: Principal, entries: list[p.WorkflowEntry]) -> list[str]:
        """Register workflows in the runner's tenant, and return the refusals in words."""
        refused: list[str] = []
        for entry in entries:
            about = (who.tenant, entry.name, entry.version, entry.kind)
            if len(entry.digest or "") > NAME_CHARS_MAX or not (entry.digest or "").isprintable():
                raise TenureError(
                    "INVALID_INPUT", f"digest must have at most {NAME_CHARS_MAX} printable characters"
                )
            try:
                text, digest = await run_in_thread(_checked, about, entry)
                await save_workflow(
                    self._engine.store,
                    *about,
                    text,
                    digest,
                    registered_by=who.actor,
                    unconfirmed=_editors(who),
                )
            except TenureError as error:
                if error.code not in ("WORKFLOW_CHANGED", "WORKFLOW_INVALID"):
                    raise
                refused.append(f"{error.code}: {error.message}. {error.spec.remedy}")
        return refused

    # ------------------------------------------------------------------------------------- artifacts

    async def upload(
        self, ticket: LeaseCredential, name: str, body: bytes, content_type: str
    ) -> p.UploadReply:
        """Store a file of an attempt by name, or (as `sha256:<hex>`) a payload that is too large for a message."""
        problem = artifact_name_problem(name)
        if problem is not None:
            raise TenureError("INVALID_INPUT", f"{problem}; {name[:80]!r} was given")
        digest = _DIGEST + (await run_in_thread(sha256, body)).hexdigest()
        if name.startswith(_DIGEST) and name != digest:
            raise TenureError("INVALID_INPUT", f"the name does not match the body, whose digest is {digest}")
        held = await self.look(ticket)
        late = self.check_late_or_stale(held)
        reference = await self._engine.artifacts.put(body, ids.run_text(ticket.run_id))
        if name != digest:
            kind = (
                content_type if 0 < len(content_type) <= NAME_CHARS_MAX and content_type.isprintable() else ""
            )
            row = ArtifactRow(
                run_id=ticket.run_id,
                name=name,
                idx=ticket.idx,
                n=ticket.n,
                late=late,
                tenant=ticket.tenant,
                step=held.name,
                worker=ticket.owner,
                size=len(body),
                digest=digest,
                content_type=kind or CONTENT_TYPE,
                at=0,
                events=0,
            )
            late = (await put_artifact(self._engine.store, row, late_seconds=LATE_UPLOAD_SECONDS)).late
        return p.UploadReply(
            name=name, size=len(body), digest=digest, late=late, reference=msgspec.json.decode(reference)
        )

    async def download(
        self,
        ticket: LeaseCredential,
        name: str,
        run: str | None,
        *,
        step: str | None = None,
        attempt: int | None = None,
        late: bool | None = None,
    ) -> bytes:
        """A file by name, or a payload by digest, of this run or another one of the tenant."""
        if (await self.look(ticket)).over_since is not None:
            raise TenureError("LEASE_STALE", "the lease has ended")
        text = run or ids.run_text(ticket.run_id)
        if not name.startswith(_DIGEST):
            number = _run_id(text)
            found: list[RunRow] = await self._engine.store.read("get_run", number)
            if not found or found[0].tenant != ticket.tenant:
                raise TenureError("ARTIFACT_NOT_FOUND", f"{text} has no artifact {name[:80]!r}")
            line = await find_artifact(
                self._engine.store, number, name, step=step, attempt=attempt, late=late
            )
            return await self._engine.artifacts.get(artifact_reference(line))
        reference = msgspec.json.encode(ArtifactReference(digest=name, size=0, run=text))
        await self._authorization.check_reference(ticket.tenant, reference)
        return await self._engine.artifacts.get(reference)


# ----------------------------------------------------------------------------------------------- shapes


_LEASE_FIELDS = tuple(name for name in Lease.__struct_fields__ if name in RemoteLeaseDetail.__struct_fields__)


def _make_lease(held: RemoteLeaseDetail) -> Lease:
    """A remote lease as a local worker would have it."""
    seconds = held.lease_us / 1e6
    timing = profiles.for_run(held.profile).timing
    return Lease(
        **{name: getattr(held, name) for name in _LEASE_FIELDS},
        heartbeat_seconds=min(timing.heartbeat_seconds, seconds / HEARTBEATS_PER_LEASE_MIN),
        lease_seconds=seconds,
        input_ref=None,
    )


def _run_id(text: str) -> int:
    try:
        return ids.run_int(text)
    except TenureError as wrong:
        raise TenureError("ARTIFACT_NOT_FOUND", f"there is no run {text[:60]!r}") from wrong


def _editors(who: Principal) -> str:
    """Whose edit a registration is: a person's who used their own credential, and nobody's for a service (docs/separation-of-duties.md)."""
    return who.people if who.kind == "person" else ""


def _stale(held: RemoteLeaseDetail) -> TenureError:
    ended = held.lease if held.ended_at is not None else "expired"
    return TenureError("LEASE_STALE", f"the lease of attempt {held.n} is {ended}", lease=ended)


def _refused(fault: Exception) -> p.MessageReply:
    error = to_tenure_error(fault)
    refusal = p.MessageFault(code=error.code, message=error.message, retryable=error.retryable)
    return p.MessageReply(state="error", cancel=error.code == "RUN_CANCELING", error=refusal)


def _lines(
    ticket: LeaseCredential, message: p.LogMessage, now: int, *, late: bool = False
) -> list[LogLineRow]:
    mark = {"late": True} if late else {}
    return [
        LogLineRow(
            ticket.run_id,
            at=now if entry.at is None else to_micros(entry.at),
            step=entry.step or ticket.step,
            level=entry.level,
            text=entry.text,
            fields=msgspec.json.encode(entry.fields | mark).decode(),
        )
        for entry in message.lines
    ]


def _checked(about: tuple[str, str, str, Any], entry: p.WorkflowEntry) -> tuple[str, str]:
    """The text and digest of a workflow. Raises WORKFLOW_INVALID if it could not be started."""
    text = msgspec.json.encode(entry.definition, order="sorted").decode()
    digest = entry.digest or sha256(canonical(entry.definition)).hexdigest()
    load_registered(WorkflowRow(*about, text, digest, 0))
    return text, digest
