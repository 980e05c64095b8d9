"""What user code may do to a worker: run too long, ignore cancellation, end its process, raise unusual exceptions."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

import tenure
from tests.worker import flows
from tests.worker.helpers import until, watching
from tests.worker.process import WorkerProcess


def is_alive(pid: int) -> bool:
    """Whether the process exists and has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(folder: str) -> list[int]:
    """The processes of `have_children`."""
    said = next((note for note in flows.notes(folder) if note.startswith("pids")), "")
    return [int(pid) for pid in said.split()[1:]]


# ---------------------------------------------------------------------------------------------- threads


async def test_a_thread_past_its_timeout_is_closed_and_keeps_its_slot_until_it_returns(
    url: str, folder: str
) -> None:
    async with watching(url) as engine, engine.worker(flows.too_long, flows.quick, slots=1) as worker:
        run = await engine.start(flows.too_long, folder)
        assert await run.result(wait=30) == "STEP_TIMED_OUT"
        await until(lambda: not worker.busy, "the end of its lease")
        assert (worker.stuck, worker.free) == (1, 0)
        other = await engine.start(flows.quick, folder, "other")
        await asyncio.sleep(0.3)
        assert await engine.attempts(other.id) == [], "there was no free slot for it"
        flows.open_gate(folder, "gate")
        assert await other.result(wait=30) == "other"
        assert worker.stuck == 0
        assert flows.notes(folder) == ["at gate", "past gate, told to stop: True", "other"]


async def test_a_retry_does_not_wait_for_the_thread_it_replaces(url: str, folder: str) -> None:
    async with watching(url) as engine, engine.worker(flows.second_try, slots=1) as worker:
        run = await engine.start(flows.second_try, folder)
        assert await run.result(wait=30) == 2
        assert flows.notes(folder) == ["try 1", "try 2"]
        flows.open_gate(folder, "gate")
        await until(lambda: worker.stuck == 0, "the first try to return")


async def test_a_plain_step_that_waits_for_a_thread_never_begins_once_it_has_timed_out(folder: str) -> None:
    async with watching(f"sqlite:{folder}/runs.db") as engine, engine.worker(flows.queueing, slots=1):
        run = await engine.start(flows.queueing, folder)
        assert sorted(await run.result(wait=30)) == ["STEP_TIMED_OUT", "first"]
        flows.open_gate(folder, "gate")
        await asyncio.sleep(0.2)
        assert [note for note in flows.notes(folder) if note.startswith("begun")] == ["begun first"]


async def test_many_plain_workflows_do_not_wait_for_each_others_threads(url: str, folder: str) -> None:
    async with watching(url) as engine, engine.worker(flows.gated_plainly, slots=40):
        runs = [await engine.start(flows.gated_plainly, folder) for _ in range(40)]
        await until(lambda: flows.notes(folder).count("at gate") == 40, "all of them at once")
        flows.open_gate(folder, "gate")
        assert [await run.result(wait=30) for run in runs] == ["done"] * 40


# ------------------------------------------------------------------------------- code that ignores cancellation


