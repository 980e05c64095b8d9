"""How a run comes to be: its creation, its plan, and when it may begin.

Laws:
1. A plan is checked whole before any of it is taken: unique names, known needs, no cycle, limits.
2. Plans are made in `planning`; a static plan passes through it in the same commit.
3. Admission is one mechanism for a delayed start, a concurrency key and max_runs_per_min: a run that is
   not admitted is queued with nothing ready, and looks again by itself. A run that supersedes cancels the older
   runs with its key whenever admission is decided, as long as there are any that nobody has canceled.
4. The same id with the same idempotency key is the same request; nothing is created twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from tenure import ids
from tenure.clock import us
from tenure.errors import Detail, TenureError
from tenure.kernel import history, profiles
from tenure.kernel.behind import behind_new
from tenure.kernel.commands import Admit, CreateRun, PlanFailed, PlanReady, StepSpec
from tenure.kernel.decide.checks import request_problems, step_problems
from tenure.kernel.decide.closing import finish, time_out_run
from tenure.kernel.decide.leases import Lease, grant
from tenure.kernel.decide.opening import open_step
from tenure.kernel.draft import Decision, Draft
from tenure.kernel.model import CLOSED_RUN, Checkpoint, Idempotency, Run, RunSpec, Step
from tenure.kernel.profile import Profile
from tenure.kernel.snapshot import Facts, Need
from tenure.limits import (
    KEY_LINE_POLL_SECONDS,
    KEY_POLL_SECONDS,
    STEPS_PER_RUN_MAX,
)


class Created(msgspec.Struct, gc=False):
    """The answer to CreateRun."""

    run_id: int
    status: str
    lease: Lease | None = None
    again: bool = False
    """The key had been used for this very request: this is the run it made."""
    record: Idempotency | None = None
    """Of the key, where the request has one: what it was answered."""
    at: int = 0
    """When it was made; of one that was there before, nothing is said of that."""


def create(d: Draft, c: CreateRun) -> Decision:
    """Make a run, with its plan or in planning."""
    if d.snap.run is not None:
        if c.parent_id is not None and d.snap.the_spec().parent_id == c.parent_id:
            return Decision(Created(c.run_id, d.snap.run.status, again=True))
        raise TenureError("RUN_ID_TAKEN", "there is a run with this id")
    profile = profiles.get(c.profile)
    problems = list(request_problems(c))
    if problems:
        raise TenureError("INVALID_INPUT", problems[0].problem, tuple(problems))
    caps = [d.snap.caps[scope] for scope in ("", f"wf:{c.workflow}") if scope in d.snap.caps]
    rated = any(cap.max_runs_per_min is not None for cap in caps)
    timeout = c.timeout_seconds if c.timeout_seconds is not None else profile.timing.run_timeout_seconds
    timeout_us = us(timeout) if timeout is not None else None
    run = Run(
        c.run_id,
        c.tenant,
        c.workspace,
        c.workflow,
        c.code_version,
        c.profile,
        c.trigger.repo,
        c.concurrency_key,
        rated,
        c.parent_id is not None or c.concurrency_key is not None,
        timeout_us,
        d.now,
        c.trace,
        event_at=d.now,
    )
    d.start_run(run)
    if c.wall_clock and timeout_us is not None:
        run.deadline_at = d.now + timeout_us
    salt = d.chance.salt()
    requester = c.context.actor if c.requester is None else c.requester
    spec = RunSpec(
        c.run_id,
        c.tenant,
        c.source,
        c.idempotency_key,
        c.request_hash,
        c.trigger.type,
        c.trigger.ref,
        requester,
        c.priority,
        c.concurrency_mode,
        c.not_before,
        c.wall_clock,
        d.payload(c.input),
        c.parent_id,
        c.parent_no,
        c.resumed_from,
        c.resume_count,
        c.rerun_of,
        c.attempt_no,
        c.labels,
        c.metadata,
        salt,
        c.undo_of,
        c.budget,
        c.currency,
        c.compensate,
        behind_new(requester, c.context, c.behind),
    )
    d.changed["run_spec",] = spec
    d.notes["about"] = history.digest(salt, (c.labels + c.metadata).encode())
    d.show("planning")
    lease = None
    if c.plan is not None:
        add_plan(d, c.plan, profile, c.priority, spec.input_ref)
        run.planned = True
        _take_over(d, c)
        d.show("queued")
        admit_if_possible(d, spec, over_rate=c.over_rate)
        if c.eager is not None and run.admitted_at is not None and not _capped(d):
            step = next((s for s in d.changed.values() if isinstance(s, Step) and s.claimable), None)
            if step is not None:
                lease = grant(d, step, c.eager)
                d.ready = run.steps_ready > 0  # nobody has to be woken for what is taken already
                lease.input = c.input if step.input_ref == spec.input_ref else None
    decision = finish(d, None, "create")
    decision.result = Created(c.run_id, d.run.status, lease, at=d.now)
    return decision


def _take_over(d: Draft, c: CreateRun) -> None:
    """Give the first step the resumable checkpoints of the run that this one resumes."""
    run = d.edit_run()
    for no, old in enumerate(c.reuse, start=1):
        output_ref = d.payload(old.output)
        d.add(
            Checkpoint(
                run.id, 0, old.name, no, "done", 0, 0, True, old.idempotent, old.arguments, d.now,
                output_ref=output_ref, meta=old.meta,
            )
        )  # fmt: skip
    if c.reuse:
        run.checkpoints = run.steps_done = len(c.reuse)
        d.edit(d.step(0)).recorded = True


def _capped(d: Draft) -> bool:
    return any(cap.max_concurrency is not None for cap in d.snap.caps.values())


# ----------------------------------------------------------------------------------------------- plans


def check_plan(
    plan: tuple[StepSpec, ...],
    profile: Profile,
    existing: dict[str, int],
    total: int,
    behind: str | None = None,
) -> list[list[str]]:
    """The needs of each step by name, or PLAN_INVALID naming every problem. `behind`: what the first one is behind
    where steps run strictly in order."""
    problems: list[Detail] = []
    if not plan:
        problems.append(Detail("plan", "a plan has at least one step"))
    if total + len(plan) > STEPS_PER_RUN_MAX:
        problems.append(Detail("plan", f"over {STEPS_PER_RUN_MAX} steps"))
    names: set[str] = set(existing)
    for i, step in enumerate(plan):
        at = f"plan[{i}]"
        if step.name in names:
            problems.append(Detail(f"{at}.name", f"there are two steps named {step.name!r}"))
        names.add(step.name)
        problems += step_problems(at, step, profile)
    needs: list[list[str]] = []
    for i, step in enumerate(plan):
        before = [plan[i - 1].name] if i else [] if behind is None else [behind]
        wanted = before if step.needs is None else list(dict.fromkeys(step.needs))
        needs.append(wanted)
        problems += [Detail(f"plan[{i}].needs", f"no step named {n!r}") for n in wanted if n not in names]
    if not problems and (cycle := _cycle(plan, needs)):
        problems.append(Detail("plan", "the needs form a cycle: " + " -> ".join(cycle)))
    if problems:
        raise TenureError("PLAN_INVALID", problems[0].problem, tuple(problems[:50]))
    return needs


CHECKED_PLAN_STEPS_MAX = 32


@lru_cache(maxsize=256)
def _checked(plan: tuple[StepSpec, ...], profile: str) -> tuple[list[str], ...]:
    """A plan's needs; runs of one workflow have the same plan, so that it is checked once."""
    return tuple(check_plan(plan, profiles.get(profile), {}, 0))


