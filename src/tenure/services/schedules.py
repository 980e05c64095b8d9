"""Schedules: create, change, pause and trigger them.

    async with tenure.Engine("app.db") as engine:
        await engine.schedules.create("nightly", report, "30 2 * * *", zone="Europe/Berlin", catch_up="last")

Laws:
1. A schedule is checked when it is created or changed, so that it does not fail when it is due.
2. A change applies to the revision that it was based on. If the schedule has changed since, the change is refused with
   SCHEDULE_CHANGED.
3. After a change the next slot is in the future. Slots that passed while the schedule was paused are skipped.
4. The definition of its runs (workflow, version, profile, queue, plan, input) is taken from the workflow when the schedule is created,
   and is changed only as a whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from tenure.clock import to_datetime, to_optional_datetime
from tenure.declared import DeclaredWorkflow
from tenure.errors import Detail, TenureError
from tenure.kernel import profiles
from tenure.kernel.commands import DEFAULT_PROFILE, Context, StepSpec
from tenure.kernel.cron import parse_cron
from tenure.kernel.decide.plans import check_plan
from tenure.kernel.registry_rows import CATCH_UP_POLICIES, ScheduleRow
from tenure.kernel.separation_of_duties import join_people
from tenure.limits import CATCH_UP_RUNS_MAX, NAME_CHARS_MAX, PAYLOAD_BYTES_MAX, SLOTS_SHOWN_MAX
from tenure.orchestrator.scheduler import build_scheduled_run
from tenure.reads.payloads import decode_payload
from tenure.sdk.definitions import Workflow, registry
from tenure.services.plans import PlanLike, encode_json_object, encode_payload, make_plan
from tenure.services.scope import Service
from tenure.shapes.schedules import Schedule
from tenure.store.schedules import delete_schedule, save_schedule

PAGE = 200
SchedulableWorkflow = Workflow[..., Any] | DeclaredWorkflow | str
"""A workflow in Python or from a file, or the name of an imported one. With a plan: any name."""
SLOT = "2026-01-05T10:00:00Z"
"""An example of the `slot` in an input, for checks."""
CATCH_UP_RUNS = 10
"""The default of `catch_up_max`."""


_List = list  # `Schedules.list` hides the builtin in annotations of the class


class Schedules(Service):
    """The schedules of a scope's tenant."""

    async def create(
        self,
        name: str,
        workflow: SchedulableWorkflow,
        cron: str,
        *,
        zone: str = "UTC",
        input: Any = None,  # noqa: A002 - the word users know it by
        plan: PlanLike | None = None,
        profile: str | None = None,
        version: str | None = None,
        catch_up: str = "skip",
        catch_up_max: int = CATCH_UP_RUNS,
        pass_slot: bool = False,
        labels: Mapping[str, str] | None = None,
        paused: bool = False,
        owner: str | None = None,
        by: str | None = None,
    ) -> Schedule:
        """Create a schedule that starts runs of `workflow` at the slots of `cron` in a time zone.

        `workflow` is a workflow in Python, a workflow from a file (its plan is made now, with this input), or the name of an imported
        one. With a `plan` of steps it is any name, and `version` is its version. `catch_up` decides about slots that pass while no
        scheduler runs: `skip`, `last`, or `all` (the newest `catch_up_max`). With `pass_slot`, the input (an object) gets the slot's
        time as `slot`. `by` are the people who create it, as `id id`; by default the scope's actor. They are involved in its runs until
        a second person confirms it.
        """
        scope = self._scope
        made = ScheduleRow(
            tenant=scope.tenant,
            name=name,
            workspace=scope.workspace,
            **_run_columns(workflow, input, plan, profile, pass_slot=pass_slot, version=version),
            cron=_normalize_cron(cron),
            zone=zone,
            catch_up=catch_up,
            catch_up_max=catch_up_max,
            owner=owner or scope.actor,
            labels=encode_json_object(labels),
            paused=paused,
            unconfirmed=join_people(by or scope.actor),
        )
        put = await self._put(made)
        if put is None:
            raise TenureError("SCHEDULE_EXISTS", f"schedule {name!r} exists already")
        return _show_schedule(put)

    async def edit(
        self, name: str, *, revision: int | None = None, by: str | None = None, **changes: Any
    ) -> Schedule:
        """Change some arguments of `create`. The definition of the runs is changed as a whole: `workflow` with its `input`, `plan`,
        `profile`, `version` and `pass_slot`. With a `revision`, only that revision is changed. `by` are the people who change it, as in
        `create`."""
        old = await self._row(name)
        if revision not in (None, old.revision):
            raise TenureError("SCHEDULE_CHANGED", f"schedule {name!r} has revision {old.revision} now")
        if unknown := sorted(changes.keys() - _EDITABLE.keys() - _RUN_DEFINITION):
            raise _invalid(Detail(unknown[0], "cannot be changed"))
        definition = {name: value for name, value in changes.items() if name in _RUN_DEFINITION}
        values = {name: _EDITABLE[name](value) for name, value in changes.items() if name in _EDITABLE}
        if definition:
            if "workflow" not in definition:
                problem = "is changed together with `workflow`; give that too"
                raise _invalid(Detail(min(definition), problem))
            values |= _run_columns(**({"input": None, "plan": None, "profile": None} | definition))
        return await self._change(old, unconfirmed=self._editors(old, by), **values)

    async def list(self) -> _List[Schedule]:
        """All schedules, by name."""
        found: _List[Schedule] = []
        read, tenant = self._scope.store.read, self._scope.tenant
        while rows := await read("schedules_of", tenant, found[-1].name if found else "", PAGE):
            found += map(_show_schedule, rows)
            if len(rows) < PAGE:
                break
        return found

    async def show(self, name: str) -> Schedule:
        return _show_schedule(await self._row(name))

    async def pause(self, name: str) -> Schedule:
        """Start no runs until the schedule is unpaused."""
        old = await self._row(name)
        return _show_schedule(old) if old.paused else await self._change(old, paused=True)

    async def unpause(self, name: str, *, by: str | None = None) -> Schedule:
        """Continue with the next slot. Slots that have passed are skipped. The people in `by` (as in `create`) cause its runs, so they
        are involved in them."""
        old = await self._row(name)
        if not old.paused:
            return _show_schedule(old)
        return await self._change(old, paused=False, unconfirmed=self._editors(old, by))

    async def trigger(
        self, name: str, *, actor: str | None = None, mark: str | None = None, at_us: int | None = None,
        requester: str | None = None, involved: str = "",
    ) -> str:  # fmt: skip
        """Start a run now, in addition to the slots and even while the schedule is paused. Returns its id.

        The run is requested by `requester`, or else by the schedule's owner. The people in `involved` (`id id`) are involved in it too.
        Calls with the same `mark` and `at_us` start one run, so that a caller can repeat a call.
        """
        scope = self._scope
        now = await scope.now_us() if at_us is None else at_us
        mark = mark or secrets.token_hex(6)
        asked = build_scheduled_run(
            await self._row(name),
            scope.orchestrator.new_id(scope.tenant),
            now,
            suffix=f":{mark}",
            context=Context(actor or scope.actor, "user", f"trigger:{mark}"),
        )
        # The owner is involved even if somebody else is the requester.
        everybody = join_people(asked.requester, asked.involved, involved)
        return await scope.create(
            msgspec.structs.replace(asked, requester=requester or asked.requester, involved=everybody)
        )

    async def delete(self, name: str) -> None:
        """Delete a schedule. Its runs stay."""
        self._scope.orchestrator  # noqa: B018 - refuses if the engine was opened for reading only
        if not await delete_schedule(self._scope.store, self._scope.tenant, name):
            raise _missing(name)

    async def next(self, name: str, count: int = 5) -> _List[datetime]:
        """The next slots, as if the schedule were not paused."""
        row, now = await self._row(name), await self._scope.now_us()
        return [*map(to_datetime, parse_cron(row.cron, row.zone).next(now, min(count, SLOTS_SHOWN_MAX)))]

    # --------------------------------------------------------------------------------------------- inside

    def _editors(self, old: ScheduleRow, by: str | None) -> str:
        return join_people(old.unconfirmed, by or self._scope.actor)

    async def _row(self, name: str) -> ScheduleRow:
        rows: _List[ScheduleRow] = await self._scope.store.read("schedule_named", self._scope.tenant, name)
        if not rows:
            raise _missing(name)
        return rows[0]

    async def _change(self, old: ScheduleRow, **values: Any) -> Schedule:
        changed = msgspec.structs.replace(old, revision=old.revision + 1, **values)
        put = await self._put(changed)
        if put is None:
            raise TenureError("SCHEDULE_CHANGED", f"schedule {old.name!r} was changed meanwhile")
        return _show_schedule(put)

    async def _put(self, schedule: ScheduleRow) -> ScheduleRow | None:
        """Check a schedule, find its next slot (law 3) and write it."""
        self._scope.orchestrator  # noqa: B018 - refuses if the engine was opened for reading only
        if problems := _problems(schedule):
            raise _invalid(*problems)
        cron, now = parse_cron(schedule.cron, schedule.zone), await self._scope.now_us()
        schedule.next_at = None if schedule.paused else cron.after(max(now, schedule.last_slot or 0))
        return await save_schedule(self._scope.store, schedule)


