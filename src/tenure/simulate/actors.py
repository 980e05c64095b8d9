"""Simulated clients, who create and change runs, and people, who decide approvals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.errors import TenureError
from tenure.kernel.act_commands import SettleReceipt
from tenure.kernel.commands import (
    AddSteps,
    CancelStep,
    Command,
    Context,
    CreateRun,
    DecideApproval,
    DeleteRun,
    DeliverEvent,
    EndWait,
    MarkReported,
    Pause,
    RequestCancel,
    ReusedCheckpoint,
    ReviseApproval,
    RevokeLease,
    SealRun,
    StepSpec,
    Unpause,
    UpdateMetadata,
)
from tenure.kernel.run_rows import CLOSED_RUN, ApprovalRow, RunRow
from tenure.simulate.network import NoAnswer
from tenure.simulate.workload import DIGEST, EVENTS, PEOPLE, STRANGER

if TYPE_CHECKING:
    from tenure.simulate.world import World


REPORTER = Context("system:reporter", "system", "report")


class Actor:
    """Sends commands, and takes errors as answers."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.rng = world.rng(name)
        self.user = Context("user:client", "user", name)

    async def ask(self, command: Command, verb: str = "send") -> Any:
        """The answer to a command; None if it was refused or never answered."""
        if isinstance(command, DecideApproval):
            self.world.oracle.voted(command)
        try:
            return await self.world.network.call_until_answered(verb, command)
        except (NoAnswer, TenureError):
            return None

    async def settle(self, run_id: int) -> None:
        """Settle some of a run's unknown acts from the service's log. An act that may still be called is left alone."""
        world, rng = self.world, self.rng
        for receipt in world.inspect("receipts_of", run_id):
            if receipt.state != "unknown" or not world.service.is_quiet(receipt) or rng.random() < 0.3:
                continue
            there = world.service.has(receipt.tenant, receipt.name)
            person = rng.choice(PEOPLE)
            await self.ask(
                SettleReceipt(
                    context=Context(person, "user", f"inbox-{receipt.no}"),
                    run_id=run_id,
                    no=receipt.no,
                    how="done" if there else rng.choice(("not_done", "retry")),
                    person=person,
                )
            )


