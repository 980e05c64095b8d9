"""Schedules, as people make and change them.

    async with tenure.Engine("app.db") as engine:
        await scope.schedules.create("nightly", report, "30 2 * * *", zone="Europe/Berlin", catch_up="last")

Laws:
1. What is wrong with a schedule is told when it is made or changed, never in the night it should have run.
2. A change is made to the text it was decided on: whoever comes second is told SCHEDULE_CHANGED.
3. After every change the next slot lies ahead: slots that passed while it was paused are nobody's.
4. What its runs are (workflow, version, profile, queue, plan, input) comes from the workflow, is written down when the
   schedule is made, and is changed as a whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tenure import ids
from tenure.clock import to_datetime
from tenure.declared import DeclaredWorkflow
from tenure.errors import Detail, TenureError
from tenure.kernel import profiles
from tenure.kernel.commands import Context, StepSpec
from tenure.kernel.cron import parse_cron
from tenure.kernel.decide.plans import check_plan
from tenure.kernel.registry_rows import CATCH_UP_POLICIES, ScheduleRow
from tenure.kernel.separation_of_duties import join_people
from tenure.limits import CATCH_UP_RUNS_MAX, NAME_CHARS_MAX, PAYLOAD_BYTES_MAX, SLOTS_SHOWN_MAX
from tenure.orchestrator.scheduler import build_scheduled_run
from tenure.reads.payloads import decode_payload
from tenure.sdk.definitions import Workflow, registry
from tenure.services.plans import PlanLike, encode_payload, make_plan
from tenure.shapes.schedules import Schedule
from tenure.store.schedules import delete_schedule, save_schedule

if TYPE_CHECKING:
    from tenure.services.scope import Scope

PAGE = 200
SchedulableWorkflow = Workflow[..., Any] | DeclaredWorkflow | str
"""A workflow, one from a file, or the name of one that is imported; with a plan, just a name."""
SLOT = "2026-01-05T10:00:00Z"
"""Any moment: what `slot` looks like in an input."""
CATCH_UP_RUNS = 10
"""What `all` makes up for where nothing else is said."""


_Views = list[Schedule]
_Times = list[datetime]
_Rows = list[ScheduleRow]  # inside the class, `list` is a method


class Schedules:
    """The schedules of an engine's tenant."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

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
        """Make a schedule: runs of `workflow` at the slots of `cron` in a time zone.

        `workflow` is a workflow in Python, one from a file (its plan is made now, with this input), or the name of
        one that is imported; with a `plan` of steps it is just a name, and `version` its version. `catch_up` says what
        becomes of slots that pass while no scheduler runs: `skip`, `last`, or `all` (the newest `catch_up_max`). With
        `pass_slot`, the input (an object) gets the slot's moment under `slot`. `by` are the people who make it, as `id id` (else
        the scope's actor): they stand behind its runs until a second person confirms it.
        """
        scope = self._scope
        made = ScheduleRow(
            tenant=scope.tenant,
            name=name,
            workspace=scope.workspace,
            **_runs(workflow, input, plan, profile, pass_slot=pass_slot, version=version),
            cron=_cron_text(cron),
            zone=zone,
            catch_up=catch_up,
            catch_up_max=catch_up_max,
            owner=owner or scope.actor,
            labels=_labels_text(labels),
            paused=paused,
            unconfirmed=join_people(by or scope.actor),
        )
        put = await self._put(made)
        if put is None:
            raise TenureError("SCHEDULE_EXISTS", f"there is a schedule {name!r} already")
        return _view(put)

    async def edit(
        self, name: str, *, revision: int | None = None, by: str | None = None, **changes: Any
    ) -> Schedule:
        """Change some of what `create` was given, by the same words; the rest stays. What its runs are is given as a
        whole: `workflow` with its `input`, `plan`, `profile`, `version` and `pass_slot`. With a `revision`, only the
        text that has it is changed. `by` are the people who change it, as of `create`."""
        old = await self._row(name)
        if revision not in (None, old.revision):
            raise TenureError("SCHEDULE_CHANGED", f"schedule {name!r} has revision {old.revision} by now")
        if unknown := sorted(changes.keys() - _CHANGING.keys() - _WHOLE):
            raise _invalid([Detail(unknown[0], "cannot be changed")])
        whole = {word: changes[word] for word in changes if word in _WHOLE}
        values = {word: _CHANGING[word](changes[word]) for word in changes if word in _CHANGING}
        if whole:
            if "workflow" not in whole:
                raise _invalid([Detail(min(whole), "is changed together with `workflow`; give that too")])
            values |= _runs(**({"input": None, "plan": None, "profile": None} | whole))
        return await self._change(old, unconfirmed=self._editors(old, by), **values)

    async def list(self) -> _Views:
        """All schedules, by name."""
        found: _Views = []
        while rows := await self._read("schedules_of", found[-1].name if found else "", PAGE):
            found += [_view(row) for row in rows]
            if len(rows) < PAGE:
                break
        return found

    async def show(self, name: str) -> Schedule:
        """One schedule."""
        return _view(await self._row(name))

    async def pause(self, name: str) -> Schedule:
        """Start nothing until it is unpaused."""
        old = await self._row(name)
        return _view(old) if old.paused else await self._change(old, paused=True)

    async def unpause(self, name: str, *, by: str | None = None) -> Schedule:
        """Go on with the next slot from now; what passed meanwhile is not caught up. Whoever does that (`by`, as of `create`) causes
        its runs, and so stands behind them."""
        old = await self._row(name)
        if not old.paused:
            return _view(old)
        return await self._change(old, paused=False, unconfirmed=self._editors(old, by))

    async def trigger(
        self, name: str, *, actor: str | None = None, mark: str | None = None, at_us: int | None = None,
        requester: str | None = None, involved: str = "",
    ) -> str:  # fmt: skip
        """Start a run now, beside the slots and also while it is paused; its id. It is asked for by `requester`, else by the
        schedule's owner; everybody in `involved` (`id id`) stands behind it too. Who may have to ask twice says by which `mark`, and since when: the same again is the same run."""
        scope = self._scope
        now: int = (await scope.store.read("now"))[0].now_us if at_us is None else at_us
        mark = mark or secrets.token_hex(6)
        asked = build_scheduled_run(
            await self._row(name),
            scope.orchestrator.new_id(scope.tenant),
            now,
            suffix=f":{mark}",
            context=Context(actor or scope.actor, "user", f"trigger:{mark}"),
        )
        # The owner, who else has asked for it, stands behind it all the same.
        everybody = join_people(asked.requester, asked.involved, involved)
        asked = msgspec.structs.replace(asked, requester=requester or asked.requester, involved=everybody)
        return ids.run_text((await scope.orchestrator.create(asked)).run_id)

    async def delete(self, name: str) -> None:
        """Delete a schedule; its runs stay."""
        self._scope.orchestrator  # noqa: B018 - refuses where the engine was opened to read only
        if not await delete_schedule(self._scope.store, self._scope.tenant, name):
            raise _missing(name)

    async def next(self, name: str, count: int = 5) -> _Times:
        """The next times it is due, as if it were not paused."""
        row = await self._row(name)
        now: int = (await self._scope.store.read("now"))[0].now_us
        return [
            to_datetime(at) for at in parse_cron(row.cron, row.zone).next(now, min(count, SLOTS_SHOWN_MAX))
        ]

    # --------------------------------------------------------------------------------------------- inside

    def _editors(self, old: ScheduleRow, by: str | None) -> str:
        return join_people(old.unconfirmed, by or self._scope.actor)

    async def _read(self, query: str, *scalars: Any) -> _Rows:
        rows: _Rows = await self._scope.store.read(query, self._scope.tenant, *scalars)
        return rows

    async def _row(self, name: str) -> ScheduleRow:
        rows = await self._read("schedule_named", name)
        if not rows:
            raise _missing(name)
        return rows[0]

    async def _change(self, old: ScheduleRow, **values: Any) -> Schedule:
        changed = msgspec.structs.replace(old, revision=old.revision + 1, **values)
        put = await self._put(changed)
        if put is None:
            raise TenureError("SCHEDULE_CHANGED", f"schedule {old.name!r} is not what it was a moment ago")
        return _view(put)

    async def _put(self, schedule: ScheduleRow) -> ScheduleRow | None:
        """Check a schedule, find its next slot (law 3) and write it."""
        self._scope.orchestrator  # noqa: B018 - refuses where the engine was opened to read only
        if problems := _problems(schedule):
            raise _invalid(problems)
        cron = parse_cron(schedule.cron, schedule.zone)
        now: int = (await self._scope.store.read("now"))[0].now_us
        schedule.next_at = None if schedule.paused else cron.after(max(now, schedule.last_slot or 0))
        return await save_schedule(self._scope.store, schedule)


