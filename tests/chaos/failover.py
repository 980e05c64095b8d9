"""A Patroni cluster in synchronous mode, killed under load: `python -m tests.chaos.failover` (`make failover`).

Three PostgreSQL 17 servers, each with its Patroni, and one etcd, all of Debian trixie, run on 127.0.0.1 as an unprivileged account.
Worker processes of Tenure execute runs whose steps write to a ledger outside of Tenure. The primary and its Patroni are killed
(SIGKILL) repeatedly, and the node returns as a standby after each failover. In the end every run has succeeded, every effect is
in the ledger, no recorded step was repeated, and the doctor finds nothing. The program prints one line per failover and a
summary. Its exit code is 0 if everything is correct.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import asyncpg

import tenure
from tenure.doctor.examination import examine_database
from tenure.engine import Engine
from tenure.errors import TenureError
from tenure.store.factory import open_store
from tests.chaos.debian import PartsUnavailable, install
from tools.postgres_server import _unprivileged_account

NODES = 3
TTL_SECONDS, LOOP_SECONDS, RETRY_SECONDS = 20, 5, 5
STEPS = 6
STEP_SECONDS = 0.2
PACE_SECONDS = 0.2
"""Pause between two starts of runs."""
START_SECONDS_MAX = 120.0
FAILOVER_SECONDS_MAX = 180.0
LEDGER = "FAILOVER_LEDGER"
ROOT = Path(__file__).resolve().parents[2]


# --------------------------------------------------------------------------------------- the workload


@tenure.step
async def write_effect(run: int, number: int) -> int:
    """Append a line with the process id to the ledger."""
    await asyncio.sleep(STEP_SECONDS)
    line = f"{run} {number} {os.getpid()}\n".encode()
    descriptor = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line)
    os.fsync(descriptor)
    os.close(descriptor)
    return number


@tenure.workflow
async def write_effects(run: int) -> list[int]:
    """Write `STEPS` effects, one after another."""
    return [await write_effect(run, number) for number in range(STEPS)]


# ---------------------------------------------------------------------------------------- the cluster


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Node:
    """A Patroni and its PostgreSQL."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.port, self.api = free_port(), free_port()
        self.folder = cluster.folder / name
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start Patroni, which starts PostgreSQL."""
        self.folder.mkdir(exist_ok=True)
        config = self.folder / "patroni.json"  # YAML reads JSON
        config.write_text(json.dumps(self._config()))
        for path in (self.folder, config):
            self.cluster.own(path)
        python = self.cluster.parts / "usr/bin/python3.13"
        self.process = self.cluster.run([str(python), "-m", "patroni", str(config)], f"{self.name}.log")

    def _config(self) -> dict[str, Any]:
        cluster = self.cluster
        login = {"username": "postgres", "password": cluster.password}
        return {
            "scope": "tenure",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self.api}", "connect_address": f"127.0.0.1:{self.api}"},
            "etcd3": {"host": f"127.0.0.1:{cluster.etcd_port}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_SECONDS,
                    "loop_wait": LOOP_SECONDS,
                    "retry_timeout": RETRY_SECONDS,
                    "maximum_lag_on_failover": 1048576,
                    "synchronous_mode": True,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "parameters": {"max_connections": 100, "wal_log_hints": "on"},
                    },
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.port}",
                "bin_dir": str(cluster.parts / "usr/lib/postgresql/17/bin"),
                "data_dir": str(self.folder / "data"),
                "pgpass": str(self.folder / "pgpass"),
                "authentication": {"superuser": login, "replication": login, "rewind": login},
                "parameters": {
                    "unix_socket_directories": str(self.folder),
                    "shared_buffers": "32MB",
                    "timezone": "UTC",
                    "log_timezone": "UTC",
                },
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.1/32 scram-sha-256",
                    "host replication all 127.0.0.1/32 scram-sha-256",
                ],
            },
        }

    @property
    def is_primary(self) -> bool:
        """Whether the node reports that it is the primary and holds the lock."""
        return self._answers("/primary")

    @property
    def is_sync_standby(self) -> bool:
        """Whether a failover may promote this node."""
        return self._answers("/sync")

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.api}{path}", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        """Kill Patroni and PostgreSQL at the same time, as a power failure does."""
        postmaster = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        assert self.process is not None
        self.process.kill()
        os.kill(postmaster, signal.SIGKILL)
        self.process.wait()


class Cluster:
    """etcd and the nodes, in a temporary folder."""

    def __init__(self, parts: Path) -> None:
        self.parts = parts
        self.account = _unprivileged_account() if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="tenure-failover-", dir="/var/tmp"))
        self.own(self.folder)
        self.password = "failover"
        self.etcd_port = free_port()
        self.nodes = [Node(self, f"node{number}") for number in range(NODES)]
        self._processes: list[subprocess.Popen[bytes]] = []

    def own(self, path: Path) -> None:
        """Make the account of the servers the owner of a path."""
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid)

    def run(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        """Start a program under the account of the servers."""
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=self.folder,
                env={"PATH": os.defpath, "HOME": str(self.folder), "LC_ALL": "C.UTF-8", "TZ": "UTC"},
                user=self.account.uid if self.account else None,
                group=self.account.gid if self.account else None,
                extra_groups=[] if self.account else None,
            )
        self._processes.append(process)
        return process

    def start(self) -> None:
        """Start etcd and all nodes. The first node initializes the cluster."""
        peer = f"http://127.0.0.1:{free_port()}"
        client = f"http://127.0.0.1:{self.etcd_port}"
        etcd = [
            str(self.parts / "usr/bin/etcd"),
            "--data-dir",
            str(self.folder / "etcd"),
            "--log-level",
            "error",
        ]
        etcd += ["--listen-client-urls", client, "--advertise-client-urls", client]
        etcd += [
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            f"default={peer}",
        ]
        self.run(etcd, "etcd.log")
        self.nodes[0].start()
        self.wait("the first primary", lambda: self.nodes[0].is_primary)
        for node in self.nodes[1:]:
            node.start()
        self.wait("a synchronous standby", self.is_healthy)

    def is_healthy(self) -> bool:
        """Whether there is a primary and a synchronous standby."""
        return any(node.is_primary for node in self.nodes) and any(
            node.is_sync_standby for node in self.nodes
        )

    def wait(self, what: str, done: Any, limit: float = START_SECONDS_MAX) -> None:
        """Wait until `done()` is true."""
        give_up_at = time.monotonic() + limit
        while not done():
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"{what}: not within {limit:g} s; the logs are in {self.folder}")
            time.sleep(0.1)

    @property
    def primary(self) -> Node:
        """The node that reports that it is the primary."""
        return next(node for node in self.nodes if node.is_primary)

    @property
    def dsn(self) -> str:
        """A URL that lists all nodes in a fixed order."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres:{self.password}@{hosts}/postgres?target_session_attrs=primary&sslmode=disable"

    def stop(self) -> None:
        """Stop all processes that this object started."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.process.terminate()
        for node in self.nodes:
            if node.process is not None:
                try:
                    node.process.wait(30)
                except subprocess.TimeoutExpired:
                    node.kill()
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()


# -------------------------------------------------------------------------------------------- the story


class Workers:
    """Worker processes. A worker that ends is restarted and counted."""

    def __init__(self, dsn: str, folder: Path, count: int) -> None:
        self._dsn = dsn
        self._folder = folder
        self._environment = {**os.environ, LEDGER: str(folder / "ledger"), "PYTHONPATH": str(ROOT)}
        self.processes = [self._start(number) for number in range(count)]
        self.ended = 0

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "from tenure.cli.main import main; main()", "worker"]
        command += ["tests.chaos.failover:write_effects", "--slots", "20", "--db", self._dsn]
        with (self._folder / f"worker{number}.log").open("ab") as log:
            return subprocess.Popen(
                command, env=self._environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def restart_ended(self) -> None:
        """Restart and count workers that have ended. No worker should end."""
        for number, process in enumerate(self.processes):
            if process.poll() is not None:
                self.ended += 1
                self.processes[number] = self._start(number)

    def stop(self) -> None:
        """Terminate the workers and wait for them."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def can_write(cluster: Cluster) -> bool:
    """Whether a node accepts a synchronous commit."""
    for node in cluster.nodes:
        try:
            dsn = f"postgresql://postgres:{cluster.password}@127.0.0.1:{node.port}/postgres?sslmode=disable"
            connection = await asyncpg.connect(dsn, timeout=2, command_timeout=2)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            continue
        try:
            await connection.execute("insert into failover_probe select now()")
            return True
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            continue
        finally:
            connection.terminate()
    return False


