"""Regressions of group commit, from our trials and from comparable systems."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from tenure.clock import HostClock
from tenure.errors import TenureError
from tenure.kernel import commands as c
from tenure.kernel.decide import decide, plans
from tenure.kernel.lease_types import Lease, LeaseReply
from tenure.kernel.run_rows import AttemptRow, Cap, CheckpointRow
from tenure.orchestrator import batch, outbox
from tenure.store.port import AmbiguousCommit, WriteConflict
from tenure.worker.work_source import LocalWorkSource
from tests.conformance.faults import FaultyStore, HeldPostgres, store_with_hold, waits_for_lock
from tests.conformance.worker_processes import run_worker_processes
from tests.conformance.world import Place, World, step

# -------------------------------------------------------------------------------------- lock, then load


@pytest.mark.parametrize("late", ["fail", "claim", "cancel"])
async def test_a_batch_blocked_on_a_run_decides_on_the_changed_step(place: Place, late: str) -> None:
    first = store_with_hold(place)
    async with World(place, stores=[first, store_with_hold(place)]) as w:
        run = await w.create(plan=[step("one"), step("two", "one")])
        lease = await w.claim()
        first.hold.armed = True
        completing = asyncio.create_task(w.complete(lease, b"done"))
        await first.hold.reached.wait()  # decided and saved, but not committed; the run is locked

        other = w.through(1)
        commands: dict[str, c.Command] = {
            "fail": c.Fail(run_id=run, idx=0, n=1, seq=9, code="TOO_LATE"),
            "claim": c.ClaimStep(run_id=run, idx=1, by=c.Claimant("carol")),
            "cancel": c.RequestCancel(run_id=run),
        }
        blocked = asyncio.create_task(other.do(commands[late]))
        waited = await waits_for_lock(place, blocked)

        first.hold.go.set()
        assert waited
        await completing
        if late == "fail":
            with pytest.raises(TenureError, match="LEASE_STALE"):
                await blocked
            assert await w.states(run) == {"one": "succeeded", "two": "ready"}
        elif late == "claim":
            taken: Lease = await blocked  # the step became claimable only with that commit
            assert (taken.name, taken.n) == ("two", 1)
        else:
            assert (await blocked)["status"] == "canceled"
            assert await w.states(run) == {"one": "succeeded", "two": "canceled"}
        assert (await w.attempts(run))[0].state == "succeeded"


async def test_a_cached_snapshot_is_not_used_after_another_process_changed_the_run(place: Place) -> None:
    async with World(place, orchestrators=2) as w:
        other = w.through(1)
        for _ in range(5):
            lease = await w.begin()  # the first orchestrator caches this run
            await w.checkpoint(lease, "one")
            await other.checkpoint(lease, "two")  # the second orchestrator changes it
            await w.checkpoint(lease, "three")
            await other.cancel(lease.run_id)
            assert (await w.complete(lease)).late
            assert await w.status(lease.run_id) == "canceled"


async def test_a_lease_revoked_by_another_process_is_stale_immediately(place: Place) -> None:
    async with World(place, orchestrators=2) as w:
        lease = await w.begin()
        await w.checkpoint(lease, "one")
        await w.through(1).revoke(lease)
        async with w.refuses("LEASE_STALE"):
            await w.checkpoint(lease, "two")


# ------------------------------------------------------------------------------------------- contention


@pytest.mark.guard_seconds(120)
async def test_two_orchestrators_on_the_same_runs_answer_what_the_database_has(
    place: Place,
) -> None:
    dice = random.Random(7)
    async with World(place, orchestrators=2, caps=[Cap("acme", "", max_concurrency=30)]) as w:
        runs = [
            await w.create(plan=[step(f"s{n}", retries=50) for n in range(6)], profile="delta-ci")
            for _ in range(20)
        ]
        leases: list[Lease] = []
        refusals = {
            "LEASE_STALE", "RUN_INVALID_TRANSITION", "MESSAGE_OUT_OF_ORDER", "RUN_TERMINAL_STATE", "LEASE_NOT_ACTIVE",
        }  # fmt: skip
        codes: set[str] = set()
        granted: list[tuple[int, int, int]] = []
        answered: dict[str, list[tuple[int, int, int]]] = {"succeeded": [], "failed": [], "released": []}
        labeled: list[int] = []

        async def end(state: str, say: Callable[[Lease], Awaitable[LeaseReply]]) -> None:
            lease = leases.pop(dice.randrange(len(leases)))
            assert (await say(lease)).state == "ok"
            answered[state].append((lease.run_id, lease.idx, lease.n))

        async def hammer(number: int) -> None:
            mine = w.through(number)
            for turn in range(300):
                kind = dice.randrange(10)
                try:
                    if kind < 3 or not leases:
                        got = await mine.claims(f"worker-{number}", limit=dice.randrange(1, 6))
                        leases.extend(got)
                        granted.extend((lease.run_id, lease.idx, lease.n) for lease in got)
                    elif kind < 6:
                        await end("succeeded", mine.complete)
                    elif kind == 6:
                        await end("failed", lambda lease: mine.fail(lease, "NETWORK"))
                    elif kind == 7:
                        await end("released", mine.release)
                    elif kind == 8:
                        await mine.beat(dice.choice(leases))
                    else:
                        run = dice.choice(runs)
                        await mine.tell(c.UpdateMetadata, run, labels=f'{{"turn":{turn}}}')
                        labeled.append(run)
                except TenureError as refused:
                    codes.add(refused.code)

        # Four at a time on each side, so that batches contain several runs in different orders.
        await asyncio.gather(*(hammer(n % 2) for n in range(8)))
        assert codes <= refusals
        await w.settle()
        attempts = [row for run in runs for row in await w.attempts(run)]
        assert sorted((row.run_id, row.idx, row.n) for row in attempts) == sorted(granted)
        for state, keys in answered.items():
            assert keys, f"no step was {state}"
            there = [(row.run_id, row.idx, row.n) for row in attempts if row.state == state]
            assert sorted(there) == sorted(keys), state
        kept = [run for run in runs for kind in await w.kinds(run) if kind == "metadata"]
        assert sorted(kept) == sorted(labeled)


@pytest.mark.guard_seconds(120)
@pytest.mark.clause("GOV-09", "GOV-12")
async def test_eight_processes_claiming_at_once_never_exceed_a_cap(place: Place) -> None:
    async with World(place, caps=[Cap("acme", "", max_concurrency=5)]) as w:
        w.clock.set(HostClock().now_us())  # these processes use the real clock
        runs = [
            await w.create(plan=[step(f"s{n}") for n in range(10)], profile="delta-ci") for _ in range(10)
        ]
        got = await run_worker_processes(place, processes=8, limit=3)
        assert len(got) == len(set(got)) == 100  # no step was leased twice
        attempts = [row for run in runs for row in await w.attempts(run)]
        assert [await w.status(run) for run in runs] == ["succeeded"] * 10
        assert len(attempts) == 100
        assert 1 <= most_at_once(attempts) <= 5


@pytest.mark.clause("GOV-12")
async def test_two_simultaneous_claims_do_not_exceed_a_cap(place: Place) -> None:
    first = store_with_hold(place)
    caps = [Cap("acme", "", max_concurrency=1)]
    async with World(place, stores=[first, store_with_hold(place)], caps=caps) as w:
        runs = [await w.create(plan=["a"], profile="delta-ci") for _ in range(2)]
        first.hold.armed = True
        taking = asyncio.create_task(w.claims("bob"))
        await (
            first.hold.reached.wait()
        )  # one claim is granted but not committed, so no other claim can count it yet
        other = asyncio.create_task(w.through(1).claims("carol"))
        waited = await waits_for_lock(place, other)
        first.hold.go.set()
        assert waited
        (lease,) = await taking
        assert await other == []
        assert [len(await w.attempts(run)) for run in runs] == [1, 0]
        await w.complete(lease)
        assert [lease.run_id for lease in await w.through(1).claims("carol")] == runs[1:]


def most_at_once(attempts: list[AttemptRow]) -> int:
    """The maximum number of simultaneously live leases, by the store's timestamps."""
    moments = sorted(
        [(row.granted_at, 1) for row in attempts] + [(row.ended_at or 1 << 62, -1) for row in attempts]
    )
    live = most = 0
    for _, change in moments:
        live += change
        most = max(most, live)
    return most


