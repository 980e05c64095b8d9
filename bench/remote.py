"""Measures the remote path: no-op steps through one API process and one remote worker, on PostgreSQL.

    python -m bench.remote [STEPS] [SLOTS] [STEPS_PER_RUN]

There are three processes beside the database: this one, which queues the steps and counts them afterwards, `tenure serve`, and `tenure
worker --server`. The time runs from the first grant to the last end in the database, so that it does not include the start-up.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tenure
from bench.peers.protocol import free_port
from bench.places import connected
from bench.service import TENANT, cpu_seconds, create_key
from tenure.engine import Engine
from tools.postgres_server import DURABLE_SETTINGS, open_server


@tenure.tool("bench.nothing")
async def nothing() -> None:
    """Do nothing."""


app = [nothing]


async def prepare(dsn: str, steps: int, per_run: int) -> str:
    """Queue the steps. The result is the key of a runner."""
    async with Engine(dsn, sweep=False, tenant=TENANT) as engine:
        key = await create_key(engine, "runner")
        plan = [{"name": f"s{n}", "tool": "bench.nothing", "needs": []} for n in range(per_run)]
        for begin in range(0, steps // per_run, 200):
            runs = range(begin, min(begin + 200, steps // per_run))
            await asyncio.gather(*(engine.create("bench", plan, profile="delta-ci") for _ in runs))
        return key


async def measured(dsn: str, steps: int, give_up_seconds: float = 300.0) -> float:
    """The steps per second, after all steps have ended."""
    async with connected(dsn) as connection:
        deadline = time.monotonic() + give_up_seconds
        while time.monotonic() < deadline:
            done = await connection.fetchval("select count(*) from tenure.attempt where ended_at is not null")
            if done >= steps:
                break
            await asyncio.sleep(0.5)
        row = await connection.fetchrow(
            "select count(*) n, min(granted_at) a, max(ended_at) b from tenure.attempt where ended_at is not null"
        )
        seconds: float = max((row["b"] - row["a"]) / 1e6, 1e-6)
        return int(row["n"]) / seconds


def main(steps: int = 20_000, slots: int = 500, per_run: int = 10) -> None:
    with open_server(DURABLE_SETTINGS) as server, tempfile.TemporaryDirectory() as folder:
        dsn = server.dsn()
        key_file = Path(folder) / "runner.key"
        key_file.write_text(asyncio.run(prepare(dsn, steps, per_run)))
        port = free_port()
        serve = ["serve", "--db", dsn, "--port", str(port), "--requests-per-second", "1000000"]
        work = ["worker", "bench.remote", "--server", f"http://127.0.0.1:{port}"]
        work += ["--key-file", str(key_file), "--slots", str(slots)]
        output = None if os.environ.get("BENCH_LOUD") else subprocess.DEVNULL
        processes = [
            subprocess.Popen([sys.executable, "-m", "tenure.cli", *command], stdout=output, stderr=output)
            for command in (serve, work)
        ]
        try:
            figure = asyncio.run(measured(dsn, steps))
            server_ms, worker_ms = (1000 * cpu_seconds(process.pid) / steps for process in processes)
        finally:
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
                process.wait(30)
    load = os.getloadavg()[0]
    print(
        f"{figure:,.0f} no-op steps a second ({steps} steps, {per_run} in a run, {slots} slots; load average {load:.1f})"
    )
    print(f"CPU time per step: {server_ms:.3f} ms in the server, {worker_ms:.3f} ms in the worker")


if __name__ == "__main__":
    main(*(int(each) for each in sys.argv[1:]))
