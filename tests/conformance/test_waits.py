"""Waits for people, events, time and children, one or several at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.clock import us
from tenure.kernel import commands as c
from tenure.kernel.lease_types import Lease
from tests.conformance.world import Place, World, gate, pause, step


async def ask(w: World, lease: Lease, label: str = "sure?", **how: Any) -> int:
    """Open an approval under the lease; its number."""
    fatal = how.pop("fatal", False)
    reply = await w.wait(lease, label, approval=c.ApprovalSpec(**how), question=b"sure?", fatal=fatal)
    assert reply.no is not None
    return reply.no


async def listen(w: World, lease: Lease, label: str = "signed", **how: Any) -> int:
    """Open a wait for an event of this name."""
    reply = await w.wait(lease, label, event=c.WaitSpec(event=label, **how))
    assert reply.no is not None
    return reply.no


# ------------------------------------------------------------------------------- several waits at once


async def test_the_first_of_several_waits_to_settle_wakes_the_step_once(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        run = lease.run_id
        question, event = await ask(w, lease), await listen(w, lease, within_seconds=3600)
        reply = await w.wait(lease, "nap", until=w.now + us(60))
        assert reply.no is not None
        assert await w.status(run) == "running"  # the lease stays while waits are open
        assert (await w.suspend(lease, question, event, reply.no)).state == "suspended"
        assert (await w.status(run), (await w.step(run)).charged) == ("waiting_approval", 0)
        assert await w.claims() == []
        async with w.refuses("LEASE_STALE"):
            await w.complete(lease)
        await w.deliver(run, "signed", payload=b"by carol")
        assert (await w.step(run)).state == "ready"
        await w.approve(run)  # the second wait settles too, but the step is woken once
        lease = await w.claim()
        assert (lease.n, await w.claims()) == (2, [])
        waits = {row.label: row for row in await w.waits(run)}
        assert [waits[label].outcome for label in ("sure?", "signed", "nap")] == [
            "approved",
            "received",
            None,
        ]
        assert await w.body(run, waits["signed"].result_ref) == b"by carol"
        await w.complete(lease)
        assert (await w.status(run), [row.state for row in await w.waits(run)][-1]) == ("succeeded", "closed")


async def test_a_suspension_on_a_settled_wait_continues_immediately(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        event, question = await listen(w, lease), await ask(w, lease)
        await w.deliver(lease.run_id, "signed", payload=b"early bird")
        reply = await w.suspend(lease, question, event)
        assert (reply.state, reply.settled) == ("go_on", (event,))
        assert (await w.step(lease.run_id)).state == "running"
        await w.complete(lease)  # the same lease


async def test_opening_a_wait_again_finds_the_same_wait(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        first = await listen(w, lease)
        assert await listen(w, lease) == first
        await w.suspend(lease, first)
        await w.deliver(lease.run_id, "signed", payload=b"yes")
        lease = await w.claim()  # the body is replayed and finds the answer
        reply = await w.wait(lease, "signed", event=c.WaitSpec(event="signed"))
        assert (reply.state, reply.no, reply.outcome) == ("go_on", first, "received")
        assert await w.body(lease.run_id, reply.result_ref) == b"yes"
        assert len(await w.waits(lease.run_id)) == 1


async def test_a_suspension_may_name_only_waits_of_its_own_step(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        async with w.refuses("INVALID_INPUT"):
            await w.suspend(lease)
        async with w.refuses("WAIT_NOT_FOUND"):
            await w.suspend(lease, 99)
        async with w.refuses("INVALID_INPUT"):
            await w.wait(lease, "for nothing")


async def test_a_sleep_ends_at_its_time(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        reply = await w.wait(lease, "nap", until=w.now + us(60))
        assert reply.no is not None
        await w.suspend(lease, reply.no)
        assert await w.status(lease.run_id) == "waiting_external"
        await w.at("10:00:58").sweep()
        assert await w.claims() == []
        await w.at("10:01:01").sweep()
        lease = await w.claim()
        (row,) = await w.waits(lease.run_id)
        assert row.outcome == "elapsed"


async def test_a_wait_can_be_ended_by_hand_but_an_approval_cannot(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=[pause(event="merged"), "b"])
        assert await w.tell(c.EndWait, run) == {"ended": 1}
        assert [row.outcome for row in await w.waits(run)] == ["resumed"]
        await w.work_off(run)
        run = await w.create(plan=[gate()])
        async with w.refuses("RUN_INVALID_TRANSITION"):
            await w.tell(c.EndWait, run)


# ---------------------------------------------------------------------------------------------- events


async def test_early_events_are_stored_and_taken_in_order(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        run = lease.run_id
        for n in (1, 2):
            answer = await w.deliver(run, "signed", f"e-{n}", payload=b"%d" % n)
            assert answer == {"again": False, "taken": False}
        first, second = await listen(w, lease, "signed"), None
        reply = await w.wait(lease, "signed again", event=c.WaitSpec(event="signed"))
        second = reply.no
        waits = {row.no: row for row in await w.waits(run)}
        assert [await w.body(run, waits[no].result_ref) for no in (first, second or 0)] == [b"1", b"2"]
        assert (await w.run(run)).inbox_buffered == 0
        await w.complete(lease)


async def test_a_declared_wait_takes_an_early_event(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["a", pause(event="merged"), "b"])
        await w.deliver(run, "merged", payload=b"sha")
        await w.complete(await w.claim())
        assert await w.states(run) == {"a": "succeeded", "pause": "succeeded", "b": "ready"}


async def test_the_same_event_id_never_counts_twice(place: Place) -> None:
    async with World(place, orchestrators=2) as w:
        run = await w.create(plan=[pause("one", event="ping"), pause("two", event="ping")])
        answers = await asyncio.gather(*(w.through(n % 2).deliver(run, "ping", "e-1") for n in range(10)))
        assert sum(not answer["again"] for answer in answers) == 1
        assert await w.states(run) == {"one": "succeeded", "two": "waiting_external"}
        await w.deliver(run, "ping", "e-2")
        assert await w.status(run) == "succeeded"
        assert (await w.deliver(run, "ping", "e-2"))["again"]
        async with w.refuses("RUN_TERMINAL_STATE"):
            await w.deliver(run, "ping", "e-3")


async def test_the_number_of_early_events_is_limited(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.kernel.decide.waits.EVENTS_BUFFERED_PER_RUN_MAX", 3)
    async with World(place) as w:
        lease = await w.begin()
        for n in range(3):
            await w.deliver(lease.run_id, "log", f"e-{n}")
        async with w.refuses("EVENT_BUFFER_FULL"):
            await w.deliver(lease.run_id, "log", "e-3")
        await listen(w, lease, "log")  # takes one event, which makes room
        await w.deliver(lease.run_id, "log", "e-3")
        await w.cancel(lease.run_id)
        async with w.refuses("RUN_CANCELING"):
            await w.deliver(lease.run_id, "log", "e-4")


# ------------------------------------------------------------------------------------------- approvals


async def test_two_approvals_need_two_people_other_than_the_requester(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=[gate(people=2), "b"], by="u_alice")
        async with w.refuses("APPROVER_IS_REQUESTER"):
            await w.approve(run, by="u_alice")
        first = await w.approve(run, by="u_bob")
        assert (first["status"], first["votes"]) == ("requested", 1)
        again = await w.approve(run, by="u_bob")
        assert (again["again"], again["votes"]) == (True, 1)
        assert await w.status(run) == "waiting_approval"
        assert (await w.approve(run, by="u_carol"))["status"] == "approved"
        assert await w.states(run) == {"gate": "succeeded", "b": "ready"}
        async with w.refuses("APPROVAL_DECIDED"):
            await w.reject(run, 1, by="u_dora")
        assert (await w.approve(run, 1, by="u_carol"))["again"]  # a double click of the decider


async def test_an_approval_is_bound_to_the_digest_and_revision_that_were_shown(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=[gate(digest="aa", people=2), "b"])
        async with w.refuses("APPROVAL_STALE"):
            await w.approve(run, digest="bb")
        await w.approve(run, by="u_bob", digest="aa", revision=1)
        assert await w.revise(run, 1, "bb", question=b"a bit more") == {"revision": 2}
        async with w.refuses("APPROVAL_STALE"):  # the click is on an outdated card
            await w.approve(run, by="u_carol", digest="bb", revision=1)
        async with w.refuses("APPROVAL_STALE"):
            await w.approve(run, by="u_carol", digest="aa", revision=2)
        # A vote for the first revision does not count for the second.
        assert (await w.approve(run, by="u_carol", digest="bb", revision=2))["votes"] == 1
        assert (await w.approve(run, by="u_bob", digest="bb", revision=2))["status"] == "approved"


async def test_one_of_two_simultaneous_decisions_counts(place: Place) -> None:
    async with World(place, orchestrators=2) as w:
        for _ in range(5):
            run = await w.create(plan=[gate(), "b"])
            answers = await asyncio.gather(
                w.approve(run, 1, by="u_bob"),
                w.through(1).reject(run, 1, by="u_carol"),
                return_exceptions=True,
            )
            refused = [answer for answer in answers if isinstance(answer, Exception)]
            assert len(refused) == 1
            (row,) = await w.approvals(run)
            assert (row.status, row.decided_by) in (("approved", "u_bob"), ("rejected", "u_carol"))
            assert await w.status(run) in ("running", "failed")
            if row.status == "approved":
                await w.work_off(run)


async def test_an_expired_approval_cannot_be_given_even_before_the_sweep(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        no = await ask(w, lease, within_seconds=60)
        await w.suspend(lease, no)
        async with w.refuses("APPROVAL_EXPIRED"):
            await w.later(61).approve(lease.run_id)
        await w.sweep()
        (wait,) = await w.waits(lease.run_id)
        assert (wait.outcome, (await w.step(lease.run_id)).state) == ("expired", "ready")
        async with w.refuses("APPROVAL_EXPIRED"):
            await w.approve(lease.run_id, no)
        await w.complete(await w.claim())  # the body may continue without the approval


async def test_a_fatal_rejection_ends_the_step(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        no = await ask(w, lease, fatal=True)
        await w.reject(lease.run_id)  # the lease stays
        assert await w.status(lease.run_id) == "running"
        reply = await w.suspend(lease, no)
        assert (reply.state, reply.outcome) == ("refused", "rejected")
        assert ((await w.run(lease.run_id)).status, (await w.run(lease.run_id)).reason) == (
            "failed",
            "APPROVAL_REJECTED",
        )


async def test_the_run_timeout_pauses_while_the_run_waits_for_a_person(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile="agent-runs", plan=["a", gate(), "b"])  # ten minutes of machine time
        await w.at("10:05:00").complete(await w.claim())
        await w.at("13:00:00").sweep()
        assert await w.status(run) == "waiting_approval"
        await w.approve(run)
        lease = await w.claim()
        before = await w.run(run)
        assert before.started_at is not None
        assert before.deadline_at is not None
        assert round((before.deadline_at - w.now) / us(1)) == 600
        await w.complete(lease)
        wall = await w.create(profile="agent-runs", plan=[gate()], wall_clock=True)
        await w.at("13:11:00").sweep()
        assert (await w.run(wall)).reason == "RUN_TIMED_OUT"


# -------------------------------------------------------------------------------------------- children


async def start_child(w: World, lease: Lease, label: str = "child", **how: Any) -> tuple[int, int]:
    """Start a child; the number of its wait, and its id."""
    child = c.StartChild(run_id=w.orchestrator.new_id("default"), workflow="child", **how)
    reply = await w.wait(lease, label, child=child)
    assert reply.no is not None
    await w.settle()
    return reply.no, child.run_id


async def test_the_end_of_a_child_wakes_its_parent(place: Place) -> None:
    async with World(place) as w:
        parent = await w.begin(workspace="ops", tenant="acme")
        no, child = await start_child(w, parent, input=b"in")
        await w.suspend(parent, no)
        assert await w.status(parent.run_id) == "waiting_external"
        row, spec = await w.run(child), await w.spec(child)
        assert (row.tenant, row.workspace, spec.parent_id, spec.parent_no) == (
            "acme",
            "ops",
            parent.run_id,
            no,
        )
        lease = await w.claim()
        assert (lease.run_id, lease.input) == (child, b"in")
        await w.complete(lease, b"out")
        await w.settle()
        again = await w.claim()
        assert again.run_id == parent.run_id
        (wait,) = await w.waits(parent.run_id)
        assert (wait.outcome, (await w.run(parent.run_id)).children_open) == ("finished", 0)
        await w.complete(again)
        assert await w.read("outbox_pending", w.now + us(60), 10) == []


async def test_a_failed_child_is_reported_and_a_replay_starts_no_second_one(place: Place) -> None:
    async with World(place) as w:
        parent = await w.begin()
        no, child = await start_child(w, parent)
        await w.fail(await w.claim(), "INVALID_INPUT")
        await w.settle()
        reply = await w.wait(
            parent, "child", child=c.StartChild(run_id=w.orchestrator.new_id("default"), workflow="child")
        )
        assert (reply.no, reply.outcome) == (no, "child_failed")
        assert sorted(await w.run_ids()) == sorted([parent.run_id, child])


async def test_outbox_rows_survive_a_crash_and_are_delivered_once(place: Place) -> None:
    async with World(place) as w:
        parent = await w.begin()
        child = c.StartChild(run_id=w.orchestrator.new_id("default"), workflow="child")
        reply = await w.wait(parent, "child", child=child)
        await w.crash()  # possibly before the child was created
        await w.later(3).sweep()
        assert child.run_id in await w.run_ids()
        assert reply.no is not None
        await w.suspend(parent, reply.no)
        lease = await w.claim()
        await w.complete(lease)
        await w.crash()  # possibly before the parent was notified
        await w.later(3).sweep()
        await w.later(3).sweep()
        assert (await w.claim()).run_id == parent.run_id
        assert (await w.kinds(parent.run_id)).count("child_finished") == 1


async def test_a_cancel_that_overtakes_the_creation_of_a_child_is_not_lost(place: Place) -> None:
    async with World(place) as w:
        parent = await w.begin()
        child = c.StartChild(run_id=w.orchestrator.new_id("default"), workflow="child")
        w.orchestrator.deliver = _deliver_nothing  # type: ignore[method-assign]  # this process dies before it delivers
        await w.wait(parent, "child", child=child)
        await w.cancel(parent.run_id)
        await w.cancel_ack(parent)
        create, cancel = await w.read("outbox_of", parent.run_id)
        assert (create.topic, cancel.topic) == ("create", "cancel")
        await w.crash()
        await w.orchestrator.deliver([cancel])  # two sweepers deliver in reverse order
        await w.orchestrator.deliver([create])
        await w.later(3).sweep()
        row = await w.run(child.run_id)
        assert (row.status, row.reason) == ("canceled", "PARENT_CLOSED")
        assert await w.read("outbox_of", parent.run_id) == []


async def test_canceling_many_children_looks_up_missing_ones_in_one_query(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(place) as w:
        parent = await w.begin()
        children = [(await start_child(w, parent, f"child-{n}"))[1] for n in range(8)]
        reads: list[str] = []
        read = w.orchestrator.store.read

        async def counted(name: str, *scalars: Any, **rows: Any) -> list[Any]:
            reads.append(name)
            return await read(name, *scalars, **rows)

        monkeypatch.setattr(w.orchestrator.store, "read", counted)
        await w.cancel(parent.run_id)
        await w.cancel_ack(parent)
        await w.settle()
        assert [await w.status(child) for child in children] == ["canceled"] * 8
        assert reads.count("outbox_of") == 1


async def _deliver_nothing(rows: Any, lacking: Any = None) -> int:
    return 0


@pytest.mark.parametrize(
    ("on_close", "end"), [("cancel", "canceled"), ("leave", "queued"), ("wait", "canceled")]
)
async def test_a_canceled_parent_cancels_or_leaves_its_children(
    place: Place, on_close: str, end: str
) -> None:
    async with World(place) as w:
        parent = await w.begin()
        _, child = await start_child(w, parent, on_close=on_close)
        await w.cancel(parent.run_id)
        await w.cancel_ack(parent)
        await w.settle()
        assert await w.status(parent.run_id) == "canceled"
        row = await w.run(child)
        assert row.status == end
        assert row.reason == (None if end == "queued" else "PARENT_CLOSED")


async def test_a_parent_that_waits_for_its_child_completes_after_it(place: Place) -> None:
    async with World(place) as w:
        parent = await w.begin()
        _, child = await start_child(w, parent, on_close="wait")
        reply = await w.complete(parent, b"result")
        assert reply.state == "suspended"
        assert await w.status(parent.run_id) == "waiting_external"
        await w.complete(await w.claim())
        await w.settle()
        assert await w.claims() == []
        row = await w.run(parent.run_id)
        assert (row.status, await w.body(row.id, row.output_ref)) == ("succeeded", b"result")
        assert child in await w.run_ids()


@pytest.mark.parametrize("uploads", [False, True])
async def test_a_parent_that_waits_for_its_children_ends_with_the_last_one(
    place: Place, uploads: bool
) -> None:
    """Regression: the completion was refused after BeginUpload, and the first child woke the parent."""
    async with World(place) as w:
        run = await w.create(plan=[step("part"), step("next", "part")], profile="delta-ci")
        parent = await w.claim()
        children = [(await start_child(w, parent, f"child {i}", on_close="wait"))[1] for i in range(3)]
        _, other = await start_child(w, parent, "other", on_close="leave")
        await ask(w, parent, "left open")
        event = await w.wait(parent, "event", event=c.WaitSpec(event="x"))
        if uploads:
            await w.upload(parent)
        message = c.Complete(run_id=run, idx=0, n=1, seq=100, output=b"result")
        assert (await w.do(message)).state == "suspended"
        assert (await w.do(message)).state == "suspended"
        assert (await w.attempts(run, "part"))[0].state == "succeeded"
        # Waits that the body opened are closed, because the body does not run again: they take no event.
        assert (await w.deliver(run, "x"))["taken"] is False
        assert (await w.waits(run))[(event.no or 0) - 1].state == "closed"
        leases = {lease.run_id: lease for lease in await w.claims(limit=9)}
        assert leases.keys() == {*children, other}
        for number, child in enumerate(children):
            assert (await w.states(run)) == {"part": "waiting_external", "next": "pending"}
            await (await w.crash()).settle()
            if number == 1:
                await w.fail(leases[child], "BROKEN", retryable=False)
            else:
                await w.complete(leases[child])
            await w.settle()
        assert (await w.states(run)) == {"part": "succeeded", "next": "ready"}
        part = await w.step(run, "part")
        assert await w.body(run, part.output_ref) == b"result"
        assert (part.attempt, part.waits_on) == (1, "")
        await w.complete(leases[other])
        await w.settle()
        await w.work_off(run)
        assert await w.status(run) == "succeeded"


@pytest.mark.parametrize("how", ["is canceled", "runs out of time", "loses a fatal child"])
async def test_a_parent_that_waits_for_its_children_may_still_fail(place: Place, how: str) -> None:
    async with World(place) as w:
        parent = await w.begin(profile="delta-ci", timeout_seconds=600)
        run = parent.run_id
        child = c.StartChild(run_id=w.orchestrator.new_id("default"), workflow="child", on_close="wait")
        await w.wait(parent, "child", child=child, fatal=True)
        await w.settle()
        await w.complete(parent, b"result")
        lease = await w.claim()
        if how == "is canceled":
            assert (await w.cancel(run))["status"] == "canceled"
        elif how == "runs out of time":
            await w.later(601).sweep()
        else:
            await w.fail(lease, "BROKEN", retryable=False)
        await w.settle()
        row = await w.run(run)
        assert (row.status, row.reason) in {
            ("canceled", "RUN_CANCELED"),
            ("timed_out", "RUN_TIMED_OUT"),
            ("failed", "CHILD_FAILED"),
        }
        assert row.output_ref is None
        await w.sweep()


# -------------------------------------------------------------------------------------- cancel in waits


@pytest.mark.parametrize("where", ["gate", "pause", "suspended", "backoff", "planning", "delayed"])
async def test_a_cancel_during_a_wait_is_final_immediately(place: Place, where: str) -> None:
    async with World(place) as w:
        if where == "planning":
            run = await w.create(plan=None)
        elif where == "delayed":
            run = await w.create(plan=["a"], not_before=w.now + us(60))
        elif where == "gate":
            run = await w.create(plan=[gate(), "b"])
        elif where == "pause":
            run = await w.create(plan=[pause(event="x"), "b"])
        else:
            run = await w.create(plan=["a", "b"])
            lease = await w.claim()
            if where == "backoff":
                await w.fail(lease, "NLM_UNAVAILABLE")
            else:
                await w.suspend(lease, await ask(w, lease))
        assert await w.cancel(run) == {"status": "canceled", "again": False}
        assert set((await w.states(run)).values()) <= {"canceled"}
        await w.at("12:00:00").sweep()
        assert await w.claims() == []
        assert {row.state for row in await w.waits(run)} <= {"closed"}


async def test_a_body_that_suspends_during_a_cancel_is_closed(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        no = await ask(w, lease)
        await w.cancel(lease.run_id)
        async with w.refuses("RUN_CANCELING"):
            await ask(w, lease, "another")
        assert (await w.suspend(lease, no)).cancel
        assert await w.status(lease.run_id) == "canceled"


@pytest.mark.parametrize("first", ["cancel", "complete"])
async def test_of_a_cancel_and_a_complete_the_first_commit_decides(place: Place, first: str) -> None:
    async with World(place, orchestrators=2) as w:
        run = await w.create(plan=["a"])
        lease = await w.claim()
        if first == "complete":
            await w.complete(lease, b"done")
            async with w.through(1).refuses("RUN_TERMINAL_STATE") as refusal:
                await w.through(1).cancel(run)
            assert refusal.value.data["status"] == "succeeded"
        else:
            await w.through(1).cancel(run)
            assert (await w.complete(lease, b"done")).late
        assert await w.status(run) == ("succeeded" if first == "complete" else "canceled")


async def test_a_retryable_failure_after_a_cancel_request_is_not_retried(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["a"])
        lease = await w.claim()
        await w.cancel(run)
        assert (await w.fail(lease, "NLM_UNAVAILABLE")).late
        assert await w.status(run) == "canceled"
        await w.later(60).sweep()
        assert await w.claims() == []