def _problems(s: ScheduleRow) -> list[Detail]:
    """What is wrong with a schedule, besides its cron expression and its zone."""
    found = [
        Detail(word, f"must have 1 to {NAME_CHARS_MAX} printable characters")
        for word in ("name", "workflow", "code_version", "queue", "owner", "workspace")
        if not 0 < len(getattr(s, word)) <= NAME_CHARS_MAX or not getattr(s, word).isprintable()
    ]
    if s.catch_up not in CATCH_UP_POLICIES:
        found.append(Detail("catch_up", f"{s.catch_up!r} is not one of {', '.join(CATCH_UP_POLICIES)}"))
    if not 1 <= s.catch_up_max <= CATCH_UP_RUNS_MAX:
        found.append(Detail("catch_up_max", f"must be from 1 to {CATCH_UP_RUNS_MAX}, not {s.catch_up_max}"))
    if s.input is not None and len(s.input) > PAYLOAD_BYTES_MAX:
        found.append(Detail("input", f"has {len(s.input)} bytes; at most {PAYLOAD_BYTES_MAX} are allowed"))
    if s.pass_slot and s.input is not None and not isinstance(decode_payload(s.input), dict):
        found.append(Detail("input", "must be an object, so that `slot` can be added"))
    if s.profile not in profiles.names():
        found.append(Detail("profile", f"there is no profile {s.profile!r}"))
    elif s.plan is not None:
        check_plan(msgspec.json.decode(s.plan, type=tuple[StepSpec, ...]), profiles.get(s.profile), {}, 0)
    return found


