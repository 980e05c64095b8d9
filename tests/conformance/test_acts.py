"""Acts on both databases: an intention is committed before its call, in the transaction that reads policy, freezes and caps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import astuple

from tenure import ids
from tenure.kernel import act_commands as a
from tenure.kernel import commands as c
from tenure.kernel.act_commands import ActReply, ProposedAct, Ruling
from tenure.kernel.act_rows import ReceiptRow
from tenure.kernel.costs import Cost
from tenure.kernel.governance_rows import GovernanceRow
from tenure.kernel.identity_rows import PersonRow
from tenure.kernel.lease_types import Lease
from tenure.kernel.run_rows import Cap
from tenure.reads.explanation import explain_run as explained
from tenure.store.port import Query, Transaction
from tests.conformance.world import Place, World

ALLOW = Ruling(version=1, outcome="allow")
ASK = Ruling(version=1, outcome="needs_approval", people=1, people_in="release")


class Acting(World):
    """A world whose tenant has a policy and people. `tests.kernel.act_story` is its counterpart in memory."""

    def act(self, name: str = "", label: str = "a#1", run: int = 0, **how: Any) -> ProposedAct:
        """An action. Without a name, its key is unique to the run."""
        given: dict[str, Any] = {
            "label": label,
            "connector": "github",
            "operation": "label.add",
            "name": name or f"{ids.run_text(run)}:{label}",
            "digest": f"{run}/{label}".encode().rjust(32, b"-")[-32:],
            "repeats": "none",
            "reversible": True,
        }
        return ProposedAct(**{**given, **how})

    async def speak(self, message: type[a.ActCommand], lease: Lease, **fields: Any) -> ActReply:
        """Send a command about an act."""
        context = self.context("governor", "system")
        reply: ActReply = await self.do(
            message(run_id=lease.run_id, idx=lease.idx, n=lease.n, context=context, **fields)
        )
        return reply

    async def intend(self, lease: Lease, name: str = "", ruling: Ruling = ALLOW, **how: Any) -> ActReply:
        act = how.pop("act", None) or self.act(name, run=lease.run_id)
        return await self.speak(
            a.IntendAct, lease, act=act, ruling=ruling, call_seconds=5.0, request=b"{}", **how
        )

    async def settled(self, lease: Lease, no: int | None, state: str = "succeeded", **how: Any) -> ActReply:
        """Report the outcome of a call."""
        return await self.speak(a.SettleAct, lease, no=no, state=state, **how)

    async def receipts(self, run: int) -> list[ReceiptRow]:
        return await self.read("receipts_of", run)

    async def write(self, name: str, row: msgspec.Struct) -> None:
        """Write a row that belongs to no run."""

        def transaction() -> Transaction[Any]:
            return (yield Query(name, scalars=astuple(row)))

        await self.store.transact(transaction)

    async def govern(self, revision: int = 1, version: int = 1, *frozen: str) -> None:
        """Set the tenant's policy version and freezes."""
        text = msgspec.json.encode(dict.fromkeys(frozen, "person:cyd")).decode()
        await self.write(
            "save_governance", GovernanceRow("acme", version, None, None, text, "{}", revision, 0)
        )

    async def person(self, name: str, *groups: str, closed_at: int | None = None) -> None:
        """Add a person to the tenant."""
        text = msgspec.json.encode(groups).decode()
        row = PersonRow("acme", name, name, '["approver"]', text, None, None, None, 0, closed_at=closed_at)
        await self.write("save_person", row)


@asynccontextmanager
async def acting(place: Place, **how: Any) -> AsyncIterator[Acting]:
    async with Acting(place, **how) as world:
        assert isinstance(world, Acting)
        await world.govern()
        await world.person("bob", "release")
        yield world


@pytest.mark.clause("GOV-04")
async def test_an_action_has_a_receipt_before_and_after_its_call(place: Place) -> None:
    """I36."""
    async with acting(place) as w:
        lease = await w.begin()
        reply = await w.intend(lease, before=b'{"labels":[]}')
        (intent,) = await w.receipts(lease.run_id)
        assert (reply.state, intent.state, intent.call_by) == ("call", "intent", reply.call_by)
        assert await w.body(lease.run_id, intent.request_ref) == b"{}"
        assert await w.body(lease.run_id, intent.before_ref) == b'{"labels":[]}'
        await w.settled(lease, reply.no, result=b'{"id":7}')
        (receipt,) = await w.receipts(lease.run_id)
        assert (receipt.state, receipt.reversible) == ("succeeded", True)
        assert await w.body(lease.run_id, receipt.result_ref) == b'{"id":7}'
        await w.complete(lease)
        assert await w.kinds(lease.run_id) == ["create", "intend_act", "settle_act", "complete"]