async def test_async_code_that_swallows_its_cancellation_is_abandoned_like_a_thread(
    url: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.sdk.attempts.STOP_SECONDS", 0.3)
    async with watching(url) as engine, engine.worker(flows.deaf, slots=1) as worker:
        run = await engine.start(flows.deaf, folder)
        assert await run.result(wait=30) == "STEP_TIMED_OUT"
        assert worker.stuck == 1
        flows.open_gate(folder, "deaf")
        await until(lambda: worker.stuck == 0, "its end")
        assert flows.notes(folder) == ["at deaf", "deaf at deaf", "past deaf"]


async def test_work_that_does_not_stop_is_given_back_when_its_worker_ends(
    url: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.worker.STOP_SECONDS", 0.3)
    async with watching(url) as engine:
        worker = engine.worker(flows.deaf_for_good)
        await worker.start()
        run = await engine.start(flows.deaf_for_good, folder)
        await until(lambda: "at deaf" in flows.notes(folder), "the step")
        await worker.stop(grace=0.1)
        assert await engine.attempts(run.id) == ["released"]
        assert worker.stuck == 1
        flows.open_gate(folder, "deaf")
        await until(lambda: worker.stuck == 0, "its end")
        assert "after" not in flows.notes(folder), "it continued without a lease"
        async with engine.worker(flows.deaf_for_good):
            await engine.see_end(run.id)
        assert flows.notes(folder)[-1] == "after"


async def test_whatever_code_raises_fails_only_its_own_step(url: str, folder: str) -> None:
    async with watching(url) as engine, engine.worker(flows.raising, flows.raising_itself):
        run = await engine.start(flows.raising)
        told = await run.result(wait=30)
        assert [text.partition(" (flows.py")[0] for text in told] == [
            "SystemExit: 3",
            "SystemExit: 4",
            "KeyboardInterrupt",
            "StopIteration: 5",
            "CancelledError",
            "step 'cancel_itself_slowly' canceled itself",
            "Unspeakable: (its str() failed)",
            "?",
            "UnicodeError: a lone \udc80".encode(errors="replace").decode(),
        ]
        for how in ("exit", "cancel", "stop"):
            run = await engine.start(flows.raising_itself, how)
            await engine.see_end(run.id, "failed")
            assert await engine.attempts(run.id) == ["failed"], "its worker took this for a cancellation"


async def test_a_failure_with_an_invalid_code_is_still_a_failure(url: str) -> None:
    async with watching(url) as engine, engine.worker(flows.miscoded):
        run = await engine.start(flows.miscoded)
        await engine.see_end(run.id, "failed")
        assert (await engine.get(run.id)).reason == "STEP_FAILED"


# ---------------------------------------------------------------------------------- isolated processes


async def test_a_process_that_vanishes_or_crashes_fails_its_step_only(url: str) -> None:
    async with watching(url) as engine, engine.worker(flows.crashing):
        run = await engine.start(flows.crashing)
        assert await run.result(wait=30) == [
            "the process of step 'vanish' ended with exit code 3",
            f"the process of step 'segfault' was ended by signal {int(signal.SIGSEGV)}",
        ]
        assert await engine.attempts(run.id) == ["succeeded"]


@pytest.mark.parametrize("profile", ["tenure", "git-with-intent"])
async def test_a_process_killed_for_its_memory_fails_its_try_and_is_tried_again(
    url: str, folder: str, profile: str
) -> None:
    async with watching(url) as engine, engine.worker(flows.hungry):
        run = await engine.submit(flows.hungry, {"folder": folder}, profile=profile)
        assert await run.result(wait=30) == 3
        assert flows.notes(folder) == ["try 1", "try 2", "try 3"]


async def test_a_process_past_its_timeout_is_killed_with_its_children(url: str, folder: str) -> None:
    async with watching(url) as engine, engine.worker(flows.parent_too_long) as worker:
        run = await engine.start(flows.parent_too_long, folder)
        assert await run.result(wait=30) == "STEP_TIMED_OUT"
        await until(lambda: not any(map(is_alive, pids(folder))), "both to be gone")
        assert worker.stuck == 0


async def test_a_process_whose_run_is_canceled_is_killed_with_its_children(url: str, folder: str) -> None:
    async with watching(url) as engine, engine.worker(flows.parent):
        run = await engine.start(flows.parent, folder)
        await until(lambda: pids(folder), "its processes")
        await run.cancel()
        await engine.see_end(run.id, "canceled")
        await until(lambda: not any(map(is_alive, pids(folder))), "both to be gone")


async def test_a_process_ends_with_the_worker_that_is_killed(url: str, folder: str) -> None:
    async with watching(url) as engine:
        run = await engine.start(flows.parent, folder)
        with WorkerProcess(url) as worker:
            await until(lambda: pids(folder), "its processes")
            worker.signal(signal.SIGKILL)
            await until(lambda: not any(map(is_alive, pids(folder))), "both to be gone")
        await engine.cancel(run.id)
        await engine.see_end(run.id, "canceled")


async def test_an_isolated_process_reports_progress(url: str, folder: str) -> None:
    async with watching(url) as engine, engine.worker(flows.talkative):
        run = await engine.start(flows.talkative, folder)

        async def progress_is_shown() -> bool:
            return "half way" in (await engine.runs.explain(run.id)).text

        await until(progress_is_shown, "the progress")
        flows.open_gate(folder, "gate")
        assert await run.result(wait=30) == f"{run.id}/talk"


async def test_a_step_that_is_not_in_a_module_cannot_be_isolated_and_says_so(url: str) -> None:
    @tenure.step(isolate="process", retries=0)
    def local() -> int:
        return os.getpid()

    @tenure.workflow
    async def isolating_a_local() -> None:
        await local()

    async with watching(url) as engine, engine.worker(isolating_a_local):
        run = await engine.start(isolating_a_local)
        with pytest.raises(tenure.TenureError, match="define it in a module"):
            await run.result(wait=30)
