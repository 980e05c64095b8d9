"""The workload of a seed: tenants and caps, plans, scripts of code-first bodies, and runs over time."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Literal

import msgspec

from tenure.clock import SECOND_US
from tenure.ids import RunIds
from tenure.kernel import profiles
from tenure.kernel.act_commands import RepeatSafety
from tenure.kernel.commands import (
    BODY_STEP,
    ApprovalSpec,
    BackoffSpec,
    Claimant,
    Context,
    CreateRun,
    ReuseSpec,
    RunRequest,
    StepSpec,
    Trigger,
    WaitSpec,
    build_plan_step,
)
from tenure.kernel.new_run import build_create_run
from tenure.kernel.run_rows import Cap
from tenure.simulate.process import EPOCH_US

if TYPE_CHECKING:
    from tenure.simulate.world import World

PROFILES = ("agent-runs", "approval-runs", "delta-ci", "git-with-intent", "governed-runtime")
EVENTS = ("deployed", "merged")
PEOPLE = ("user:ann", "user:bob", "user:cem", "user:dia")
CODES = ("NETWORK_TIMEOUT", "HTTP_503", "INFRA_LOST", "UPSTREAM_UNAVAILABLE", "INVALID_INPUT", "BOOM")
DIGEST = "ab" * 32
STRANGER = "mallory"
"""A tenant without runs, who must not learn that any run exists."""

Kind = Literal["work", "note", "mark", "approval", "event", "timer", "child", "act"]


class Op(msgspec.Struct, frozen=True):
    """One operation of a code-first body."""

    kind: Kind
    name: str
    seconds: float = 0.0
    people: int = 1
    event: str = ""
    within: float | None = None
    fatal: bool = False
    idempotent: bool = True
    resumable: bool = True
    on_close: Literal["cancel", "leave", "wait"] = "cancel"
    script: int = 0
    """The number of the child's script."""
    awaited: bool = True
    """Whether the body suspends on it, or only opens it."""
    digest: str = ""
    repeats: RepeatSafety = "none"
    shared: bool = False
    """Whether an act's key is the same in all runs of the tenant."""


class Script(msgspec.Struct, frozen=True):
    """A code-first body, which is the same in every replay."""

    ops: tuple[Op, ...]
    fails: str | None
    """The error code with which the body ends."""
    together: bool
    """Whether consecutive waits are all opened before the body suspends on them."""