def _cycle(plan: tuple[StepSpec, ...], needs: list[list[str]]) -> list[str]:
    """A cycle in the needs, or nothing; without recursion, plans are long."""
    names = {step.name for step in plan}
    left = {step.name: names.intersection(wanted) for step, wanted in zip(plan, needs, strict=True)}
    behind: dict[str, list[str]] = {}
    for name, wanted in left.items():
        for need in wanted:
            behind.setdefault(need, []).append(name)
    free = [name for name, wanted in left.items() if not wanted]
    while free:
        done = free.pop()
        del left[done]
        for name in behind.get(done, ()):
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
    d: Draft, plan: tuple[StepSpec, ...], profile: Profile, priority: int, run_input: int | None
) -> list[Step]:
    """Make the steps of a plan; they open when the run is admitted."""
    run = d.edit_run()
    existing: dict[str, int] = {}
    if run.steps_total:
        new = {spec.name for spec in plan}
        needed = {name for spec in plan for name in spec.needs or ()}
        d.want_named_steps(new | needed)
        there = {step.name: step.idx for step in d.snap.steps.values()}
        again = next((spec.name for spec in plan if spec.name in there), None)
        if again is not None:
            raise TenureError(
                "PLAN_INVALID", f"the run has a step {again!r} already", (Detail("plan", again),)
            )
        existing = {name: there[name] for name in needed if name in there}
    if run.steps_total or len(plan) > CHECKED_PLAN_STEPS_MAX:
        last = d.step(run.steps_total - 1) if run.steps_total and profile.strict_sequence else None
        if last is not None:
            existing[last.name] = last.idx
        behind_name = None if last is None else last.name
        needs: Sequence[list[str]] = check_plan(plan, profile, existing, run.steps_total, behind_name)
    else:
        needs = _checked(plan, profile.name)
    idx_of = {spec.name: run.steps_total + i for i, spec in enumerate(plan)} | existing
    behind: dict[int, list[int]] = {}
    left = []
    for spec, wanted in zip(plan, needs, strict=True):
        open_needs = 0
        for name in wanted:
            need = idx_of[name]
            if name in existing:
                old = d.edit(d.step(need))
                old.dependents = f"{old.dependents},{idx_of[spec.name]}".lstrip(",")
                if old.finished_at is not None:
                    continue  # it is done, or it was optional and counts as done: it is not waited for
            else:
                behind.setdefault(need, []).append(idx_of[spec.name])
            open_needs += 1
        left.append(open_needs)
    steps = []
    prefix = ids.run_text(run.id)
    for spec, needs_left in zip(plan, left, strict=True):
        idx = idx_of[spec.name]
        template_ref = d.payload(spec.template)
        input_ref = run_input if spec.input is None and template_ref is None else d.payload(spec.input)
        step = planned_step(
            d.run, spec, idx, needs_left, behind.get(idx, []), profile, priority, input_ref, prefix, d.now
        )
        step.template_ref = template_ref
        steps.append(d.add(step))
    run.steps_total += len(plan)
    run.steps_open += len(plan)
    return steps


