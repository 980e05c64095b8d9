"""Runs driven by random commands: the doctor never finds a violation.

A failure prints the seed; `wander(SEED)` in a shell replays it.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel import profiles
from tests.kernel.story import Story

STEPS = 120
SEEDS = 60
_PEOPLE = ("u_alice", "u_bob", "u_carol")


def _random_plan(chance: random.Random, profile: str) -> list[str | c.StepSpec] | None:
    rules = profiles.get(profile)
    if chance.random() < 0.15:
        return None
    if chance.random() < 0.3:
        return [c.StepSpec(name="main", kind="body", retries=chance.randrange(3), timeout_seconds=600)]
    plan: list[str | c.StepSpec] = []
    for i in range(chance.randrange(1, 6)):
        kind = chance.choice(["work", "work", "work", "approval", "wait"])
        needs = None
        if not rules.strict_sequence and chance.random() < 0.7:
            needs = tuple(f"s{k}" for k in range(i) if chance.random() < 0.5)
        plan.append(
            c.StepSpec(
                name=f"s{i}",
                kind=kind,  # type: ignore[arg-type]  # one of those above
                needs=needs,
                required=not rules.optional_steps or chance.random() < 0.7,
                retries=chance.choice([None, 0, 1, 2]),
                timeout_seconds=chance.choice([None, 5, 120]),
                lease_seconds=chance.choice([None, 2, 30]),
                input=chance.choice([None, b"in"]),
                backoff=c.BackoffSpec((1.0, 5.0)) if kind == "work" and chance.random() < 0.3 else None,
                approval=c.ApprovalSpec(
                    people=chance.choice([1, 2]), within_seconds=chance.choice([None, 60])
                )
                if kind == "approval"
                else None,
                wait=c.WaitSpec(event=chance.choice(["", "ping"]), within_seconds=30)
                if kind == "wait"
                else None,
            )
        )
    return plan


class Wanderer:
    """A story driven by a random generator."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        profile = chance.choice(profiles.names())
        eager = c.Claimant("w_eager") if chance.random() < 0.2 else None
        self.story = Story(
            profile=profile,
            plan=_random_plan(chance, profile),
            timeout_seconds=chance.choice([None, 90.0, 3600.0]),
            wall_clock=chance.random() < 0.2,
            concurrency_key=chance.choice([None, None, "key"]),
            input=chance.choice([None, b"hello"]),
            eager=eager,
            not_before=chance.choice([None, None, Story.moment(20)]),
        )
        self.children = 1000
        self.deeds: list[Callable[[], Any]] = [
            self.claim, self.claim, self.claim, self.ack, self.beat, self.beat, self.checkpoint, self.checkpoint,
            self.checkpoint, self.complete, self.complete, self.fail, self.release, self.park, self.upload,
            self.cancel_ack, self.open_wait, self.open_wait, self.suspend, self.decide, self.revise, self.deliver,
            self.child_finished, self.end_wait, self.pass_time, self.pass_time, self.sweep, self.sweep, self.rarely,
            self.plan, self.admit, self.cancel_step,
        ]  # fmt: skip

    def go(self) -> None:
        for _ in range(STEPS):
            deed = self.chance.choice(self.deeds)
            try:
                deed()
            except TenureError:
                continue
            except (IndexError, StopIteration):
                continue  # the command has no target
        self.finish()

    def finish(self) -> None:
        """End the story without faults: request a cancel, let time pass, and sweep."""
        story = self.story
        if not story.finished:
            story.cancel()
        for _ in range(5):
            story.after(1000).sweep()
        assert story.finished
        story.check(settled=True)

    def step(self, *states: str) -> str:
        steps = [s for s in self.story.steps if not states or s.state in states]
        return self.chance.choice(steps).name

    def held(self) -> str:
        return self.step("leased", "starting", "running", "uploading", "canceling")

    def how(self, step: str) -> dict[str, Any]:
        """Sometimes an older attempt, sometimes a repeated number."""
        n = self.story.step(step).attempt
        if n > 1 and self.chance.random() < 0.1:
            return {"n": n - 1}
        return {"again": True} if self.chance.random() < 0.1 else {}

    def claim(self) -> None:
        self.story.claim(self.step("ready"), f"w_{self.chance.randrange(3)}", ack=self.chance.random() < 0.7)

    def ack(self) -> None:
        step = self.held()
        self.story.ack(step, **self.how(step))

    def beat(self) -> None:
        step = self.held()
        self.story.beat(step, **self.how(step))

    def upload(self) -> None:
        step = self.held()
        self.story.upload(step, **self.how(step))

    def checkpoint(self) -> None:
        chance = self.chance
        step = self.held()
        self.story.checkpoint(
            step,
            chance.choice("abcdef"),
            state=chance.choice(["started", "done", "done", "failed"]),
            output=chance.choice([None, b"x"]),
            arguments=b"\x01",
            resumable=chance.random() < 0.6,
            idempotent=chance.random() < 0.6,
            **self.how(step),
        )

    def complete(self) -> None:
        step = self.held()
        self.story.complete(step, self.chance.choice([None, b"out"]), **self.how(step))

    def fail(self) -> None:
        step = self.held()
        self.story.fail(step, retryable=self.chance.choice([None, True, False]), **self.how(step))

    def release(self) -> None:
        step = self.held()
        self.story.release(step, **self.how(step))

    def park(self) -> None:
        if self.chance.random() < 0.3:
            step = self.held()
            self.story.park(step, **self.how(step))

    def cancel_ack(self) -> None:
        step = self.held()
        self.story.cancel_ack(step, **self.how(step))

    def open_wait(self) -> None:
        chance = self.chance
        what: dict[str, Any] = chance.choice(
            [
                {
                    "approval": c.ApprovalSpec(people=chance.choice([1, 2]), within_seconds=60),
                    "question": b"?",
                },
                {"event": c.WaitSpec(event="ping", within_seconds=chance.choice([None, 30]))},
                {"until": self.story.clock + chance.randrange(60)},
                {"child": self.new_child()},
            ]
        )
        label = f"l{chance.randrange(8)}"
        self.story.open_wait(self.held(), label, fatal=chance.random() < 0.3, **what)

    def new_child(self) -> c.StartChild:
        self.children += 1
        on_close: Any = self.chance.choice(["cancel", "leave", "wait"])
        return c.StartChild(run_id=self.children, workflow="child", on_close=on_close)

    def suspend(self) -> None:
        step = self.held()
        idx = self.story.step(step).idx
        waits = [w.no for w in self.story.snap.waits.values() if w.idx == idx and w.state != "closed"]
        self.story.suspend(
            step, *self.chance.sample(waits, self.chance.randint(min(1, len(waits)), len(waits)))
        )

    def decide(self) -> None:
        approval = self.chance.choice(list(self.story.snap.approvals.values()))
        who = self.chance.choice(_PEOPLE)
        answer = self.story.approve if self.chance.random() < 0.8 else self.story.reject
        answer(approval.no, by=who, digest=approval.digest.hex(), reason=self.chance.choice([None, b"why"]))

    def revise(self) -> None:
        approval = self.chance.choice(list(self.story.snap.approvals.values()))
        self.story.revise(approval.no, "ab" * self.chance.randrange(1, 4))

    def deliver(self) -> None:
        self.story.deliver("ping", f"e{self.chance.randrange(30)}", b"payload")

    def child_finished(self) -> None:
        child = self.chance.choice(list(self.story.snap.children.values()))
        self.story.child_finished(child.child_id, self.chance.choice(["succeeded", "failed"]))

    def end_wait(self) -> None:
        self.story.end_wait()

    def pass_time(self) -> None:
        self.story.after(self.chance.choice([0.5, 1, 3, 10, 10, 40]))

    def sweep(self) -> None:
        self.story.sweep()

    def plan(self) -> None:
        if self.story.run.planned:
            self.story.add_steps(c.StepSpec(name=f"x{len(self.story.steps)}", needs=(self.step(),)))
        elif self.chance.random() < 0.8:
            self.story.plan_ready("p0", "p1")
        else:
            self.story.plan_failed()

    def cancel_step(self) -> None:
        if self.chance.random() < 0.2:
            self.story.cancel_step(self.step())

    def admit(self) -> None:
        self.story.admit()

    def rarely(self) -> None:
        if self.chance.random() < 0.5:
            return
        story = self.story
        deeds: list[Callable[[], Any]] = [
            story.pause, story.unpause, story.unpause, story.report, story.seal, story.cancel,
            lambda: story.label('{"a": 1}'), lambda: story.revoke(self.held()),
        ]  # fmt: skip
        self.chance.choice(deeds)()


def wander(seed: int) -> Story:
    wanderer = Wanderer(seed)
    wanderer.go()
    return wanderer.story


@pytest.mark.parametrize("seed", range(SEEDS))
def test_invariants_hold_after_random_commands(seed: int) -> None:
    wander(seed)
