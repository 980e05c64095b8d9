"""The demonstration's play: a few hundred runs with everything that happens to runs, and a verdict.

Laws:
1. Every run has a script, drawn from a seed: what will happen to it, and therefore how it must end.
2. The play is judged by what is in the database afterwards, never by what the actors remember.
3. A run may end otherwise than scripted in one case only: its worker was killed and its profile does not requeue.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Literal

import msgspec

from tenure import ids
from tenure.embedded.engine import Engine
from tenure.embedded.worker import Job, Tool, ToolError, Worker
from tenure.errors import TenureError
from tenure.kernel import profiles
from tenure.kernel.commands import ApprovalSpec, BackoffSpec, StepSpec
from tenure.kernel.model import CLOSED_RUN, Attempt, Run
from tenure.orchestrator.views import FOREVER_US

PROFILES = ("agent-runs", "approval-runs", "delta-ci", "git-with-intent", "governed-runtime")
LEASE_SECONDS = 1.5
SWEEP_SECONDS = 0.2
WATCH_SECONDS = 0.1
PLAY_SECONDS_MAX = 90.0
WORKERS = 3
SLOTS = 8
BROKEN = 100
"""Failures of a test that never passes: more than any profile tries."""

Fate = Literal["plain", "flaky", "broken", "rejected", "canceled at work", "canceled while waiting"]
_ODDS: dict[Fate, int] = {
    "plain": 52,
    "flaky": 24,
    "broken": 4,
    "rejected": 8,
    "canceled at work": 6,
    "canceled while waiting": 6,
}
_OUTCOME: dict[Fate, tuple[str, str]] = {
    "plain": ("succeeded", "done"),
    "flaky": ("succeeded", "done"),
    "broken": ("failed", "TESTS_FAILED"),
    "rejected": ("failed", "APPROVAL_REJECTED"),
    "canceled at work": ("canceled", "RUN_CANCELED"),
    "canceled while waiting": ("canceled", "RUN_CANCELED"),
}


class Script(msgspec.Struct, frozen=True):
    """What will happen to one run."""

    fate: Fate
    profile: str
    failures: int
    people: int
    build_seconds: float
    test_seconds: float
    deploy_seconds: float
    think_seconds: float


class Lost(msgspec.Struct, frozen=True):
    """A lease the killed worker took along, and what became of its step."""

    run_id: str
    step: str
    profile: str
    attempt: int
    healed_by: str | None
    """The worker that took the step over; None where nobody had to."""
    healed_seconds: float | None
    outcome: str


class Tally(msgspec.Struct, frozen=True):
    """How far the play is."""

    seconds: float
    total: int
    statuses: dict[str, int]
    note: str

    @property
    def finished(self) -> int:
        """Runs that have ended."""
        return sum(n for status, n in self.statuses.items() if status in CLOSED_RUN)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the play came to; no problems means that everything is as it must be."""

    runs: int
    seconds: float
    outcomes: list[tuple[str, str, int]]
    """(status, reason, how many runs)."""
    retries: int
    commands: int
    commits: int
    killed: str
    lost: list[Lost]
    deployed: int
    deployed_again: int
    """Repeats of a deployment that the world recognised by their key."""
    interesting: str
    problems: list[str]


class World:
    """The outside: it recognises a repeated deployment by its key."""

    def __init__(self) -> None:
        self.done: set[str] = set()
        self.again = 0

    def deploy(self, key: str) -> None:
        """An effect; the same key again changes nothing."""
        if key in self.done:
            self.again += 1
        self.done.add(key)