def planned_step(
    run: Run,
    spec: StepSpec,
    idx: int,
    needs_left: int,
    dependents: list[int],
    profile: Profile,
    priority: int,
    input_ref: int | None,
    prefix: str,
    now: int,
) -> Step:
    """A step as its plan wants it."""
    timing = profile.timing
    timeout = spec.timeout_seconds
    if timeout is None and spec.kind == "work":
        timeout = timing.step_timeout_seconds
    retries = spec.retries if spec.retries is not None else timing.retries
    gate: object = None
    if spec.kind == "approval":
        gate = spec.approval or {}
    elif spec.kind == "wait":
        gate = spec.wait or {}
    elif spec.backoff is not None:
        gate = spec.backoff
    lease = spec.lease_seconds if spec.lease_seconds is not None else timing.lease_seconds
    return Step(
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
        resolution="skip" if spec.skipped else "due" if spec.template is not None else "",
        condition=spec.condition,
    )


def plan_ready(d: Draft, c: PlanReady) -> Decision:
    """The planner's answer becomes the run's steps."""
    _must_plan(d)
    spec = d.spec()
    run = d.edit_run()
    add_plan(d, c.plan, d.rules, spec.priority, spec.input_ref)
    run.planned = True
    d.show("queued")
    if run.rated or run.concurrency_key is not None:
        run.wake_at = d.now  # admission looks beyond the run, under its tenant's lock: Admit does that
    else:
        admit_if_possible(d, spec, over_rate="delay")
    return finish(d, {"steps": run.steps_total}, "plan_ready")


