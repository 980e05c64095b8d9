"""Remote runners: their claims, and what the holders of remote leases send and read.

Laws:
1. A runner claims only in its own tenant, and a message concerns only its own lease. Everything else is as for a local worker: the kernel
   decides.
2. A repeated message gets the same reply, also after a lost response, a restart, or from another server process.
3. What a holder uploads or logs within `LATE_UPLOAD_SECONDS` after the lease's end is kept and marked late; it changes nothing.
4. A runner cannot reach another tenant's runs by a made-up name; see `services.runners.authorization`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec

from tenure import clock, ids
from tenure.artifacts import ArtifactReference
from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel import capability, profiles
from tenure.kernel import commands as c
from tenure.kernel.artifact_rules import artifact_name_problem
from tenure.kernel.decide.validation import check_command
from tenure.kernel.lease_types import Lease, LeaseKey, LeaseReply
from tenure.kernel.registry_rows import LogLineRow
from tenure.kernel.run_rows import InboxRow, RunRow, RunSpecRow
from tenure.kernel.separation_of_duties import MORE_PEOPLE, involved_people
from tenure.kernel.server_rows import ArtifactRow
from tenure.limits import HEARTBEATS_PER_LEASE_MIN, LATE_UPLOAD_SECONDS, NAME_CHARS_MAX
from tenure.orchestrator.claims import Claim, RemoteClaim, hash_token
from tenure.orchestrator.heartbeats import extend_leases
from tenure.orchestrator.outbox import UNDO_VERSION, UNDO_WORKFLOW
from tenure.reads.artifacts import find_artifact
from tenure.reads.file_stream import StoredFile, open_artifact
from tenure.reads.resume_state import ALL_WAITS
from tenure.services.identity.principals import Principal
from tenure.services.runners.authorization import RunnerAuthorization, needs_authorization
from tenure.services.runners.credentials import LeaseCredential, LeaseCredentials
from tenure.services.runners.registration import RunnerRegistration
from tenure.services.scope import Runtime
from tenure.store.artifacts import put_artifact
from tenure.store.log_lines import append_log_lines, write_log_lines
from tenure.store.port import Transaction
from tenure.store.remote_leases import RemoteLeaseDetail
from tenure.store.replay import ReplayAct, ReplayCheckpoint, ReplayWait
from tenure.store.transactions import run_transaction
from tenure.work_pool import run_in_pool

CLAIMS_ENDED_MAX = 10_000
CONTENT_TYPE = "application/octet-stream"
_DIGEST = "sha256:"
_UNDO_CAPABILITY = capability.flow(UNDO_WORKFLOW, UNDO_VERSION)


class LeaseRecords(NamedTuple):
    """What the holder of a lease resumes from."""

    lease: Lease
    cancel: bool
    now_us: int
    checkpoints: list[ReplayCheckpoint]
    waits: list[ReplayWait]
    acts: list[ReplayAct]
    events: list[tuple[InboxRow, bytes | None]]
    """Events that no wait has taken yet, with their payloads."""


class RunFactsRecord(NamedTuple):
    """The run's input, the outputs of its finished steps by name, and facts about the run."""

    input: bytes | None
    outputs: dict[str, bytes | None]
    version: str
    repo: str | None
    trigger: dict[str, str | None]


class UploadedArtifact(NamedTuple):
    digest: str
    late: bool
    reference: bytes