async def start_runs(engine: Engine, stop: asyncio.Event, started: dict[int, str]) -> None:
    """Start runs, each with its number as the key, until `stop` is set. Repeat a start after a retryable error."""
    while not stop.is_set():
        number = len(started)
        try:
            run = await engine.submit(write_effects, {"run": number}, key=f"run-{number}")
        except TenureError as refused:
            if not refused.retryable:
                raise
            await asyncio.sleep(0.5)
        else:
            started[number] = run.id
            await asyncio.sleep(PACE_SECONDS)


async def play(cluster: Cluster, kills: int, workers_count: int) -> int:
    """Kill primaries under load, then check everything. Return the number of problems."""
    connection = await asyncpg.connect(
        cluster.dsn.replace("target_session_attrs=primary&", ""), target_session_attrs="primary"
    )
    await connection.execute("create table failover_probe (at timestamptz)")
    await connection.close()
    await open_store(cluster.dsn).migrate()
    workers = Workers(cluster.dsn, cluster.folder, workers_count)
    started: dict[int, str] = {}
    stop = asyncio.Event()
    outages: list[float] = []
    recoveries: list[float] = []
    ledger = cluster.folder / "ledger"
    try:
        async with Engine(cluster.dsn, wait_for_database="60s") as engine:
            feeding = asyncio.create_task(start_runs(engine, stop, started))
            for number in range(kills):
                enough = len(_lines(ledger)) + 20
                while len(_lines(ledger)) < enough and not feeding.done():  # noqa: ASYNC110 - workers write it
                    await asyncio.sleep(0.2)
                if feeding.done():
                    feeding.result()
                victim = await asyncio.to_thread(lambda: cluster.primary)
                victim.kill()
                killed_at = time.monotonic()
                while not await can_write(cluster):
                    if time.monotonic() - killed_at > FAILOVER_SECONDS_MAX:
                        raise RuntimeError(f"no new primary; the logs are in {cluster.folder}")
                    await asyncio.sleep(0.1)
                outages.append(time.monotonic() - killed_at)
                before = len(_lines(ledger))
                back_at = time.monotonic()
                while len(_lines(ledger)) == before:
                    workers.restart_ended()
                    await asyncio.sleep(0.05)
                recoveries.append(time.monotonic() - back_at)
                victim.start()
                await asyncio.to_thread(
                    cluster.wait, "the old primary is back", cluster.is_healthy, FAILOVER_SECONDS_MAX
                )
                print(
                    f"failover {number + 1}: {victim.name} killed, outage {outages[-1]:.1f} s, first effect of a worker"
                    f" {recoveries[-1]:.1f} s later",
                    flush=True,
                )
            stop.set()
            await feeding
            wrong = await _outcome(engine, started)
    finally:
        workers.stop()
    store = open_store(cluster.dsn)
    await store.open()
    findings = (await examine_database(store)).violations
    await store.close()
    done = Counter(tuple(line.split()[:2]) for line in _lines(ledger))
    lost = sum((str(run), str(number)) not in done for run in started for number in range(STEPS))
    again = sum(count - 1 for count in done.values())
    doubled = _doubled(_lines(ledger))
    for line in (*wrong, *map(str, findings)):
        print(line)
    print(
        f"failover: {kills} primaries killed under {len(started)} runs of {STEPS} effects on {workers_count} workers: lost {lost},"
        f" doubled {doubled}, begun again before they were recorded {again}, stuck {len(wrong)}, doctor {len(findings)},"
        f" workers ended {workers.ended}; outage {_shown(outages)}, recovery {_shown(recoveries)}"
    )
    return lost + doubled + len(wrong) + len(findings) + workers.ended


