"""Failures that comparable systems have had (docs/spec/invariants.md, part 2), by their numbers."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import apsw
import asyncpg
import pytest

from tenure.clock import HostClock, us
from tenure.errors import TenureError
from tenure.kernel.run_rows import Cap
from tenure.orchestrator.sweeper import build_timer_command
from tenure.store.sqlite import SqliteStore
from tests.conformance.faults import CountingStore, FaultyStore, store_with_hold, waits_for_lock
from tests.conformance.world import BEGIN_US, Place, World, step


class RealDice:
    """A random generator with a seed, in place of the world's fixed one."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def random(self) -> float:
        return self._random.random()

    def salt(self) -> bytes:
        return self._random.randbytes(16)


@pytest.mark.parametrize("first", ["completion", "tick"])
@pytest.mark.parametrize("orchestrators", [1, 2])
async def test_5_a_completion_stands_if_the_sweeper_read_before_it_committed(
    place: Place, orchestrators: int, first: str
) -> None:
    """In both orders. A heartbeat has moved the expiry that the sweeper's process has cached since the claim."""
    async with World(place, orchestrators=orchestrators) as w:
        sweeper = w.through(orchestrators - 1)
        run = await w.create(plan=["a", "b"], profile="delta-ci")
        lease = await sweeper.claim()
        await w.at("10:00:50").beat(
            lease
        )  # the heartbeat extends the lease; the timer set at the claim stays
        w.at("10:01:01")
        due = await sweeper.read("due", w.now, 10)
        assert [(timer.entity, timer.at) for timer in due] == [("step", 0)]
        if first == "tick":
            await sweeper.do(build_timer_command(due[0]))
        assert (await w.complete(lease, b"done")).state == "ok"
        before = await w.bundle(run)
        await sweeper.do(build_timer_command(due[0]))  # the timer that it read is outdated
        assert await w.bundle(run) == before
        assert await w.states(run) == {"a": "succeeded", "b": "ready"}
        assert [attempt.state for attempt in await w.attempts(run)] == ["succeeded"]


async def test_5_a_timeout_that_waits_behind_a_completion_sees_it(
    place: Place,
) -> None:
    completing, sweeping = store_with_hold(place), store_with_hold(place)
    async with World(place, stores=[completing, sweeping]) as w:
        sweeper = w.through(1)
        run = await sweeper.create(plan=["a"], profile="delta-ci")
        lease = await sweeper.claim()  # the sweeper's process caches the step as running
        completing.hold.armed = True
        completion = asyncio.create_task(w.at("10:00:58").complete(lease, b"done"))
        await completing.hold.reached.wait()  # decided in time and saved, not yet committed

        w.at("10:01:01")
        (timer,) = await sweeper.read("due", w.now, 10)
        timeout = asyncio.create_task(sweeper.do(build_timer_command(timer)))
        waited = await waits_for_lock(place, timeout)

        completing.hold.go.set()
        assert waited
        assert (await completion).state == "ok"
        await timeout
        assert await w.status(run) == "succeeded"
        assert await w.kinds(run) == ["create", "claim", "complete"]
        assert await w.claims("carol") == []


async def test_5_a_completion_that_waits_behind_a_timeout_is_refused(
    place: Place,
) -> None:
    completing, sweeping = store_with_hold(place), store_with_hold(place)
    async with World(place, stores=[completing, sweeping]) as w:
        sweeper = w.through(1)
        run = await w.create(plan=["a"], profile="delta-ci")
        lease = await w.claim()  # the worker's process caches the step as running
        w.at("10:01:01")
        (timer,) = await sweeper.read("due", w.now, 10)
        sweeping.hold.armed = True
        timeout = asyncio.create_task(sweeper.do(build_timer_command(timer)))
        await sweeping.hold.reached.wait()

        completing.shift_clock(-us(3))  # the completion was sent in time; only the fence can refuse it
        completion = asyncio.create_task(w.complete(lease, b"done"))
        waited = await waits_for_lock(place, completion)

        sweeping.hold.go.set()
        assert waited
        await timeout
        with pytest.raises(TenureError, match="LEASE_STALE"):
            await completion
        completing.shift_clock(0)
        assert await w.states(run) == {"a": "ready"}
        assert await w.kinds(run) == ["create", "claim", "lease_expired"]
        await w.complete(await w.claim("carol"), b"done")
        assert [(a.owner, a.lease) for a in await w.attempts(run)] == [
            ("bob", "expired"),
            ("carol", "completed"),
        ]


