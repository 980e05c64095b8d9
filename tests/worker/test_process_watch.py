"""A worker whose death is proven loses its leases immediately. Without a proof, a lease runs out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tenure import processes
from tenure.clock import us
from tenure.kernel.commands import Context, ExpireDeadLease
from tenure.kernel.registry_rows import WorkerProcessRow
from tenure.limits import HOLDER_SILENT_SECONDS
from tenure.orchestrator.process_watch import ProcessWatch
from tenure.processes import ProcessIdentity, is_gone, own_identity
from tenure.store.workers import register_worker
from tests.worker import drain_flows as flows
from tests.worker.flows import notes, open_gate
from tests.worker.helpers import Watched, until, watching
from tests.worker.process import WorkerProcess as Process

Sleeper = tuple[subprocess.Popen[bytes], ProcessIdentity]

ME = own_identity()
pytestmark = pytest.mark.skipif(ME is None, reason="no /proc: deaths cannot be proven here")


def me() -> ProcessIdentity:
    """This process."""
    assert ME is not None
    return ME


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """A process that does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    ticks = processes._stat(process.pid).start_ticks
    yield process, replace(me(), pid=process.pid, start_ticks=ticks)
    process.kill()
    process.wait()


# -------------------------------------------------------------------------------------------- the proof


def test_a_killed_process_counts_as_dead_before_its_parent_waits_for_it(
    sleeper: Sleeper,
) -> None:
    process, identity = sleeper
    assert not is_gone(identity, me())
    process.send_signal(signal.SIGSTOP)
    assert not is_gone(identity, me()), "a stopped process is alive"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    assert is_gone(identity, me())
    process.wait()
    assert is_gone(identity, me())


def test_a_reused_pid_proves_the_death_of_the_process() -> None:
    assert not is_gone(me(), me())
    assert is_gone(replace(me(), start_ticks=me().start_ticks - 1), me())


@pytest.mark.parametrize(
    "elsewhere",
    [{"boot_id": "another"}, {"namespaces": "pid:[1] time:[1]"}, {"pid": 0}, {"pid": -1}, {"pid": 1 << 40}],
    ids=str,
)
def test_nothing_is_proven_about_another_host_or_container(
    sleeper: Sleeper, elsewhere: dict[str, object]
) -> None:
    process, identity = sleeper
    process.kill()
    process.wait()
    assert not is_gone(replace(identity, **elsewhere), me())


def test_a_process_whose_state_is_hidden_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(_pid: int) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(processes, "_stat", hidden)
    assert not is_gone(replace(me(), start_ticks=1), me())


def test_a_process_in_another_pid_namespace_has_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1 << 21)
    assert own_identity() is None


# ------------------------------------------------------------------------------------------ effects of a proof


async def test_the_run_of_a_killed_worker_is_taken_over_before_its_lease_expires(
    url: str, folder: str
) -> None:
    async with watching(url) as engine:
        run = await engine.start(flows.patient, folder)
        with Process(url, "tests.worker.drain_flows") as worker:
            await until(lambda: "at gate" in notes(folder), "the step")
            async with engine.worker(flows.patient, name="heir"):
                worker.signal(signal.SIGKILL)
                await until(lambda: notes(folder).count("at gate") == 2, "the heir")
                open_gate(folder, "gate")
                await engine.see_end(run.id)
        first, second = await engine.leases(run.id)
        assert (first.state, second.state, second.owner) == ("stale", "succeeded", "heir")
        assert first.ended_at is not None
        assert first.ended_at < first.expires_at, "it ended only when it ran out"
        (event,) = [e for e in await engine.runs.events(run.id) if e.kind == "lease_expired"]
        assert event.cause.startswith(f"process is gone: pid {worker.process.pid}, ")
        assert (await engine.step(run.id)).attempt == 2
        await ProcessWatch(engine.orchestrator).look()
        assert worker.process.pid not in {row.pid for row in await local_workers(engine)}, (
            "the row of the dead worker was not removed"
        )


async def local_workers(engine: Watched) -> list[WorkerProcessRow]:
    """The workers of this host."""
    rows: list[WorkerProcessRow] = await engine.store.read(
        "worker_processes_at", me().boot_id, me().namespaces
    )
    return rows


