"""Leases: charged attempts, releases, parking, pausing, and runs of other tenants."""

from __future__ import annotations

import asyncio

import apsw
import asyncpg
import pytest

from tenure.kernel import commands as c
from tenure.limits import CHECKPOINT_OUTPUT_BYTES_MAX, PAYLOAD_BYTES_MAX
from tests.conformance.world import Place, World, gate, step
from tests.profile_words import edges


async def test_a_claim_charges_an_attempt_so_a_job_that_kills_its_workers_ends(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["deadly", "after"])
        other = await w.create(plan=["harmless"])
        for n in range(1, 5):  # one try and three retries
            lease = next(one for one in await w.claims(limit=5) if one.run_id == run)
            assert (lease.n, (await w.step(run, "deadly")).charged) == (n, n)
            await w.later(31).sweep()
        row = await w.run(run)
        assert (row.status, row.reason) == ("failed", "STEP_LOST")
        assert await w.states(run) == {"deadly": "failed", "after": "skipped"}
        assert await w.status(other) in ("running", "failed")  # the other run is unaffected


async def test_a_release_refunds_the_attempt_and_a_new_checkpoint_resets_the_count(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"])
        for _ in range(10):  # ten worker shutdowns are not charged
            await w.release(await w.claim())
        assert (await w.step(run, "job")).charged == 0
        for n in range(6):  # nor is a crash after a new checkpoint
            lease = await w.claim()
            await w.checkpoint(lease, f"part {n}")
            assert (await w.step(run, "job")).charged == 0
            await w.later(31).sweep()
        lease = await w.claim()
        assert ((await w.step(run, "job")).charged, lease.n) == (1, 17)
        await w.complete(lease)
        assert [row.state for row in await w.attempts(run)] == ["released"] * 10 + ["stale"] * 6 + [
            "succeeded"
        ]


async def test_a_released_lease_is_over_for_its_worker(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"])
        old = await w.claim("bob")
        await w.release(old)
        async with w.refuses("LEASE_STALE"):
            await w.complete(old)
        await w.complete(await w.claim("carol"))
        assert await w.status(run) == "succeeded"


async def test_code_that_does_not_match_parks_the_run(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"])
        await w.park(await w.claim(), "step 'two' is called 'deux' here")
        row, job = await w.run(run), await w.step(run, "job")
        assert (row.parked, job.charged, job.state) == ("step 'two' is called 'deux' here", 0, "ready")
        assert await w.claims() == []
        assert await w.tell(c.Unpause, run) == {"paused": False, "again": False}
        assert (await w.run(run)).parked is None
        await w.work_off(run)
        assert await w.status(run) == "succeeded"


async def test_a_paused_run_gets_no_new_lease_and_its_deadline_keeps_running(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(profile="agent-runs", plan=[step("one"), step("two", "one")])
        lease = await w.claim()
        assert await w.tell(c.Pause, run) == {"paused": True, "again": False}
        assert await w.tell(c.Pause, run) == {"paused": True, "again": True}
        await w.complete(lease)  # a running step may finish
        assert (await w.states(run), await w.claims()) == ({"one": "succeeded", "two": "ready"}, [])
        await w.tell(c.Unpause, run)
        assert await w.tell(c.Unpause, run) == {"paused": False, "again": True}
        lease = await w.claim()
        await w.tell(c.Pause, run)
        await w.fail(lease, "NLM_UNAVAILABLE")
        await w.later(1.1).sweep()
        assert ((await w.step(run, "two")).state, await w.claims()) == ("ready", [])
        await w.at("10:10:01").sweep()
        assert (await w.run(run)).reason == "RUN_TIMED_OUT"


async def test_a_claim_names_its_queue(place: Place) -> None:
    async with World(place) as w:
        await w.create(plan=[step("cpu"), step("gpu", queue="gpu")])
        assert [lease.name for lease in await w.claims(limit=5)] == ["cpu"]
        assert [lease.name for lease in await w.claims(limit=5, queues=("gpu", "other"))] == ["gpu"]


async def test_another_tenants_run_looks_like_a_missing_run(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"], tenant="acme")
        messages = set()
        for run_id, tenant in ((run, "other"), (run + 1, "acme")):
            async with w.refuses("RUN_NOT_FOUND") as refusal:
                await w.do(c.RequestCancel(run_id=run_id, tenant=tenant))
            messages.add(str(refusal.value).split("run_")[0])
        assert len(messages) == 1
        assert (await w.do(c.RequestCancel(run_id=run, tenant="acme")))["status"] == "canceled"


async def test_errors_name_unknown_steps_and_leases(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"])
        async with w.refuses("STEP_NOT_FOUND"):
            await w.do(c.ClaimStep(run_id=run, idx=9, by=c.Claimant("bob")))
        async with w.refuses("LEASE_NOT_FOUND"):
            await w.do(c.Complete(run_id=run, idx=0, n=1, seq=1))
        async with w.refuses("APPROVAL_NOT_FOUND"):
            await w.approve(run, 7)
        for limit in (0, 501):
            async with w.refuses("INVALID_INPUT"):
                await w.claims(limit=limit)


async def test_an_output_one_byte_over_the_limit_is_refused_and_the_step_can_still_finish(
    place: Place,
) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"])
        lease = await w.claim()
        async with w.refuses("PAYLOAD_TOO_LARGE"):
            await w.complete(lease, bytes(PAYLOAD_BYTES_MAX + 1))
        await w.fail(lease, "PAYLOAD_TOO_LARGE")
        assert ((await w.run(run)).status, (await w.run(run)).reason) == ("failed", "PAYLOAD_TOO_LARGE")


async def test_a_checkpoint_may_start_fail_and_complete_and_repeats_are_recognised(place: Place) -> None:
    async with World(place) as w:
        lease = await w.begin()
        await w.checkpoint(lease, "call", state="started", idempotent=False, seq=1)
        assert (await w.step(lease.run_id)).unsafe == 1
        await w.checkpoint(lease, "call", state="failed", error="TIMEOUT", tries=1, idempotent=False, seq=2)
        assert (await w.step(lease.run_id)).unsafe == 0
        await w.checkpoint(lease, "call", output=b"42", tries=2, idempotent=False, seq=3)
        before = await w.bundle(lease.run_id)
        await w.checkpoint(lease, "call", output=b"42", tries=2, idempotent=False, seq=3)
        assert await w.bundle(lease.run_id) == before
        async with w.refuses("CHECKPOINT_CONFLICT"):
            await w.checkpoint(lease, "call", output=b"43", seq=4)
        (row,) = await w.read("checkpoints_of", lease.run_id)
        assert (row.state, row.tries, await w.body(lease.run_id, row.output_ref)) == ("done", 2, b"42")
        assert (await w.run(lease.run_id)).steps_done == 1


# -------------------------------------------------------------------------------------------- wake-ups


async def test_a_waiting_claim_is_woken_by_work_from_another_process(place: Place) -> None:
    async with World(place, orchestrators=2) as w:
        waiting = asyncio.create_task(w.through(1).claims("bob", wait_seconds=50))
        await asyncio.sleep(0)
        run = await w.create(plan=["a"])
        (lease,) = await waiting
        assert lease.run_id == run
        # The same for a step that a completion makes ready, in this process or another.
        run = await w.create(plan=["b", "c"])
        first = await w.claim()
        waiting = asyncio.create_task(w.claims("bob", wait_seconds=50))
        await asyncio.sleep(0)
        await w.through(1).complete(first)
        assert [lease.name for lease in await waiting] == ["c"]


async def test_no_claim_is_woken_for_a_step_that_its_creator_leased(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(place) as w:
        notified = 0

        async def notify_work() -> None:
            nonlocal notified
            notified += 1

        monkeypatch.setattr(w.stores[0], "notify_work", notify_work)
        await w.begin(plan=["a"])
        await w.settle()
        assert notified == 0
        await w.begin(plan=[step("a"), step("b")])  # step b is open to every worker
        await w.settle()
        assert notified == 1


async def test_a_lost_wake_up_only_delays_the_work(place: Place) -> None:
    async with World(place, orchestrators=2) as w:
        for store in w.stores:
            store.wait_for_work = _never_woken
        waiting = asyncio.create_task(w.through(1).claims("bob", wait_seconds=50))
        await asyncio.sleep(0)
        run = await w.create(plan=["a"])
        assert [lease.run_id for lease in await waiting] == [run]  # found by the poll


async def _never_woken(timeout_s: float) -> bool:
    await asyncio.Event().wait()
    return True


async def test_a_claim_that_times_out_returns_nothing(place: Place) -> None:
    async with World(place) as w:
        assert await w.claims("bob", wait_seconds=0.01) == []


# --------------------------------------------------------------------------------------------- history


async def test_events_contain_no_payload_and_no_label_and_a_payload_can_be_erased(place: Place) -> None:
    secrets = [
        b"input-4711", b"output-4711", b"checkpoint-4711", b"question-4711", b"reason-4711", b"event-4711",
        b"message-4711", b"label-4711", b"late-4711",
    ]  # fmt: skip
    async with World(place) as w:
        lease = await w.begin(input=secrets[0], labels='{"x":"label-4711"}')
        run = lease.run_id
        await w.checkpoint(lease, "one", output=secrets[2])
        reply = await w.wait(lease, "q", approval=c.ApprovalSpec(), question=secrets[3])
        await w.approve(run, reply.no, reason=secrets[4])
        await w.deliver(run, "signed", payload=secrets[5])
        await w.complete(lease, secrets[1])
        failed = await w.begin(plan=["a"])
        await w.fail(failed, "INVALID_INPUT", message=secrets[6])
        late = await w.begin(plan=["a"])
        await w.cancel(late.run_id)
        await w.complete(late, secrets[8])
        kept = set()
        for one in (run, failed.run_id, late.run_id):
            for event in await w.events(one):
                assert not [secret for secret in secrets if secret in event.body]
            kept |= {row.body for row in await w.read("payloads_of", one)}
        assert kept == set(secrets) - {secrets[7]}
        assert "label-4711" in (await w.spec(run)).labels


async def test_a_short_output_is_stored_in_its_checkpoint_and_can_be_erased(place: Place) -> None:
    short, long = b"s" * CHECKPOINT_OUTPUT_BYTES_MAX, b"l" * (CHECKPOINT_OUTPUT_BYTES_MAX + 1)
    async with World(place) as w:
        lease = await w.begin(input=b"input")
        run = lease.run_id
        await w.checkpoint(lease, "short", output=short)
        await w.checkpoint(lease, "long", output=long)
        for output in (b"once", b"twice"):  # the second recording keeps the output of the first
            await w.checkpoint(lease, "unsafe", output=output, resumable=False, idempotent=True)
        rows = {row.name: row for row in await w.read("checkpoints_of", run)}
        assert {name: row.output for name, row in rows.items()} == {
            "short": short,
            "long": None,
            "unsafe": None,
        }
        kept = [row.body for row in await w.read("payloads_of", run)]
        assert kept == [b"input", short, long, b"once", b"twice"]
        for name, output in (("short", short), ("long", long), ("unsafe", b"twice")):
            [payload] = await w.read("payload", run, rows[name].output_ref)
            assert (payload.ref, payload.body) == (rows[name].output_ref, output)
        resumed = {row.name: row.output for row in await w.read("resume_checkpoints", run, 0)}
        assert resumed == {"short": short, "long": long, "unsafe": b"twice"}
        erase = "update {}checkpoint set salt = null, output = null where name = 'short'"
        if place.kind == "sqlite":
            with apsw.Connection(place.address) as connection:
                connection.execute(erase.format(""))
            connection.close()
        else:
            other = await asyncpg.connect(place.address)
            await other.execute(erase.format("tenure."))
            await other.close()
        assert await w.read("payload", run, rows["short"].output_ref) == []
        [gone] = [row for row in await w.read("resume_checkpoints", run, 0) if row.name == "short"]
        assert (gone.output, gone.output_ref) == (None, rows["short"].output_ref)
        await w.complete(lease)  # the chain stays valid: the doctor examines it at the end


async def test_one_command_writes_one_event_with_every_edge_in_order(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["a", gate(), "b"])
        await w.complete(await w.claim(ack=True))
        events = await w.events(run)
        assert [event.seq for event in events] == [1, 2, 3]
        taken = [(edge.machine, edge.state, edge.next) for edge in edges(events[2:])]
        assert taken == [
            ("step", "running", "uploading"),
            ("attempt", "running", "uploading"),
            ("step", "uploading", "succeeded"),
            ("attempt", "uploading", "succeeded"),
            ("lease", "active", "completed"),
            ("step", "pending", "ready"),
            ("step", "ready", "waiting_approval"),
            ("run", "running", "waiting_approval"),
        ]


# ----------------------------------------------------------------------------------- reporting, sealing, deletion


async def test_a_finished_run_is_reported_sealed_and_then_deleted_completely(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job", gate()], input=b"secret", labels='{"a":1}')
        kept = await w.create(plan=["job"])
        await w.complete(next(one for one in await w.claims(limit=2) if one.run_id == run), b"out")
        await w.approve(run)
        async with w.refuses("RUN_NOT_SEALED"):
            await w.tell(c.DeleteRun, run)
        assert await w.tell(c.SealRun, run) == {"again": False}
        assert await w.tell(c.SealRun, run) == {"again": True}
        assert await w.tell(c.DeleteRun, run) == {"deleted": True}
        assert await w.run_ids() == [kept]
        assert await w.read("events_of", run) == []
        assert await w.read("payloads_of", run) == []
        async with w.refuses("RUN_NOT_FOUND"):
            await w.tell(c.DeleteRun, run)


@pytest.mark.parametrize("text", ["[]", "{" + " " * 70_000 + "}"])
async def test_labels_that_are_not_an_object_or_too_long_are_refused(place: Place, text: str) -> None:
    async with World(place) as w:
        run = await w.create(plan=["job"], labels='{"kept":1}')
        async with w.refuses("INVALID_INPUT"):
            await w.tell(c.UpdateMetadata, run, labels=text)
        assert (await w.spec(run)).labels == '{"kept":1}'