@pytest.mark.clause("GOV-15")
async def test_a_key_means_one_effect_per_tenant(place: Place) -> None:
    """I37: the key of an open receipt is busy, of a succeeded receipt reused, of a reversed receipt free."""
    async with acting(place) as w:
        first, second = await w.begin(), await w.begin()
        reply = await w.intend(first, "sn:incident:1")
        assert (await w.intend(second, "sn:incident:1")).state == "busy"
        await w.settled(first, reply.no, result=b'"done"')
        again = await w.intend(second, "sn:incident:1")
        assert (again.state, again.source) == ("done", (first.run_id, reply.no))
        assert await w.body(second.run_id, again.result_ref) == b'"done"', (
            "the run that reuses the receipt keeps a copy of the result"
        )
        (reused,) = await w.receipts(second.run_id)
        assert reused.state == "reused"
        assert reply.no is not None
        await w.tell(a.MarkReversed, first.run_id, no=reply.no, by_run=5, by_no=1)
        third = await w.begin()
        assert (await w.intend(third, "sn:incident:1")).state == "call"
        other = await w.begin(tenant="beta")
        await w.write("save_governance", GovernanceRow("beta", 1, None, None, "{}", "{}", 1, 0))
        assert (await w.intend(other, "sn:incident:1")).state == "call", "keys are separate per tenant"


@pytest.mark.parametrize("orchestrators", [1, 2])
async def test_one_of_many_concurrent_actions_gets_the_key(place: Place, orchestrators: int) -> None:
    """GOV-14, I37: in one commit and from two processes."""
    async with acting(place, orchestrators=orchestrators) as w:
        leases = [await w.begin() for _ in range(6)]
        bystander = await w.begin()
        asked = [w.through(i % orchestrators) for i in range(len(leases))]
        done = asyncio.gather(
            *(one.intend(lease, "mine") for one, lease in zip(asked, leases, strict=True)),  # type: ignore[attr-defined]  # the same class
            w.checkpoint(bystander, "beside"),
        )
        replies = (await done)[:-1]
        assert sorted(reply.state for reply in replies) == ["busy"] * 5 + ["call"]


async def test_policy_changes_apply_from_the_next_commit(place: Place) -> None:
    """I40: policy, freezes and caps are read in the transaction that intends, even if the run's snapshot is cached."""
    async with acting(place) as w:
        lease = await w.begin()
        assert (await w.intend(lease, act=w.act(label="a#1", run=lease.run_id))).state == "call"
        await w.govern(2, 2)
        second = w.act(label="b#1", run=lease.run_id)
        assert (await w.intend(lease, act=second)).state == "again"
        ruling = msgspec.structs.replace(ALLOW, version=2)
        assert (await w.intend(lease, act=second, ruling=ruling)).state == "call"
        await w.govern(3, 2, "cn:github")
        reply = await w.intend(lease, act=w.act(label="c#1", run=lease.run_id), ruling=ruling)
        assert (reply.state, reply.error) == ("refused", "FROZEN")
        assert (await w.run(lease.run_id)).reason == "FROZEN"


@pytest.mark.clause("GOV-12")
async def test_a_workflow_may_lower_the_write_limit_of_its_runs(place: Place) -> None:
    """I46."""
    caps = [Cap("acme", "", max_writes_per_run=9), Cap("acme", "wf:flow", max_writes_per_run=2)]
    async with acting(place, caps=caps) as w:
        lease = await w.begin()
        for label in ("a#1", "b#1"):
            assert (await w.intend(lease, act=w.act(label=label, run=lease.run_id))).state == "call"
        reply = await w.intend(lease, act=w.act(label="c#1", run=lease.run_id))
        assert (reply.state, reply.error) == ("refused", "WRITES_EXCEEDED")
        assert [row.error for row in await w.read("verdicts_of", lease.run_id)] == [
            None,
            None,
            "WRITES_EXCEEDED",
        ]


@pytest.mark.parametrize("meanwhile", ["nothing", "closed", "left"])
async def test_an_approval_counts_only_while_its_approver_keeps_the_right(
    place: Place, meanwhile: str
) -> None:
    """I42, I43."""
    async with acting(place) as w:
        lease = await w.begin()
        act = w.act(run=lease.run_id)
        asked = await w.speak(a.ProposeAct, lease, act=act, ruling=ASK, question=b"{}")
        assert asked.state == "wait"
        await w.say(c.Suspend, lease, waits=(asked.no,))
        assert await w.status(lease.run_id) == "waiting_approval"
        await w.approve(lease.run_id, asked.no, by="person:bob", digest=act.digest.hex())
        if meanwhile == "closed":
            await w.person("bob", "release", closed_at=5)
        elif meanwhile == "left":
            await w.person("bob")
        lease = await w.claim()
        reply = await w.intend(lease, act=act, ruling=ASK, approval_no=asked.no)
        assert reply.state == ("call" if meanwhile == "nothing" else "ask")
        (approval,) = await w.approvals(lease.run_id)
        assert approval.used_no == reply.no