@pytest.mark.guard_seconds(120)
@pytest.mark.clause("GOV-09")
async def test_one_of_several_processes_wins_the_race_for_each_step(place: Place) -> None:
    async with World(place) as w:
        w.clock.set(HostClock().now_us())
        runs = [await w.create(plan=["only"], profile="delta-ci") for _ in range(60)]
        got = await run_worker_processes(place, processes=4, limit=1)
        assert sorted(run for run, _, _ in got) == sorted(runs)
        assert {n for _, _, n in got} == {1}


# --------------------------------------------------------------------------------------- ambiguous commits


async def run_with_faults(w: World, store: FaultyStore, faults: Any) -> int:
    """Run one run to its end with a fault at each commit; the run's id."""
    faults(store)
    run = await w.create(plan=["a"], idempotency_key="once", request_hash=b"h")
    faults(store)
    await w.do(c.UpdateMetadata(run_id=run, labels='{"x":1}'))
    lease = await w.claim()
    faults(store)
    await w.checkpoint(lease, "one", output=b"1")
    faults(store)
    reply = await w.wait(lease, "sure?", approval=c.ApprovalSpec())
    assert reply.no is not None
    faults(store)
    await w.suspend(lease, reply.no)
    faults(store)
    assert (await w.approve(run))["again"] is False  # the true answer, not that of a repeat
    lease = await w.claim()
    faults(store)
    assert (await w.complete(lease, b"done")).state == "ok"
    return run


