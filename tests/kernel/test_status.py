"""Random commands on random plans: the status always follows from the steps, by a path of the run machine.

The status is computed here a second time from the design, and the counters are counted
again. A refused command must change no row. An accepted command must not change a row that was
returned before.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel import profiles
from tenure.kernel.machines import RUN, RUN_PATHS
from tenure.kernel.run_rows import CLOSED_RUN, CLOSED_STEP, StepRow
from tests.cases import cases
from tests.kernel.story import RUN_ID, Story
from tests.profile_words import run_states

ACTIVE = {"leased", "starting", "running", "uploading", "canceling"}
WAITS = ("waiting_approval", "waiting_external", "retry_wait")


class Facts:
    """A fact of the run that no step has."""

    past_deadline = False


def status_of(story: Story, facts: Facts) -> str:
    """The design's rule: an active step -> running; else an open gate; else an external wait; else a backoff."""
    run, steps = story.run, story.steps
    states = Counter(step.state for step in steps)
    still_open = [step for step in steps if step.state not in CLOSED_STEP]
    if run.cancel_at is not None:
        return "canceling" if still_open else "canceled"
    if not run.planned:
        return "planning" if still_open else "failed"
    if facts.past_deadline:
        return "timed_out"
    if any(step.required and step.state in CLOSED_STEP - {"succeeded"} for step in steps):
        return "failed"
    if run.admitted_at is None:
        return "queued"
    if not still_open:
        return "succeeded"
    if any(states[state] for state in ACTIVE):
        return "running"
    if states["ready"]:
        return "running" if run.started_at is not None else "queued"
    return next(state for state in WAITS if states[state])


def counters_of(steps: list[StepRow]) -> dict[str, int]:
    """The counters of the run's row, counted again. The plan step does not count."""
    steps = [step for step in steps if step.kind != "plan"]
    states = Counter(step.state for step in steps)
    closed = [step for step in steps if step.state in CLOSED_STEP]
    return {
        "steps_total": len(steps),
        "steps_open": len(steps) - len(closed),
        "steps_ready": states["ready"],
        "steps_live": sum(states[state] for state in ACTIVE),
        "steps_approval": states["waiting_approval"],
        "steps_external": states["waiting_external"],
        "steps_retry": states["retry_wait"],
        "steps_bad": sum(step.required and step.state != "succeeded" for step in closed),
    }


# ------------------------------------------------------------------------------------------- commands

Deed = Callable[[Story, int, int], Any]


def _pick(story: Story, n: int, *states: str) -> str:
    """Usually a step in one of these states; one time in eight any step."""
    fitting = [step for step in story.steps if step.state in states] if n % 8 else []
    steps = fitting or story.steps
    return steps[n % len(steps)].name


def _held(story: Story, n: int) -> str:
    return _pick(story, n, *sorted(ACTIVE))


def _message(kind: type[c.LeaseCommand], **fields: Any) -> Deed:
    def say(story: Story, n: int, m: int) -> None:
        name = _held(story, n)
        newest = story.step(name).attempt
        # Usually from the newest attempt; sometimes from an older one or with a repeated number.
        story.say(kind, name, n=newest if m % 8 else max(1, newest - 1), again=m % 7 == 6, **fields)

    return say


def _move_time(story: Story, n: int, m: int) -> None:
    story.after((0.5, 1.5, 6.0, 31.0, 61.0, 130.0, 700.0)[n % 7])


def _tick(story: Story, n: int, m: int) -> None:
    kinds = ["run", "step", "wait"]
    story.tick(kinds[n % 3], m % max(1, len(story.steps) if n % 3 == 1 else story.run.next_no))


def _open_wait(story: Story, n: int, m: int) -> None:
    what: dict[str, Any] = (
        {"approval": c.ApprovalSpec(within_seconds=30.0 if m % 2 else None)},
        {"event": c.WaitSpec(event="ping", within_seconds=20.0)},
        {"until": story.clock + 10},
        {
            "child": c.StartChild(
                run_id=RUN_ID + 100 + m, workflow="w", on_close=("cancel", "leave", "wait")[m % 3]
            )
        },
    )[m % 4]
    story.open_wait(_held(story, n), f"wait {m % 5}", fatal=m % 3 == 0, **what)


def _suspend(story: Story, n: int, m: int) -> None:
    name = _held(story, n)
    own = [w.no for w in story.snap.waits.values() if w.idx == story.step(name).idx]
    story.suspend(name, *(own[: 1 + m % 3] or [99]))


def _decide(story: Story, n: int, m: int) -> None:
    no = 1 + n % max(1, story.run.next_no)
    (story.reject if m % 4 == 0 else story.approve)(no, by=("u_alice", "u_bob", "u_carol")[m % 3])