async def test_a_crash_after_the_intent_leaves_it_to_the_next_worker(place: Place) -> None:
    """Failure 26."""
    async with acting(place) as w:
        lease = await w.begin()
        act = w.act(run=lease.run_id, repeats="native_key")
        reply = await w.intend(lease, act=act)
        await w.crash()
        await w.later(60).sweep()
        second = await w.claim("carol")
        async with w.refuses("LEASE_STALE"):
            await w.settled(lease, reply.no)
        assert (await w.intend(second, act=act)).state == "open"
        again = await w.speak(a.RepeatAct, second, no=reply.no, call_seconds=5.0)
        assert again.state == "call"
        await w.settled(second, reply.no)
        (receipt,) = await w.receipts(lease.run_id)
        assert (receipt.state, receipt.n, receipt.try_no) == ("succeeded", second.n, 1)


async def test_a_person_can_settle_an_unknown_receipt_after_its_run_has_ended(place: Place) -> None:
    async with acting(place) as w:
        lease = await w.begin()
        reply = await w.intend(lease)
        settled = await w.settled(lease, reply.no, "unknown", settle_within_seconds=60.0)
        await w.say(c.Suspend, lease, waits=(settled.no,))
        assert await w.status(lease.run_id) == "waiting_approval"
        await w.later(61).sweep()
        assert (await w.run(lease.run_id)).reason == "RECEIPT_UNKNOWN"
        async with w.refuses("APPROVER_IS_REQUESTER"):
            await w.tell(a.SettleReceipt, lease.run_id, "u_alice", no=reply.no, how="done", person="u_alice")
        await w.tell(
            a.SettleReceipt, lease.run_id, "person:bob", no=reply.no, how="not_done", person="person:bob"
        )
        (receipt,) = await w.receipts(lease.run_id)
        assert (receipt.state, receipt.settled_by) == ("failed", "person:bob")
        (run_spend,) = await w.read("run_spends_of", lease.run_id)
        assert run_spend.writes == 0


async def test_a_reversal_marks_the_receipt_of_the_original_run(place: Place) -> None:
    """The outbox delivers the reversal; a repeated delivery changes nothing."""
    async with acting(place) as w:
        first = await w.begin()
        done = await w.intend(first)
        await w.settled(first, done.no)
        await w.complete(first)
        undo = await w.begin(undo_of=first.run_id)
        act = w.act(run=undo.run_id, reverses=(first.run_id, done.no))
        reply = await w.intend(undo, act=act)
        await w.settled(undo, reply.no)
        await w.settle()
        (receipt,) = await w.receipts(first.run_id)
        assert (receipt.state, receipt.reversed_run, receipt.reversed_no) == (
            "reversed",
            undo.run_id,
            reply.no,
        )
        assert await w.read("outbox_of", undo.run_id) == []


async def test_a_cancel_starts_one_compensation_run(place: Place) -> None:
    async with acting(place) as w:
        lease = await w.begin(compensate=True, involved="u_dave", by="u_alice")
        reply = await w.intend(lease)
        await w.settled(lease, reply.no)
        await w.cancel(lease.run_id)
        await w.say(c.AckCancel, lease)
        owed = await w.read("outbox_of", lease.run_id)
        await w.settle()
        (undo,) = [run for run in await w.run_ids() if run != lease.run_id]
        await w.orchestrator.deliver(owed)
        assert len(await w.run_ids()) == 2, "two deliveries create one run"
        spec, run = await w.spec(undo), await w.run(undo)
        assert (run.workflow, spec.undo_of, spec.requester, spec.involved) == (
            "tenure.undo",
            lease.run_id,
            "u_alice",
            "u_dave",
        )
        assert await w.body(undo, spec.input_ref) == msgspec.json.encode({"run": ids.run_text(lease.run_id)})
        assert (await w.step(undo)).queue == "default|flow:tenure.undo@1"