async def test_7_a_dead_worker_frees_the_only_slot_of_a_capped_tenant(place: Place) -> None:
    async with World(place, caps=[Cap("acme", "", max_concurrency=1)]) as w:
        dead = await w.create(plan=["a"], profile="delta-ci")
        waiting = await w.create(plan=["b"], profile="delta-ci")
        lease = await w.claim("worker-that-dies")
        assert lease.run_id == dead
        await w.at("10:00:59").sweep()
        assert await w.claims("carol", limit=5) == []
        await w.at("10:01:01").sweep()
        (lease,) = await w.claims("carol", limit=5)
        await w.complete(lease)
        (lease,) = await w.claims("carol", limit=5)
        await w.complete(lease)
        assert [await w.status(run) for run in (dead, waiting)] == ["succeeded"] * 2


@pytest.mark.parametrize("minutes", [0, 10, -10])
async def test_10_a_process_with_a_wrong_clock_makes_the_same_decisions(
    postgres_place: Place, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's clock decides, even if the process's clock is minutes off. (On SQLite both are the same clock: see below.)"""
    async with World(postgres_place) as w:
        monkeypatch.setattr(time, "time_ns", lambda: (w.now + us(minutes * 60)) * 1000)
        w.orchestrator._clock = HostClock()
        off = HostClock().now_us() - w.now - us(minutes * 60)
        assert abs(off) < us(1), "the process's clock does not have the intended offset"
        run = await w.create(plan=["a"], profile="delta-ci")
        later = await w.create(plan=["b"], profile="delta-ci", not_before=w.now + us(120))
        lease = await w.claim("bob")
        assert us(55) < lease.expires_at - w.now < us(60.5)
        await w.at("10:00:50").sweep()
        assert (await w.step(run, "a")).state == "running"
        reply = await w.beat(lease)
        assert reply.expires_at is not None
        assert us(55) < reply.expires_at - w.now < us(60.5)
        await w.at("10:01:40").sweep()  # the timer set at the claim is past, the lease is not
        assert (await w.step(run, "a")).state == "running"
        assert await w.claims("carol") == []
        await w.at("10:01:55").sweep()
        async with w.refuses("LEASE_STALE"):
            await w.complete(lease)
        lease = await w.claim("carol")
        assert lease.run_id == run
        await w.fail(lease, "NETWORK")  # the next try is due in a few seconds
        await w.sweep()
        assert (await w.step(run, "a")).state == "retry_wait"
        assert await w.claims("carol") == []  # the delayed run starts in five seconds
        await w.at("10:02:20").sweep()
        assert {lease.run_id for lease in await w.claims("carol", limit=5)} == {run, later}
        times = [event.at for event in await w.events(run)]
        assert times == sorted(times)
        assert all(BEGIN_US <= at <= w.now for at in times)


async def test_10_a_clock_that_steps_back_revokes_nothing_and_grants_nothing_twice(place: Place) -> None:
    async with World(place) as w:
        run = await w.create(plan=["a", "b"], profile="delta-ci")
        await w.claim("bob")
        await w.at("10:01:01").sweep()
        lease = await w.claim("carol")
        w.clock.move(-us(600))  # the clock shows 09:51 again
        await w.sweep()
        assert (await w.step(run, "a")).state == "running"  # carol still holds the lease
        assert await w.claims("dora") == []
        assert (await w.beat(lease)).state == "ok"
        await w.complete(lease)
        await w.complete(await w.claim("carol"))
        times = [event.at for event in await w.events(run)]
        assert times == sorted(times)
        row = await w.run(run)
        assert row.finished_at is not None
        assert row.started_at is not None
        assert row.finished_at >= row.started_at
        w.clock.move(us(600))


async def test_20_jitter_spreads_a_thousand_simultaneous_failures(place: Place) -> None:
    async with World(place, chance=RealDice(20)) as w:
        run = await w.create(
            plan=[step(f"s{n}") for n in range(1000)], profile="delta-ci", labels='{"failure":20}'
        )
        leases = [lease for _ in range(2) for lease in await w.claims(limit=500)]
        assert len(leases) == 1000
        await asyncio.gather(*(w.fail(lease, "NETWORK") for lease in leases))
        steps = await w.steps(run)
        ended = {row.idx: row.ended_at or 0 for row in await w.attempts(run)}
        waits = [(row.eligible_at or 0) - ended[row.idx] for row in steps]
        assert min(waits) >= us(5)  # never earlier than the profile's backoff
        assert max(waits) <= us(6)  # plus 20 % jitter
        assert len(set(waits)) > 990
        in_slots = Counter(wait // us(0.1) for wait in waits)
        assert max(in_slots.values()) < 200  # a tenth of a second never has most of the retries


@pytest.mark.guard_seconds(90)
@pytest.mark.parametrize("workspaces", [1, 4])
async def test_27_a_tenant_with_ten_thousand_steps_does_not_starve_another_tenant(
    place: Place, workspaces: int
) -> None:
    """The bound (docs/operating.md): one more step per workspace that has work. The rows that a claim reads are bounded too."""
    store = CountingStore(place.store())
    async with World(place, stores=[store]) as w:
        for n in range(workspaces):
            await w.create(tenant="a", workspace=f"w{n}", plan=["first", step("second")])
        await w.create(tenant="c", plan=[step(f"s{n}") for n in range(100)])
        store.rows = 0
        assert len(await w.claims(limit=2)) == 2
        while_short = store.rows
        for n in range(20):
            await w.create(
                tenant="a", workspace=f"w{n % workspaces}", plan=[step(f"s{n}") for n in range(500)]
            )
        for _ in range(5):
            assert {lease.tenant for lease in await w.claims(limit=20)} == {"a", "c"}
        for _ in range(5):  # also for a tenant that was served before
            only = await w.create(tenant="b", plan=["only"])
            round_ = [
                await w.claim() for _ in range(workspaces + 2)
            ]  # one step per workspace of a, one of c, and b's own
            assert only in {lease.run_id for lease in round_}
        store.rows = 0
        assert len(await w.claims(limit=2)) == 2
        assert store.rows <= while_short


# ------------------------------------------------------------------------------- 29: disk full, read-only


@pytest.mark.parametrize("code", ["STORE_FULL", "STORE_READ_ONLY"])
async def test_29_a_store_that_cannot_write_refuses_and_recovers(place: Place, code: str) -> None:
    store = FaultyStore(place.store())
    async with World(place, stores=[store], command_seconds=0.05) as w:
        run = await w.create(plan=["a"])
        lease = await w.claim()
        before = await w.bundle(run)
        store.before.extend(TenureError(code, "no room") for _ in range(1000))
        with pytest.raises(TenureError, match=code):
            await w.complete(lease, b"done", seq=1)
        with pytest.raises(TenureError, match=code):
            await w.create(plan=["a"])
        with pytest.raises(TenureError, match=code):
            await w.claims()
        store.before.clear()
        assert await w.bundle(run) == before
        assert (await w.complete(lease, b"done", seq=1)).state == "ok"
        assert await w.kinds(run) == ["create", "claim", "complete"]


@pytest.mark.guard_seconds(90)
async def test_29_the_store_survives_a_full_disk(sqlite_place: Place) -> None:
    store = SqliteStore(sqlite_place.address)
    async with World(sqlite_place, stores=[store], command_seconds=0.2) as w:
        first = await w.create(plan=["a"])
        connection = store._connection
        assert isinstance(connection, apsw.Connection)
        connection.pragma("max_page_count", connection.pragma("page_count") + 8)
        refused: Exception | None = None
        made = 0
        while refused is None and made < 200:
            (answer,) = await asyncio.gather(
                w.create(plan=["a"], input=bytes(200_000)), return_exceptions=True
            )
            if isinstance(answer, Exception):
                refused = answer
            else:
                made += 1
        assert isinstance(refused, TenureError)
        assert refused.code == "STORE_FULL"
        connection.pragma("max_page_count", 1 << 30)  # the disk has space again
        last = await w.create(plan=["a"], input=bytes(200_000))
        assert len(await w.run_ids()) == made + 2
        assert {first, last} <= set(await w.run_ids())


@pytest.mark.guard_seconds(90)
async def test_29_the_store_survives_a_database_that_becomes_read_only(postgres_dsn: str) -> None:
    place = Place("postgres", postgres_dsn)
    admin = await asyncpg.connect(postgres_dsn)
    name = await admin.fetchval("select current_database()")

    async def set_read_only(value: str) -> None:
        await admin.execute(f"alter database {name} set default_transaction_read_only = {value}")
        await admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )

    async with World(place) as w:
        run = await w.create(plan=["a"])
        lease = await w.claim()
        await set_read_only("on")
        with pytest.raises(TenureError, match="STORE_READ_ONLY"):
            await w.complete(lease, seq=1)
        await set_read_only("off")
        assert (await w.complete(lease, seq=1)).state == "ok"
        assert await w.status(run) == "succeeded"
    await admin.close()
