"""The store is unreachable: the worker stops its own work before its leases expire, and everything recovers without help."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import apsw
import pytest

from tests.conformance.tcp_proxy import TcpProxy
from tests.worker import flows
from tests.worker.helpers import Watched, until, watching

OUTAGE_SECONDS = 4.0
"""The duration of two leases of `gated`."""


class StoreLink:
    """A connection to the database that can be cut for one engine."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._wire: TcpProxy | None = None
        self._lock: apsw.Connection | None = None

    def down(self) -> None:
        """Cut the connection: no answer comes, or (SQLite) every write blocks."""
        if self._wire is not None:
            self._wire.mute()
        else:
            self._lock = apsw.Connection(self.url.removeprefix("sqlite:"))
            self._lock.set_busy_timeout(5000)
            self._lock.execute("begin immediate")

    def up(self) -> None:
        """Restore the connection."""
        if self._wire is not None:
            self._wire.unmute()
        elif self._lock is not None:
            self._lock.execute("rollback")
            self._lock.close()
            self._lock = None


@asynccontextmanager
async def link_to(url: str) -> AsyncIterator[StoreLink]:
    """A connection that is up."""
    link = StoreLink(url)
    if url.startswith("sqlite:"):
        yield link
        link.up()
        return
    async with TcpProxy(url).serve() as wire:
        link._wire = wire
        link.url = wire.dsn
        yield link
        wire.unmute()


@pytest.mark.parametrize("code", [flows.gated, flows.gated_plainly])
async def test_a_worker_without_a_connection_stops_its_work_before_the_lease_expires_and_recovers(
    url: str, folder: str, code: flows.Gated
) -> None:
    async with link_to(url) as link, watching(url, sweep=False) as other:
        async with Watched(link.url, sweep_seconds=0.2) as engine, engine.worker(code, name="island"):
            run = await engine.start(code, folder)
            await until(lambda: "at gate" in flows.notes(folder), "the step")
            link.down()
            await until(lambda: "stopped at gate" in flows.notes(folder), "the worker to fence itself")
            (attempt,) = await other.leases(run.id)
            assert flows.noted_at(folder, "stopped at gate") < attempt.expires_at
            await asyncio.sleep(OUTAGE_SECONDS)
            link.up()
            # The worker loses the run and gets it again under the same name. There is no other worker.
            await until(lambda: flows.notes(folder).count("at gate") == 2, "the second try")
            flows.open_gate(folder, "gate")
            await other.see_end(run.id)
        assert await other.attempts(run.id) == ["stale", "succeeded"]
        assert {row.owner for row in await other.leases(run.id)} == {"island"}
        assert flows.notes(folder).count("first") == 1
        assert flows.notes(folder)[-2:] == ["past gate", "last"]


async def test_a_short_outage_costs_no_try(url: str, folder: str) -> None:
    async with link_to(url) as link, watching(url) as other:
        async with Watched(link.url) as engine, engine.worker(flows.gated):
            run = await engine.start(flows.gated, folder)
            await until(lambda: "at gate" in flows.notes(folder), "the step")
            link.down()
            await asyncio.sleep(0.8)  # a heartbeat is lost, and sent again
            link.up()
            (before,) = await other.leases(run.id)

            async def renewed() -> bool:
                return (await other.leases(run.id))[0].expires_at > before.expires_at

            await until(renewed, "the next heartbeat")
            flows.open_gate(folder, "gate")
            await other.see_end(run.id)
        assert await other.attempts(run.id) == ["succeeded"]


async def test_the_outcome_of_a_step_is_sent_when_the_store_is_back(url: str, folder: str) -> None:
    async with link_to(url) as link, watching(url) as other:
        async with Watched(link.url) as engine, engine.worker(flows.gated):
            run = await engine.start(flows.gated, folder)
            await until(lambda: "at gate" in flows.notes(folder), "the step")
            link.down()
            flows.open_gate(folder, "gate")  # the step ends, and cannot report its outcome
            await until(lambda: "past gate" in flows.notes(folder), "the end of the step")
            await asyncio.sleep(0.3)
            assert "last" not in flows.notes(folder), "the next step started before the last one was recorded"
            link.up()
            await other.see_end(run.id)
        assert flows.notes(folder)[-1] == "last"


async def test_a_worker_that_does_not_fence_itself_is_refused_and_that_is_recorded_once(
    url: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(url) as engine, Watched(url) as other:
        async with other.worker(flows.gated, name="numb", slots=1) as numb:
            # This worker neither sends heartbeats nor checks its clock.
            monkeypatch.setattr(numb._heartbeater, "track", lambda *_, **__: None)
            monkeypatch.setattr(numb._heartbeater, "held_until", lambda _: math.inf)
            run = await engine.start(flows.gated, folder)
            await until(lambda: "at gate" in flows.notes(folder), "the step")
            async with engine.worker(flows.gated, name="heir"):
                await until(lambda: flows.notes(folder).count("at gate") == 2, "the takeover")
                flows.open_gate(folder, "gate")
                await engine.see_end(run.id)
            await until(lambda: numb.counts["lost"] == 1, "its refusal")
        assert [(row.owner, row.state) for row in await engine.leases(run.id)] == [
            ("numb", "stale"),
            ("heir", "succeeded"),
        ]
        sizes = {size.table: size.rows for size in await engine.store.read("sizes")}
        assert sizes["stale_message"] == 1
        assert flows.notes(folder).count("past gate") == 2, "both attempts waited"
        assert flows.notes(folder).count("last") == 1, "only one attempt continued"