DEEDS: dict[str, Deed] = {
    "claim": lambda s, n, m: s.claim(_pick(s, n, "ready"), f"w_{m % 3}", ack=m % 3 != 0),
    "ack": _message(c.AckLease),
    "beat": _message(c.Heartbeat),
    "upload": _message(c.BeginUpload),
    "complete": _message(c.Complete, output=b"out"),
    "fail": _message(c.Fail, retryable=True),
    "fail permanently": _message(c.Fail, retryable=False),
    "release": _message(c.Release),
    "park": _message(c.Park, why="differs"),
    "cancel ack": _message(c.AckCancel),
    "checkpoint": lambda s, n, m: s.checkpoint(
        _held(s, n),
        f"c{m % 4}",
        state=("done", "started", "failed")[m % 3],
        idempotent=m % 2 == 0,
        resumable=m % 5 > 1,
    ),
    "revoke": lambda s, n, _m: s.revoke(_held(s, n)),
    "open wait": _open_wait,
    "suspend": _suspend,
    "decide": _decide,
    "revise": lambda s, n, _m: s.revise(1 + n % max(1, s.run.next_no), ""),
    "deliver": lambda s, _n, m: s.deliver("ping", f"e{m % 6}"),
    "child finished": lambda s, n, m: s.child_finished(RUN_ID + 100 + m, ("succeeded", "failed")[n % 2]),
    "end wait": lambda s, _n, _m: s.end_wait(),
    "time": _move_time,
    "sweep": lambda s, _n, _m: s.sweep(),
    "tick": _tick,
    "plan ready": lambda s, _n, m: s.run.planned or s.plan_ready(*(("p1", "p2")[: m % 3])),
    "plan invalid": lambda s, _n, _m: s.run.planned or s.plan_ready("p1", "p1"),
    "plan failed": lambda s, _n, _m: s.run.planned or s.plan_failed(),
    "add steps": lambda s, _n, m: s.add_steps(c.StepSpec(name=f"a{m}", needs=())),
    "admit": lambda s, _n, _m: s.admit(),
    "cancel": lambda s, _n, _m: s.cancel(),
    "cancel step": lambda s, n, _m: s.cancel_step(_pick(s, n)),
    "pause": lambda s, _n, _m: s.pause(),
    "unpause": lambda s, _n, _m: s.unpause(),
    "report": lambda s, _n, _m: s.report(),
    "seal": lambda s, _n, _m: s.seal(),
    "label": lambda s, _n, _m: s.label("{}"),
}
OFTEN = (
    *("claim",) * 6, *("ack", "beat", "upload", "complete", "fail", "release", "checkpoint", "revoke") * 2,
    *("open wait", "suspend", "decide", "deliver", "sweep", "time", "cancel ack") * 3,
)  # fmt: skip
PLANLESS = {
    "time",
    "sweep",
    "plan ready",
    "plan failed",
    "cancel",
    "pause",
    "unpause",
    "tick",
    "deliver",
    "label",
}


def plan_by(chance: random.Random, profile: str) -> list[str | c.StepSpec] | None:
    """No plan (for a planner), a body, or steps, gates and waits with random needs."""
    rules = profiles.get(profile)
    kind = chance.choice(["planner", "body", "steps", "steps", "steps"])
    if kind == "planner":
        return None
    if kind == "body":
        return [c.BODY_STEP]
    plan: list[str | c.StepSpec] = []
    for i in range(chance.randint(1, 5)):
        needs = None
        if not rules.strict_sequence and chance.random() < 0.6:
            needs = tuple(f"s{k}" for k in range(i) if chance.random() < 0.4)
        what = chance.choice(["work", "work", "work", "approval", "wait"])
        plan.append(
            c.StepSpec(
                name=f"s{i}",
                kind=what,  # type: ignore[arg-type]  # one of those above
                needs=needs,
                required=not rules.optional_steps or chance.random() < 0.7,
                retries=chance.choice([None, 0, 1]),
                lease_seconds=chance.choice([None, 2.0]),
                timeout_seconds=chance.choice([None, 100.0]),
                wait=c.WaitSpec(event=chance.choice(["", "ping"]), within_seconds=20)
                if what == "wait"
                else None,
            )
        )
    return plan


