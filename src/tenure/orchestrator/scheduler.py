"""The scheduler: starts the runs of schedules whose slots have come.

Laws:
1. It may run in any number of processes and keeps no state. A slot's run has the idempotency key `scheduler:NAME:SLOT`, so
   each slot gets one run whichever process is faster. Only then does the schedule advance to its next slot, unless another
   process has advanced or changed it. A crash between the two repeats a request, not a run. The commit that creates the run
   writes the record of the key, with the answer that an API call would have got.
2. The store's clock decides which slots have come.
3. A slot that is found late was missed, and its schedule says what to do: `skip` drops it, `last` makes up for the newest, `all`
   for the newest up to a limit. So the number of runs that start at once is bounded.
4. A schedule that cannot be carried out does not delay the others.
"""

from __future__ import annotations

import asyncio
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec

from tenure.clock import us
from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.kernel.commands import Context, CreateRun, RunRequest, StepSpec, Trigger
from tenure.kernel.cron import Cron, format_slot, parse_cron
from tenure.kernel.new_run import build_create_run
from tenure.kernel.registry_rows import ScheduleRow
from tenure.kernel.run_rows import IdempotencyRow, RunRow
from tenure.limits import (
    CATCH_UP_RUNS_MAX,
    IDEMPOTENCY_DONE_SECONDS,
    SCHEDULE_LATE_SECONDS,
    SCHEDULE_SECONDS,
    SCHEDULES_AT_ONCE_MAX,
    SET_ASIDE_MAX,
)
from tenure.logs import get_logger
from tenure.orchestrator.core import Orchestrator
from tenure.orchestrator.periodic_task import PeriodicTask
from tenure.reads.created_runs import show_created
from tenure.store.idempotency import encode_response
from tenure.store.schedules import advance_schedule, save_schedule

log = get_logger(__name__)

SOURCE = "scheduler"
ACTOR = "system:scheduler"
_MADE_BEFORE = frozenset({"IDEMPOTENCY_CONFLICT", "IDEMPOTENCY_KEY_REUSED", "IDEMPOTENCY_EXPIRED"})
"""The slot has a run already, even if the schedule has changed since."""


def slots_to_run(schedule: ScheduleRow, cron: Cron, now_us: int) -> list[int]:
    """The slots that get a run now, oldest first (law 3): at most the catch-up's limit, and the slots that are not late yet."""
    first = schedule.next_at
    if first is None or first > now_us:
        return []
    late_us = now_us - us(SCHEDULE_LATE_SECONDS)
    fresh = cron.newest(max(first, late_us), now_us, CATCH_UP_RUNS_MAX)
    if first > late_us:
        return [first, *fresh]
    if schedule.catch_up == "skip" or (schedule.catch_up == "last" and fresh):
        return fresh
    count = 1 if schedule.catch_up == "last" else min(schedule.catch_up_max, CATCH_UP_RUNS_MAX)
    missed = cron.newest(first, late_us, count)
    if len(missed) < count:
        missed.insert(0, first)  # the stored slot counts, even if this machine's time zones differ
    return [*missed, *fresh]


def build_scheduled_run(
    schedule: ScheduleRow, run_id: int, slot_us: int, *, suffix: str = "", context: Context | None = None
) -> CreateRun:
    """The run of a slot; with a suffix, a run that a person triggered in addition to the slots."""
    slot = format_slot(slot_us) + suffix
    key = f"{SOURCE}:{schedule.name}:{slot}"
    plan = (
        (StepSpec(name="main", kind="body", queue=schedule.queue),)
        if schedule.plan is None
        else msgspec.json.decode(schedule.plan, type=tuple[StepSpec, ...])
    )
    request = RunRequest(
        context=context or Context(ACTOR, "system", key),
        workflow=schedule.workflow,
        code_version=schedule.code_version,
        profile=schedule.profile,
        plan=plan,
        input=_slot_input(schedule, slot_us),
        trigger=Trigger("scheduled", ref=f"{schedule.name}@{slot}"),
        source=SOURCE,
        idempotency_key=key,
        # Only the key is hashed: two schedulers that have read different versions of a schedule still mean one run.
        request_hash=sha256(key.encode()).digest(),
        labels=schedule.labels,
        over_rate="delay",
        requester=schedule.owner,
        involved=schedule.unconfirmed,
    )
    return build_create_run(request, run_id=run_id, tenant=schedule.tenant, workspace=schedule.workspace)


