"""Schedules, as people make and change them.

    async with tenure.Engine("app.db") as engine:
        await engine.schedules.create("nightly", report, "30 2 * * *", zone="Europe/Berlin", catch_up="last")

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
from tenure.declared import Declared
from tenure.embedded.plan import PlanLike, make_plan, payload
from tenure.errors import Detail, TenureError
from tenure.kernel import profiles
from tenure.kernel.behind import joined
from tenure.kernel.beside import CATCH_UP, Schedule
from tenure.kernel.commands import Context, StepSpec
from tenure.kernel.cron import parse
from tenure.kernel.decide.plans import check_plan
from tenure.limits import CATCH_UP_RUNS_MAX, NAME_CHARS_MAX, PAYLOAD_BYTES_MAX, SLOTS_SHOWN_MAX
from tenure.orchestrator.schedules import request
from tenure.orchestrator.views import decoded, moment
from tenure.sdk.definitions import Workflow, registry

if TYPE_CHECKING:
    from tenure.embedded.engine import Engine

PAGE = 200
Scheduled = Workflow[..., Any] | Declared | str
"""A workflow, one from a file, or the name of one that is imported; with a plan, just a name."""
SLOT = "2026-01-05T10:00:00Z"
"""Any moment: what `slot` looks like in an input."""
CATCH_UP_RUNS = 10
"""What `all` makes up for where nothing else is said."""


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is shown."""

    name: str
    workflow: str
    cron: str
    zone: str
    paused: bool
    next_at: datetime | None
    """None while it is paused, and when it has no slot any more."""
    last_slot: datetime | None
    catch_up: str
    catch_up_max: int
    pass_slot: bool
    code_version: str
    profile: str
    workspace: str
    queue: str
    plan: list[Any] | None
    input: Any
    owner: str
    labels: dict[str, str]
    created_at: datetime
    updated_at: datetime
    revision: int
    unconfirmed: list[str]
    """Who has made or changed it since a second person confirmed it: they stand behind its runs."""


_Views = list[ScheduleView]
_Times = list[datetime]
_Rows = list[Schedule]  # inside the class, `list` is a method


class Schedules:
    """The schedules of an engine's tenant."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create(
        self,
        name: str,
        workflow: Scheduled,
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
    ) -> ScheduleView:
        """Make a schedule: runs of `workflow` at the slots of `cron` in a time zone.

        `workflow` is a workflow in Python, one from a file (its plan is made now, with this input), or the name of
        one that is imported; with a `plan` of steps it is just a name, and `version` its version. `catch_up` says what
        becomes of slots that pass while no scheduler runs: `skip`, `last`, or `all` (the newest `catch_up_max`). With
        `pass_slot`, the input (an object) gets the slot's moment under `slot`. `by` are the people who make it, as `id id` (else
        the engine's actor): they stand behind its runs until a second person confirms it.
        """
        engine = self._engine
        made = Schedule(
            tenant=engine.tenant,
            name=name,
            workspace=engine.workspace,
            **_runs(workflow, input, plan, profile, pass_slot=pass_slot, version=version),
            cron=_cron_text(cron),
            zone=zone,
            catch_up=catch_up,
            catch_up_max=catch_up_max,
            owner=owner or engine.actor,
            labels=_labels_text(labels),
            paused=paused,
            unconfirmed=joined(by or engine.actor),
        )
        put = await self._put(made)
        if put is None:
            raise TenureError("SCHEDULE_EXISTS", f"there is a schedule {name!r} already")
        return _view(put)

    async def edit(
        self, name: str, *, revision: int | None = None, by: str | None = None, **changes: Any
    ) -> ScheduleView:
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

    async def show(self, name: str) -> ScheduleView:
        """One schedule."""
        return _view(await self._row(name))

    async def pause(self, name: str) -> ScheduleView:
        """Start nothing until it is unpaused."""
        old = await self._row(name)
        return _view(old) if old.paused else await self._change(old, paused=True)

    async def unpause(self, name: str, *, by: str | None = None) -> ScheduleView:
        """Go on with the next slot from now; what passed meanwhile is not caught up. Whoever does that (`by`, as of `create`) causes
        its runs, and so stands behind them."""
        old = await self._row(name)
        if not old.paused:
            return _view(old)
        return await self._change(old, paused=False, unconfirmed=self._editors(old, by))

    async def trigger(
        self, name: str, *, actor: str | None = None, mark: str | None = None, at_us: int | None = None,
        requester: str | None = None, behind: str = "",
    ) -> str:  # fmt: skip
        """Start a run now, beside the slots and also while it is paused; its id. It is asked for by `requester`, else by the
        schedule's owner; everybody in `behind` (`id id`) stands behind it too. Who may have to ask twice says by which `mark`, and since when: the same again is the same run."""
        engine = self._engine
        now: int = (await engine.store.read("now"))[0].now_us if at_us is None else at_us
        mark = mark or secrets.token_hex(6)
        asked = request(
            await self._row(name),
            engine.orchestrator.new_id(engine.tenant),
            now,
            suffix=f":{mark}",
            context=Context(actor or engine.actor, "user", f"trigger:{mark}"),
        )
        # The owner, who else has asked for it, stands behind it all the same.
        everybody = joined(asked.requester, asked.behind, behind)
        asked = msgspec.structs.replace(asked, requester=requester or asked.requester, behind=everybody)
        return ids.run_text((await engine.orchestrator.create(asked)).run_id)

    async def delete(self, name: str) -> None:
        """Delete a schedule; its runs stay."""
        self._engine.orchestrator  # noqa: B018 - refuses where the engine was opened to read only
        if not await self._engine.store.drop_schedule(self._engine.tenant, name):
            raise _missing(name)

    async def next(self, name: str, count: int = 5) -> _Times:
        """The next times it is due, as if it were not paused."""
        row = await self._row(name)
        now: int = (await self._engine.store.read("now"))[0].now_us
        return [moment(at) for at in parse(row.cron, row.zone).next(now, min(count, SLOTS_SHOWN_MAX))]

    # --------------------------------------------------------------------------------------------- inside

    def _editors(self, old: Schedule, by: str | None) -> str:
        return joined(old.unconfirmed, by or self._engine.actor)

    async def _read(self, query: str, *scalars: Any) -> _Rows:
        rows: _Rows = await self._engine.store.read(query, self._engine.tenant, *scalars)
        return rows

    async def _row(self, name: str) -> Schedule:
        rows = await self._read("schedule_named", name)
        if not rows:
            raise _missing(name)
        return rows[0]

    async def _change(self, old: Schedule, **values: Any) -> ScheduleView:
        changed = msgspec.structs.replace(old, revision=old.revision + 1, **values)
        put = await self._put(changed)
        if put is None:
            raise TenureError("SCHEDULE_CHANGED", f"schedule {old.name!r} is not what it was a moment ago")
        return _view(put)

    async def _put(self, schedule: Schedule) -> Schedule | None:
        """Check a schedule, find its next slot (law 3) and write it."""
        self._engine.orchestrator  # noqa: B018 - refuses where the engine was opened to read only
        if problems := _problems(schedule):
            raise _invalid(problems)
        cron = parse(schedule.cron, schedule.zone)
        now: int = (await self._engine.store.read("now"))[0].now_us
        schedule.next_at = None if schedule.paused else cron.after(max(now, schedule.last_slot or 0))
        return await self._engine.store.put_schedule(schedule)


