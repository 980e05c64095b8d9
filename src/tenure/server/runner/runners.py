"""Remote runners: claims, and the messages of whoever holds a lease, one by one and in batches.

Laws:
1. A runner claims in its own tenant only, and what a lease's holder says concerns that lease only. Everything else is as it
   is for a worker beside the database: the kernel decides.
2. A message repeated is answered alike, also after a lost answer, a restart, or by another server process.
3. Messages of one lease are carried out in the order in which they stand in a batch; one that fails in a way that may go
   better holds up those behind it, so that they can be repeated together.
4. What a lease's holder uploads or logs shortly after its end (`LATE_SECONDS`) is kept and marked late; nothing changes by it.
5. Nobody gets at another tenant's runs by a name they make up; see `tenure.server.runner.doubts`.
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
from tenure.artifacts import Reference
from tenure.canonical import canonical
from tenure.clock import us
from tenure.embedded import Engine
from tenure.errors import TenureError
from tenure.kernel import capability
from tenure.kernel import commands as c
from tenure.kernel.artifact_rules import name_problem
from tenure.kernel.behind import MORE, people_behind
from tenure.kernel.beside import LogLine, RegisteredWorkflow, WorkerProcess
from tenure.kernel.decide.checks import check_command, is_name
from tenure.kernel.decide.leases import Lease, Reply
from tenure.kernel.model import Inbox, Run, RunSpec
from tenure.kernel.service import Artifact
from tenure.limits import CLAIM_STEPS_MAX, NAME_CHARS_MAX, WORKER_BEAT_SECONDS
from tenure.orchestrator.artifact_views import find_artifact, reference_to
from tenure.orchestrator.claims import Claim, RemoteClaim, token_hash
from tenure.orchestrator.heartbeats import LeaseKey, beat
from tenure.orchestrator.outbox import UNDO_VERSION, UNDO_WORKFLOW
from tenure.orchestrator.resuming import ALL_WAITS
from tenure.sdk import codec
from tenure.server.identity.principals import Principal
from tenure.server.problems import named
from tenure.server.runner.doubts import Doubts, is_doubtful
from tenure.server.runner.lease_tokens import Tickets
from tenure.server.runner.lease_views import acted_of, granted_of, info_of, lease_of, recorded_of, waited_of
from tenure.server.runs.catalog import check
from tenure.server.work import run_aside
from tenure.store.beside import lines_kept, settled
from tenure.store.port import Transaction
from tenure.store.remote import HeldLease, Ticket, put_artifact
from tenure.worker import protocol as p
from tenure.worker import protocol_state as ps
from tenure.worker.values import lease_ints, lease_text, micros, moment, shown
from tenure.worker.wording import act_answered, answered, ask_of, command_of

LATE_SECONDS = 600.0
CLAIMS_ENDED_MAX = 10_000
SLOTS_MAX = 100_000
RESTARTED = codec.restarted("").partition(b":")[0]
CONTENT_TYPE = "application/octet-stream"
_DIGEST = "sha256:"
_UNDOES = {capability.flow(UNDO_WORKFLOW, UNDO_VERSION)}


class Runners:
    """See the laws above."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.tickets = Tickets(engine.store)
        self._doubts = Doubts(engine.store)
        self._ended: dict[str, None] = {}
        """Claims that were told to end: whoever waits under their names stops."""
        self._seen_until: dict[str, float] = {}

    # ----------------------------------------------------------------------------------------- claims

    async def claim(
        self, who: Principal, secret: str, request: p.ClaimRequest, connected: Callable[[], bool]
    ) -> list[p.GrantedLease]:
        """Take steps for a runner, or answer with what the same claim was given before."""
        request.check()
        if _UNDOES & {capability.split(each)[1] for each in request.capabilities}:
            raise TenureError(
                "INVALID_INPUT",
                f"{UNDO_WORKFLOW} is done by workers beside the database, who have the receipts",
            )
        worker = request.worker or who.id
        remote = RemoteClaim(f"{who.key_id}/{request.claim_id}", secret.encode())
        if request.max == 0:
            self._end(remote.name)
        if request.slots is not None:
            await self._seen_again(who, request)
        wanted = Claim(
            c.ClaimBy(worker, request.ack, request.session),
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
        await self._stand_behind(who, granted)
        if claimed.before:
            return await self._before(claimed.before, remote)
        found = []
        for lease in claimed.leases:
            key = (lease.run_id, lease.idx, lease.n)
            token = remote.token(*key)
            self.tickets.keep(Ticket(*key, lease.tenant, token_hash(token), worker, lease.name, remote.name))
            found.append(granted_of(lease, token))
        return found

    async def _stand_behind(self, who: Principal, run_ids: Sequence[int]) -> None:
        """A person who works on runs with a key of their own feeds them, and so stands behind them: known before the leases are
        handed out. Should this fail, the same claim again finds them and says it."""
        if who.kind != "person":
            return
        store = self._engine.store
        context = c.Context(who.actor, "user", "runner/claim")
        for run_id in dict.fromkeys(run_ids):
            specs: list[RunSpec] = await store.read("get_spec", run_id)
            known = people_behind(specs[0]) if specs else frozenset({MORE})
            if MORE not in known and not known.issuperset(who.people.split()):
                await self._engine.orchestrator.send(
                    c.StandBehind(run_id=run_id, context=context, behind=who.people)
                )

    async def _before(self, rows: list[Any], remote: RemoteClaim) -> list[p.GrantedLease]:
        """The leases that a claim was given before and that are still live."""
        held = await self._held([(row.run_id, row.idx, row.n) for row in rows])
        live = (one for one in held if one.over_since is None)
        return [granted_of(lease_of(one), remote.token(one.run_id, one.idx, one.n)) for one in live]

    async def seen(
        self,
        who: Principal,
        worker: str,
        capabilities: Sequence[str],
        slots: int,
        version: str = "",
        process: p.ProcessInfo | None = None,
    ) -> None:
        """A worker is here; in which process, counts for leases of its own tenant only."""
        if not is_name(worker) or len(capabilities) > CLAIM_STEPS_MAX:
            raise TenureError(
                "INVALID_INPUT",
                f"a worker's name has 1 to 200 printable characters, and it has at most {CLAIM_STEPS_MAX} capabilities",
            )
        for one in capabilities:
            capability.check(one)
        name = f"@{who.tenant}/{worker}"[:NAME_CHARS_MAX]
        row = None
        if process is not None:
            process.check()
            about = (process.boot_id, process.namespaces, process.pid, process.start_ticks)
            row = WorkerProcess(process.session, who.tenant, name, *about)
        await self._engine.store.put_worker(name, capabilities, min(max(slots, 1), SLOTS_MAX), version, row)

    async def _seen_again(self, who: Principal, request: p.ClaimRequest) -> None:
        """Whoever claims with its slots is here; written down now and then."""
        name, now = f"{who.tenant}/{request.worker or who.id}", time.monotonic()
        if self._seen_until.get(name, 0.0) < now:
            if len(self._seen_until) >= CLAIMS_ENDED_MAX:
                self._seen_until.clear()
            self._seen_until[name] = now + WORKER_BEAT_SECONDS
            await self.seen(who, request.worker or who.id, request.capabilities, request.slots or 1)

    async def left(self, who: Principal, worker: str) -> None:
        """A worker stops in peace."""
        await self._engine.store.drop_worker(f"@{who.tenant}/{worker}"[:NAME_CHARS_MAX])

    def _end(self, name: str) -> None:
        while len(self._ended) >= CLAIMS_ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        self._ended[name] = None

    async def _held(self, keys: list[LeaseKey]) -> list[HeldLease]:
        store = self._engine.store
        now = (await store.read("now"))[0].now_us
        found: list[HeldLease] = await store.read("remote_held", now, rows=keys)
        return found

    async def now_us(self) -> int:
        """The store's time."""
        estimate = self._engine.store.estimate_us()
        if estimate is not None:
            return estimate
        now: int = (await self._engine.store.read("now"))[0].now_us
        return now

    # --------------------------------------------------------------------------------------- messages

    async def say(self, ticket: Ticket, message: p.Said) -> p.Answer:
        """Carry out one message."""
        if isinstance(message, p.Log):
            return await self._log(ticket, message)
        command = self._command(ticket, message)
        if isinstance(command, c.Heartbeat) and not isinstance(message, p.Running):
            return answered(await self._engine.orchestrator.heartbeat(command))
        await self._doubts.check(ticket, command)
        reply: Reply = await self._engine.orchestrator.send(command)
        return answered(reply)

    def _command(self, ticket: Ticket, message: p.Said) -> c.LeaseMessage:
        key = (ticket.run_id, ticket.idx, ticket.n)
        head = {
            "run_id": ticket.run_id,
            "idx": ticket.idx,
            "n": ticket.n,
            "tenant": ticket.tenant,
            "context": c.Context(f"worker:{ticket.owner}", "system", lease_text(*key)),
        }
        command = command_of(message, head, partial(self._engine.orchestrator.new_id, ticket.tenant))
        if isinstance(command, c.Heartbeat):
            check_command(command)  # the kernel looks at the others; heartbeats are written without it
        return command

    async def say_all(self, who: Principal, messages: list[Any]) -> list[p.Answer]:
        """Carry out a batch: one answer each, in order; see law 3."""
        answers: list[p.Answer | None] = [None] * len(messages)
        by_lease: dict[str, list[int]] = {}
        for at, message in enumerate(messages):
            by_lease.setdefault(message.lease, []).append(at)
        keys: dict[str, LeaseKey] = {}
        for lease in by_lease:
            try:
                keys[lease] = lease_ints(lease)
            except TenureError:
                continue  # nobody's; it is refused below
        await self.tickets.look_up(keys.values())
        asked: list[tuple[int, asyncio.Future[Reply]]] = []
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
                answers[at] = answered(await future)
            except Exception as fault:
                answers[at] = _refused(fault)
        return [answer for answer in answers if answer is not None]

    def _at_once(
        self,
        who: Principal,
        key: LeaseKey | None,
        message: Any,
        at: int,
        asked: list[tuple[int, asyncio.Future[Reply]]],
    ) -> bool:
        """Submit the only message of a lease without a task of its own, if it needs nothing but its commit."""
        if key is None or isinstance(message, p.Log | p.Start | p.Running):
            return False
        try:
            ticket = self._ticket(who, key, message.token)
            command = self._command(ticket, message)
            if is_doubtful(command):
                return False
            orchestrator = self._engine.orchestrator
            if isinstance(command, c.Heartbeat):
                asked.append((at, orchestrator.heartbeat(command)))
            else:
                asked.append((at, orchestrator.submit(command)))
        except TenureError:
            return False  # it is told on the other way
        return True

    async def _in_turn(
        self,
        who: Principal,
        key: LeaseKey | None,
        messages: list[Any],
        places: list[int],
        answers: list[p.Answer | None],
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

    def _ticket(self, who: Principal, key: LeaseKey, token: str) -> Ticket:
        ticket = self.tickets.check(key, token)
        if ticket.tenant != who.tenant:
            raise TenureError("UNAUTHENTICATED")
        return ticket

    async def act(self, ticket: Ticket, asked: ps.Act) -> ps.ActAnswer:
        """Do something to the world for whoever holds a lease: policy, secrets and the call stay here. What was begun goes on
        when the asker is gone; whoever asks again is told how it ended."""
        before = clock.boot_seconds()
        held = await self.look(ticket)
        if held.over_since is not None:
            raise _stale(held)
        until = before + (held.expires_at - held.now_us) / 1e6
        acting = asyncio.ensure_future(self._engine.station.act(lease_of(held), ask_of(asked), lambda: until))
        return act_answered(await asyncio.shield(acting))

    async def actions(self) -> list[str]:
        """What can be done for runners here."""
        return sorted(await self._engine.station.actions())

    # ------------------------------------------------------------------------------------------- logs

    async def _log(self, ticket: Ticket, message: p.Log) -> p.Answer:
        """Keep lines. With a number they are written in the transaction that takes it down, once."""
        if len(message.lines) > p.LINES_MAX:
            raise TenureError("INVALID_INPUT", f"a message has at most {p.LINES_MAX} lines")
        held = await self.look(ticket)
        if held.over_since is not None:
            self.late_or_stale(held)
            await self._engine.store.put_log_lines(_lines(ticket, message, held.now_us, late=True))
            return p.Answer(state="ok", cancel=True, late=True)
        if held.lease != "active" or held.state not in ("running", "uploading", "canceling"):
            raise TenureError("LEASE_NOT_ACTIVE", "say `running` before the first line of a log")
        lines = _lines(ticket, message, held.now_us)
        if message.seq == 0:
            await self._engine.store.put_log_lines(lines)
            return p.Answer(state="ok", cancel=held.state == "canceling")
        key = (ticket.run_id, ticket.idx, ticket.n)
        beating = c.Heartbeat(run_id=key[0], idx=key[1], n=key[2], seq=message.seq, tenant=ticket.tenant)
        check_command(beating)

        def work() -> Transaction[Reply | None]:
            replies: dict[LeaseKey, Reply] = yield from beat([beating])
            if key in replies and lines:
                yield from lines_kept(lines)
            return replies.get(key)

        reply = await settled(self._engine.store, work)
        if reply is None:  # it has this number already; or the lease has ended just now
            return answered(await self._engine.orchestrator.heartbeat(beating))
        self._engine.orchestrator.extended(beating, reply)
        return answered(reply)

    # -------------------------------------------------------------------------------------- looking

    async def look(self, ticket: Ticket) -> HeldLease:
        """A lease as it is now."""
        found = await self._held([(ticket.run_id, ticket.idx, ticket.n)])
        if not found:
            raise TenureError("UNAUTHENTICATED")  # its run is no more
        return found[0]

    def late_or_stale(self, held: HeldLease) -> bool:
        """Whether a lease is over, so that what its holder brings is late; LEASE_STALE when it is too late."""
        if held.over_since is None:
            return False
        if held.now_us - held.over_since > us(LATE_SECONDS):
            raise _stale(held)
        return True

    async def state(self, ticket: Ticket, *, with_run: bool) -> ps.LeaseState:
        """All that a holder goes on from."""
        held = await self.look(ticket)
        if held.over_since is not None:
            raise _stale(held)
        lease, read = lease_of(held), self._engine.store.read
        checkpoints, waits, acts, inbox = await asyncio.gather(
            read("resume_checkpoints", held.run_id, held.idx),
            read("resume_waits", held.run_id, held.idx, *ALL_WAITS),
            read("resume_acts", held.run_id, held.idx),
            read("inbox_of", held.run_id),
        )
        return ps.LeaseState(
            lease=info_of(lease),
            cancel=held.state == "canceling",
            checkpoints=[recorded_of(row) for row in checkpoints],
            waits=[waited_of(row) for row in waits],
            events=[await self._event(row) for row in inbox if row.wait_no is None],
            acts=[acted_of(row) for row in acts],
            run=await self._run(lease) if with_run else None,
            now=moment(held.now_us),
        )

    async def waits(self, ticket: Ticket, first: int, last: int) -> list[ps.OpenedWait]:
        """The waits of a lease's step from one number to another, with their answers."""
        held = await self.look(ticket)
        if held.over_since is not None:
            raise _stale(held)
        rows = await self._engine.store.read("resume_waits", held.run_id, held.idx, first, last)
        return [waited_of(row) for row in rows]

    async def _run(self, lease: Lease) -> ps.RunFacts:
        input_, outputs, facts = await self._engine.station.outputs(lease)
        bodies = {name: None if body is None else shown(body) for name, body in outputs.items()}
        return ps.RunFacts(
            input=shown(input_),
            outputs=bodies,
            version=facts["version"],
            repo=facts["repo"],
            trigger=facts["trigger"],
        )

    async def _event(self, row: Inbox) -> ps.BufferedEvent:
        return ps.BufferedEvent(
            name=row.name,
            event_id=row.event_id,
            source=row.source,
            received_at=moment(row.received_at),
            payload=shown(await self._payload(row.run_id, row.payload_ref)),
        )

    async def _payload(self, run_id: int, ref: int | None) -> bytes | None:
        rows = [] if ref is None else await self._engine.store.read("payload", run_id, ref)
        return rows[0].body if rows else None

    async def register(self, who: Principal, entries: list[p.WorkflowEntry]) -> list[str]:
        """Register workflows under the runner's tenant; what was refused, in words."""
        refused: list[str] = []
        for entry in entries:
            about = (who.tenant, entry.name, entry.version, entry.kind)
            if len(entry.digest or "") > NAME_CHARS_MAX or not (entry.digest or "").isprintable():
                raise TenureError("INVALID_INPUT", "a digest is printable and not long")
            try:
                text, digest = await run_aside(_checked, about, entry)
                await self._engine.store.put_workflow(
                    *about, text, digest, registered_by=who.actor, unconfirmed=_editors(who)
                )
            except TenureError as error:
                if error.code not in ("WORKFLOW_CHANGED", "WORKFLOW_INVALID"):
                    raise
                refused.append(f"{error.code}: {error.message}. {error.spec.remedy}")
        return refused

    # ------------------------------------------------------------------------------------- artifacts

    async def upload(self, ticket: Ticket, name: str, body: bytes, content_type: str) -> p.Uploaded:
        """Keep a file of an attempt under a name, or (as `sha256:<hex>`) a payload that is too large for a message."""
        problem = name_problem(name)
        if problem is not None:
            raise TenureError("INVALID_INPUT", f"{problem}; {name[:80]!r} was given")
        digest = _DIGEST + (await run_aside(sha256, body)).hexdigest()
        if name.startswith(_DIGEST) and name != digest:
            raise TenureError("INVALID_INPUT", f"the body's digest is {digest}")
        held = await self.look(ticket)
        late = self.late_or_stale(held)
        reference = await self._engine.artifacts.put(body, ids.run_text(ticket.run_id))
        if name != digest:
            kind = (
                content_type if 0 < len(content_type) <= NAME_CHARS_MAX and content_type.isprintable() else ""
            )
            row = Artifact(
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
            late = (await put_artifact(self._engine.store, row, late_seconds=LATE_SECONDS)).late
        return p.Uploaded(
            name=name, size=len(body), digest=digest, late=late, reference=msgspec.json.decode(reference)
        )

    async def download(
        self,
        ticket: Ticket,
        name: str,
        run: str | None,
        *,
        step: str | None = None,
        attempt: int | None = None,
        late: bool | None = None,
    ) -> bytes:
        """A file of a run by its name, or a payload by its digest; of this run or another one of the tenant's."""
        if (await self.look(ticket)).over_since is not None:
            raise TenureError("LEASE_STALE", "the lease has ended")
        text = run or ids.run_text(ticket.run_id)
        if not name.startswith(_DIGEST):
            number = _run_id(text)
            found: list[Run] = await self._engine.store.read("get_run", number)
            if not found or found[0].tenant != ticket.tenant:
                raise TenureError("ARTIFACT_NOT_FOUND", f"{text} has no artifact {name[:80]!r}")
            line = await find_artifact(
                self._engine.store, number, name, step=step, attempt=attempt, late=late
            )
            return await self._engine.artifacts.get(reference_to(line))
        reference = msgspec.json.encode(Reference(digest=name, size=0, run=text))
        await self._doubts.check_reference(ticket.tenant, reference)
        return await self._engine.artifacts.get(reference)


# ----------------------------------------------------------------------------------------------- shapes


def _run_id(text: str) -> int:
    try:
        return ids.run_int(text)
    except TenureError as wrong:
        raise TenureError("ARTIFACT_NOT_FOUND", f"there is no run {text[:60]!r}") from wrong


def _editors(who: Principal) -> str:
    """Whom what is registered counts for: what a service registers is written down and counts for nobody, what a person registers
    with their own credential is their edit (docs/separation-of-duties.md)."""
    return who.people if who.kind == "person" else ""


def _stale(held: HeldLease) -> TenureError:
    ended = held.lease if held.ended_at is not None else "expired"
    return TenureError("LEASE_STALE", f"the lease of attempt {held.n} is {ended}", lease=ended)


def _refused(fault: Exception) -> p.Answer:
    error = named(fault)
    told = p.Fault(code=error.code, message=error.message, retryable=error.retryable)
    return p.Answer(state="error", cancel=error.code == "RUN_CANCELING", error=told)


def _lines(ticket: Ticket, message: p.Log, now: int, *, late: bool = False) -> list[LogLine]:
    mark = {"late": True} if late else {}
    return [
        LogLine(
            ticket.run_id,
            at=now if entry.at is None else micros(entry.at),
            step=entry.step or ticket.step,
            level=entry.level,
            text=entry.text,
            fields=msgspec.json.encode(entry.fields | mark).decode(),
        )
        for entry in message.lines
    ]


def _checked(about: tuple[str, str, str, Any], entry: p.WorkflowEntry) -> tuple[str, str]:
    """The text and the digest of a workflow that could be started; WORKFLOW_INVALID where it could not."""
    text = msgspec.json.encode(entry.definition, order="sorted").decode()
    digest = entry.digest or sha256(canonical(entry.definition)).hexdigest()
    check(RegisteredWorkflow(*about, text, digest, 0))
    return text, digest