def _problems(s: ScheduleRow) -> list[Detail]:
    """What is wrong with a schedule, apart from its cron expression and its zone."""
    found = [
        Detail(word, f"is printable and has 1 to {NAME_CHARS_MAX} characters")
        for word in ("name", "workflow", "code_version", "queue", "owner", "workspace")
        if not 0 < len(getattr(s, word)) <= NAME_CHARS_MAX or not getattr(s, word).isprintable()
    ]
    if s.catch_up not in CATCH_UP_POLICIES:
        found.append(Detail("catch_up", f"{s.catch_up!r} is not one of {', '.join(CATCH_UP_POLICIES)}"))
    if not 1 <= s.catch_up_max <= CATCH_UP_RUNS_MAX:
        found.append(Detail("catch_up_max", f"{s.catch_up_max} is not from 1 to {CATCH_UP_RUNS_MAX}"))
    if s.input is not None and len(s.input) > PAYLOAD_BYTES_MAX:
        found.append(Detail("input", f"has {len(s.input)} bytes; at most {PAYLOAD_BYTES_MAX}"))
    if s.pass_slot and s.input is not None and not isinstance(decode_payload(s.input), dict):
        found.append(Detail("input", "must be an object to get the slot's moment under `slot`"))
    if s.profile not in profiles.names():
        found.append(Detail("profile", f"there is no profile {s.profile!r}"))
    elif s.plan is not None:
        check_plan(msgspec.json.decode(s.plan, type=tuple[StepSpec, ...]), profiles.get(s.profile), {}, 0)
    return found