def plan_failed(d: Draft, c: PlanFailed) -> Decision:
    """The planner gave up: the run fails."""
    _must_plan(d)
    return fail_planning(d, c.code, c.message)


def fail_planning(d: Draft, code: str, message: bytes) -> Decision:
    """planning -> plan_failed -> failed, in one commit."""
    run = d.edit_run()
    run.error_ref = d.payload(message or None)
    run.reason = code
    d.show("failed")
    return finish(d, {"status": "failed"}, "plan_failed")


def _must_plan(d: Draft) -> None:
    run = d.run
    if run.status in CLOSED_RUN:
        raise TenureError("RUN_TERMINAL_STATE", f"the run is {run.status} already")
    if run.status != "planning":
        raise TenureError("RUN_INVALID_TRANSITION", f"the run is {run.status}: it has its plan")


# ------------------------------------------------------------------------------------------- admission


def admit_if_possible(d: Draft, spec: RunSpec, *, over_rate: str) -> None:
    """Let the run begin, or set the moment at which to look again."""
    run = d.edit_run()
    if spec.not_before is not None and spec.not_before > d.now:
        _look_again(run, spec.not_before)
        return
    supersedes = run.concurrency_key is not None and spec.concurrency_mode == "supersede"
    if run.rated:
        full_until = _facts(d, run, supersedes).rate_full_until
        if full_until is not None:
            if over_rate == "refuse":
                wait = max(1, -((d.now - full_until) // 1_000_000))
                raise TenureError(
                    "TENANT_RATE_LIMITED",
                    f"too many runs this minute; try again in {wait} s",
                    retry_at=full_until,
                    retry_after=wait,
                )
            _look_again(run, full_until)
            return
    if run.concurrency_key is not None:
        facts = _facts(d, run, supersedes)
        if supersedes and facts.live_ids:
            d.notes["supersedes"] = len(facts.live_ids)  # an event: what is owed is written with one
            for run_id in facts.live_ids:
                d.owe("cancel", run_id, {"reason": "SUPERSEDED"})
        first = facts.first_waiting_id in (None, run.id)
        if facts.holder_id is not None or not first:
            # Whoever is first in line is also woken when the key is freed; the others have time.
            _look_again(run, d.now + us(KEY_POLL_SECONDS if first else KEY_LINE_POLL_SECONDS))
            return
    run.admitted_at = d.now
    run.wake_at = None
    created = [s for s in d.changed.values() if isinstance(s, Step)]
    for step in created if d.snap.run is None or not d.snap.run.planned else d.open_steps():
        if step.needs_left == 0 and step.state == "pending":
            open_step(d, step)


def _facts(d: Draft, run: Run, supersedes: bool) -> Facts:
    """What is known beyond the run; the older runs with its key only where it cancels them."""
    if d.snap.facts is None:
        raise Need(("admission", run.tenant, run.concurrency_key, run.workflow, supersedes))
    return d.snap.facts


def _look_again(run: Run, moment: int) -> None:
    """When a run that is held back looks again: not after its deadline."""
    run.wake_at = moment if run.deadline_at is None else min(moment, run.deadline_at)


def admit(d: Draft, _c: Admit) -> Decision:
    """Look again whether a run that was held back may begin."""
    run = d.run
    if run.status == "planning" and run.wake_at is not None and run.wake_at <= d.now:
        return fail_planning(d, "PLAN_FAILED", b"the planner took too long")
    if (
        run.status in CLOSED_RUN
        or run.admitted_at is not None
        or not run.planned
        or run.cancel_at is not None
    ):
        return Decision({"admitted": run.admitted_at is not None})
    if run.deadline_at is not None and run.deadline_at <= d.now:
        return time_out_run(d)
    admit_if_possible(d, d.spec(), over_rate="delay")
    return finish(d, {"admitted": d.run.admitted_at is not None}, "admit")
