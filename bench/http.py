"""`python -m bench.http`: the requests per second of one API process on PostgreSQL: runs started with keys, and statuses.

    python -m bench.http [--seconds 10] [--connections 64]

Laws:
1. The server is a process of its own (`tenure serve`). The load comes from `wrk` (a Debian package) over loopback or, for latency at
   1,000 requests a second, from this process.
2. Every answer must be a 201, and have its run and its key in the database. Otherwise the program ends with 2.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Annotated

import typer
import uvloop

import tenure
from bench.peers.protocol import await_port, free_port
from bench.places import connected
from bench.service import cpu_seconds, create_key
from tenure import ids
from tenure.cli.workflows.registration import register_workflows
from tenure.engine import Engine
from tools.postgres_server import DURABLE_SETTINGS, open_server

BODY = b'{"workflow": "nothing", "input": {"n": 1}}'
POSTS = """
local n = 0
local id = "%(mark)s"
wrk.method = "POST"
wrk.headers["Authorization"] = "Bearer %(key)s"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '%(body)s'
request = function()
  n = n + 1
  wrk.headers["Idempotency-Key"] = id .. "-" .. n
  return wrk.format()
end
local wrong = 0
response = function(status) if status ~= 201 then wrong = wrong + 1; print("wrong " .. status) end end
"""
GETS = """
wrk.headers["Authorization"] = "Bearer %(key)s"
"""


@tenure.workflow(name="nothing")
async def nothing(n: int) -> int:
    """Only its start is measured."""
    return n


async def prepare(dsn: str) -> str:
    """Make a tenant, a workflow and a key."""
    async with Engine(dsn, sweep=False) as engine:
        await register_workflows(engine, [nothing])
        return await create_key(engine, "operator", "viewer")


def wrk(address: str, path: str, script: str, seconds: int, connections: int) -> tuple[float, str]:
    """The requests per second, and the output of wrk."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        command = [
            "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", file.name, address + path
        ]  # fmt: skip
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert found is not None, output
    return float(found[1]), output


async def send_at_rate(address: str, key: str, rate: float, seconds: float) -> tuple[float, list[float], int]:
    """Send requests at a rate. The result is the reached rate, the sorted latencies in seconds, and the number of wrong answers."""
    host, port = address.removeprefix("http://").split(":")
    free: asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.LifoQueue()
    took: list[float] = []
    wrong = 0
    mark = os.urandom(4).hex()

    async def one(n: int, due: float) -> None:
        nonlocal wrong
        reader, writer = None, None
        while not free.empty():
            reader, writer = free.get_nowait()
            if not reader.at_eof() and not writer.is_closing():  # the server closes idle connections
                break
            reader, writer = None, None
        if reader is None or writer is None:
            reader, writer = await asyncio.open_connection(host, int(port))
        head = (
            f"POST /runs HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
            f"idempotency-key: {mark}-{n}\r\ncontent-length: {len(BODY)}\r\n\r\n"
        )
        writer.write(head.encode() + BODY)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer)
        await reader.readexactly(int(length[1]) if length else 0)
        took.append(asyncio.get_running_loop().time() - due)
        wrong += not answer.startswith(b"HTTP/1.1 201")
        free.put_nowait((reader, writer))

    loop = asyncio.get_running_loop()
    begun, tasks = loop.time(), []
    for n in range(int(rate * seconds)):
        due = begun + n / rate
        if (left := due - loop.time()) > 0:
            await asyncio.sleep(left)
        tasks.append(loop.create_task(one(n, due)))
    await asyncio.gather(*tasks)
    reached = len(took) / (loop.time() - begun)
    while not free.empty():
        free.get_nowait()[1].close()
    return reached, sorted(took), wrong


async def count_runs(dsn: str) -> tuple[int, int, str]:
    """The number of runs, the number of keys, and the id of a run."""
    async with connected(dsn) as connection:
        await asyncio.sleep(1.0)  # requests that were pending when wrk disconnected are still carried out
        runs, records = await connection.fetchrow(
            "select (select count(*) from tenure.run),"
            " (select count(*) from tenure.idempotency where status = 'completed')"
        )
        return runs, records, ids.run_text(await connection.fetchval("select max(id) from tenure.run"))


def main(
    seconds: Annotated[int, typer.Option(help="The length of each sample.")] = 10,
    connections: Annotated[int, typer.Option(help="Concurrent connections.")] = 64,
    rounds: Annotated[int, typer.Option(help="Samples of each figure; all are printed.")] = 3,
) -> None:
    """Measure the requests per second of one API process on PostgreSQL."""
    if shutil.which("wrk") is None:
        print("wrk was not found: apt-get install wrk", file=sys.stderr)
        raise typer.Exit(2)
    print(f"load before: {os.getloadavg()[0]:.1f}")
    with open_server(DURABLE_SETTINGS) as database:
        dsn = database.dsn()
        key, port = uvloop.run(prepare(dsn)), free_port()
        address = f"http://127.0.0.1:{port}"
        command = [
            sys.executable, "-m", "tenure.cli", "serve", "--db", dsn, "--port", str(port), "--no-log-runs",
            "--requests-per-second", "1000000",
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                await_port(port, server)
                _measure(address, dsn, key, server.pid, seconds, connections, rounds)
            finally:
                server.send_signal(signal.SIGTERM)
                server.wait(30)


def _measure(address: str, dsn: str, key: str, pid: int, seconds: int, connections: int, rounds: int) -> None:
    made = 0
    for _ in range(rounds):
        values = {"key": key, "body": BODY.decode(), "mark": os.urandom(4).hex()}
        used = cpu_seconds(pid)
        rate, output = wrk(address, "/runs", POSTS % values, seconds, connections)
        runs, records, run = uvloop.run(count_runs(dsn))
        cpu = (cpu_seconds(pid) - used) / max(runs - made, 1)
        p99 = re.search(r"99%\s+(\S+)", output)
        print(
            f"POST /runs: {rate:,.0f} a second, {runs - made} runs made, p99 {p99[1] if p99 else '?'}, {cpu * 1e6:.0f} us of the"
            f" server's CPU each"
        )
        answered = int(rate * seconds * 0.98)
        if runs != records or "wrong" in output or "Non-2xx" in output or runs - made < answered:
            print(f"LOST: {runs} runs, {records} records\n{output[-800:]}", file=sys.stderr)
            raise typer.Exit(2)
        reached, took, wrong = uvloop.run(send_at_rate(address, key, 1_000, seconds))
        made = uvloop.run(count_runs(dsn))[0]
        p50, p99_s = took[len(took) // 2], took[len(took) * 99 // 100]
        print(
            f"  at 1,000 a second: {reached:,.0f} reached, p50 {p50 * 1e3:.1f} ms, p99 {p99_s * 1e3:.1f} ms, {wrong} wrong"
        )
        rate, output = wrk(address, f"/runs/{run}/status", GETS % values, seconds, connections)
        if "Non-2xx" in output:
            print(output, file=sys.stderr)
            raise typer.Exit(2)
        print(f"GET /runs/ID/status: {rate:,.0f} a second")
    print(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    typer.run(main)