# Hypothesis draws only the seed. Commands that it drew one by one would stay close to its simplest examples.
@settings(max_examples=cases(300))
@given(profile=st.sampled_from(profiles.names()), seed=st.integers(0, 2**32), length=st.integers(1, 90))
def test_the_status_always_follows_from_the_steps(profile: str, seed: int, length: int) -> None:
    chance = random.Random(seed)
    story = Story(
        profile=profile,
        plan=plan_by(chance, profile),
        checked=False,
        timeout_seconds=chance.choice([None, 90.0]),
        wall_clock=chance.random() < 0.3,
        not_before=chance.choice([None, None, Story.moment(20)]),
        eager=chance.choice([None, c.Claimant("w_0")]),
    )
    facts = Facts()
    check(story, facts, "created", 0)
    for name in chance.choices([*DEEDS, *OFTEN], k=length):
        if not story.steps and name not in PLANLESS:
            continue
        status, events = story.status, len(story.events)
        handed_out = story.bundle()
        before = handed_out.copied()
        late = _deadline_has_passed(story) or name == "sweep"
        try:
            DEEDS[name](story, chance.randrange(40), chance.randrange(40))
        except TenureError:
            assert story.bundle() == before, f"a refused '{name}' changed a row"
        assert handed_out.copied() == before, f"'{name}' changed a row that was returned before"
        kinds = [event.kind for event in story.events[events:]]
        if "time_out" in kinds:
            assert late or _deadline_has_passed(story)
            facts.past_deadline = True
        check(story, facts, status, events)


def _deadline_has_passed(story: Story) -> bool:
    deadline = story.run.deadline_at
    return deadline is not None and deadline <= story.now


def check(story: Story, facts: Facts, old: str, events: int) -> None:
    """All checks after one command."""
    run = story.run
    assert run.status == status_of(story, facts)
    assert {name: getattr(run, name) for name in counters_of(story.steps)} == counters_of(story.steps)
    walked = run_states(story.events)
    assert walked[-1] == run.status
    assert all(any(e.state == a and e.next == b for e in RUN.edges) for a, b in pairwise(walked))
    if len(story.events) == events + 1 and old not in ("created", run.status):
        path = [edge.next for edge in RUN_PATHS[old, run.status]]
        assert run_states(story.events)[-len(path) :] == path
    assert (run.finished_at is not None) == (run.status in CLOSED_RUN)


# ------------------------------------------------------------------------------------- every pair of command and status

EVERYWHERE: list[type[c.RunCommand]] = [
    c.Pause, c.Unpause, c.EndWait, c.MarkReported, c.AttestReported, c.SealRun, c.RequestCancel, c.DeleteRun,
]  # fmt: skip


def stories() -> dict[str, Story]:
    """A story for each status of a run."""
    gate = c.StepSpec(name="g", kind="approval")
    found = {
        "planning": Story(plan=None),
        "queued": Story(plan=["a"]),
        "running": Story(plan=["a"]),
        "waiting_approval": Story(plan=[gate]),
        "waiting_external": Story(plan=[c.StepSpec(name="w", kind="wait", wait=c.WaitSpec(event="e"))]),
        "retry_wait": Story(plan=["a"]),
        "canceling": Story(plan=["a"]),
        "succeeded": Story(plan=["a"]),
        "failed": Story(plan=None),
        "canceled": Story(plan=["a"]),
        "timed_out": Story(plan=["a"], timeout_seconds=10),
    }
    for name in ("running", "retry_wait", "canceling", "succeeded", "timed_out"):
        found[name].claim("a")
    found["retry_wait"].fail("a", retryable=True)
    found["canceling"].cancel()
    found["succeeded"].complete("a")
    found["failed"].plan_failed()
    found["canceled"].cancel()
    found["timed_out"].at(11).sweep()
    return found


@pytest.mark.clause("GWI-02", "GWI-04")
@pytest.mark.parametrize("status", list(stories()))
@pytest.mark.parametrize("command", EVERYWHERE, ids=lambda command: command.__name__)
def test_a_command_is_accepted_in_its_states_and_refused_in_all_others(
    status: str, command: type[c.RunCommand]
) -> None:
    accepted = {
        c.Pause: set(RUN.states) - CLOSED_RUN,
        c.Unpause: set(RUN.states) - CLOSED_RUN,
        c.EndWait: {"waiting_external"},
        c.MarkReported: set(CLOSED_RUN),
        c.AttestReported: set(CLOSED_RUN),
        c.SealRun: set(CLOSED_RUN),
        c.RequestCancel: set(RUN.states) - CLOSED_RUN,
        c.DeleteRun: set[str](),  # not sealed yet
    }[command]
    story = stories()[status]
    assert story.status == status
    before = copy.deepcopy(story.bundle())
    given_ = command(run_id=RUN_ID)
    if status in accepted:
        story.do(given_)
        return
    terminal = status in CLOSED_RUN
    code = (
        "RUN_NOT_SEALED" if terminal and command is c.DeleteRun else "RUN_TERMINAL_STATE" if terminal else ""
    )
    with story.refuses(code or "RUN_INVALID_TRANSITION"):
        story.do(given_)
    assert story.bundle() == before