def _problems(s: Schedule) -> list[Detail]:
    """What is wrong with a schedule, apart from its cron expression and its zone."""
    found = [
        Detail(word, f"is printable and has 1 to {NAME_CHARS_MAX} characters")
        for word in ("name", "workflow", "code_version", "queue", "owner", "workspace")
        if not 0 < len(getattr(s, word)) <= NAME_CHARS_MAX or not getattr(s, word).isprintable()
    ]
    if s.catch_up not in CATCH_UP:
        found.append(Detail("catch_up", f"{s.catch_up!r} is not one of {', '.join(CATCH_UP)}"))
    if not 1 <= s.catch_up_max <= CATCH_UP_RUNS_MAX:
        found.append(Detail("catch_up_max", f"{s.catch_up_max} is not from 1 to {CATCH_UP_RUNS_MAX}"))
    if s.input is not None and len(s.input) > PAYLOAD_BYTES_MAX:
        found.append(Detail("input", f"has {len(s.input)} bytes; at most {PAYLOAD_BYTES_MAX}"))
    if s.pass_slot and s.input is not None and not isinstance(decoded(s.input), dict):
        found.append(Detail("input", "must be an object to get the slot's moment under `slot`"))
    if s.profile not in profiles.names():
        found.append(Detail("profile", f"there is no profile {s.profile!r}"))
    elif s.plan is not None:
        check_plan(msgspec.json.decode(s.plan, type=tuple[StepSpec, ...]), profiles.get(s.profile), {}, 0)
    return found


def _runs(
    workflow: Scheduled,
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
    elif isinstance(workflow, Declared):
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
        flow.parameters.check(payload(asked))
        name, version, usual, queue = flow.name, flow.version, flow.profile.name, flow.capability
        steps = flow.plan
    return {
        "workflow": name,
        "code_version": version,
        "profile": profile or usual,
        "queue": queue,
        "plan": msgspec.json.encode(steps).decode(),
        "input": payload(input),
        "pass_slot": pass_slot,
    }


_WHOLE = frozenset(("workflow", "input", "plan", "profile", "version", "pass_slot"))
"""What `edit` changes as a whole."""


def _same(value: Any) -> Any:
    return value


def _labels_text(labels: Mapping[str, str] | None) -> str:
    return (payload(dict(labels or {})) or b"{}").decode()


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
            shown[word] = decoded(value)
    return shown


def _view(s: Schedule) -> ScheduleView:
    return ScheduleView(
        name=s.name,
        workflow=s.workflow,
        cron=s.cron,
        zone=s.zone,
        paused=s.paused,
        next_at=None if s.next_at is None else moment(s.next_at),
        last_slot=None if s.last_slot is None else moment(s.last_slot),
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
        input=None if s.input is None else decoded(s.input),
        owner=s.owner,
        labels=msgspec.json.decode(s.labels),
        created_at=moment(s.created_at),
        updated_at=moment(s.updated_at),
        revision=s.revision,
        unconfirmed=s.unconfirmed.split(),
    )