class Workload:
    def __init__(self, world: World) -> None:
        self._seed = world.seed
        rng = self._rng = world.rng("workload")
        self._ids = RunIds(rng.getrandbits(31))
        self._numbers = 0
        self._scripts: dict[int, Script] = {}
        self.seconds = rng.choice((40.0, 120.0, 300.0)) * (0.5 + rng.random())
        """How long there are faults."""
        self.runs_max = rng.choice((2, 4, 7, 11))
        self.tenants = ("acme", "beta")[: rng.choice((1, 1, 2))]
        self.only_profile = rng.choice((*PROFILES, None, None))
        """The profile of all runs; None: each run draws one."""
        self.declared = rng.choice((0.0, 0.4, 0.6, 1.0))
        self.keyed = rng.choice((0.0, 0.0, 0.3, 0.8))
        self.caps = self._draw_caps(rng)
        self.conditions = world.rng("conditions").random() < 0.25
        """Whether plans have conditions and templates, as those of workflow files do, and steps with earlier results."""
        act_rng = world.rng("acting")
        self.acts = act_rng.random() < 0.3
        """Whether bodies have acts."""
        if self.acts and act_rng.random() < 0.3:
            self.caps = [
                msgspec.structs.replace(cap, max_writes_per_run=act_rng.choice((1, 2))) for cap in self.caps
            ]

    def _draw_caps(self, rng: Random) -> list[Cap]:
        caps = []
        for tenant in self.tenants:
            if rng.random() < 0.6:
                concurrency = rng.choice((None, 1, 2, 3))
                rate = rng.choice((None, None, 1, 3))
                caps.append(Cap(tenant, "", rng.choice((1, 3)), concurrency, rate))
            if rng.random() < 0.25:
                caps.append(Cap(tenant, "wf:w0", 1, rng.choice((1, 2)), rng.choice((None, None, 2))))
        return caps

    # ----------------------------------------------------------------------------------------- bodies

    def script(self, number: int) -> Script:
        """The body with this number."""
        if number not in self._scripts:
            self._scripts[number] = self._draw_script(Random(f"{self._seed}/script/{number}"), number)
        return self._scripts[number]

    def _draw_script(self, rng: Random, number: int) -> Script:
        kinds: list[Kind] = ["work", "note", "note", "mark", "approval", "event", "timer"]
        if number < 100:
            kinds += ["child", "child"]
        ops = []
        for at in range(rng.choice((1, 2, 3, 4, 6))):
            kind = rng.choice(kinds)
            idempotent = rng.random() < 0.7
            ops.append(
                Op(
                    kind,
                    f"{kind}{at}",
                    seconds=rng.choice((0.0, 0.1, 1.0, 10.0, 60.0)) * rng.random(),
                    people=rng.choice((1, 1, 2)),
                    event=rng.choice(EVENTS),
                    within=rng.choice((None, 5.0, 60.0, 1000.0)),
                    fatal=rng.random() < 0.2,
                    idempotent=idempotent,
                    resumable=idempotent or rng.random() < 0.5,
                    on_close=rng.choice(("cancel", "leave", "wait")),
                    script=number * 100 + at,
                    awaited=rng.random() < 0.7,
                    digest=rng.choice(("", DIGEST)),
                )
            )
        fails, together = rng.choice((None, None, None, None, "BOOM")), rng.random() < 0.3
        if self.acts:
            self._add_acts(Random(f"{self._seed}/acts/{number}"), ops)
        return Script(tuple(ops), fails, together)

    @staticmethod
    def _add_acts(rng: Random, ops: list[Op]) -> None:
        """Insert acts into a body. An act of two people asks for an approval; a fatal one is denied."""
        for at in range(rng.choice((1, 2, 3))):
            repeats: RepeatSafety = rng.choice(("native_key", "sets_state", "marker", "none"))
            act = Op(
                "act",
                f"a{at}#1",
                people=rng.choice((1, 1, 2)),
                within=rng.choice((None, 60.0, 1000.0)),
                fatal=rng.random() < 0.05,
                repeats=repeats,
                shared=rng.random() < 0.2,
            )
            ops.insert(rng.randint(0, len(ops)), act)

    # ------------------------------------------------------------------------------------------ plans

    def plan(self, rng: Random, profile_name: str) -> tuple[StepSpec, ...]:
        """A declared plan that the profile accepts."""
        profile = profiles.get(profile_name)
        names = [f"s{i}" for i in range(rng.choice((1, 2, 3, 5)))]
        steps = []
        for i, name in enumerate(names):
            kind: Literal["work", "approval", "wait"] = rng.choice(
                ("work", "work", "work", "work", "approval", "wait")
            )
            needs: tuple[str, ...] | None = None
            if not profile.strict_sequence and rng.random() < 0.6:
                needs = tuple(rng.sample(names[:i], rng.randint(0, min(i, 2))))
            steps.append(
                StepSpec(
                    name=name,
                    kind=kind,
                    needs=needs,
                    required=not profile.optional_steps or rng.random() < 0.75,
                    queue=rng.choice(("default", "default", "slow")),
                    retries=rng.choice((None, 0, 1, 2)),
                    backoff=BackoffSpec((rng.choice((0.0, 1.0, 20.0)),))
                    if kind == "work" and rng.random() < 0.3
                    else None,
                    timeout_seconds=rng.choice((None, None, 3.0, 40.0)),
                    lease_seconds=rng.choice((None, 2.0, 8.0, 20.0)),
                    input=rng.choice((None, b"x" * 10)),
                    approval=self._approval(rng) if kind == "approval" else None,
                    wait=WaitSpec(
                        event=rng.choice((*EVENTS, "")),
                        source="ci",
                        within_seconds=rng.choice((1.0, 30.0, 900.0)),
                    )
                    if kind == "wait"
                    else None,
                )
            )
        if not self.conditions:
            return tuple(steps)
        return self._with_conditions(Random(f"{self._seed}/conditions/{self._numbers}"), steps)

    @staticmethod
    def _with_conditions(rng: Random, steps: list[StepSpec]) -> tuple[StepSpec, ...]:
        """Let some steps be skipped, have templates as inputs, or have earlier results. These draws have their own generator, so that the results of older
        seeds do not change."""
        made = []
        for step in steps:
            if step.kind == "work" and rng.random() < 0.4:
                also = rng.choice(((), ("shared",)))
                reuse = ReuseSpec(
                    scope=rng.choice(("shared", "own")), also=also, digest=rng.choice(("11", "22")) * 32
                )
                step = msgspec.structs.replace(step, reuse=reuse)
            how = rng.choice(("plain", "plain", "skipped", "true", "false", "each", "fails"))
            if how == "skipped":
                step = msgspec.structs.replace(
                    step, condition="inputs == 0", skipped=True, input=None, reuse=None
                )
            elif how != "plain" and step.kind == "work":
                step = msgspec.structs.replace(step, condition=how, template=how.encode(), input=None)
            made.append(step)
        return tuple(made)

    @staticmethod
    def _approval(rng: Random) -> ApprovalSpec:
        return ApprovalSpec(
            action="deploy",
            people=rng.choice((1, 1, 2)),
            within_seconds=rng.choice((None, 10.0, 600.0)),
            digest=rng.choice(("", DIGEST)),
        )

    # ------------------------------------------------------------------------------------------- runs

    def new_id(self, now: float) -> int:
        """The id of a run that is created at this virtual second."""
        return self._ids.new(EPOCH_US + int(now * SECOND_US))

    def run(self, now: float) -> CreateRun:
        """The next run that a client creates."""
        rng = self._rng
        number = self._numbers = self._numbers + 1
        profile = self.only_profile or rng.choice(PROFILES)
        declared = rng.random() < self.declared
        planning = rng.random() < 0.1
        plan = self.plan(rng, profile) if declared else (self._body(rng),)
        key = rng.random() < self.keyed
        context = Context(rng.choice(PEOPLE), "user", f"request-{number}")
        run_id, tenant, workspace = self.new_id(now), rng.choice(self.tenants), rng.choice(("default", "lab"))
        request = RunRequest(
            context=context,
            workflow=f"w{number % 3}",
            profile=profile,
            plan=(self._planner(rng),) if planning else plan,
            input=str(number).encode(),
            trigger=Trigger("api"),
            idempotency_key=f"request-{number}" if rng.random() < 0.8 else None,
            request_hash=str(number).encode(),
            priority=rng.choice((0, 0, 5)),
            concurrency_key="deploy" if key else None,
            concurrency_mode=rng.choice(("queue", "supersede")),
            not_before=EPOCH_US + int((now + 60 * rng.random()) * SECOND_US) if rng.random() < 0.1 else None,
            timeout_seconds=rng.choice((None, None, 30.0, 600.0)),
            wall_clock=rng.random() < 0.15,
            over_rate=rng.choice(("refuse", "delay")),
        )
        eager = Claimant(f"eager{number}") if rng.random() < 0.25 else None
        return build_create_run(request, run_id=run_id, tenant=tenant, workspace=workspace, eager=eager)

    @staticmethod
    def _planner(rng: Random) -> StepSpec:
        """The plan step of a run that is planned later."""
        return build_plan_step(
            "planner",
            queue=rng.choice(("default", "slow")),
            retries=rng.choice((None, 0, 1, 2)),
            timeout_seconds=rng.choice((None, None, 10.0)),
            lease_seconds=rng.choice((None, 2.0, 8.0)),
        )

    def planner_result(self, rng: Random, profile_name: str) -> tuple[StepSpec, ...] | None:
        """What a planner brings: usually a plan, sometimes an empty, an invalid or no plan."""
        plan = self.plan(rng, profile_name)
        return rng.choice((plan, plan, plan, plan, (), (*plan, plan[0]), None))

    @staticmethod
    def _body(rng: Random) -> StepSpec:
        """The only step of a code-first run."""
        return msgspec.structs.replace(
            BODY_STEP, lease_seconds=rng.choice((None, 2.0, 10.0)), retries=rng.choice((None, 0, 1))
        )