class SimulatedClients(Actor):
    """They create runs while there are faults, and change them in many ways."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "clients")
        self._active = 1  # `live` itself
        self._done = asyncio.Event()
        self._events = 0

    async def live(self) -> None:
        """Create runs until the faults stop."""
        world, rng = self.world, self.rng
        count = world.workload.runs_max
        mean = world.workload.seconds / (count * 1.5)
        made = 0
        while world.chaos and made < count:
            made += 1
            world.spawn(f"c{made}", self._run_client(world.workload.run(world.loop.time())))
            await asyncio.sleep(2 * mean * rng.random())
        self._end_one()

    async def done(self) -> None:
        """Wait until every client is done."""
        await self._done.wait()

    def _end_one(self) -> None:
        self._active -= 1
        if not self._active:
            self._done.set()

    async def _run_client(self, command: CreateRun) -> None:
        self._active += 1
        try:
            await self._create(command)
        finally:
            self._end_one()

    async def _create(self, command: CreateRun) -> None:
        rng, world = self.rng, self.world
        created = await self.ask(command, "create")
        if created is None:
            return
        run_id: int = created.run_id
        if created.lease is not None and world.workers:
            rng.choice(list(world.workers.values())).adopt(created.lease)
        for _ in range(rng.choice((0, 1, 1, 2, 3, 5))):
            await asyncio.sleep(rng.choice((0.3, 3.0, 30.0)) * rng.random())
            if not world.chaos:
                return
            await self._change(run_id, command)

    async def _change(self, run_id: int, command: CreateRun) -> None:
        rng, world = self.rng, self.world
        change = rng.choice(
            ("cancel", "cancel", "cancel_step", "pause", "revoke", "event", "event", "event", "end_wait", "add", "again",
             "resume", "metadata", "report", "revise")
        )  # fmt: skip
        about: dict[str, Any] = {"context": self.user, "run_id": run_id}
        if rng.random() < 0.05:
            about["tenant"] = STRANGER
        if change == "cancel":
            await self.ask(RequestCancel(**about, reason="RUN_CANCELED"))
        elif change == "cancel_step":
            await self.ask(CancelStep(**about, name=rng.choice(("main", "s0", "s1", "s2"))))
        elif change == "pause":
            await self.ask(Pause(**about))
            await asyncio.sleep(30.0 * rng.random())
            if rng.random() < 0.8:
                await self.ask(Unpause(**about))
        elif change == "revoke":
            for attempt in world.inspect("attempts_of", run_id):
                if attempt.ended_at is None:
                    await self.ask(RevokeLease(**about, idx=attempt.idx, n=attempt.n))
        elif change == "event":
            await self._deliver(run_id)
        elif change == "end_wait":
            await self.ask(EndWait(**about))
        elif change == "add":
            self._events += 1
            await self.ask(AddSteps(**about, plan=(StepSpec(name=f"more{self._events}"),)))
        elif change in ("again", "resume"):
            await self._again(change, run_id, command)
        elif change == "metadata":
            await self.ask(UpdateMetadata(**about, labels='{"seen":"yes"}'))
        elif change == "report":
            await self.ask(MarkReported(**about | {"context": REPORTER}))
            await self.ask(SealRun(**about))
            if rng.random() < 0.5:
                await self.ask(DeleteRun(**about))
        elif change == "revise":
            for approval in world.inspect("approvals_of", run_id):
                if approval.status == "requested":
                    await self.ask(ReviseApproval(**about, no=approval.no, digest=DIGEST))

    async def _deliver(self, run_id: int) -> None:
        rng = self.rng
        self._events += 1
        event = DeliverEvent(
            context=Context("webhook:ci", "webhook", f"delivery-{self._events}"),
            run_id=run_id,
            name=rng.choice(EVENTS),
            event_id=f"e{self._events}",
            source="ci",
            payload=b"{}",
        )
        await self.ask(event)
        if rng.random() < 0.3:
            await asyncio.sleep(10 * rng.random())
            await self.ask(event)

    async def _again(self, change: str, run_id: int, command: CreateRun) -> None:
        """Rerun or resume a run that has ended."""
        world = self.world
        runs: list[RunRow] = world.inspect("get_run", run_id)
        if not runs or runs[0].status not in CLOSED_RUN:
            return
        links: dict[str, Any] = {"rerun_of": run_id, "attempt_no": 2}
        if change == "resume":
            reuse = tuple(
                ReusedCheckpoint(row.name, row.arguments, b"{}", row.idempotent, row.meta)
                for row in world.inspect("checkpoints_of", run_id)
                if row.state == "done" and row.resumable and row.idx == 0
            )
            links = {"resumed_from": run_id, "resume_count": 1, "reuse": reuse}
        again = msgspec.structs.replace(
            command,
            run_id=world.workload.new_id(world.loop.time()),
            idempotency_key=f"{change}-{run_id}",
            eager=None,
            **links,
        )
        await self.ask(again, "create")


class SimulatedPeople(Actor):
    """They decide approvals: some twice, some of another revision, some of their own."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "people")

    async def live(self) -> None:
        """Decide approvals until the faults stop."""
        rng, world = self.rng, self.world
        while world.chaos:
            await asyncio.sleep(12.0 * rng.random())
            for tenant in world.workload.tenants:
                for approval in world.inspect("approvals_open", tenant, 5):
                    if rng.random() < 0.5:
                        await self._decide(approval)
            if world.workload.acts:
                for run_id in world.checks.run_ids:
                    await self.settle(run_id)

    async def _decide(self, approval: ApprovalRow) -> None:
        rng = self.rng
        person = rng.choice(PEOPLE)
        vote = build_decision(approval, person, approve=rng.random() < 0.85)
        if rng.random() < 0.05:
            vote = build_decision(approval, person, approve=True, revision=approval.revision + 1)
        await self.ask(vote)
        if rng.random() < 0.2:
            await self.ask(vote)


def build_decision(
    approval: ApprovalRow, person: str, *, approve: bool, revision: int | None = None
) -> DecideApproval:
    """A person's decision of an approval, by default of its current revision."""
    return DecideApproval(
        context=Context(person, "approval", f"card-{approval.no}"),
        run_id=approval.run_id,
        no=approval.no,
        approver=person,
        approve=approve,
        revision=approval.revision if revision is None else revision,
        digest=approval.digest.hex(),
    )


class Finisher(Actor):
    """Answers every question and delivers every event once the faults have stopped, so that all runs can end."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "finisher")
        self._events = 0

    async def live(self) -> None:
        pause = 60.0
        while True:
            for run in self.world.checks.open_runs():
                await self._unblock(run)
            await asyncio.sleep(pause)
            pause *= 1.5

    async def _unblock(self, run: RunRow) -> None:
        about: dict[str, Any] = {"context": self.user, "run_id": run.id}
        if run.paused or run.parked is not None:
            await self.ask(Unpause(**about))
        for approval in self.world.inspect("approvals_of", run.id):
            for person in PEOPLE:
                if approval.status == "requested" and person != approval.requester:
                    await self.ask(build_decision(approval, person, approve=True))
        if self.world.workload.acts:
            await self.settle(run.id)
        for wait in self.world.inspect("waits_of", run.id):
            if wait.state == "open" and wait.kind == "event":
                self._events += 1
                await self.ask(DeliverEvent(**about, name=wait.name, event_id=f"last{self._events}"))
