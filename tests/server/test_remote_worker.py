"""The SDK's worker with a server: it can do everything over HTTP that it does with a database."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tenure.declared import load_workflow
from tenure.engine import Engine
from tenure.ids import run_int
from tenure.worker import Worker
from tenure.worker.remote_source import RemoteWorkSource
from tests.server import remote_flows as flows
from tests.server.cutting_proxy import cutting
from tests.server.stage import Site, site
from tests.worker.flows import notes, open_gate
from tests.worker.helpers import until


@asynccontextmanager
async def remote_worker(s: Site, *served: Any, address: str = "", **how: Any) -> AsyncIterator[Worker]:
    """A worker of the tenant acme, over HTTP."""
    async with (
        RemoteWorkSource(address or s.address, await s.key("runner")) as work_source,
        Worker(
            work_source, *(served or (flows.remote_whole, flows.remote_child, flows.remote_heavy)), **how
        ) as worker,
    ):
        yield worker


def acme(s: Site) -> Engine:
    """The engine as the tenant sees it."""
    return s.engine.scoped(tenant="acme")


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for large payloads."""
    monkeypatch.setenv("TENURE_ARTIFACTS", str(tmp_path / "artifacts"))


async def test_a_remote_worker_runs_a_workflow_with_every_primitive(url: str, tmp_path: Path) -> None:
    folder = str(tmp_path)
    async with site(url) as s, remote_worker(s):
        run = await acme(s).start(flows.remote_whole, folder)

        async def asked() -> bool:
            return bool(await acme(s).approvals.list(run.id))

        await until(asked, "the question")
        await acme(s).approve(run.id, approver="person:ann", reason="looks good")
        result = await run.result(wait=30)
        assert result == {"numbers": [2, 4, 6], "child": 24, "reason": "looks good"}
        assert notes(folder) == ["before the question", "after the question"]

        async def logged() -> bool:
            lines = await s.engine.store.read("log_lines_of", run_int(run.id), 0, 10)
            return {(line.text, line.fields) for line in lines} == {("numbers are there", '{"count":3}')}

        await until(logged, "the line of the log")


async def test_large_payloads_are_uploaded_and_downloaded(url: str) -> None:
    async with site(url) as s, remote_worker(s):
        run = await acme(s).start(flows.remote_heavy, 300_000)
        assert await run.result(wait=30) == 600_000


async def test_tools_run_the_steps_of_a_plan(url: str) -> None:
    async with site(url) as s, remote_worker(s, flows.nothing, flows.add):
        plan: list[dict[str, Any]] = [
            {"name": "first", "tool": "tests.add", "input": {"left": 1, "right": 2}},
            {"name": "second", "tool": "tests.nothing"},
            {"name": "third", "tool": "tests.add", "input": {"left": 5}},
        ]
        run = await acme(s).create("plan", plan)
        await acme(s).result(run, wait=30)
        seen = {step.name: step.output for step in await acme(s).runs.steps(run)}
        assert seen == {"first": 3, "second": None, "third": 5}


async def test_a_rejected_message_affects_no_other(url: str) -> None:
    async with site(url) as s:
        plan: list[dict[str, Any]] = [
            {"name": f"sum{n}", "tool": "tests.add", "input": {"left": n}, "needs": []} for n in range(6)
        ]
        plan.insert(3, {"name": "deep", "tool": "tests.deep", "retries": 0, "needs": []})
        run = await acme(s).create("plan", plan)
        async with remote_worker(s, flows.add, flows.deep) as worker:
            await until(
                lambda: (worker.counts["failed"], worker.counts["succeeded"]) == (1, 6), "every step's end"
            )
        assert (await acme(s).get(run)).status == "failed"


async def test_a_remote_run_can_restart(url: str) -> None:
    async with site(url) as s, remote_worker(s, flows.remote_restarting):
        run = await acme(s).start(flows.remote_restarting, 2)
        assert await run.result(wait=30) == "at last"


FILE = """
name: sums
version: "1"
inputs:
  start: {type: integer}
steps:
  - id: first
    uses: tests.add
    with: {left: "${{ inputs.start }}", right: 1}
  - id: told
    run: [sh, -c, 'echo sum $SUM']
    env: {SUM: "${{ steps.first.output }}"}
  - id: second
    uses: tests.add
    with: {left: "${{ steps.first.output }}", right: 10}
"""


async def test_the_steps_of_a_workflow_file_get_the_outputs_of_earlier_steps(url: str) -> None:
    async with site(url) as s, remote_worker(s, flows.add, commands=True):
        run = await acme(s).submit(load_workflow(FILE), {"start": 4})
        await run.result(wait=30)
        seen = {step.name: step.output for step in await acme(s).runs.steps(run.id)}
        assert (seen["first"], seen["second"]) == (5, 15)
        assert "sum 5" in str(seen["told"])


async def test_a_remote_worker_acknowledges_a_cancel(url: str, tmp_path: Path) -> None:
    folder = str(tmp_path)
    async with site(url) as s, remote_worker(s, flows.remote_gated) as worker:
        run = await acme(s).start(flows.remote_gated, folder)
        await until(lambda: flows.pids(folder), "the gate")
        await acme(s).cancel(run.id)
        await until(lambda: worker.counts["canceled"] == 1, "the acknowledgement")
        assert (await acme(s).get(run.id)).status == "canceled"


# --------------------------------------------------------------------------------------- worker processes

ROOT = Path(__file__).parents[2]


