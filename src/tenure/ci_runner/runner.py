"""The CI runner: it claims jobs from a server, executes them in slots, and reports how they ended.

Laws:
1. It speaks the runner protocol and nothing else. It claims jobs whose labels it has, all of them.
2. A slot executes one step at a time. Where the runner is root, each slot has its own user.
3. When a lease is lost, its job is killed at once and nothing more is sent. When a cancel is requested, the job ends within its grace period, and
   the cancel is acknowledged.
4. `stop` claims nothing more, lets jobs finish within the grace period, and gives the rest back without counting an attempt.
5. A runner without a sandbox does not start, unless its owner has chosen that. Every job's log, progress and result say so.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from itertools import combinations
from typing import Any, Self

import msgspec

from tenure import clock, ids
from tenure.artifacts import is_reference
from tenure.ci.failure_rules import Phase
from tenure.ci.job import JOB_TOOL, PLAN_TOOL, CiJob, queue_for
from tenure.ci_runner.job_attempt import JobAttempt, JobFacts, JobOutcome
from tenure.ci_runner.job_host import JobHost, RunnerSettings
from tenure.ci_runner.job_storage import JobStorage
from tenure.ci_runner.plan_attempt import PlanAttempt
from tenure.errors import TenureError
from tenure.kernel import capability, profiles
from tenure.kernel import commands as c
from tenure.kernel.lease_types import Lease, LeaseKey, LeaseReply
from tenure.limits import NAME_CHARS_MAX
from tenure.logs import get_logger
from tenure.processes import make_process_name
from tenure.sandbox.isolation import choose_isolation
from tenure.sandbox.sandbox import IsolationKind
from tenure.sandbox.usage_limits import UsageMeter
from tenure.sdk.outcomes import LEASE_OVER_CODES
from tenure.worker.heartbeat import Heartbeater
from tenure.worker.protocol_codec import format_lease_id
from tenure.worker.remote_source import RemoteWorkSource
from tenure.worker.work_source import heartbeat_for, lease_key

log = get_logger(__name__)

LABELS_MAX = 6
"""A runner offers every set of its labels as a queue of its own: 64 of them."""
SLOTS_MAX = 1_000
NEWS_SECONDS = 2.0
"""The longest heartbeat interval: a cancel arrives with the reply to a heartbeat."""
CLAIM_PAUSE_SECONDS_MIN = 0.2
CLAIM_PAUSE_SECONDS_MAX = 3.0
CLAIM_END_SECONDS = 10.0
REGISTER_SECONDS = 10.0
FINAL_MESSAGE_SECONDS = 60.0
FINAL_MESSAGE_PAUSE_SECONDS = 0.2
CANCEL_SHARE = 0.5
"""How much of the cancel grace period a job has: the request may be a heartbeat old, and the log has to be stored."""
GRACE_SECONDS = 30.0

StorageFactory = Callable[[str, str], JobStorage]
"""Makes the storage of a lease, from its id and token."""


def list_capabilities(labels: Iterable[str], tools: Iterable[str]) -> tuple[str, ...]:
    """What a runner with these labels claims: steps whose labels are among them."""
    own = sorted(set(labels))
    if len(own) > LABELS_MAX:
        raise TenureError("INVALID_INPUT", f"a runner has at most {LABELS_MAX} labels, not {len(own)}")
    for label in own:
        if not label or not label.isprintable() or set(label) & set("+| ,"):
            raise TenureError(
                "INVALID_INPUT", f"label {label!r} must be printable, without blanks, commas, '+' and '|'"
            )
    sets = [chosen for size in range(len(own) + 1) for chosen in combinations(own, size)]
    return tuple(
        capability.capability(queue_for(chosen), capability.tool(tool)) for tool in tools for chosen in sets
    )


class StepLease:
    """The messages of one lease, numbered in the order in which they are sent."""

    def __init__(self, lease: Lease, runner: str, work_source: RemoteWorkSource) -> None:
        self.lease = lease
        self.lost = False
        self.canceled = False
        self.on_cancel: Callable[[], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self._work_source = work_source
        self._context = c.Context(f"worker:{runner}"[:NAME_CHARS_MAX], "system", lease.idempotency_key)
        self._seq = 0

    def address(self) -> dict[str, Any]:
        self._seq += 1
        lease = self.lease
        return {
            "run_id": lease.run_id,
            "idx": lease.idx,
            "n": lease.n,
            "seq": self._seq,
            "tenant": lease.tenant,
            "context": self._context,
        }

    def cancel(self) -> None:
        if not self.canceled:
            self.canceled = True
            if self.on_cancel is not None:
                self.on_cancel()

    def lose(self) -> None:
        if not self.lost:
            self.lost = True
            if self.on_lost is not None:
                self.on_lost()

    async def send(self, message: c.LeaseCommand) -> LeaseReply:
        """Send a message that is not the last one."""
        reply = await self._work_source.submit(message)
        if reply.cancel:
            self.cancel()
        return reply

    async def send_final(self, message: c.LeaseCommand) -> bool:
        """Send the last message, and repeat it while the server cannot be reached. Returns whether it was accepted."""
        deadline = time.monotonic() + FINAL_MESSAGE_SECONDS
        while True:
            try:
                reply = await self._work_source.submit(message)
            except TenureError as refused:
                if refused.code not in LEASE_OVER_CODES and not refused.retryable:
                    raise
                if refused.code in LEASE_OVER_CODES or self.lost or time.monotonic() > deadline:
                    log.warning(
                        "result_not_accepted", run=ids.run_text(self.lease.run_id), error=refused.code
                    )
                    return False
                await asyncio.sleep(FINAL_MESSAGE_PAUSE_SECONDS)
                continue
            if reply.late and not isinstance(message, c.AckCancel):
                # A cancel was requested while the result was on its way.
                message = c.AckCancel(**self.address())
                continue
            return True

    async def complete(self, output: bytes | None) -> bool:
        return await self.send_final(c.Complete(**self.address(), output=output))

    async def fail(self, code: str, message: str) -> bool:
        text = message.encode(errors="replace") or b"-"
        return await self.send_final(c.Fail(**self.address(), code=code, message=text))

    async def release(self) -> bool:
        return await self.send_final(c.Release(**self.address()))

    async def acknowledge_cancel(self) -> bool:
        return await self.send_final(c.AckCancel(**self.address()))


class CiRunner:
    """An async context manager, or `start` and `stop`."""

    def __init__(
        self,
        work_source: RemoteWorkSource,
        settings: RunnerSettings,
        make_storage: StorageFactory,
        *,
        isolation: IsolationKind = "bubblewrap",
        name: str | None = None,
        plans: bool = True,
    ) -> None:
        """`plans`: whether it also plans changes, which needs no label."""
        if not 1 <= settings.slots <= SLOTS_MAX:
            raise TenureError("INVALID_INPUT", f"slots must be 1 to {SLOTS_MAX}, not {settings.slots}")
        self.name = name or make_process_name(host_chars_max=40, random_bytes=3)
        self.settings = settings
        self.capabilities = list_capabilities(
            settings.labels, (JOB_TOOL, PLAN_TOOL) if plans else (JOB_TOOL,)
        )
        self.counts = dict.fromkeys(("claimed", "succeeded", "failed", "canceled", "lost", "released"), 0)
        self._work_source = work_source
        self._make_storage = make_storage
        self._wanted_isolation: IsolationKind = isolation
        self._host: JobHost | None = None
        self._heartbeater: Heartbeater | None = None
        self._leases: dict[LeaseKey, StepLease] = {}
        self._tasks: dict[asyncio.Task[None], StepLease] = {}
        self._free_slots = list(range(settings.slots - 1, -1, -1))
        self._slot_freed = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._stopping = False
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop(0.0 if exc[0] is not None else GRACE_SECONDS)

    @property
    def busy(self) -> int:
        return len(self._tasks)

    @property
    def host(self) -> JobHost:
        assert self._host is not None
        return self._host

    # ---------------------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        isolation = await choose_isolation(self._wanted_isolation, uid_base=self.settings.uid_base)
        meter = await self._stack.enter_async_context(
            UsageMeter(cgroup_name=f"tenure-{os.getpid()}-{secrets.token_hex(3)}")
        )
        self._host = await asyncio.to_thread(JobHost, self.settings, isolation, meter)
        self._stack.callback(self._host.close)
        await self._work_source.register(self.name, self.capabilities, self.settings.slots)
        self._heartbeater = self._work_source.make_heartbeater(self._handle_replies)
        self._heartbeater.start()
        self._loops = [asyncio.ensure_future(self._claim()), asyncio.ensure_future(self._register())]
        tell = log.warning if isolation.kind == "none" else log.info
        tell(
            "ci_runner_started",
            runner=self.name,
            slots=self.settings.slots,
            labels=list(self.settings.labels),
            isolation=str(isolation),
        )

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Law 4."""
        self._stopping = True
        for task in self._loops:
            task.cancel()
        if self._loops:
            await asyncio.wait(self._loops, timeout=CLAIM_END_SECONDS)
        if self._tasks and grace > 0:
            await asyncio.wait(tuple(self._tasks), timeout=grace)
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))
        if self._heartbeater is not None:
            self._heartbeater.stop()
            await self._heartbeater.stopped()
        await self._stack.aclose()
        await self._work_source.leave(self.name)
        log.info("ci_runner_stopped", runner=self.name, **self.counts)

    # ------------------------------------------------------------------------------------------------ claims

    async def _claim(self) -> None:
        pause = CLAIM_PAUSE_SECONDS_MIN
        while not self._stopping:
            if not self._free_slots:
                self._slot_freed.clear()
                await self._slot_freed.wait()
                continue
            try:
                leases = await self._work_source.claim(self.name, self.capabilities, len(self._free_slots))
            except Exception as fault:  # the next claim may succeed
                log.warning("claim_failed", runner=self.name, error=repr(fault))
                await asyncio.sleep(pause)
                pause = min(pause * 2, CLAIM_PAUSE_SECONDS_MAX)
                continue
            pause = CLAIM_PAUSE_SECONDS_MIN
            for lease in leases:
                self._begin(lease)

    async def _register(self) -> None:
        while True:
            await asyncio.sleep(REGISTER_SECONDS)
            try:
                await self._work_source.register(self.name, self.capabilities, self.settings.slots)
            except Exception as fault:
                log.warning("register_failed", runner=self.name, error=repr(fault))

    def _begin(self, lease: Lease) -> None:
        assert self._heartbeater is not None
        self.counts["claimed"] += 1
        held = StepLease(lease, self.name, self._work_source)
        self._leases[lease_key(lease)] = held
        self._heartbeater.track(
            heartbeat_for(lease),
            min(lease.heartbeat_seconds, NEWS_SECONDS),
            lease.lease_seconds,
            asked_at=lease.asked_at,
            ends_at=math.inf,
        )
        task = asyncio.ensure_future(self._work_under(held, self._free_slots.pop()))
        self._tasks[task] = held
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        held = self._tasks.pop(task)
        key = lease_key(held.lease)
        self._leases.pop(key, None)
        if self._heartbeater is not None:
            self._heartbeater.forget_lease(key)
        self._work_source.forget_lease(held.lease)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("lease_task_failed", runner=self.name, error=repr(fault))

    def _handle_replies(self, replies: dict[LeaseKey, LeaseReply], lost: list[LeaseKey]) -> None:
        for key, reply in replies.items():
            if reply.cancel and (held := self._leases.get(key)) is not None:
                held.cancel()
        for key in lost:
            if (held := self._leases.get(key)) is not None:
                held.lose()

    # --------------------------------------------------------------------------------------------- one lease

    async def _work_under(self, held: StepLease, slot: int) -> None:
        try:
            await self._execute(held, slot)
        finally:
            self._free_slots.append(slot)
            self._slot_freed.set()

    async def _execute(self, held: StepLease, slot: int) -> None:
        lease = held.lease
        if self._stopping:
            await self._release(held)
            return
        if clock.boot_seconds() >= lease.asked_at + lease.lease_seconds and not await self._work_source.renew(
            lease
        ):
            self.counts["lost"] += 1
            return
        try:
            body = await self._load_input(lease)
            if lease.kind == "plan":
                await PlanAttempt(self.host, slot).execute(body, held)
                return
            job = msgspec.json.decode(body, type=CiJob)
        except asyncio.CancelledError:  # the runner stops
            await asyncio.shield(self._release(held))
            return
        except (msgspec.DecodeError, TenureError, RecursionError) as wrong:
            await held.fail(
                "JOB_INVALID", f"the input of this step is no job that this runner knows: {wrong}"
            )
            self.counts["failed"] += 1
            return
        try:
            outcome = await self._run_job(held, slot, job)
        except asyncio.CancelledError:  # the runner stops, and the job's processes have ended
            await asyncio.shield(self._release(held))
            return
        await self._report(held, outcome)

    async def _load_input(self, lease: Lease) -> bytes:
        body = lease.input or b"{}"
        return await self._work_source.load_artifact(lease, body) if is_reference(body) else body

    async def _run_job(self, held: StepLease, slot: int, job: CiJob) -> JobOutcome:
        lease, host = held.lease, self.host
        key = lease_key(lease)
        grace = self.settings.cancel_grace_seconds
        if grace is None:
            grace = profiles.for_display(lease.profile).timing.cancel_grace_seconds * CANCEL_SHARE

        unsafe = " (isolation: none)" if host.isolation.kind == "none" else ""

        def show_phase(phase: Phase) -> None:
            if self._heartbeater is not None:
                self._heartbeater.progress(key, f"{phase}{unsafe}")

        async def begin_upload() -> None:
            await held.send(c.BeginUpload(**held.address()))

        attempt = JobAttempt(
            host,
            slot,
            job,
            JobFacts(run_id=ids.run_text(lease.run_id), name=lease.name, attempt=lease.n),
            self._make_storage(format_lease_id(*key), self._work_source.tokens[key]),
            begin_upload=begin_upload,
            on_phase=show_phase,
            cancel_grace_seconds=grace,
        )
        held.on_cancel, held.on_lost = attempt.cancel, attempt.lose
        if held.lost:
            attempt.lose()
        elif held.canceled:
            attempt.cancel()
        return await attempt.run()

    async def _report(self, held: StepLease, outcome: JobOutcome) -> None:
        state = "lost" if held.lost else outcome.state
        if state == "succeeded":
            accepted = await held.complete(msgspec.json.encode(outcome.output))
        elif state == "failed":
            accepted = await held.fail(outcome.code, outcome.message)
        elif state == "canceled":
            accepted = await held.acknowledge_cancel()
        else:
            accepted = False
        self.counts[state if accepted else "lost"] += 1
        log.info(
            "job_ended",
            run=ids.run_text(held.lease.run_id),
            job=held.lease.name,
            attempt=held.lease.n,
            state=state,
            code=outcome.code,
            accepted=accepted,
        )

    async def _release(self, held: StepLease) -> None:
        if await held.release():
            self.counts["released"] += 1
