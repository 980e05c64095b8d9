"""Measures the logs of CI jobs: from a job to the store, through one API process, with files as the artifact store.

    python -m bench.job_logs [MEGABYTES] [SQLITE_OR_POSTGRES]

There are two processes beside the database: this one, which is the runner, and `tenure serve`. The time runs from the first byte that the
runner appends until the server has stored the last one. The floor is the same bytes written to one file, with their digest.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path

import msgspec

from bench.peers.protocol import free_port
from bench.service import TENANT, cpu_seconds, create_key
from tenure.ci_runner.http_storage import HttpJobStorage
from tenure.engine import Engine
from tenure.worker.connection import RunnerConnection
from tools.postgres_server import DURABLE_SETTINGS, open_server

PIECE = b"2026-02-14T08:00:00Z building module number 42 of the shop, which has many modules\n" * 400
"""What a job writes at once, about as much as a pipe holds."""


async def prepare(url: str) -> str:
    """Queue a job. The result is the key of a runner."""
    async with Engine(url, sweep=False, tenant=TENANT) as engine:
        await engine.create("bench", [{"name": "job", "tool": "ci.job"}], profile="delta-ci")
        return await create_key(engine, "runner")


async def send(server: str, key: str, size: int) -> float:
    """The seconds that a log of this size takes."""
    connection = RunnerConnection(server, key)
    try:
        claim = b'{"claim_id": "bench", "capabilities": ["default|tool:ci.job"], "ack": true, "wait_s": 10}'
        answer = await connection.request("POST", "/runner/claim", claim)
        lease = msgspec.json.decode(answer)["leases"][0]
        log = HttpJobStorage(connection, lease["id"], lease["token"])
        began = time.perf_counter()
        for _ in range(size // len(PIECE)):
            await log.append_log(PIECE)
        await log.close_log()
        return time.perf_counter() - began
    finally:
        await connection.close()


def floor(folder: Path, size: int) -> float:
    """The seconds for the same bytes without Tenure."""
    began, digest = time.perf_counter(), sha256()
    with (folder / "floor").open("wb") as file:
        for _ in range(size // len(PIECE)):
            digest.update(PIECE)
            file.write(PIECE)
    return time.perf_counter() - began


def main(megabytes: int = 500, database: str = "sqlite") -> None:
    size = megabytes * 1_000_000
    with (
        tempfile.TemporaryDirectory() as name,
        open_server(DURABLE_SETTINGS) if database == "postgres" else nullcontext() as server,
    ):
        folder, port = Path(name), free_port()
        url = f"sqlite:{folder / 'bench.db'}" if server is None else server.dsn()
        os.environ["TENURE_ARTIFACTS"] = str(folder / "artifacts")
        key = asyncio.run(prepare(url))
        output = None if os.environ.get("BENCH_LOUD") else subprocess.DEVNULL
        command = ["serve", "--db", url, "--port", str(port), "--requests-per-second", "1000000"]
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure.cli", *command], stdout=output, stderr=output
        )
        try:
            seconds = asyncio.run(send(f"http://127.0.0.1:{port}", key, size))
            spent = cpu_seconds(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        least = floor(folder, size)
    load = os.getloadavg()[0]
    print(
        f"{megabytes / seconds:,.0f} MB a second from a job to the store on files ({megabytes} MB, {database}; load average {load:.1f})"
    )
    print(f"floor: {megabytes / least:,.0f} MB a second; CPU time of the server: {spent:.1f} s")


if __name__ == "__main__":
    main(*(int(each) if each.isdigit() else each for each in sys.argv[1:]))  # type: ignore[arg-type]  # a number, then a name