@pytest.mark.parametrize("moment", ["before", "after", "before, then after", "after twice"])
async def test_a_connection_cut_around_the_commit_leaves_one_effect_and_a_true_answer(
    place: Place, moment: str
) -> None:
    def faults(store: FaultyStore) -> None:
        if moment.startswith("before"):
            store.before.append(AmbiguousCommit("cut"))
        if moment in ("after", "before, then after", "after twice"):
            store.after.append(AmbiguousCommit("cut"))
        if moment == "after twice":
            store.after.append(AmbiguousCommit("cut"))

    store = FaultyStore(place.store())
    async with World(place, stores=[store]) as w:
        run = await run_with_faults(w, store, faults)
        row = await w.run(run)
        assert (row.status, row.steps_done) == ("succeeded", 2)
        assert await w.kinds(run) == [
            "create", "metadata", "claim", "checkpoint", "open_wait", "suspend", "decide_approval", "claim", "complete",
        ]  # fmt: skip
        assert await w.run_ids() == [run]


async def test_each_command_of_a_cut_batch_gets_its_own_answer(place: Place) -> None:
    store = FaultyStore(place.store())
    async with World(place, stores=[store]) as w:
        runs = [await w.create(plan=["a"]) for _ in range(20)]
        leases = {lease.run_id: lease for lease in await w.claims(limit=20)}
        store.after.append(AmbiguousCommit("cut"))
        answers = await asyncio.gather(*(w.complete(leases[run]) for run in runs[:19]), w.cancel(runs[19]))
        assert [reply.state for reply in answers[:19]] == ["ok"] * 19
        assert answers[19] == {"status": "canceling", "again": False}
        assert [await w.status(run) for run in runs] == ["succeeded"] * 19 + ["canceling"]


async def test_the_leases_of_a_cut_claim_expire_unused(place: Place) -> None:
    store = FaultyStore(place.store())
    async with World(place, stores=[store]) as w:
        run = await w.create(plan=["a"], profile="delta-ci")
        store.after.append(AmbiguousCommit("cut"))
        assert (
            await w.claims("bob") == []
        )  # the claim may have been committed, but its leases are unknown to the caller
        assert [row.lease for row in await w.attempts(run)] == ["active"]
        await w.later(61).sweep()
        lease = await w.claim("bob")
        assert lease.n == 2
        await w.complete(lease)


async def test_a_cut_deletion_is_answered_correctly(place: Place) -> None:
    store = FaultyStore(place.store())
    async with World(place, stores=[store]) as w:
        run = await w.create(plan=["a"])
        await w.cancel(run)
        await w.tell(c.SealRun, run)
        store.after.append(AmbiguousCommit("cut"))
        assert await w.tell(c.DeleteRun, run) == {"deleted": True}
        assert await w.run_ids() == []


