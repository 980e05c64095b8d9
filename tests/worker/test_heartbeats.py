"""Leases are kept: code that blocks the work does not block its heartbeats."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tenure.declared import load_workflow
from tenure.orchestrator import heartbeats
from tenure.store.postgres import PostgresStore
from tenure.store.sqlite import SqliteStore
from tenure.worker import heartbeat
from tests.worker import flows
from tests.worker.helpers import Watched, until, watching


async def test_a_step_that_blocks_the_loop_for_four_leases_is_not_reclaimed(url: str, folder: str) -> None:
    async with watching(url) as other, Watched(url) as engine, engine.worker(flows.blocking):
        run = await engine.start(flows.blocking, folder, 4.0)
        assert await run.result(wait=30) == "done"
        assert await other.attempts(run.id) == ["succeeded"]
        assert flows.notes(folder) == ["blocking", "last"]


async def test_two_heartbeats_lost_in_a_row_cost_nothing(
    url: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = 0

    def lossy(messages: list[Any]) -> Any:
        nonlocal sent
        sent += bool(messages)
        if messages and sent % 3:
            raise ConnectionError("lost on the way")
        return heartbeats.extend_leases(messages)

    monkeypatch.setattr(heartbeat, "extend_leases", lossy)
    async with watching(url) as engine, engine.worker(flows.gated):
        run = await engine.start(flows.gated, folder)
        await until(lambda: sent >= 9, "nine heartbeats, of which three arrive")
        flows.open_gate(folder, "gate")
        assert await run.result(wait=30) == "done"
        assert await engine.attempts(run.id) == ["succeeded"]


@asynccontextmanager
async def every_connection_in_use(store: Any) -> AsyncIterator[None]:
    """Take all connections that a store has for its users."""
    async with AsyncExitStack() as stack:
        if isinstance(store, SqliteStore):
            await stack.enter_async_context(store._turn)
        else:
            assert isinstance(store, PostgresStore)
            for link in (*store._lanes.values(), *store._readers):
                await stack.enter_async_context(link.turn)
        yield


async def test_handlers_that_hold_every_connection_do_not_hold_up_heartbeats(url: str, folder: str) -> None:
    async with watching(url) as other, Watched(url, sweep=False) as engine, engine.worker(flows.gated):
        run = await engine.start(flows.gated, folder)
        await until(lambda: "at gate" in flows.notes(folder), "the step")
        (first,) = await other.leases(run.id)

        async def renewed_beyond_the_first_lease() -> bool:
            (now,) = await other.leases(run.id)
            return now.expires_at > first.expires_at + 4_000_000

        async with every_connection_in_use(engine.store):
            await until(renewed_beyond_the_first_lease, "two leases' time")
        flows.open_gate(folder, "gate")
        assert await run.result(wait=30) == "done"
        assert await other.attempts(run.id) == ["succeeded"]


async def test_progress_is_shown_by_why(url: str, folder: str) -> None:
    async with watching(url) as other, Watched(url) as engine, engine.worker(flows.telling):
        run = await engine.start(flows.telling, folder)

        async def progress_is_shown() -> bool:
            return "2 of 3 pages" in (await other.runs.explain(run.id)).text

        await until(progress_is_shown, "the progress")
        assert [row.progress for row in await other.leases(run.id)] == ["2 of 3 pages"]
        flows.open_gate(folder, "gate")
        assert await run.result(wait=30) == "told"


async def test_a_step_with_heartbeats_and_no_progress_is_stopped(url: str, folder: str) -> None:
    async with watching(url) as engine, engine.worker(flows.stalling):
        run = await engine.start(flows.stalling, folder)
        assert await run.result(wait=30) == "STEP_STALLED"
        assert flows.notes(folder) == ["page 1", "page 2", "page 3", "stopped"]
        assert await engine.attempts(run.id) == ["succeeded"]


async def test_a_thread_that_shows_no_progress_is_given_up_too(url: str, folder: str) -> None:
    async with watching(url) as engine, engine.worker(flows.stalling_plainly):
        run = await engine.start(flows.stalling_plainly, folder)
        assert await run.result(wait=30) == "STEP_STALLED"
        await until(lambda: "told to stop" in flows.notes(folder), "the thread to notice")


async def test_a_tool_that_shows_no_progress_fails_its_step(url: str) -> None:
    text = "name: stalls\nsteps:\n  - id: a\n    uses: tests.stall\n    retry: {max: 0}\n"
    async with watching(url) as engine, engine.worker(flows.stall):
        run = await engine.submit(load_workflow(text))
        await engine.see_end(run.id, "failed")
        assert (await engine.get(run.id)).reason == "STEP_STALLED"
