"""Restate: its server with its own store, and granian processes that serve the handler of `restate_app.py`.

Its default is durable: its log is synchronized to the disk (a lone run of five steps makes 8 to 9 calls of fdatasync).
Tried settings, in steps per second at load 4 to 7 on two CPUs, by turns:

- partitions 1, 4, 8, 24 with 128 in flight: 2,580, 2,050, 2,490, 1,810; 2 and 4 with 256: 3,050, 2,470. The default is
  24. Fewer cost less CPU; 4 were best of all together with two processes, and have room on a larger machine.
- in flight 64, 128, 256 with two processes: 1,960, 2,030, 1,860 for 0.57, 0.54, 0.49 CPU seconds per 1,000 steps; 512
  with 2 partitions: 2,100 where 256 gave 3,050.
- granian with one and two processes: 1,880 and 3,270 in one series, 2,120 and 2,030 in a busier one; 4 partitions, 256 in
  flight and two processes: 3,010. The bench tries both.
- hypercorn: 1,510 where granian gave 1,880.
- with 256 in flight 2,580; without metrics 2,700; no journal kept after the end 2,040; the local log instead of the
  replicated one 2,620. All within the noise, so the defaults are used.

CPU time includes the client that starts the runs, which is a small part. Bytes are those that the kernel counts for
storage.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import uvloop

from bench.peers.protocol import STEPS, Peer, Site, await_port, expect, free_port, serve

REQUEST_SECONDS_MAX = 30.0
READY_SECONDS_MAX = 30.0


class Client:
    """A persistent connection to the ingress with a minimum of HTTP, so that the client costs little."""

    def __init__(self, port: int) -> None:
        head = "POST /Bench/five HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
        self._request = head.encode()
        self._port = port

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def call(self) -> int:
        """Do a run. The result is the number of its steps."""
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        expect(lines[0].split()[1], "200", "answer of the ingress")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        return int(await self._reader.readexactly(length))

    def close(self) -> None:
        self._writer.close()


class Restate(Peer):
    def __init__(self, site: Site) -> None:
        self._site = site
        self._in_flight = site.number("in_flight", 256)
        self._partitions = site.number("partitions", 4)
        self._http = site.text("server", "granian")
        self._workers = site.number("workers", 2)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ingress = 0

    def prepare(self) -> None:
        port = free_port()
        service = self._start([sys.executable, "-m", *self._serving(port)])
        self._ingress, admin, fabric = free_port(), free_port(), free_port()
        environment = {
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LOG_FILTER": "warn",
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{self._ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{fabric}",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_DEFAULT_NUM_PARTITIONS": str(self._partitions),
            "RESTATE_NODE_NAME": "bench",
        }
        for setting in self._site.text("server_settings", "").split():
            name, _, value = setting.partition(":")
            environment[f"RESTATE_{name}"] = value
        data = str(self._site.folder / "restate")
        server = self._start([self._site.tool, "--no-logo", "--base-dir", data], environment)
        await_port(port, service)
        await_port(admin, server)
        await_port(self._ingress, server)
        self._register(admin, port)

    def _serving(self, port: int) -> list[str]:
        if self._http == "hypercorn":
            return ["hypercorn", "-k", "uvloop", "-b", f"127.0.0.1:{port}", "-w", str(self._workers),
                    "bench.peers.restate_app:app"]  # fmt: skip
        return ["granian", "--interface", "asgi", "--http", "2", "--port", str(port), "--loop", "uvloop",
                "--workers", str(self._workers), "--no-ws", "--log-level", "warning",
                *self._site.text("granian", "").split(), "bench.peers.restate_app:app"]  # fmt: skip

    def _start(
        self, command: list[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), env={**os.environ, **(environment or {})}
        )  # fmt: skip
        self._processes.append(process)
        return process

    def _register(self, admin: int, port: int) -> None:
        body = json.dumps({"uri": f"http://127.0.0.1:{port}"}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{admin}/deployments", body, headers)

        def deploy() -> None:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS_MAX):
                pass

        _retry(deploy)
        _retry(lambda: uvloop.run(self._calls(1, 1)))  # the ingress learns of the service a moment later

    async def _calls(self, runs: int, in_flight: int, *, clocked: bool = False) -> tuple[int, list[float]]:
        clients = [Client(self._ingress) for _ in range(min(in_flight, runs))]
        for client in clients:
            await client.open()
        left = iter(range(runs))
        seconds: list[float] = []

        async def lane(client: Client) -> int:
            done = 0
            for _ in left:
                started = time.perf_counter()
                done += await client.call()
                seconds.append(time.perf_counter() - started)
            return done

        try:
            with self._site.clock() if clocked else nullcontext():
                return sum(await asyncio.gather(*map(lane, clients))), seconds
        finally:
            for client in clients:
                client.close()

    def throughput(self, runs: int) -> int:
        done, _ = uvloop.run(self._calls(runs, self._in_flight, clocked=True))
        expect(done, runs * STEPS, "steps returned")
        return done

    def lone(self, runs: int) -> list[float]:
        done, seconds = uvloop.run(self._calls(runs, 1, clocked=True))
        expect(done, runs * STEPS, "steps returned")
        return seconds

    def settings(self) -> Mapping[str, str]:
        version = subprocess.run(
            [self._site.tool, "--version"], capture_output=True, check=True
        ).stdout.decode()
        return {
            "restate": f"{Path(version.strip()).name}, SDK {metadata.version('restate-sdk')}",
            "settings": f"{self._partitions} partitions, {self._in_flight} in flight, {self._http} with"
            f" {self._workers} {'process' if self._workers == 1 else 'processes'}",
        }

    def close(self) -> None:
        """Kill its processes: their data is not kept, and an orderly shutdown takes more than ten seconds."""
        for process in self._processes:
            process.kill()
            process.wait()


def _retry(work: Callable[[], object]) -> None:
    """Repeat some work until it succeeds; the last error after READY_SECONDS_MAX."""
    give_up_at = time.monotonic() + READY_SECONDS_MAX
    while True:
        try:
            work()
            return
        except (RuntimeError, OSError):
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    serve(Restate)