def record_scheduled_run(command: CreateRun, run: RunRow) -> IdempotencyRow:
    """The record of a slot's key, with the answer that an API call would have got."""
    assert command.idempotency_key is not None
    body = show_created(command, run.id, run.status, run.created_at)
    at = run.created_at
    return IdempotencyRow(
        command.tenant,
        command.source,
        command.idempotency_key,
        run.id,
        "completed",
        command.request_hash,
        encode_response(201, msgspec.json.encode(body), f"/runs/{body.id}"),
        None,
        at,
        at,
        at + us(IDEMPOTENCY_DONE_SECONDS),
        None,
    )


def _slot_input(schedule: ScheduleRow, slot_us: int) -> bytes | None:
    if not schedule.pass_slot:
        return schedule.input
    given: dict[str, Any] = {} if schedule.input is None else msgspec.json.decode(schedule.input)
    return msgspec.json.encode({**given, "slot": format_slot(slot_us)})


class Scheduler(PeriodicTask):
    def __init__(self, orchestrator: Orchestrator, *, seconds: float = SCHEDULE_SECONDS) -> None:
        super().__init__("scheduler", self.look, seconds, SCHEDULES_AT_ONCE_MAX)
        self._orchestrator = orchestrator
        self._lacking = 0
        """How many due schedules have a profile that this process lacks: another process carries them out."""

    async def look(self) -> int:
        """Start the runs that are due now; how many schedules advanced to their next slot."""
        store = self._orchestrator.store
        now: int = (await store.read("now"))[0].now_us
        found: list[ScheduleRow] = await store.read(
            "schedules_due", now, SCHEDULES_AT_ONCE_MAX + self._lacking
        )
        due = [one for one in found if profiles.find(one.profile) is not None]
        lacking = len(found) - len(due)
        if lacking > self._lacking:
            log.warning("schedules_set_aside", count=lacking, error="PROFILE_NOT_HERE")
        self._lacking = min(lacking, SET_ASIDE_MAX)
        answers = await asyncio.gather(*(self._run_slots(one, now) for one in due), return_exceptions=True)
        for one, answer in zip(due, answers, strict=True):
            if isinstance(answer, BaseException):
                log.warning("schedule_failed", tenant=one.tenant, schedule=one.name, error=repr(answer))
        return sum(answer is True for answer in answers)

    async def _run_slots(self, schedule: ScheduleRow, now: int) -> bool:
        try:
            cron = parse_cron(schedule.cron, schedule.zone)
        except TenureError as refused:
            return await self._set_aside(schedule, refused)
        slots = slots_to_run(schedule, cron, now)
        for slot in slots:
            await self._create(schedule, slot)
        return await advance_schedule(
            self._orchestrator.store, schedule, cron.after(now), slots[-1] if slots else None
        )

    async def _create(self, schedule: ScheduleRow, slot: int) -> None:
        try:
            new_id = self._orchestrator.new_id(schedule.tenant)
            command = build_scheduled_run(schedule, new_id, slot)
            await self._orchestrator.create(command, partial(record_scheduled_run, command))
        except TenureError as refused:
            if refused.retryable:
                raise  # the slot stays due
            if refused.code not in _MADE_BEFORE:
                log.error(
                    "scheduled_run_refused",
                    tenant=schedule.tenant,
                    schedule=schedule.name,
                    slot=format_slot(slot),
                    error=refused.code,
                    message=refused.message,
                )

    async def _set_aside(self, schedule: ScheduleRow, refused: TenureError) -> bool:
        """Pause a schedule that this machine cannot parse, so that it is not due again every second."""
        log.error(
            "schedule_set_aside", tenant=schedule.tenant, schedule=schedule.name, message=refused.message
        )
        paused = msgspec.structs.replace(schedule, paused=True, next_at=None, revision=schedule.revision + 1)
        return await save_schedule(self._orchestrator.store, paused) is not None