def _run_columns(
    workflow: SchedulableWorkflow,
    input: Any,  # noqa: A002 - the name in `create`
    plan: PlanLike | None,
    profile: str | None,
    *,
    pass_slot: bool = False,
    version: str | None = None,
) -> dict[str, Any]:
    """The definition of a schedule's runs, as columns of its row (law 4)."""
    if plan is not None:
        if not isinstance(workflow, str):
            raise _invalid(Detail("plan", f"workflow {workflow.name!r} has a plan of its own"))
        name, version, usual = workflow, version or "1", DEFAULT_PROFILE
        queue, steps = "default", make_plan(plan)
    elif isinstance(workflow, DeclaredWorkflow):
        if pass_slot:
            raise _invalid(Detail("pass_slot", "a workflow from a file uses `${{ slot }}` instead"))
        input = workflow.bind(input or {})  # noqa: A001 - with defaults
        name, version, usual, queue = workflow.name, workflow.version, workflow.profile, "default"
        steps = workflow.plan(input)
    else:
        flow = registry.workflows.get(workflow) if isinstance(workflow, str) else workflow
        if flow is None:
            problem = f"there is no workflow {workflow!r}; import the module that defines it, or give a plan"
            raise _invalid(Detail("workflow", problem))
        input = {} if input is None else input  # noqa: A001 - no arguments
        asked = {**input, "slot": SLOT} if pass_slot and isinstance(input, Mapping) else input
        flow.parameters.check(encode_payload(asked))
        name, version, usual, queue = flow.name, flow.version, flow.profile.name, flow.capability
        steps = flow.plan
    return {
        "workflow": name,
        "code_version": version,
        "profile": profile or usual,
        "queue": queue,
        "plan": msgspec.json.encode(steps).decode(),
        "input": encode_payload(input),
        "pass_slot": pass_slot,
    }


_RUN_DEFINITION = frozenset(("workflow", "input", "plan", "profile", "version", "pass_slot"))
"""What `edit` changes as a whole."""


def _normalize_cron(cron: str) -> str:
    return " ".join(cron.split())


_EDITABLE: dict[str, Callable[[Any], Any]] = {
    "cron": _normalize_cron,
    "labels": encode_json_object,
    **dict.fromkeys(("zone", "catch_up", "catch_up_max", "owner"), lambda value: value),
}
"""What `edit` may change separately, with its encoding."""


def _missing(name: str) -> TenureError:
    return TenureError("SCHEDULE_NOT_FOUND", f"there is no schedule {name!r}")


def _invalid(*problems: Detail) -> TenureError:
    return TenureError("SCHEDULE_INVALID", f"{problems[0].path}: {problems[0].problem}", problems)


def _show_step(planned: StepSpec) -> dict[str, Any]:
    """A step of a plan with its decoded values, for people who confirm it."""
    shown: dict[str, Any] = msgspec.to_builtins(planned)
    for word in ("input", "template"):
        if (value := getattr(planned, word)) is not None:
            shown[word] = decode_payload(value)
    return shown


def _show_schedule(s: ScheduleRow) -> Schedule:
    return Schedule(
        name=s.name,
        workflow=s.workflow,
        cron=s.cron,
        zone=s.zone,
        paused=s.paused,
        next_at=to_optional_datetime(s.next_at),
        last_slot=to_optional_datetime(s.last_slot),
        catch_up=s.catch_up,
        catch_up_max=s.catch_up_max,
        pass_slot=s.pass_slot,
        code_version=s.code_version,
        profile=s.profile,
        workspace=s.workspace,
        queue=s.queue,
        plan=None
        if s.plan is None
        else [_show_step(one) for one in msgspec.json.decode(s.plan, type=list[StepSpec])],
        input=None if s.input is None else decode_payload(s.input),
        owner=s.owner,
        labels=msgspec.json.decode(s.labels),
        created_at=to_datetime(s.created_at),
        updated_at=to_datetime(s.updated_at),
        revision=s.revision,
        unconfirmed=s.unconfirmed.split(),
    )
