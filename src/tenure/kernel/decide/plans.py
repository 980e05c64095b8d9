"""Plans: their checks, and their steps.

Laws:
1. A plan is checked as a whole before any of it is used: unique names, known needs, no cycle, limits.
2. A plan step is the only step of the plan that a run is created with. Neither a planner nor an addition may bring one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from tenure import ids
from tenure.clock import us
from tenure.errors import Detail, TenureError
from tenure.kernel import profiles
from tenure.kernel.commands import PLAN_STEP_NAME, ReuseSpec, ReuseTerms, StepSpec
from tenure.kernel.decide.ready_steps import make_ready
from tenure.kernel.decide.validation import step_problems
from tenure.kernel.draft import Draft, check_payload_size
from tenure.kernel.profile import Profile
from tenure.kernel.run_rows import PLAN_IDX, RunRow, StepRow
from tenure.limits import STEPS_PER_RUN_MAX

CHECKED_PLAN_STEPS_MAX = 32
"""Plans of up to this length are checked once and then found in a cache."""
_PLAN_STEP_ALONE = "a step of kind 'plan' can only be the single step that a run is created with"
_PLAN_STEP_FIELDS = frozenset(
    {
        "name",
        "kind",
        "tool",
        "queue",
        "retries",
        "backoff",
        "timeout_seconds",
        "lease_seconds",
        "idempotency_key",
        "input",
    }
)
"""What can be set on a plan step."""


def is_planned_later(plan: tuple[StepSpec, ...]) -> bool:
    """Whether a plan has a plan step, which brings the other steps later."""
    return any(step.kind == "plan" for step in plan)


def check_plan_step(plan: tuple[StepSpec, ...], profile: Profile) -> None:
    """Refuse a plan step that is not alone or not complete (PLAN_INVALID)."""
    problems: list[Detail] = []
    if len(plan) != 1:
        problems.append(Detail("plan", _PLAN_STEP_ALONE))
    step = plan[0]
    if step.name != PLAN_STEP_NAME:
        problems.append(Detail("plan[0].name", f"a step of kind 'plan' must be named {PLAN_STEP_NAME!r}"))
    if not step.tool:
        problems.append(Detail("plan[0].tool", "a step of kind 'plan' must name the tool that plans"))
    given = {
        name for name, value in msgspec.structs.asdict(step).items() if value != getattr(_BARE_STEP, name)
    }
    problems += [
        Detail(f"plan[0].{name}", "cannot be set on a step of kind 'plan'")
        for name in sorted(given - _PLAN_STEP_FIELDS)
    ]
    problems += step_problems("plan[0]", step, profile)
    if problems:
        raise TenureError("PLAN_INVALID", problems[0].problem, tuple(problems))


_BARE_STEP = StepSpec(name="")


def check_new_plan(plan: tuple[StepSpec, ...], profile: Profile) -> None:
    """Refuse a plan that no run could be created with (PLAN_INVALID, PAYLOAD_TOO_LARGE)."""
    if is_planned_later(plan):
        check_plan_step(plan, profile)
    else:
        check_plan(plan, profile, {}, 0)
    check_plan_payloads(plan)


def check_plan_payloads(plan: tuple[StepSpec, ...]) -> None:
    for step in plan:
        check_payload_size(step.input)
        check_payload_size(step.template)


def add_plan_step(
    d: Draft, plan: tuple[StepSpec, ...], profile: Profile, priority: int, run_input: int | None
) -> None:
    """Make the step that plans the run. It can be claimed at once: planning needs no admission."""
    check_plan_step(plan, profile)
    [spec] = plan
    input_ref = run_input if spec.input is None else d.payload(spec.input)
    prefix = ids.run_text(d.run.id)
    step = d.add(build_step(d.run, spec, PLAN_IDX, 0, [], profile, priority, input_ref, prefix, d.now))
    make_ready(d, d.move(step, "ready"))


def check_plan(
    plan: tuple[StepSpec, ...],
    profile: Profile,
    existing: dict[str, int],
    total: int,
    before_first: str | None = None,
) -> list[list[str]]:
    """The needs of each step by name. Raises PLAN_INVALID with every problem. `before_first` is the step before the
    first one, if steps run strictly in order."""
    if is_planned_later(plan):
        raise TenureError("PLAN_INVALID", _PLAN_STEP_ALONE, (Detail("plan", _PLAN_STEP_ALONE),))
    problems: list[Detail] = []
    if not plan:
        problems.append(Detail("plan", "a plan must have at least one step"))
    if total + len(plan) > STEPS_PER_RUN_MAX:
        problems.append(Detail("plan", f"over {STEPS_PER_RUN_MAX} steps"))
    names: set[str] = set(existing)
    for i, step in enumerate(plan):
        at = f"plan[{i}]"
        if step.name in names:
            problems.append(Detail(f"{at}.name", f"there are two steps named {step.name!r}"))
        elif step.name == PLAN_STEP_NAME:
            problems.append(Detail(f"{at}.name", f"the name {PLAN_STEP_NAME!r} is reserved for plan steps"))
        names.add(step.name)
        problems += step_problems(at, step, profile)
    needs: list[list[str]] = []
    for i, step in enumerate(plan):
        before = [plan[i - 1].name] if i else [] if before_first is None else [before_first]
        wanted = before if step.needs is None else list(dict.fromkeys(step.needs))
        needs.append(wanted)
        problems += [Detail(f"plan[{i}].needs", f"no step named {n!r}") for n in wanted if n not in names]
    if not problems and (cycle := _cycle(plan, needs)):
        problems.append(Detail("plan", "the needs form a cycle: " + " -> ".join(cycle)))
    if problems:
        raise TenureError("PLAN_INVALID", problems[0].problem, tuple(problems[:50]))
    return needs


@lru_cache(maxsize=256)
def _checked(plan: tuple[StepSpec, ...], profile: str) -> tuple[list[str], ...]:
    """The needs of a plan. Runs of one workflow have the same plan, so it is checked once."""
    return tuple(check_plan(plan, profiles.get(profile), {}, 0))


def _cycle(plan: tuple[StepSpec, ...], needs: list[list[str]]) -> list[str]:
    """A cycle in the needs, or nothing. It is not recursive, because plans can be long."""
    names = {step.name for step in plan}
    left = {step.name: names.intersection(wanted) for step, wanted in zip(plan, needs, strict=True)}
    dependents_of: dict[str, list[str]] = {}
    for name, wanted in left.items():
        for need in wanted:
            dependents_of.setdefault(need, []).append(name)
    free = [name for name, wanted in left.items() if not wanted]
    while free:
        done = free.pop()
        del left[done]
        for name in dependents_of.get(done, ()):
            left[name].discard(done)
            if not left[name]:
                free.append(name)
    if not left:
        return []
    here, path = next(iter(left)), []
    while here not in path:
        path.append(here)
        here = next(iter(left[here]))
    return [*path[path.index(here) :], here]


def add_plan(
    d: Draft,
    plan: tuple[StepSpec, ...],
    profile: Profile,
    priority: int,
    run_input: int | None,
    checked: Sequence[list[str]] | None = None,
) -> list[StepRow]:
    """Make the steps of a plan. They open when the run is admitted. `checked` are the needs of a plan that was checked
    already."""
    run = d.edit_run()
    needs: Sequence[list[str]]
    existing: dict[str, int] = {}
    if run.steps_total:
        needed = {name for spec in plan for name in spec.needs or ()}
        d.need_named_steps(needed | {spec.name for spec in plan})
        there = {step.name: step.idx for step in d.snap.steps.values()}
        again = next((spec.name for spec in plan if spec.name in there), None)
        if again is not None:
            raise TenureError(
                "PLAN_INVALID", f"the run has a step {again!r} already", (Detail("plan", again),)
            )
        existing = {name: there[name] for name in needed if name in there}
    if checked is not None:
        needs = checked
    elif run.steps_total or len(plan) > CHECKED_PLAN_STEPS_MAX:
        last = d.step(run.steps_total - 1) if run.steps_total and profile.strict_sequence else None
        if last is not None:
            existing[last.name] = last.idx
        needs = check_plan(plan, profile, existing, run.steps_total, None if last is None else last.name)
    else:
        needs = _checked(plan, profile.name)
    idx_of = {spec.name: run.steps_total + i for i, spec in enumerate(plan)} | existing
    dependents_of: dict[int, list[int]] = {}
    left = []
    for spec, wanted in zip(plan, needs, strict=True):
        open_needs = 0
        for name in wanted:
            need = idx_of[name]
            if name in existing:
                old = d.edit(d.step(need))
                old.dependents = f"{old.dependents},{idx_of[spec.name]}".lstrip(",")
                if old.finished_at is not None:
                    continue  # it has ended (an optional step may have failed)
            else:
                dependents_of.setdefault(need, []).append(idx_of[spec.name])
            open_needs += 1
        left.append(open_needs)
    steps = []
    prefix, first = ids.run_text(run.id), run.steps_total
    for spec, needs_left in zip(plan, left, strict=True):
        idx = idx_of[spec.name]
        template_ref = d.payload(spec.template)
        input_ref = run_input if spec.input is None and template_ref is None else d.payload(spec.input)
        step = build_step(
            d.run,
            spec,
            idx,
            needs_left,
            dependents_of.get(idx, []),
            profile,
            priority,
            input_ref,
            prefix,
            d.now,
        )
        step.template_ref = template_ref
        if spec.reuse is not None:
            step.reuse = _encode_reuse(spec.reuse, [idx_of[name] for name in needs[idx - first]])
        steps.append(d.add(step))
    run.steps_total += len(plan)
    run.steps_open += len(plan)
    return steps


def _encode_reuse(reuse: ReuseSpec, needs: list[int]) -> str:
    terms = ReuseTerms(scope=reuse.scope, digest=reuse.digest, also=reuse.also, needs=tuple(sorted(needs)))
    return msgspec.json.encode(terms).decode()


def build_step(
    run: RunRow,
    spec: StepSpec,
    idx: int,
    needs_left: int,
    dependents: list[int],
    profile: Profile,
    priority: int,
    input_ref: int | None,
    prefix: str,
    now: int,
) -> StepRow:
    timing = profile.timing
    timeout = spec.timeout_seconds
    if timeout is None and spec.kind in ("work", "plan"):
        timeout = timing.step_timeout_seconds
    retries = spec.retries if spec.retries is not None else timing.retries
    gate: object = spec.backoff
    if spec.kind == "approval":
        gate = spec.approval or {}
    elif spec.kind == "wait":
        gate = spec.wait or {}
    lease = spec.lease_seconds if spec.lease_seconds is not None else timing.lease_seconds
    return StepRow(
        run.id,
        idx,
        spec.name,
        spec.kind,
        spec.tool,
        spec.queue,
        run.tenant,
        run.workspace,
        run.workflow,
        priority,
        spec.required,
        ",".join(map(str, dependents)),
        1 + retries,
        us(timeout) if timeout is not None else None,
        us(lease),
        spec.idempotency_key or f"{prefix}/{spec.name}",
        input_ref,
        None if gate is None else msgspec.json.encode(gate).decode(),
        now,
        needs_left=needs_left,
        resolution="skip"
        if spec.skipped
        else "due"
        if spec.template is not None or spec.reuse is not None
        else "",
        condition=spec.condition,
    )