def _runs(
    workflow: SchedulableWorkflow,
    input: Any,  # noqa: A002 - the word of `create`
    plan: PlanLike | None,
    profile: str | None,
    *,
    pass_slot: bool = False,
    version: str | None = None,
) -> dict[str, Any]:
    """What a schedule's runs are, as its columns; see law 4."""
    if plan is not None:
        if not isinstance(workflow, str):
            raise _invalid([Detail("plan", f"{workflow.name!r} has its own")])
        name, version, usual = workflow, version or "1", "agent-runs"
        queue, steps = "default", make_plan(plan)
    elif isinstance(workflow, DeclaredWorkflow):
        if pass_slot:
            raise _invalid([Detail("pass_slot", "a workflow from a file has the moment as `${{ slot }}`")])
        input = workflow.bind(input or {})  # noqa: A001 - with its defaults from here on
        name, version, usual, queue = workflow.name, workflow.version, workflow.profile, "default"
        steps = workflow.plan(input)
    else:
        flow = registry.workflows.get(workflow) if isinstance(workflow, str) else workflow
        if flow is None:
            problem = "import the module that defines it, or give a plan"
            raise _invalid([Detail("workflow", f"there is no workflow {workflow!r} here; {problem}")])
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


_WHOLE = frozenset(("workflow", "input", "plan", "profile", "version", "pass_slot"))
"""What `edit` changes as a whole."""


def _same(value: Any) -> Any:
    return value


def _labels_text(labels: Mapping[str, str] | None) -> str:
    return (encode_payload(dict(labels or {})) or b"{}").decode()


def _cron_text(cron: str) -> str:
    return " ".join(cron.split())


_CHANGING: dict[str, Callable[[Any], Any]] = {
    "cron": _cron_text,
    "labels": _labels_text,
    **dict.fromkeys(("zone", "catch_up", "catch_up_max", "owner"), _same),
}
"""What `edit` may change by itself, and how it is written down."""


def _missing(name: str) -> TenureError:
    return TenureError("SCHEDULE_NOT_FOUND", f"there is no schedule {name!r}")


def _invalid(problems: list[Detail]) -> TenureError:
    first = problems[0]
    return TenureError("SCHEDULE_INVALID", f"{first.path}: {first.problem}", tuple(problems))


def _step(planned: StepSpec) -> dict[str, Any]:
    """A step of a plan with its values as they are, for people to judge: commands, inputs, questions."""
    shown: dict[str, Any] = msgspec.to_builtins(planned)
    for word in ("input", "template"):
        if (value := getattr(planned, word)) is not None:
            shown[word] = decode_payload(value)
    return shown


def _view(s: ScheduleRow) -> Schedule:
    return Schedule(
        name=s.name,
        workflow=s.workflow,
        cron=s.cron,
        zone=s.zone,
        paused=s.paused,
        next_at=None if s.next_at is None else to_datetime(s.next_at),
        last_slot=None if s.last_slot is None else to_datetime(s.last_slot),
        catch_up=s.catch_up,
        catch_up_max=s.catch_up_max,
        pass_slot=s.pass_slot,
        code_version=s.code_version,
        profile=s.profile,
        workspace=s.workspace,
        queue=s.queue,
        plan=None
        if s.plan is None
        else [_step(one) for one in msgspec.json.decode(s.plan, type=list[StepSpec])],
        input=None if s.input is None else decode_payload(s.input),
        owner=s.owner,
        labels=msgspec.json.decode(s.labels),
        created_at=to_datetime(s.created_at),
        updated_at=to_datetime(s.updated_at),
        revision=s.revision,
        unconfirmed=s.unconfirmed.split(),
    )
