"""A dead server leaves requests in process. A retry takes over 45 seconds after the server's last heartbeat."""

from __future__ import annotations

from tenure.clock import us
from tenure.engine import Engine
from tenure.kernel.registry_rows import SERVER_MARK, WorkerRow
from tenure.limits import IDEMPOTENCY_LOCK_SECONDS, WORKER_SILENT_SECONDS
from tenure.store.idempotency import HeldRecord, IdempotencyRecords, KeyedRequest
from tenure.store.workers import register_worker
from tests.server.stage import ACME, Site, site

DEAD = f"{SERVER_MARK}gone-1"
WANTED = KeyedRequest(tenant=ACME, source="api", name="api:c:k", hash=b"h" * 32)


async def begin_request(s: Site, holder: str | None) -> HeldRecord:
    """Begin a request as a server that then dies."""
    held = await IdempotencyRecords(s.engine.store, holder).begin(WANTED)
    assert isinstance(held, HeldRecord)
    return held


async def listed_workers(s: Site) -> list[WorkerRow]:
    return await s.engine.store.read("workers_seen_since", 0)


async def test_the_lock_of_a_silent_server_counts_as_expired(url: str) -> None:
    async with site(url) as s:
        await register_worker(s.engine.store, DEAD, (), 1, "1")
        held = await begin_request(s, DEAD)
        assert held.record.holder == DEAD
        s.engine.store.shift_clock(us(WORKER_SILENT_SECONDS - 5))
        still = await s.service.keys.begin(WANTED)
        assert not isinstance(still, HeldRecord), "the server may only be slow"
        s.engine.store.shift_clock(us(WORKER_SILENT_SECONDS + 5))
        await s.service.beat()
        taken = await s.service.keys.begin(WANTED)
        assert isinstance(taken, HeldRecord)
        assert (taken.record.holder, taken.record.attempts) == (s.service.name, 2)
        # A late answer of the dead server changes nothing.
        await IdempotencyRecords(s.engine.store, DEAD).complete(held, WANTED, b"late", None)
        found = await s.service.keys.find(*WANTED.key)
        assert found == taken.record
        await s.service.keys.complete(taken, WANTED, b"200\n{}", None)
        done = await s.service.keys.find(*WANTED.key)
        assert done is not None
        assert (done.status, done.holder) == ("completed", None)


async def test_a_live_server_keeps_its_lock_until_it_expires(url: str) -> None:
    async with site(url) as s:
        await register_worker(s.engine.store, DEAD, (), 1, "1")
        await begin_request(s, DEAD)
        for seconds in range(40, round(IDEMPOTENCY_LOCK_SECONDS), 40):
            s.engine.store.shift_clock(us(seconds))
            assert not isinstance(await s.service.keys.begin(WANTED), HeldRecord)
            await register_worker(s.engine.store, DEAD, (), 1, "1")
        s.engine.store.shift_clock(us(IDEMPOTENCY_LOCK_SECONDS + 1))
        await register_worker(s.engine.store, DEAD, (), 1, "1")
        assert isinstance(await s.service.keys.begin(WANTED), HeldRecord)


async def test_another_request_under_the_key_of_a_silent_server_is_refused(url: str) -> None:
    async with site(url) as s:
        await begin_request(s, DEAD)  # without a worker row: the server has stopped, or its row was deleted
        other = KeyedRequest(tenant=ACME, source="api", name=WANTED.name, hash=b"o" * 32)
        assert not isinstance(await s.service.keys.begin(other), HeldRecord)
        assert isinstance(await s.service.keys.begin(WANTED), HeldRecord)


async def test_a_process_that_sends_no_heartbeats_keeps_its_lock(url: str) -> None:
    async with site(url) as s:
        await begin_request(s, None)
        s.engine.store.shift_clock(us(IDEMPOTENCY_LOCK_SECONDS - 10))
        assert not isinstance(await s.service.keys.begin(WANTED), HeldRecord)


async def test_a_server_registers_at_the_start_and_unregisters_at_the_end(url: str) -> None:
    async with site(url) as s:
        name = s.service.name
        (mine,) = [row for row in await listed_workers(s) if row.name == name]
        assert mine.queues == "[]"
        assert mine.for_tenant(ACME) is None, "a server works for no tenant"
    async with Engine(url, sweep=False) as engine:
        assert name not in {row.name for row in await engine.store.read("workers_seen_since", 0)}