def worker_process(s: Site, key_file: Path, **environment: str) -> subprocess.Popen[bytes]:
    """`tenure worker --server`."""
    command = [sys.executable, "-m", "tenure.cli", "worker", "tests.server.remote_flows"]
    command += ["--server", s.address, "--key-file", str(key_file), "--grace", "1s"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path, **environment},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


@asynccontextmanager
async def process(s: Site, tmp_path: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A worker process that is killed at the end of the block."""
    key_file = tmp_path / "runner.key"
    key_file.write_text(await s.key("runner"))
    started = worker_process(s, key_file)
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.wait()
        if started.stderr is not None:
            started.stderr.close()


@pytest.mark.guard_seconds(120)
async def test_another_worker_continues_the_run_of_a_killed_one(url: str, tmp_path: Path) -> None:
    folder = str(tmp_path)
    async with site(url) as s:
        run = await acme(s).start(flows.remote_gated, folder)
        async with process(s, tmp_path) as first:
            await until(lambda: flows.pids(folder), "the gate", 60)
            first.send_signal(signal.SIGKILL)
        async with process(s, tmp_path) as second:
            await until(lambda: len(flows.pids(folder)) > 1, "the gate again", 60)
            open_gate(folder, "gate")
            assert await run.result(wait=30) == "done"
            assert flows.pids(folder) == [first.pid, second.pid]
        lines = [line for line in notes(folder) if not line.startswith("at the gate")]
        assert lines == ["first", "last"]
        (registered,) = await s.engine.store.read("workflow_named", "acme", "remote_gated")
        assert registered.kind == "code"


@pytest.mark.guard_seconds(120)
async def test_a_stopping_worker_releases_its_work(url: str, tmp_path: Path) -> None:
    folder = str(tmp_path)
    async with site(url) as s:
        run = await acme(s).start(flows.remote_gated, folder)
        async with process(s, tmp_path) as worker:
            await until(lambda: flows.pids(folder), "the gate", 60)
            worker.send_signal(signal.SIGTERM)

            async def released() -> bool:
                return [row.reason for row in await attempts(s, run.id)] == ["release"]

            await until(released, "the release", 30)
            await until(lambda: worker.poll() is not None, "the exit of the worker", 30)
            assert worker.returncode == 0
        open_gate(folder, "gate")
        async with remote_worker(s, flows.remote_gated):
            assert await run.result(wait=30) == "done"


async def attempts(s: Site, run: str) -> list[Any]:
    """All attempts of a run."""
    return await s.engine.store.read("attempts_of", run_int(run))


async def test_a_key_is_taken_from_a_file_or_the_environment_only(url: str, tmp_path: Path) -> None:
    async with site(url) as s:
        missing = worker_process(s, tmp_path / "nothing")
        assert missing.stderr is not None
        assert await to_end(missing) != 0
        wrong = tmp_path / "wrong.key"
        wrong.write_text(await s.key("viewer"))
        refused = worker_process(s, wrong)
        assert await to_end(refused) != 0
        assert refused.stderr is not None
        assert b"FORBIDDEN" in refused.stderr.read()
        for each in (missing, refused):
            assert each.stderr is not None
            each.stderr.close()


async def to_end(one: subprocess.Popen[bytes]) -> int:
    """Wait for the process; returns its exit code."""
    await until(lambda: one.poll() is not None, "the exit of the worker", 60)
    return one.returncode


# ------------------------------------------------------------------------------------------- a bad connection


@pytest.mark.parametrize("when", ["before", "after"])
async def test_messages_over_a_bad_connection_have_one_effect(url: str, tmp_path: Path, when: str) -> None:
    """Failure 17, with the SDK: connections break repeatedly during claims and message batches."""
    folder = str(tmp_path)
    async with site(url) as s, cutting(s.address) as proxy:
        proxy.cut(when, "/runner/claim", 3)
        proxy.cut(when, "/runner/messages", 6)
        async with remote_worker(s, address=proxy.address):
            run = await acme(s).start(flows.remote_whole, folder)

            async def asked() -> bool:
                return bool(await acme(s).approvals.list(run.id))

            await until(asked, "the question")
            await acme(s).approve(run.id, approver="person:ann", reason="yes")
            result = await run.result(wait=40)
        assert result == {"numbers": [2, 4, 6], "child": 24, "reason": "yes"}
        assert notes(folder) == ["before the question", "after the question"]
        assert proxy.cuts == 9
        tries = [row.reason for row in await attempts(s, run.id)]
        assert tries[-1] == "done"
        assert set(tries[:-1]) == {"suspended"}


@pytest.mark.guard_seconds(120)
async def test_a_worker_that_loses_its_server_stops_its_work(url: str, tmp_path: Path) -> None:
    """Failure 22, over HTTP: a worker stops when another worker may have its lease."""
    folder = str(tmp_path)
    async with site(url) as s, cutting(s.address) as proxy:
        run = await acme(s).start(flows.remote_gated, folder)
        async with remote_worker(s, flows.remote_gated, address=proxy.address) as worker:
            await until(lambda: flows.pids(folder), "the gate")
            proxy.silent = True
            await until(lambda: worker.counts["lost"] == 1, "the lease to be given up", 30)
            assert worker.busy == []
            assert [row.lease for row in await attempts(s, run.id)] in (["active"], ["expired"])
            proxy.silent = False
            await until(lambda: len(flows.pids(folder)) > 1, "the gate again", 30)
            open_gate(folder, "gate")
            assert await run.result(wait=30) == "done"
        assert [row.state for row in await attempts(s, run.id)] == ["stale", "succeeded"]