class RunnerLeases:
    """The remote leases of all tenants; see the laws above."""

    def __init__(self, runtime: Runtime) -> None:
        self._store = runtime.store
        self._orchestrator = runtime.orchestrator
        self._runtime = runtime
        self.credentials = LeaseCredentials(self._store)
        self.registration = RunnerRegistration(runtime)
        self._authorization = RunnerAuthorization(self._store)
        self._ended_claims: dict[str, None] = {}
        """Claims that were ended: a request that waits under their name returns."""

    async def now_us(self) -> int:
        estimate = self._store.estimate_us()
        if estimate is not None:
            return estimate
        now: int = (await self._store.read("now"))[0].now_us
        return now

    # ----------------------------------------------------------------------------------------- claims

    async def claim(
        self,
        who: Principal,
        secret: str,
        claim_id: str,
        claimant: c.Claimant,
        capabilities: Sequence[str],
        *,
        limit: int,
        wait_seconds: float,
        slots: int | None,
        is_connected: Callable[[], bool],
    ) -> list[tuple[Lease, str]]:
        """Lease steps to a runner, or return the leases that the same claim was granted before, with their tokens.

        A `limit` of 0 grants nothing new, and ends other requests of this claim that wait. A claim with `slots` registers the worker.
        """
        if any(capability.split(one)[1] == _UNDO_CAPABILITY for one in capabilities):
            raise TenureError(
                "INVALID_INPUT",
                f"runners may not claim {UNDO_WORKFLOW}: only workers with database access have the receipts",
            )
        remote = RemoteClaim(f"{who.key_id}/{claim_id}", secret.encode())
        if limit == 0:
            self._end_claim(remote.name)
        if slots is not None:
            await self.registration.note_claim(who, claimant.worker, capabilities, slots)
        wanted = Claim(claimant, tuple(dict.fromkeys(capabilities)), limit, who.tenant, remote)

        async def still_waits() -> bool:
            return is_connected() and remote.name not in self._ended_claims

        claimed = await self._orchestrator.claims.remote(wanted, wait_seconds if limit else 0.0, still_waits)
        await self._involve_people(
            who, [row.run_id for row in claimed.before] + [lease.run_id for lease in claimed.leases]
        )
        if claimed.before:
            details = await self._details([(row.run_id, row.idx, row.n) for row in claimed.before])
            return [
                (_make_lease(one), remote.token(one.run_id, one.idx, one.n))
                for one in details
                if one.over_since is None
            ]
        found = []
        for lease in claimed.leases:
            key = (lease.run_id, lease.idx, lease.n)
            token = remote.token(*key)
            self.credentials.add(
                LeaseCredential(
                    *key, lease.tenant, remote.name, hash_token(token), claimant.worker, lease.name
                )
            )
            found.append((lease, token))
        return found

    def _end_claim(self, name: str) -> None:
        while len(self._ended_claims) >= CLAIMS_ENDED_MAX:
            del self._ended_claims[next(iter(self._ended_claims))]
        self._ended_claims[name] = None

    async def _involve_people(self, who: Principal, run_ids: Sequence[int]) -> None:
        """Record a person who claims with their own key as involved in the runs, before the leases are handed out. If this fails, the
        repeated claim records it."""
        if who.kind != "person":
            return
        context = c.Context(who.actor, "user", "runner/claim")
        for run_id in dict.fromkeys(run_ids):
            specs: list[RunSpecRow] = await self._store.read("get_spec", run_id)
            known = involved_people(specs[0]) if specs else frozenset({MORE_PEOPLE})
            if MORE_PEOPLE not in known and not known.issuperset(who.people.split()):
                await self._orchestrator.send(
                    c.InvolvePeople(run_id=run_id, context=context, involved=who.people)
                )

    # --------------------------------------------------------------------------------------- messages

    def new_run_id(self, tenant: str) -> int:
        return self._orchestrator.new_id(tenant)

    async def send(self, credential: LeaseCredential, command: c.LeaseCommand) -> LeaseReply:
        """Carry out a command of a lease."""
        if isinstance(command, c.Heartbeat) and not command.begins:
            return await self._heartbeat(command)
        await self._authorization.check(credential, command)
        reply: LeaseReply = await self._orchestrator.send(command)
        return reply

    def submit(self, command: c.LeaseCommand) -> asyncio.Future[LeaseReply] | None:
        """Submit a command that needs nothing but a commit. None: `send` has to check it first."""
        if isinstance(command, c.Heartbeat):
            return self._heartbeat(command)
        return None if needs_authorization(command) else self._orchestrator.submit(command)

    def _heartbeat(self, command: c.Heartbeat) -> asyncio.Future[LeaseReply]:
        check_command(command)  # the kernel checks other commands; heartbeats do not pass through it
        return self._orchestrator.heartbeat(command)

    async def log(
        self, credential: LeaseCredential, seq: int, make_lines: Callable[[int, bool], list[LogLineRow]]
    ) -> LeaseReply:
        """Add lines to the run's log. With a `seq` they are written in the transaction that records it, and so only once.

        `make_lines` is called with the time, and with whether the lease has ended.
        """
        detail = await self._detail(credential)
        if _is_late(detail):
            await append_log_lines(self._store, make_lines(detail.now_us, True))
            return LeaseReply(cancel=True, late=True)
        if detail.lease != "active" or detail.state not in ("running", "uploading", "canceling"):
            raise TenureError("LEASE_NOT_ACTIVE", "send `running` before the first log line")
        lines = make_lines(detail.now_us, False)
        if seq == 0:
            await append_log_lines(self._store, lines)
            return LeaseReply(cancel=detail.state == "canceling")
        key = (detail.run_id, detail.idx, detail.n)
        heartbeat = c.Heartbeat(run_id=key[0], idx=key[1], n=key[2], seq=seq, tenant=credential.tenant)
        check_command(heartbeat)

        def work() -> Transaction[LeaseReply | None]:
            replies: dict[LeaseKey, LeaseReply] = yield from extend_leases([heartbeat])
            if key in replies and lines:
                yield from write_log_lines(lines)
            return replies.get(key)

        reply = await run_transaction(self._store, work)
        if reply is None:  # this `seq` was recorded before, or the lease has just ended
            return await self._orchestrator.heartbeat(heartbeat)
        self._orchestrator.update_lease(heartbeat, reply)
        return reply

    # ------------------------------------------------------------------------------------------ reads

    async def _details(self, keys: list[LeaseKey]) -> list[RemoteLeaseDetail]:
        now = (await self._store.read("now"))[0].now_us
        found: list[RemoteLeaseDetail] = await self._store.read("remote_lease_details", now, rows=keys)
        return found

    async def _detail(self, credential: LeaseCredential) -> RemoteLeaseDetail:
        found = await self._details([(credential.run_id, credential.idx, credential.n)])
        if not found:
            raise TenureError("UNAUTHENTICATED")  # its run was deleted
        return found[0]

    async def _held_detail(self, credential: LeaseCredential) -> RemoteLeaseDetail:
        detail = await self._detail(credential)
        if detail.over_since is not None:
            raise _lease_ended(detail)
        return detail

    async def check_held(self, credential: LeaseCredential) -> None:
        """Raise LEASE_STALE if the lease has ended."""
        await self._held_detail(credential)

    async def check_late(self, credential: LeaseCredential) -> bool:
        """Whether the lease has ended. Raises LEASE_STALE after LATE_UPLOAD_SECONDS."""
        return _is_late(await self._detail(credential))

    async def read_input(self, credential: LeaseCredential) -> bytes | None:
        """The input of the lease's step; a large one is a reference."""
        return (await self._detail(credential)).input

    async def get_held(self, credential: LeaseCredential) -> tuple[Lease, float]:
        """The lease, and until when it is certainly held, by `clock.boot_seconds`. Raises LEASE_STALE if it has ended."""
        before = clock.boot_seconds()
        detail = await self._held_detail(credential)
        return _make_lease(detail), before + (detail.expires_at - detail.now_us) / 1e6

    async def read_records(self, credential: LeaseCredential) -> LeaseRecords:
        detail = await self._held_detail(credential)
        read, step = self._store.read, (detail.run_id, detail.idx)
        checkpoints, waits, acts, inbox = await asyncio.gather(
            read("resume_checkpoints", *step),
            read("resume_waits", *step, *ALL_WAITS),
            read("resume_acts", *step),
            read("inbox_of", detail.run_id),
        )
        events = [(row, await self._payload(row)) for row in inbox if row.wait_no is None]
        return LeaseRecords(
            _make_lease(detail),
            detail.state == "canceling",
            detail.now_us,
            checkpoints,
            waits,
            acts,
            events,
        )

    async def _payload(self, row: InboxRow) -> bytes | None:
        rows = (
            [] if row.payload_ref is None else await self._store.read("payload", row.run_id, row.payload_ref)
        )
        return rows[0].body if rows else None

    async def read_waits(self, credential: LeaseCredential, first: int, last: int) -> list[ReplayWait]:
        """The waits of the lease's step with numbers from `first` to `last`."""
        detail = await self._held_detail(credential)
        return await self._store.read("resume_waits", detail.run_id, detail.idx, first, last)

    async def read_run_facts(self, run_id: int) -> RunFactsRecord:
        read = self._store.read
        specs, steps, payloads, runs = await asyncio.gather(
            read("get_spec", run_id),
            read("steps_of", run_id),
            read("payloads_of", run_id),
            read("get_run", run_id),
        )
        bodies = {row.ref: row.body for row in payloads}
        outputs = {
            step.name: bodies.get(step.output_ref)
            for step in steps
            if step.state == "succeeded" and step.kind != "plan"
        }
        before = specs[0].resumed_from
        while before is not None:  # the runs that this one resumes did the steps that it skips
            old_specs, old_steps, old_payloads = await asyncio.gather(
                read("get_spec", before), read("steps_of", before), read("payloads_of", before)
            )
            old = {row.ref: row.body for row in old_payloads}
            for step in old_steps:
                if step.state == "succeeded" and step.kind != "plan":
                    outputs.setdefault(step.name, old.get(step.output_ref))
            before = old_specs[0].resumed_from if old_specs else None
        run: RunRow = runs[0]
        trigger = {"type": specs[0].trigger_type, "ref": specs[0].trigger_ref}
        return RunFactsRecord(bodies.get(specs[0].input_ref), outputs, run.code_version, run.repo, trigger)

    # ------------------------------------------------------------------------------------- artifacts

    async def upload(
        self, credential: LeaseCredential, name: str, body: bytes, content_type: str
    ) -> UploadedArtifact:
        """Store a file of an attempt by name, or (as `sha256:<hex>`) a payload that is too large for a message."""
        problem = artifact_name_problem(name)
        if problem is not None:
            raise TenureError("INVALID_INPUT", f"{problem}; {name[:80]!r} was given")
        digest = _DIGEST + (await run_in_pool(sha256, body)).hexdigest()
        if name.startswith(_DIGEST) and name != digest:
            raise TenureError("INVALID_INPUT", f"the name does not match the body, whose digest is {digest}")
        detail = await self._detail(credential)
        late = _is_late(detail)
        reference = await self._runtime.artifacts.put(body, ids.run_text(credential.run_id))
        if name != digest:
            printable = 0 < len(content_type) <= NAME_CHARS_MAX and content_type.isprintable()
            row = ArtifactRow(
                run_id=credential.run_id,
                name=name,
                idx=credential.idx,
                n=credential.n,
                late=late,
                tenant=credential.tenant,
                step=detail.name,
                worker=credential.owner,
                size=len(body),
                digest=digest,
                content_type=content_type if printable else CONTENT_TYPE,
                at=0,
                events=0,
            )
            late = (await put_artifact(self._store, row, late_seconds=LATE_UPLOAD_SECONDS)).late
        return UploadedArtifact(digest, late, reference)

    async def download(
        self,
        credential: LeaseCredential,
        name: str,
        run: str | None,
        *,
        step: str | None = None,
        attempt: int | None = None,
        late: bool | None = None,
    ) -> StoredFile | bytes:
        """A file by name, or the bytes of a payload by digest, of this run or another one of the tenant."""
        if (await self._detail(credential)).over_since is not None:
            raise TenureError("LEASE_STALE", "the lease has ended")
        run = run or ids.run_text(credential.run_id)
        if name.startswith(_DIGEST):
            reference = msgspec.json.encode(ArtifactReference(digest=name, size=0, run=run))
            await self._authorization.check_reference(credential.tenant, reference)
            return await self._runtime.artifacts.get(reference)
        try:
            run_id = ids.run_int(run)
        except TenureError as wrong:
            raise TenureError("ARTIFACT_NOT_FOUND", f"there is no run {run[:60]!r}") from wrong
        found: list[RunRow] = await self._store.read("get_run", run_id)
        if not found or found[0].tenant != credential.tenant:
            raise TenureError("ARTIFACT_NOT_FOUND", f"{run} has no artifact {name[:80]!r}")
        row = await find_artifact(self._store, run_id, name, step=step, attempt=attempt, late=late)
        return await open_artifact(self._store, row)


_LEASE_FIELDS = tuple(name for name in Lease.__struct_fields__ if name in RemoteLeaseDetail.__struct_fields__)


def _make_lease(detail: RemoteLeaseDetail) -> Lease:
    """A remote lease as a local worker would have it."""
    seconds = detail.lease_us / 1e6
    timing = profiles.for_run(detail.profile).timing
    return Lease(
        **{name: getattr(detail, name) for name in _LEASE_FIELDS},
        heartbeat_seconds=min(timing.heartbeat_seconds, seconds / HEARTBEATS_PER_LEASE_MIN),
        lease_seconds=seconds,
        input_ref=None,
    )


def _lease_ended(detail: RemoteLeaseDetail) -> TenureError:
    ended = detail.lease if detail.ended_at is not None else "expired"
    return TenureError("LEASE_STALE", f"the lease of attempt {detail.n} is {ended}", lease=ended)


def _is_late(detail: RemoteLeaseDetail) -> bool:
    """Whether a lease has ended, so that an upload is late. Raises LEASE_STALE after LATE_UPLOAD_SECONDS."""
    if detail.over_since is not None and detail.now_us - detail.over_since > us(LATE_UPLOAD_SECONDS):
        raise _lease_ended(detail)
    return detail.over_since is not None
