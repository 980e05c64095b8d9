"""Git With Intent, 5.1 and 5.4, with real processes: a crash, a partition or an out-of-memory kill orphans a run. The run
continues from its checkpoint or fails with RUN_ORPHANED."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tests.conformance.tcp_proxy import TcpProxy
from tests.worker import flows
from tests.worker.helpers import Watched, until, watching
from tests.worker.process import WorkerProcess

DISASTERS = ("crash", "partition", "out of memory")


class StruckWorker:
    """A worker that a disaster can hit."""

    def __init__(self, worker: WorkerProcess, folder: str, wire: TcpProxy | None) -> None:
        self._worker = worker
        self._folder = folder
        self._wire = wire

    def strike(self, disaster: str) -> None:
        """Let the disaster happen."""
        if disaster == "crash":
            self._worker.signal(signal.SIGKILL)
        elif disaster == "out of memory":
            flows.open_gate(
                self._folder, "memory is short"
            )  # the process is killed in the middle of its step
        elif self._wire is not None:
            self._wire.mute()
        else:  # a file has no network to cut, so pause the process instead
            self._worker.signal(signal.SIGSTOP)

    def heal(self, disaster: str) -> None:
        """End a partition. The other disasters cannot be undone."""
        if disaster != "partition":
            return
        if self._wire is not None:
            self._wire.unmute()
        else:
            self._worker.signal(signal.SIGCONT)


@asynccontextmanager
async def struck_worker(url: str, folder: str) -> AsyncIterator[StruckWorker]:
    """Run a worker process, on PostgreSQL behind its own proxy."""
    if url.startswith("sqlite:"):
        with WorkerProcess(url, name="island") as worker:
            yield StruckWorker(worker, folder, None)
        return
    async with TcpProxy(url).serve() as wire:
        with WorkerProcess(wire.dsn, name="island") as worker:
            yield StruckWorker(worker, folder, wire)


async def orphaned(engine: Watched, run_id: str) -> bool:
    """Whether the history has an expired lease."""
    return any(event.kind == "lease_expired" for event in await engine.runs.events(run_id))


@pytest.mark.clause("GWI-16", "GWI-19")
@pytest.mark.parametrize("disaster", DISASTERS)
async def test_an_orphaned_run_continues_from_its_checkpoint(url: str, folder: str, disaster: str) -> None:
    async with watching(url) as engine, struck_worker(url, folder) as owner:
        run = await engine.start(flows.intent, folder)
        await until(lambda: "at gate" in flows.notes(folder), "the step")
        owner.strike(disaster)
        await until(partial(orphaned, engine, run.id), "the run to be orphaned")
        assert (await engine.step(run.id)).state == "ready"
        async with engine.worker(flows.intent, name="mainland"):
            await until(lambda: flows.notes(folder).count("at gate") == 2, "the second try")
            owner.heal(disaster)
            flows.open_gate(folder, "gate")
            await engine.see_end(run.id)
        assert [(row.owner, row.state) for row in await engine.leases(run.id)] == [
            ("island", "stale"),
            ("mainland", "succeeded"),
        ]
        assert flows.notes(folder).count("first") == 1, "the checkpoint was not used"
        assert flows.notes(folder).count("last") == 1


@pytest.mark.clause("GWI-16", "GWI-19")
@pytest.mark.parametrize("disaster", DISASTERS)
async def test_an_orphaned_run_without_a_checkpoint_fails_with_the_orphan_error(
    url: str, folder: str, disaster: str
) -> None:
    async with watching(url) as engine, struck_worker(url, folder) as owner:
        run = await engine.start(flows.intent_without_checkpoint, folder)
        await until(lambda: "at gate" in flows.notes(folder), "the step")
        owner.strike(disaster)
        await engine.see_end(run.id, "failed")
        assert (await engine.get(run.id)).reason == "RUN_ORPHANED"
        before = await engine.runs.events(run.id)
        owner.heal(disaster)
        flows.open_gate(folder, "gate")  # if the old owner is still alive, its messages are refused
        other = await engine.start(flows.quick, folder, "alive")
        async with engine.worker(flows.quick):
            await engine.see_end(other.id)
        assert await engine.attempts(run.id) == ["stale"]
        assert await engine.runs.events(run.id) == before


@pytest.mark.clause("GWI-16")
async def test_a_restart_does_not_change_a_run_that_waits_for_a_person(url: str, folder: str) -> None:
    async with watching(url) as engine:
        run = await engine.start(flows.intent_asking, folder)

        async def asks() -> bool:
            return (await engine.get(run.id)).status == "waiting_approval"

        with WorkerProcess(url) as worker:
            await until(asks, "the question")
            worker.signal(signal.SIGKILL)
            worker.restart()
            await until(lambda: "worker_started" in worker.text, "the restart")
            before = await engine.runs.events(run.id)
            other = await engine.start(flows.quick, folder, "alive")
            await engine.see_end(other.id)
            assert await asks()
            assert await engine.runs.events(run.id) == before
            await engine.approve(run.id, approver="user:ann")
            await engine.see_end(run.id)
        assert flows.notes(folder) == ["first", "alive", "last"]


@pytest.mark.clause("GWI-17", "GWI-18")
async def test_after_a_kill_steps_are_skipped_or_repeated_and_their_checkpoints_have_all_fields(
    url: str, folder: str
) -> None:
    async with watching(url) as engine, struck_worker(url, folder) as owner:
        run = await engine.start(flows.intent_resuming, folder, False)
        await until(lambda: "at gate" in flows.notes(folder), "the step")
        owner.strike("crash")
        with WorkerProcess(url, name="mainland"):
            await until(lambda: flows.notes(folder).count("at gate") == 2, "the second try")
            flows.open_gate(folder, "gate")
            await engine.see_end(run.id)
        assert await run.result() == "patch 7 1 tested", "the cached output of the first try was used"
        assert flows.notes(folder).count("generated") == 1, "a resumable step is skipped"
        assert flows.notes(folder).count("tested") == 2, "an idempotent step is replayed"
        found = await engine.runs.document(run.id, "git-with-intent", "checkpoints")
        first, second = [one for one in found if one.agent in ("coder", "tester")]
        assert (first.step_id, first.agent, first.status) == ("generate", "coder", "completed")
        assert (first.input, first.output, first.error) == ({"args": [folder, 7]}, "patch 7 1", None)
        assert (first.resumable, first.idempotent) == (True, True)
        assert (second.resumable, second.idempotent) == (False, True)
        assert first.tokens_used is not None
        assert (first.tokens_used.input, first.tokens_used.output) == (1200, 340)
        assert first.duration_ms is not None
        assert first.timestamp <= second.timestamp


@pytest.mark.clause("GWI-18")
async def test_after_a_kill_a_step_that_can_be_neither_skipped_nor_repeated_fails_the_run(
    url: str, folder: str
) -> None:
    async with watching(url) as engine, struck_worker(url, folder) as owner:
        run = await engine.start(flows.intent_resuming, folder, True)
        await until(lambda: "at gate" in flows.notes(folder), "the step")
        owner.strike("crash")
        with WorkerProcess(url, name="mainland"):
            await engine.see_end(run.id, "failed")
        assert (await engine.get(run.id)).reason == "RUN_RESUME_FAILED"
        assert flows.notes(folder).count("published") == 1