async def test_a_compensation_whose_id_is_taken_is_created_with_another_id(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with acting(place) as w:
        lease = await w.begin(compensate=True)
        reply = await w.intend(lease)
        await w.settled(lease, reply.no)
        await w.cancel(lease.run_id)
        with monkeypatch.context() as taken:
            taken.setattr(w.orchestrator, "new_id", lambda: lease.run_id)
            await w.say(c.AckCancel, lease)
            await w.settle()
        assert await w.run_ids() == [lease.run_id]
        await w.later(60).sweep()
        (undo,) = [run for run in await w.run_ids() if run != lease.run_id]
        assert (await w.spec(undo)).undo_of == lease.run_id
        assert await w.read("outbox_of", lease.run_id) == []


def euros(micros: int) -> tuple[Cost, ...]:
    return (Cost("openai", "large", micros=micros, currency="EUR"),)


async def test_a_run_over_its_budget_ends_in_the_same_commit(place: Place) -> None:
    async with acting(place) as w:
        lease = await w.begin(budget=100, currency="EUR")
        await w.checkpoint(lease, "one", spent=euros(100))
        reply = await w.checkpoint(lease, "two", spent=euros(1))
        assert (reply.state, reply.outcome) == ("refused", "BUDGET_EXCEEDED")
        run = await w.run(lease.run_id)
        assert (run.status, run.reason) == ("failed", "BUDGET_EXCEEDED")


async def test_an_act_adds_two_commits_and_a_run_without_acts_reads_no_receipts(place: Place) -> None:
    async with acting(place) as w:
        lease = await w.begin()
        before = len(await w.events(lease.run_id))
        reply = await w.intend(lease)
        await w.settled(lease, reply.no)
        assert len(await w.events(lease.run_id)) == before + 2
        plain = await w.begin()
        asked: list[str] = []
        read = w.store.transact

        async def noting(make: Any, **how: Any) -> Any:
            def noted() -> Any:
                transaction, answer = make(), None
                while True:
                    try:
                        wanted = transaction.send(answer)
                    except StopIteration as end:
                        return end.value
                    asked.append(getattr(wanted, "name", "save"))
                    answer = yield wanted

            return await read(noted, **how)

        w.store.transact = noting
        await w.complete(plain)
        assert not [name for name in asked if "receipt" in name or "run_spend" in name or "cost" in name]


async def test_a_restarted_run_may_spend_the_rest_of_the_budget(place: Place) -> None:
    async with acting(place) as w:
        lease = await w.begin(budget=100, currency="EUR", compensate=True)
        await w.checkpoint(lease, "one", spent=euros(30))
        new = w.orchestrator.new_id("default")
        await w.complete(lease, spent=euros(20), restart=c.StartChild(run_id=new, workflow="flow"))
        await w.settle()
        spec = await w.spec(new)
        assert (spec.budget, spec.currency, spec.compensate) == (50, "EUR", True)


async def test_explain_names_the_approver_that_an_act_waits_for(place: Place) -> None:
    async with acting(place) as w:
        lease = await w.begin()
        act = w.act(run=lease.run_id, label="close/a#1")
        asked = await w.speak(a.ProposeAct, lease, act=act, ruling=ASK, question=b'{"title":"add bug"}')
        await w.say(c.Suspend, lease, waits=(asked.no,))
        why = await explained(w.store, await w.run(lease.run_id), await w.spec(lease.run_id))
        assert (why.reason, why.step) == ("approval", "close/a#1")
        assert "'add bug': 0 of 1 people have approved" in why.text
        await w.approve(lease.run_id, asked.no, by="person:bob", digest=act.digest.hex())
        lease = await w.claim()
        reply = await w.intend(lease, act=act, ruling=ASK, approval_no=asked.no)
        settled = await w.settled(lease, reply.no, "unknown")
        await w.say(c.Suspend, lease, waits=(settled.no,))
        why = await explained(w.store, await w.run(lease.run_id), await w.spec(lease.run_id))
        assert (why.reason, why.step) == ("receipt", "close/a#1")
        assert f"tenure receipts settle {ids.receipt_text(lease.run_id, reply.no or 0)} done" in why.text


async def test_an_action_checks_again_after_another_one_took_its_key(place: Place) -> None:
    """I37: the unique index refuses the save, and the next decision finds the holder of the key."""
    async with acting(place) as w:
        first, second = await w.begin(), await w.begin()
        await w.intend(first, "mine")
        looks = 0
        transact = w.store.transact

        async def too_early(make: Any, **how: Any) -> Any:
            def blind() -> Any:
                nonlocal looks
                transaction, answer = make(), None
                while True:
                    try:
                        wanted = transaction.send(answer)
                    except StopIteration as end:
                        return end.value
                    answer = yield wanted
                    if getattr(wanted, "name", "") == "load_key_holders":
                        looks += 1
                        answer = answer if looks > 1 else []

            return await transact(blind, **how)

        w.store.transact = too_early
        assert (await w.intend(second, "mine")).state == "busy"
        assert looks == 2