async def test_an_outbox_delivery_that_hits_a_defect_is_kept_until_the_defect_is_fixed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(snap: Any, command: c.Command, *rest: Any) -> Any:
        if isinstance(command, c.FinishChild):
            raise RuntimeError("a defect")
        return decide(snap, command, *rest)

    async with World(place) as w:
        lease = await w.begin()
        child = c.StartChild(run_id=w.orchestrator.new_id("default"), workflow="child")
        reply = await w.wait(lease, "child", child=child)
        assert reply.no is not None
        await w.suspend(lease, reply.no)
        await w.settle()
        monkeypatch.setattr(batch, "decide", defect)
        await w.complete(await w.claim())
        owed = await w.store.read("outbox_pending", w.later(5).now, 10)
        assert await w.orchestrator.deliver(owed) == 0
        assert await w.status(lease.run_id) == "waiting_external"
        monkeypatch.undo()
        await w.later(5).sweep()
        await w.complete(await w.claim())
        assert await w.status(lease.run_id) == "succeeded"


async def test_an_unreadable_outbox_row_blocks_no_other(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, broken = outbox._command, list[int]()

    async def defect(orchestrator: Any, row: Any) -> Any:
        if not broken or row.run_id in broken:
            raise ValueError("a defect")
        return await made(orchestrator, row)

    async with World(place) as w:
        monkeypatch.setattr(outbox, "_command", defect)
        for _ in range(2):
            lease = await w.begin()
            child = c.StartChild(run_id=w.orchestrator.new_id("default"), workflow="child")
            await w.wait(lease, "child", child=child)
        owed = await w.store.read("outbox_pending", w.later(5).now, 10)
        assert len(owed) == 2
        broken.append(owed[0].run_id)
        assert await w.orchestrator.deliver(owed) == 1
        monkeypatch.undo()
        assert await w.orchestrator.deliver(owed) == 2, "the row stays until the defect is fixed"


async def test_a_hundred_concurrent_commands_on_an_uncached_run_are_all_answered(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin(profile="delta-ci")
        for i in range(3):
            await w.checkpoint(lease, f"early-{i}")
        await w.crash()
        replies = await asyncio.gather(*(w.checkpoint(lease, f"late-{i}") for i in range(100)))
        assert {reply.state for reply in replies} == {"ok"}
        assert (await w.run(lease.run_id)).checkpoints == 103
        await w.complete(lease)


async def test_a_claim_that_the_database_refuses_raises_an_error(postgres_place: Place) -> None:
    async with World(postgres_place) as w:
        await w.create(plan=["a"])
        with pytest.raises(TenureError) as refused:
            await w.claims("bo\0b")
        assert refused.value.code == "INVALID_INPUT"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_backend_terminated_around_commit_leaves_one_effect(postgres_place: Place, when: str) -> None:
    store = HeldPostgres(postgres_place.address)
    admin = await asyncpg.connect(postgres_place.address)

    async def terminate(pid: int) -> None:
        await admin.execute("select pg_terminate_backend($1)", pid)

    try:
        async with World(postgres_place, stores=[store]) as w:
            run = await w.create(plan=["a", "b"])
            lease = await w.claim()
            if when == "before":
                store.cut = terminate  # the commit is sent to a terminated backend
                await w.complete(lease, b"done")
            else:
                store.hold.armed = True
                completing = asyncio.create_task(w.complete(lease, b"done"))
                await store.hold.reached.wait()
                store.hold.go.set()
                await completing
                await admin.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid()"
                )
                # The answer was lost, so the runner repeats the message.
                assert (await w.complete(lease, b"done", seq=1)).state == "ok"
            assert (await w.kinds(run)).count("complete") == 1
            await w.work_off(run)
            assert await w.status(run) == "succeeded"
    finally:
        await admin.close()


# ---------------------------------------------------------------------------------------- back-pressure


@pytest.mark.parametrize("lanes", [1, 2])
async def test_a_full_queue_refuses_and_accepts_waiting_commands_later(place: Place, lanes: int) -> None:
    store = FaultyStore(place.store())
    async with World(place, stores=[store], queue_max=6, lanes=lanes) as w:
        runs = [await w.create(plan=["a"]) for _ in range(4)]
        store.door.clear()
        labels = [c.UpdateMetadata(run_id=runs[n % 4], labels=f'{{"n":{n}}}') for n in range(40)]
        under_way: list[asyncio.Future[Any]] = []
        full: TenureError | None = None
        while full is None:
            try:
                under_way.append(w.orchestrator.submit(labels[len(under_way)]))
            except TenureError as refused:
                full = refused
            await asyncio.sleep(0)  # the lanes take what they can
        assert (full.code, full.retryable) == ("QUEUE_FULL", True)
        waiting = [asyncio.create_task(w.do(label)) for label in labels[len(under_way) :]]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        store.door.set()
        answers = await asyncio.gather(*under_way, *waiting)
        assert len(answers) == 40
        assert [(await w.kinds(run)).count("metadata") for run in runs] == [10] * 4


async def test_a_waiting_command_is_accepted_after_several_lanes_emptied_the_queue(place: Place) -> None:
    store = FaultyStore(place.store())  # its transactions are not inline, so every command is queued
    async with World(place, stores=[store], queue_max=6, lanes=2, command_seconds=3) as w:
        runs: dict[int, int] = {}
        while len(runs) < 2:  # one run for each lane
            run = await w.create(plan=["a"])
            runs[run % 2] = run
        commands = [c.UpdateMetadata(run_id=runs[n % 2], labels=f'{{"n":{n}}}') for n in range(6)]
        under_way = [w.orchestrator.submit(command) for command in commands]
        with pytest.raises(TenureError, match="QUEUE_FULL"):
            w.orchestrator.submit(commands[0])
        last = await w.do(c.UpdateMetadata(run_id=runs[0], labels='{"n":7}'))  # this command waits for space
        assert last["labels"] == '{"n":7}'
        await asyncio.gather(*under_way)


async def test_messages_of_a_lease_keep_their_order_if_the_queue_is_full(place: Place) -> None:
    store = FaultyStore(place.store())
    async with World(place, stores=[store], queue_max=3, lanes=1) as w:
        lease = await w.begin()
        unused: Any = None
        work_source = LocalWorkSource("", w.orchestrator, unused, unused, unused, unused)
        store.door.clear()
        answers = []
        for number in range(
            1, 61
        ):  # like `tenure.map` over many items: messages are sent without waiting for answers
            if number == 20:
                store.door.set()
            message = c.RecordCheckpoint(
                run_id=lease.run_id,
                idx=lease.idx,
                n=lease.n,
                seq=100 + number,
                name=f"step-{number}",
                context=c.Context("w_runner", "system", f"message-{number}"),
            )
            answers.append(work_source.submit(message))
            await asyncio.sleep(0)
        await asyncio.gather(*answers)
        rows: list[CheckpointRow] = await w.read("checkpoints_of", lease.run_id)
        assert [row.name for row in sorted(rows, key=lambda row: row.no)] == [
            f"step-{n}" for n in range(1, 61)
        ]
        await w.complete(lease, seq=200)


async def test_every_command_gets_one_result_or_one_error(place: Place) -> None:
    store = FaultyStore(place.store())
    async with World(place, stores=[store]) as w:
        runs = [await w.create(plan=["a"]) for _ in range(10)]
        store.door.clear()
        asked: list[c.Command] = []
        for run in runs:
            asked += [
                c.Pause(run_id=run),
                c.RequestCancel(run_id=run),  # ends the run
                c.RequestCancel(run_id=run),  # the run has ended
                c.UpdateMetadata(run_id=run, labels="{}"),
                c.DeliverEvent(run_id=run, name="x", event_id="1"),
                c.Pause(run_id=run + (1 << 40)),  # a run that does not exist
            ]
        futures = [w.orchestrator.submit(command) for command in asked]
        store.before.extend([WriteConflict("deadlock"), WriteConflict("deadlock")])
        store.door.set()
        answers = await asyncio.gather(*futures, return_exceptions=True)
        for n in range(10):
            paused, canceled, late, labeled, event, missing = answers[6 * n : 6 * n + 6]
            assert paused == {"paused": True, "again": False}
            assert canceled == {"status": "canceled", "again": False}
            assert labeled == {"labels": "{}", "metadata": "{}"}
            codes = [error.code for error in (late, event, missing) if isinstance(error, TenureError)]
            assert codes == ["RUN_TERMINAL_STATE", "RUN_TERMINAL_STATE", "RUN_NOT_FOUND"]


async def test_stopping_finishes_submitted_commands(place: Place) -> None:
    async with World(place) as w:
        runs = [await w.create(plan=["a"]) for _ in range(50)]
        futures = [w.orchestrator.submit(c.RequestCancel(run_id=run)) for run in runs]
        await w.orchestrator.stop()
        assert [future.result()["status"] for future in futures] == ["canceled"] * 50
        with pytest.raises(TenureError, match="STORE_UNAVAILABLE"):
            w.orchestrator.submit(c.Pause(run_id=runs[0]))


# ------------------------------------------------------------------------------------- rejected data and outages


@pytest.mark.parametrize("bad", ["nul", "huge number", "surrogate"])
async def test_a_command_that_no_database_can_store_fails_alone(place: Place, bad: str) -> None:
    async with World(place) as w:
        requests = [w.request(plan=["a"]) for _ in range(50)]
        spoiled = {
            "nul": w.request(plan=["a"], workflow="a\0b"),
            "huge number": w.request(plan=["a"], priority=2**70),
            "surrogate": w.request(plan=["a"], workflow="a\ud800b"),
        }[bad]
        futures = [w.orchestrator.submit(one) for one in [*requests[:25], spoiled, *requests[25:]]]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        refused = answers.pop(25)
        assert isinstance(refused, TenureError), refused
        assert refused.code == "INVALID_INPUT"
        assert not [answer for answer in answers if isinstance(answer, Exception)]
        assert len(await w.run_ids()) == 50


async def test_a_command_that_only_this_database_refuses_fails_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect in our checks lets a value through that a CHECK constraint refuses. The rest of the batch must succeed."""
    monkeypatch.setattr(plans, "step_problems", lambda *_: [])
    plans._checked.cache_clear()
    store = FaultyStore(place.store())
    async with World(place, stores=[store]) as w:
        requests = [w.request(plan=["a"]) for _ in range(50)]
        spoiled = w.request(plan=[step("a", retries=-5)])  # fewer than one attempt
        store.door.clear()
        futures = [w.orchestrator.submit(one) for one in [*requests[:25], spoiled, *requests[25:]]]
        store.door.set()
        answers = await asyncio.gather(*futures, return_exceptions=True)
        refused = answers.pop(25)
        assert isinstance(refused, TenureError), refused
        assert refused.code == "INVALID_INPUT"
        assert "the database rejected a value" in str(refused)
        assert not [answer for answer in answers if isinstance(answer, Exception)]
        assert len(await w.run_ids()) == 50
        assert store.transactions > 3, "the batch was divided"
    plans._checked.cache_clear()


async def test_commands_wait_during_an_outage_of_the_store_and_succeed_afterwards(place: Place) -> None:
    store = FaultyStore(place.store())
    async with World(place, stores=[store]) as w:
        run = await w.create(plan=["a"])
        lease = await w.claim()
        store.before.extend(TenureError("STORE_UNAVAILABLE", "away") for _ in range(5))
        await w.checkpoint(lease, "one")
        store.before.extend(TenureError("STORE_BUSY", "locked") for _ in range(3))
        assert (await w.complete(lease)).state == "ok"
        assert await w.status(run) == "succeeded"
        assert not store.before


async def test_a_long_outage_is_reported_and_nothing_is_done_twice(place: Place) -> None:
    store = FaultyStore(place.store())
    async with World(place, stores=[store], command_seconds=0.05) as w:
        run = await w.create(plan=["a"])
        lease = await w.claim()
        store.before.extend(TenureError("STORE_UNAVAILABLE", "away") for _ in range(1000))
        with pytest.raises(TenureError, match="STORE_UNAVAILABLE"):
            await w.complete(lease, seq=1)
        store.before.clear()
        await w.complete(lease, seq=1)
        assert await w.kinds(run) == ["create", "claim", "complete"]


@pytest.mark.guard_seconds(90)
async def test_lost_connections_are_all_replaced(postgres_place: Place) -> None:
    async with World(postgres_place, orchestrators=2) as w:
        runs = [await w.create(plan=["a"], profile="delta-ci") for _ in range(10)]
        leases = await w.claims(limit=10)
        admin = await asyncpg.connect(postgres_place.address)
        for round_ in range(3):
            await admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            await asyncio.gather(
                *(w.through(n % 2).checkpoint(lease, f"part {round_}") for n, lease in enumerate(leases))
            )
        await admin.close()
        await asyncio.gather(*(w.complete(lease) for lease in leases))
        assert [(await w.run(run)).steps_done for run in runs] == [4] * 10