def _doubled(lines: list[str]) -> int:
    """Count effects that were repeated after a later effect of the same run. By then the first one was recorded."""
    seen: dict[str, int] = {}
    doubled = 0
    for line in lines:
        run, number, _ = line.split()
        if int(number) < seen.get(run, -1):
            doubled += 1
        seen[run] = max(seen.get(run, -1), int(number))
    return doubled


async def _outcome(engine: Engine, started: dict[int, str]) -> list[str]:
    """Wait for all runs. Return a line for each run that is stuck or did not succeed."""
    wrong = []
    for number, run_id in started.items():
        try:
            view = await asyncio.wait_for(_ended(engine, run_id), FAILOVER_SECONDS_MAX)
        except TimeoutError:
            wrong.append(f"run {number} ({run_id}) is stuck")
            continue
        if view.status != "succeeded":
            wrong.append(f"run {number} ({run_id}) is {view.status}: {view.reason}")
    return wrong


async def _ended(engine: Engine, run_id: str) -> Any:
    while True:
        try:
            view = await engine.get(run_id)
        except TenureError as refused:
            if not refused.retryable:
                raise
        else:
            if view.finished_at is not None:
                return view
        await asyncio.sleep(0.2)


def _lines(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


def _shown(seconds: list[float]) -> str:
    if not seconds:
        return "-"
    return f"{statistics.median(seconds):.1f} s (worst {max(seconds):.1f} s)"


def main() -> int:
    """Run the program. See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    wanted = parser.parse_args()
    try:
        parts = install("trixie", ["patroni", "python3-etcd", "etcd-server", "postgresql"])
    except PartsUnavailable as missing:
        print(f"failover: {missing}", file=sys.stderr)
        return 2
    cluster = Cluster(parts)
    wrong = 1
    try:
        cluster.start()
        wrong = asyncio.run(play(cluster, wanted.kills, wanted.workers))
    finally:
        cluster.stop()
        if wanted.keep or wrong:
            print(f"the logs are in {cluster.folder}")
        else:
            shutil.rmtree(cluster.folder, ignore_errors=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