class Demo:
    """One play on one engine."""

    def __init__(self, engine: Engine, runs: int, seed: int, tell: Callable[[Tally], None]) -> None:
        self._engine = engine
        self._chance = Random(seed)
        self._tell = tell
        self._queue = f"demo-{secrets.token_hex(4)}"
        self._scripts = [self._draw(i) for i in range(runs)]
        self._script_of: dict[str, Script] = {}
        self._people: dict[str, asyncio.Task[None]] = {}
        self._cancels: dict[str, asyncio.Task[None]] = {}
        self._world = World()
        self._workers = [
            Worker(engine, self._tools(), slots=SLOTS, queues=(self._queue,), name=f"worker-{n}")
            for n in range(1, WORKERS + 1)
        ]
        self._held: list[tuple[str, str]] = []
        self._killed_us = 0
        self._note = "submitting"
        self._begun = time.monotonic()

    # ------------------------------------------------------------------------------------------ scripts

    def _draw(self, i: int) -> Script:
        chance = self._chance
        fates: list[Fate] = list(_ODDS)
        # The first runs make sure that every fate is there, however few runs there are.
        fate = fates[i] if i < len(fates) else chance.choices(fates, list(_ODDS.values()))[0]
        return Script(
            fate=fate,
            profile=PROFILES[i % len(PROFILES)],
            failures=BROKEN if fate == "broken" else chance.randint(1, 2) if fate == "flaky" else 0,
            people=2 if chance.random() < 0.2 else 1,
            build_seconds=chance.uniform(0.03, 0.12),
            test_seconds=chance.uniform(0.03, 0.15),
            deploy_seconds=chance.uniform(0.02, 0.08),
            think_seconds=chance.uniform(0.2, 1.0),
        )

    def _plan(self, script: Script) -> list[StepSpec]:
        retry = BackoffSpec((0.1, 0.2, 0.4))
        queue, lease = self._queue, LEASE_SECONDS
        return [
            StepSpec(name="build", queue=queue, lease_seconds=lease, retries=5, backoff=retry),
            StepSpec(name="test", queue=queue, lease_seconds=lease, retries=5, backoff=retry),
            StepSpec(name="approve", kind="approval", approval=ApprovalSpec("deploy", people=script.people)),
            StepSpec(name="deploy", queue=queue, lease_seconds=lease, retries=5, backoff=retry),
        ]

    # ------------------------------------------------------------------------------------------ the tools

    def _tools(self) -> dict[str, Tool]:
        return {"build": self._build, "test": self._test, "deploy": self._deploy}

    async def _build(self, job: Job) -> dict[str, str]:
        script = self._script_of[job.run_id]
        if script.fate == "canceled at work":
            job.progress("compiling, and it takes for ever")
            self._cancel_later(job.run_id, 0.1)
            await asyncio.sleep(PLAY_SECONDS_MAX)
        await asyncio.sleep(script.build_seconds)
        return {"image": f"registry/{job.run_id}"}

    async def _test(self, job: Job) -> dict[str, int]:
        script = self._script_of[job.run_id]
        await asyncio.sleep(script.test_seconds)
        if job.attempt <= script.failures:
            raise ToolError("TESTS_FAILED", f"try {job.attempt}: 1 of 42 tests failed", retryable=True)
        return {"passed": 42}

    def _deploy(self, job: Job) -> dict[str, str]:
        """A plain function: it runs in a thread."""
        time.sleep(self._script_of[job.run_id].deploy_seconds)
        self._world.deploy(job.key)
        return {"deployed": job.key}

    # ----------------------------------------------------------------------------------------- the people

    def _cancel_later(self, run_id: str, seconds: float) -> None:
        if run_id not in self._cancels:
            self._cancels[run_id] = asyncio.create_task(self._cancel(run_id, seconds))

    async def _cancel(self, run_id: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        try:
            await self._engine.cancel(run_id, actor="person:impatient")
        except TenureError as refused:
            if refused.code != "RUN_TERMINAL_STATE":  # it may have been orphaned in the meantime
                raise

    async def _answer_questions(self) -> None:
        """People look at what is asked, think for a moment, and answer."""
        while True:
            for asked in await self._engine.approvals():
                if asked.run_id not in self._people:
                    self._people[asked.run_id] = asyncio.create_task(self._answer(asked.run_id))
            await asyncio.sleep(WATCH_SECONDS)

    async def _answer(self, run_id: str) -> None:
        script = self._script_of[run_id]
        await asyncio.sleep(script.think_seconds)
        if script.fate == "canceled while waiting":
            await self._cancel(run_id, 0.0)
        elif script.fate == "rejected":
            await self._engine.reject(run_id, approver="person:careful", reason="not on a Friday")
        else:
            for person in ("person:ada", "person:grace")[: script.people]:
                await self._engine.approve(run_id, approver=person)

    # ------------------------------------------------------------------------------------------- the play

    async def play(self) -> Verdict:
        """Submit everything, kill a worker on the way, wait for the end, and judge."""
        people = asyncio.create_task(self._answer_questions())
        for worker in self._workers:
            worker.start()
        try:
            await asyncio.gather(*(self._submit(script) for script in self._scripts))
            self._note = "three workers"
            await self._watch()
        finally:
            people.cancel()
            await asyncio.gather(people, return_exceptions=True)
            for worker in self._workers:
                await worker.stop()
        for task in (*self._people.values(), *self._cancels.values()):
            await task  # what went wrong there is raised here
        return await self._judge()

    async def _submit(self, script: Script) -> None:
        run_id = await self._engine.create(
            "release",
            self._plan(script),
            input={"ref": "main"},
            profile=script.profile,
            labels={"fate": script.fate},
            actor="person:release-manager",
        )
        self._script_of[run_id] = script

    async def _watch(self) -> None:
        kill_at = len(self._scripts) // 4
        while True:
            tally = await self._count()
            self._tell(tally)
            if tally.finished == tally.total:
                return
            if tally.seconds > PLAY_SECONDS_MAX:
                return  # the verdict says what is missing
            if not self._held and tally.finished >= kill_at:
                await self._kill()
            await asyncio.sleep(WATCH_SECONDS)

    async def _kill(self) -> None:
        """Kill the second worker while it is in the middle of something."""
        victim = self._workers[1]
        if not victim.busy:
            return
        self._killed_us = (await self._engine.store.read("now"))[0].now_us
        self._held = victim.kill()
        leases = "1 lease" if len(self._held) == 1 else f"{len(self._held)} leases"
        self._note = f"{victim.name} was killed with {leases}"

    async def _rows(self) -> list[Run]:
        rows: list[Run] = await self._engine.store.read(
            "runs_newest", self._engine.tenant, FOREVER_US, len(self._scripts) + 1
        )
        return rows

    async def _count(self) -> Tally:
        statuses = Counter(run.status for run in await self._rows())
        seconds = time.monotonic() - self._begun
        return Tally(seconds, len(self._scripts), dict(statuses), self._note)

    # ---------------------------------------------------------------------------------------- the verdict

    async def _judge(self) -> Verdict:
        rows = {ids.run_text(run.id): run for run in await self._rows()}
        attempts: dict[str, list[Attempt]] = {
            name: await self._engine.store.read("attempts_of", run.id) for name, run in rows.items()
        }
        lost = [found for name, run in rows.items() for found in await self._lost(name, run, attempts[name])]
        problems = [
            problem
            for name, script in self._script_of.items()
            if (problem := self._problem(name, script, rows.get(name), attempts.get(name, []))) is not None
        ]
        if len(rows) != len(self._scripts):
            problems.append(f"{len(self._scripts)} runs were submitted, {len(rows)} are there")
        if not self._held:
            problems.append("no worker was in the middle of anything when it should have been killed")
        succeeded = sum(run.status == "succeeded" for run in rows.values())
        if len(self._world.done) < succeeded:
            problems.append(f"{succeeded} runs succeeded, {len(self._world.done)} deployments happened")
        outcomes = Counter((run.status, run.reason or "-") for run in rows.values())
        orchestrator = self._engine.orchestrator
        return Verdict(
            runs=len(rows),
            seconds=round(time.monotonic() - self._begun, 2),
            outcomes=[(status, reason, n) for (status, reason), n in sorted(outcomes.items())],
            retries=sum(a.reason == "TESTS_FAILED" for tried in attempts.values() for a in tried),
            commands=orchestrator.commands,
            commits=orchestrator.batches,
            killed=self._workers[1].name,
            lost=lost,
            deployed=len(self._world.done),
            deployed_again=self._world.again,
            interesting=_most_interesting(lost, attempts),
            problems=problems,
        )

    async def _lost(self, name: str, run: Run, attempts: list[Attempt]) -> list[Lost]:
        """What became of the leases this run had with the killed worker."""
        steps = None
        found = []
        for attempt in attempts:
            if attempt.owner != self._workers[1].name or attempt.lease != "expired":
                continue
            steps = steps or {s.idx: s.name for s in await self._engine.store.read("steps_of", run.id)}
            heir = next((a for a in attempts if a.idx == attempt.idx and a.n == attempt.n + 1), None)
            seconds = None if heir is None else round((heir.granted_at - self._killed_us) / 1e6, 2)
            found.append(
                Lost(
                    name,
                    steps[attempt.idx],
                    run.profile,
                    attempt.n,
                    None if heir is None else heir.owner,
                    seconds,
                    f"{run.status} ({run.reason})",
                )
            )
        return found

    def _problem(self, name: str, script: Script, run: Run | None, attempts: list[Attempt]) -> str | None:
        """What is wrong with how a run ended, if anything."""
        if run is None:
            return f"{name} is not there any more"
        if run.status not in CLOSED_RUN:
            return f"{name} ({script.fate}) has not ended: it is {run.status}"
        ended = (run.status, run.reason)
        if ended == _OUTCOME[script.fate]:
            return None
        requeues = profiles.get(run.profile).recovery == "requeue"
        if ended == ("failed", "RUN_ORPHANED") and not requeues and any(a.state == "stale" for a in attempts):
            return None
        expected = " ".join(_OUTCOME[script.fate])
        return f"{name} ({script.fate}, {run.profile}) should be {expected}, not {run.status} {run.reason}"


def _most_interesting(lost: list[Lost], attempts: dict[str, list[Attempt]]) -> str:
    """A run that lost its worker, was taken over and went on; the more tries, the better."""
    healed = [found.run_id for found in lost if found.healed_by is not None]
    good = [name for name in healed if attempts[name][-1].state == "succeeded"]
    return max(good or healed or list(attempts), key=lambda name: (len(attempts[name]), name))
