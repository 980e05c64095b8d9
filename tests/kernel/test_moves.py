"""Every move from every state it starts in, and every path of a run, each with its own story.

If a move or path is added to the tables without a story here, these tests fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tenure.kernel import commands as c
from tenure.kernel import draft
from tenure.kernel.history import decode_body
from tenure.kernel.machines import MOVES, RUN_PATHS, JointState
from tests.edge_coverage import NEVER
from tests.kernel.story import RUN_ID, Story

Deed = Callable[[Story], Any]

GATE = c.ApprovalSpec(within_seconds=50)
EVENT = c.WaitSpec(event="ping", within_seconds=50)


def begin(*, kind: str = "work", needs_first: bool = False, **how: Any) -> Story:
    """A run with the step `a` under test, an independent step `side`, and if needed a step `first` that `a` needs."""
    if kind == "approval":
        how["approval"] = GATE
    elif kind == "wait":
        how["wait"] = EVENT
    step = c.StepSpec(name="a", kind=kind, needs=("first",) if needs_first else (), **how)  # type: ignore[arg-type]  # a kind of step
    plan: list[str | c.StepSpec] = [step, c.StepSpec(name="side", needs=())]
    if needs_first:
        plan = [c.StepSpec(name="first", needs=()), *plan]
    return Story(profile="agent-runs", plan=plan)


# ------------------------------------------------------------------------------------ how to reach a state


def leased(story: Story) -> None:
    story.claim("a", ack=False)


def starting(story: Story) -> None:
    leased(story)
    story.ack("a")


def running(story: Story) -> None:
    story.claim("a")


def uploading(story: Story) -> None:
    running(story)
    story.upload("a")


def suspended_on_approval(story: Story) -> None:
    running(story)
    story.open_wait("a", "w", approval=GATE, fatal=True)
    story.suspend("a", "w")


def suspended_on_event(story: Story) -> None:
    running(story)
    story.open_wait("a", "w", event=EVENT, fatal=True)
    story.suspend("a", "w")


def failed_once(story: Story) -> None:
    running(story)
    story.fail("a", retryable=True)


def timed_out_once(story: Story) -> None:
    running(story)
    story.after(10).tick("step", story.step("a").idx)


def canceling_granted(story: Story) -> None:
    leased(story)
    story.cancel_step("a")


def canceling_active(story: Story) -> None:
    running(story)
    story.cancel_step("a")


CHILD_ID = RUN_ID + 1
CHILD = c.StartChild(run_id=CHILD_ID, workflow="child", on_close="wait")


def at_its_end(story: Story) -> None:
    running(story)
    complete_waiting(story)


def nothing(story: Story) -> None:
    """The step is in this state from the start."""


def ready(story: Story) -> None:
    """Ready to be claimed. If each try has its own input, ready to have the second one resolved."""
    if story.step("a").resolution == "due":
        story.resolve("a", each_try=True)
        story.claim("a")
        story.release("a")


PLACES: dict[JointState, tuple[dict[str, Any], Deed]] = {
    JointState("pending"): ({"needs_first": True}, nothing),
    JointState("ready", "queued"): ({}, ready),
    JointState("leased", "leased", "granted"): ({}, leased),
    JointState("starting", "starting", "active"): ({}, starting),
    JointState("running", "running", "active"): ({}, running),
    JointState("uploading", "uploading", "active"): ({}, uploading),
    JointState("waiting_approval"): ({"kind": "approval"}, nothing),
    JointState("waiting_external"): ({"kind": "wait"}, nothing),
    JointState("waiting_approval", "suspended", "released"): ({}, suspended_on_approval),
    JointState("waiting_external", "suspended", "released"): ({}, suspended_on_event),
    JointState("waiting_external", "succeeded", "completed"): ({}, at_its_end),
    JointState("retry_wait", "failed", "completed"): ({}, failed_once),
    JointState("retry_wait", "timed_out", "revoked"): ({"timeout_seconds": 10}, timed_out_once),
    JointState("canceling", "canceling", "granted"): ({}, canceling_granted),
    JointState("canceling", "canceling", "active"): ({}, canceling_active),
}

# --------------------------------------------------------------------------------------- how to make a move


def first_is_done(story: Story) -> None:
    story.claim("first")
    story.complete("first")


def first_fails(story: Story) -> None:
    story.claim("first")
    story.fail("first", retryable=False)


def side_fails(story: Story) -> None:
    story.claim("side")
    story.fail("side", retryable=False)


def reuse(story: Story) -> None:
    first_is_done(story)
    story.resolve("a", None, reuse_key=b"k", reused=(7, "b"), output=b"1")


def fail_resolution(story: Story) -> None:
    if story.step("a").state == "pending":
        first_is_done(story)
    story.resolve("a", None, code="EXPRESSION_FAILED", message=b"there is no such key")


def suspend(**what: Any) -> Deed:
    def on(story: Story) -> None:
        story.open_wait("a", "w", **what)
        story.suspend("a", "w")

    return on


def complete_waiting(story: Story) -> None:
    story.open_wait("a", "w", child=CHILD, fatal=True)
    story.complete("a", b"result")


def settle(story: Story) -> None:
    if story.snap.children:
        story.child_finished(CHILD_ID)
    elif story.step("a").state == "waiting_approval":
        story.approve(1)
    else:
        story.deliver("ping")


def refuse(story: Story) -> None:
    if story.snap.children:
        story.child_finished(CHILD_ID, "failed")
    elif story.step("a").state == "waiting_approval":
        story.reject(1)
    else:
        story.after(51).tick("wait", 1)


def close(story: Story) -> None:
    """Cancel a step without a lease; revoke a lease by failing the run."""
    if story.step("a").state in ("leased", "starting", "running", "uploading", "canceling"):
        side_fails(story)
    else:
        story.cancel_step("a")


def sweep_after(seconds: float) -> Deed:
    return lambda story: story.after(seconds).tick("step", story.step("a").idx)


LONG = {"lease_seconds": 1000}
ONCE = {"retries": 0}
MAKE: dict[str, tuple[dict[str, Any], Deed]] = {
    "ready": ({}, first_is_done),
    "open_approval_gate": ({"kind": "approval"}, first_is_done),
    "open_external_gate": ({"kind": "wait"}, first_is_done),
    "drop": ({}, lambda s: s.cancel_step("a")),
    "skip": ({}, first_fails),
    "skip_condition": ({"condition": "inputs.go", "skipped": True}, first_is_done),
    "reuse": ({"reuse": c.ReuseSpec(scope="s", digest="ab" * 32)}, reuse),
    "fail_resolution": ({"template": b"{}"}, fail_resolution),
    "claim": ({}, lambda s: s.claim("a", ack=False)),
    "claim_and_ack": ({}, lambda s: s.claim("a")),
    "ack": ({}, lambda s: s.ack("a")),
    "begin": ({}, lambda s: s.beat("a")),
    "upload": ({}, lambda s: s.upload("a")),
    "complete": ({}, lambda s: s.complete("a")),
    "complete_waiting": ({}, complete_waiting),
    "fail": ({}, lambda s: s.fail("a", retryable=False)),
    "fail_retry": ({}, lambda s: s.fail("a", retryable=True)),
    "suspend_approval": ({}, suspend(approval=GATE)),
    "suspend_external": ({}, suspend(event=EVENT)),
    "release": ({}, lambda s: s.release("a")),
    "expire": ({}, sweep_after(31)),
    "expire_final": (ONCE, sweep_after(31)),
    "revoke": ({}, lambda s: s.revoke("a")),
    "revoke_final": (ONCE, lambda s: s.revoke("a")),
    "time_out": ({**ONCE, "timeout_seconds": 20}, sweep_after(21)),
    "time_out_retry": ({"timeout_seconds": 20}, sweep_after(21)),
    "request_cancel": ({}, lambda s: s.cancel_step("a")),
    "close": ({}, close),
    "force_cancel": (LONG, sweep_after(31)),
    "expire_canceling": ({"lease_seconds": 5}, sweep_after(6)),
    "release_canceling": ({}, lambda s: s.release("a")),
    "cancel_ack": ({}, lambda s: s.cancel_ack("a")),
    "late_result": ({}, lambda s: s.complete("a")),
    "due": ({}, sweep_after(2)),
    "resume": ({}, settle),
    "settle": ({}, settle),
    "refuse": ({}, refuse),
}


@pytest.mark.parametrize(
    ("name", "place"), MOVES, ids=lambda part: str(part) if isinstance(part, str) else _short(part)
)
def test_a_move_leads_from_its_start_to_its_end(name: str, place: JointState) -> None:
    plan, stand = PLACES[place]
    needed, make = MAKE[name]
    story = begin(**{**plan, **needed})
    stand(story)
    assert joint(story) == place
    make(story)
    move = MOVES[name, place]
    made = [
        entry
        for event in story.events
        for entry in decode_body(event).get("edges", ())
        if entry.get("move") == name and entry["step"] == story.step("a").idx
    ]
    assert made[-1]["edges"] == [[machine, e.state, e.next, e.owner] for machine, e in move.edges]
    assert story.step("a").state == move.end.step
    story.check()


def _short(place: JointState) -> str:
    return f"{place.step}/{place.attempt}/{place.lease}"


def joint(story: Story) -> JointState:
    """The joint state of `a`."""
    step = story.step("a")
    if step.state == "ready":
        return JointState("ready", "queued")
    if step.kind != "work" or step.attempt == 0:
        return JointState(step.state)
    attempt = story.attempt("a")
    return JointState(step.state, attempt.state, attempt.lease)


# --------------------------------------------------------------------------------------------- run paths

OPTIONAL: dict[str, Any] = {"required": False}


def story_of(*plan: c.StepSpec, **how: Any) -> Story:
    return Story(profile="agent-runs", plan=plan or None, **how)


def work(name: str = "a", *needs: str, **how: Any) -> c.StepSpec:
    return c.StepSpec(name=name, needs=needs, **how)


def gate(name: str = "g", *needs: str, **how: Any) -> c.StepSpec:
    return c.StepSpec(name=name, needs=needs, kind="approval", approval=GATE, **how)


def event(name: str = "e", *needs: str, **how: Any) -> c.StepSpec:
    return c.StepSpec(name=name, needs=needs, kind="wait", wait=EVENT, **how)


def backing_off(*also: c.StepSpec, **how: Any) -> Story:
    """A run whose step `a` waits for its next try."""
    story = story_of(work("a", **how), *also)
    story.claim("a")
    story.fail("a", retryable=True)
    return story


def waiting_and_backing_off(first: c.StepSpec) -> Story:
    """A run with an open gate (or wait) and a backoff. Its status shows the gate."""
    story = backing_off(first)
    assert story.status in ("waiting_approval", "waiting_external")
    return story


def started(*also: c.StepSpec, **how: Any) -> Story:
    story = story_of(work("a", **how), *also)
    story.claim("a")
    return story


def canceled_without_a_lease() -> None:
    story = started()
    story.release("a")
    story.cancel()


def canceled_in_two_phases() -> None:
    story = started()
    story.cancel()
    story.cancel_ack("a")


def canceled_while_planning() -> None:
    story = story_of()
    story.claim(c.PLAN_STEP_NAME)
    story.cancel()


PATHS: dict[tuple[str, str], Callable[[], Any]] = {
    ("created", "planning"): story_of,
    ("planning", "queued"): lambda: story_of().plan_ready("a"),
    ("planning", "failed"): lambda: story_of().plan_failed(),
    ("planning", "canceled"): lambda: story_of().cancel(),
    ("planning", "canceling"): canceled_while_planning,
    ("queued", "running"): started,
    ("queued", "failed"): lambda: story_of(work()).cancel_step("a"),
    ("queued", "timed_out"): lambda: story_of(work(), timeout_seconds=9, wall_clock=True).at(10).sweep(),
    ("queued", "waiting_approval"): lambda: story_of(gate()),
    ("queued", "waiting_external"): lambda: story_of(event()),
    ("queued", "succeeded"): lambda: story_of(work(**OPTIONAL)).cancel_step("a"),
    ("queued", "canceled"): lambda: story_of(work()).cancel(),
    ("running", "failed"): lambda: started().fail("a", retryable=False),
    ("running", "timed_out"): lambda: started().at(601).tick("run"),
    ("running", "waiting_approval"): lambda: started(gate("g", "a")).complete("a"),
    ("running", "waiting_external"): lambda: started(event("e", "a")).complete("a"),
    ("running", "retry_wait"): lambda: started().fail("a", retryable=True),
    ("running", "succeeded"): lambda: started().complete("a"),
    ("running", "canceling"): lambda: started().cancel(),
    ("running", "canceled"): canceled_without_a_lease,
    ("waiting_approval", "failed"): lambda: story_of(gate()).reject(1),
    ("waiting_approval", "running"): lambda: story_of(gate(), work("b", "g")).approve(1),
    ("waiting_approval", "timed_out"): lambda: (
        story_of(gate(), wall_clock=True, timeout_seconds=9).at(10).sweep()
    ),
    ("waiting_approval", "waiting_external"): lambda: story_of(gate(), event()).approve(1),
    ("waiting_approval", "retry_wait"): lambda: waiting_and_backing_off(gate()).approve(1),
    ("waiting_approval", "succeeded"): lambda: story_of(gate()).approve(1),
    ("waiting_approval", "canceled"): lambda: story_of(gate()).cancel(),
    ("waiting_external", "failed"): lambda: story_of(event()).at(51).sweep(),
    ("waiting_external", "running"): lambda: story_of(event(), work("b", "e")).deliver("ping"),
    ("waiting_external", "timed_out"): lambda: story_of(event(), timeout_seconds=9).at(10).sweep(),
    ("waiting_external", "waiting_approval"): lambda: story_of(event(), gate("g", "e")).deliver("ping"),
    ("waiting_external", "retry_wait"): lambda: waiting_and_backing_off(event()).deliver("ping"),
    ("waiting_external", "succeeded"): lambda: story_of(event()).deliver("ping"),
    ("waiting_external", "canceled"): lambda: story_of(event()).cancel(),
    ("retry_wait", "failed"): lambda: backing_off().cancel_step("a"),
    ("retry_wait", "running"): lambda: backing_off().after(2).sweep(),
    ("retry_wait", "timed_out"): lambda: backing_off().at(601).tick("run"),
    ("retry_wait", "waiting_approval"): lambda: backing_off().add_steps(gate()),
    ("retry_wait", "waiting_external"): lambda: backing_off().add_steps(event()),
    ("retry_wait", "succeeded"): lambda: backing_off(**OPTIONAL).cancel_step("a"),
    ("retry_wait", "canceled"): lambda: backing_off().cancel(),
    ("canceling", "canceled"): canceled_in_two_phases,
}


def test_every_path_of_a_run_has_a_story_or_a_reason() -> None:
    assert PATHS.keys() | NEVER.keys() == RUN_PATHS.keys()
    assert not PATHS.keys() & NEVER.keys()


@pytest.mark.parametrize(("old", "new"), PATHS)
def test_a_story_walks_its_path(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    walked: set[tuple[str, str]] = set()
    before = vars(draft)["walked_paths"]
    monkeypatch.setattr(draft, "walked_paths", walked)
    PATHS[old, new]()
    assert (old, new) in walked
    if before is not None:
        before |= walked