async def test_a_worker_with_the_name_of_a_dead_one_keeps_its_leases(
    url: str, folder: str, tmp_path: Path
) -> None:
    other = str(tmp_path / "other")
    os.mkdir(other)
    async with watching(url) as engine:
        run = await engine.start(flows.patient, folder)
        with Process(url, "tests.worker.drain_flows", name="same", slots=1) as worker:
            await until(lambda: "at gate" in notes(folder), "the step")
            async with engine.worker(flows.patient, name="same"):
                mine = await engine.start(flows.patient, other)
                await until(lambda: "at gate" in notes(other), "the other step")
                worker.signal(signal.SIGKILL)
                await until(lambda: notes(folder).count("at gate") == 2, "the worker with the same name")
                open_gate(folder, "gate")
                open_gate(other, "gate")
                await engine.see_end(run.id)
                await engine.see_end(mine.id)
        assert await engine.attempts(run.id) == ["stale", "succeeded"]
        assert await engine.attempts(mine.id) == ["succeeded"]


async def test_an_ended_worker_in_a_live_process_proves_nothing(url: str, folder: str) -> None:
    async with watching(url, sweep=False) as engine, Watched(url, sweep=False) as other:
        run = await engine.start(flows.patient, folder)
        worker = other.worker(flows.patient)
        await worker.start()
        await until(lambda: "at gate" in notes(folder), "the step")
        worker.kill()
        engine.store.shift_clock(us(HOLDER_SILENT_SECONDS + 1))
        assert await ProcessWatch(engine.orchestrator).look() == 0
        assert await engine.attempts(run.id) == ["running"]
        await engine.cancel(run.id)


async def register_dead_worker(engine: Watched, sleeper: Sleeper) -> None:
    """Register the worker `gone`, whose session is 77 and whose process has ended."""
    process, dead = sleeper
    process.kill()
    process.wait()
    row = WorkerProcessRow(77, "", "gone", dead.boot_id, dead.namespaces, dead.pid, dead.start_ticks)
    await register_worker(engine.store, "gone", ["default"], 1, "", row)


async def test_a_proof_counts_for_its_own_lease_and_not_after_a_heartbeat(
    url: str, folder: str, sleeper: Sleeper
) -> None:
    async with watching(url, sweep=False) as engine:
        await register_dead_worker(engine, sleeper)
        run = await engine.start(flows.patient, folder)
        queues = flows.patient.serves
        (lease,) = await engine.orchestrator.claim("gone", queues=queues, session=77)
        watch = ProcessWatch(engine.orchestrator)
        assert await watch.look() == 1
        assert await engine.attempts(run.id) == ["running"], "its last heartbeat is too recent"
        engine.store.shift_clock(us(HOLDER_SILENT_SECONDS))
        context = Context("test", "system", "proof")
        expire = ExpireDeadLease(context=context, run_id=lease.run_id, idx=lease.idx, n=lease.n, session=78)
        assert await engine.orchestrator.send(expire) is False, "another session"
        assert await watch.look() == 1
        assert await engine.attempts(run.id) == ["stale"]
        assert (await engine.step(run.id)).charged == 1, "a lost attempt is charged"
        await engine.orchestrator.claim("next", queues=queues, session=78)
        late = replace(expire, session=77)
        assert await engine.orchestrator.send(late) is False, "an older fence"
        assert await engine.attempts(run.id) == ["stale", "running"]
        await engine.cancel(run.id)


async def test_a_dead_holder_of_a_step_that_is_being_canceled_ends_it(
    url: str, folder: str, sleeper: Sleeper
) -> None:
    async with watching(url, sweep=False) as engine:
        await register_dead_worker(engine, sleeper)
        run = await engine.start(flows.patient, folder)
        await engine.orchestrator.claim("gone", queues=flows.patient.serves, session=77)
        assert await engine.cancel(run.id) == "canceling"
        engine.store.shift_clock(us(HOLDER_SILENT_SECONDS))
        await ProcessWatch(engine.orchestrator).look()
        await engine.see_end(run.id, "canceled")


async def test_a_worker_that_stops_cleanly_leaves_no_process_row(url: str) -> None:
    async with watching(url) as engine:
        async with engine.worker(flows.patient):
            assert [row.pid for row in await local_workers(engine)] == [me().pid]
        assert await local_workers(engine) == []


async def test_a_session_counts_for_its_own_tenant_only(url: str, folder: str) -> None:
    async with watching(url, sweep=False) as engine:
        own = WorkerProcessRow(77, "", "own", me().boot_id, me().namespaces, me().pid, me().start_ticks)
        await register_worker(engine.store, "own", ["default"], 1, "", own)
        stolen = replace(own, tenant="acme", pid=1, start_ticks=1)
        await register_worker(engine.store, "@acme/thief", ["default"], 1, "", stolen)
        assert [(row.tenant, row.pid) for row in await local_workers(engine)] == [("", me().pid)]
        run = await engine.start(flows.patient, folder)
        await engine.orchestrator.claim("own", queues=flows.patient.serves, session=77)
        assert await engine.store.read("leases_of_session", 77, "acme") == []
        assert len(await engine.store.read("leases_of_session", 77, "default")) == 1
        await engine.cancel(run.id)
