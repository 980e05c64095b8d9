"""Workers take only the work that they can do: by queue, workflow, version and slot."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import tenure
from tenure.sdk import Workflow
from tests.worker import flows
from tests.worker.helpers import Watched, until, watching
from tests.worker.process import WorkerProcess


def version(number: str, accepts: tuple[str, ...] = ()) -> Workflow[[str], Any]:
    """The workflow `release` in a version. It notes which code ran."""

    async def release(folder: str) -> str:
        await flows.mark(folder, "begun")
        await flows.wait_at(folder, "gate")
        return f"ended by {number}"

    return Workflow(release, name="release", version=number, accepts=accepts, lease="1s")


async def test_old_and_new_workers_each_take_the_runs_of_their_version(url: str, folder: str) -> None:
    old, new = version("1"), version("2")
    flows.open_gate(folder, "gate")
    async with watching(url) as engine, Watched(url) as one, Watched(url) as two:
        async with one.worker(old, name="old"), two.worker(new, name="new"):
            runs = [await engine.start(old if n % 2 else new, folder) for n in range(20)]
            results = [await run.result(wait=30) for run in runs]
            owners = [(await engine.leases(run.id))[0].owner for run in runs]
        assert results == ["ended by 1" if n % 2 else "ended by 2" for n in range(20)]
        assert owners == ["old" if n % 2 else "new" for n in range(20)]


async def test_a_new_worker_continues_runs_of_the_old_version_it_accepts(url: str, folder: str) -> None:
    old, new = version("1"), version("2", accepts=("1",))
    async with watching(url) as engine:
        async with Watched(url) as one:
            worker = one.worker(old, name="old")
            await worker.start()
            run = await engine.start(old, folder)
            await until(lambda: "at gate" in flows.notes(folder), "the step")
            worker.kill()
        flows.open_gate(folder, "gate")
        async with engine.worker(new, name="new"):
            await engine.see_end(run.id)
        assert [row.owner for row in await engine.leases(run.id)] == ["old", "new"]
        assert await engine.result(run.id) == "ended by 2"
        assert flows.notes(folder).count("begun") == 1


async def test_a_new_worker_does_not_touch_runs_it_does_not_accept(url: str, folder: str) -> None:
    old, new = version("1"), version("2")
    async with watching(url) as engine, engine.worker(new):
        left = await engine.start(old, folder)
        flows.open_gate(folder, "gate")
        run = await engine.start(new, folder)
        assert await run.result(wait=30) == "ended by 2"
        assert await engine.attempts(left.id) == []
        why = await engine.runs.explain(left.id)
        assert why.reason == "worker"
        assert "version 1 of workflow 'release'" in why.text


async def test_a_version_that_is_asked_for_waits_for_a_worker_that_has_it(url: str, folder: str) -> None:
    old, new = version("1"), version("2")
    flows.open_gate(folder, "gate")
    async with watching(url) as engine, engine.worker(new):
        run = await engine.submit(new, {"folder": folder}, version="1")
        other = await engine.start(new, folder)
        assert await other.result(wait=30) == "ended by 2"
        assert await engine.attempts(run.id) == []
        async with engine.worker(old):
            await engine.see_end(run.id)
        assert await engine.result(run.id) == "ended by 1"


async def test_an_upgrade_under_load_loses_nothing(tmp_path: Path, folder: str) -> None:
    """Failure 30: the new workers start while the old ones drain; every run ends once."""
    url = f"sqlite:{tmp_path / 'runs.db'}"
    async with watching(url) as engine:
        with WorkerProcess(url, "tests.worker.flows:pair") as old:
            runs = [await engine.start(flows.pair, folder, f"r{n}") for n in range(40)]
            await until(lambda: flows.notes(folder), "some work")
            with WorkerProcess(url, "tests.worker.flows:pair") as new:
                await until(lambda: "worker_started" in new.text, "the new worker")
                runs += [await engine.start(flows.pair, folder, f"r{n}") for n in range(40, 80)]
                old.signal(signal.SIGTERM)
                assert old.wait() == 0, old.text
                for run in runs:
                    await engine.see_end(run.id)
                new.signal(signal.SIGTERM)
                assert new.wait() == 0, new.text
        assert sorted(set(flows.notes(folder))) == sorted(
            f"r{n} {part}" for n in range(80) for part in ("a", "b", "c")
        )


async def test_queues_keep_work_apart(url: str, folder: str) -> None:
    async def here(folder: str) -> str:
        return await flows.mark(folder, "here")

    heavy = Workflow(here, name="heavy", queue="gpu", lease="1s")
    light = Workflow(here, name="light", lease="1s")
    async with watching(url) as engine:
        async with engine.worker(heavy, light, queues=("default",)):
            run, left = await engine.start(light, folder), await engine.start(heavy, folder)
            assert await run.result(wait=30) == "here"
            assert await engine.attempts(left.id) == []
        async with engine.worker(heavy, light, queues=("gpu",)):
            await engine.see_end(left.id)


async def test_a_worker_never_does_more_at_once_than_it_has_slots(url: str) -> None:
    now = most = 0

    @tenure.step
    async def count() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.05)
        now -= 1

    async def counted() -> None:
        await count()

    flow = Workflow(counted, name="counted", lease="1s")
    async with watching(url) as engine, engine.worker(flow, slots=3):
        runs = [await engine.start(flow) for _ in range(20)]
        for run in runs:
            await run.result(wait=30)
    assert most == 3
