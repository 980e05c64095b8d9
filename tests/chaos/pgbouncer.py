"""The store behind pgbouncer in transaction mode: `python -m tests.chaos.pgbouncer`.

Runs the conformance tests of the store through the pgbouncer of Debian trixie: first with the default settings of
pgbouncer, which refuse startup parameters, then with the settings of the store on the role. Also checks that a pgbouncer
older than 1.21 (Debian bookworm) is refused with an error. Prints one line. The exit code is 0 if everything passed.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import asyncpg

from tenure.errors import TenureError
from tenure.store.postgres import PostgresStore
from tenure.store.postgres.connection import LANE_SETTINGS
from tests.chaos.debian import install
from tools.postgres_server import QUICK_SETTINGS, PrivatePostgres, _unprivileged_account

SUITE = "tests/conformance"
NOT_POOLED = (
    "test_postgres.py",  # inspects the sessions of the server
    "test_migrate_postgres.py",
    "test_query_plans_postgres.py",
    "test_postgres_reach.py",
)
"""Test files that use sessions of the server directly."""
NOT_POOLED_TESTS = "postgres_reads_pages_from_indexes or woken_by_work_from_another_process"
"""Tests that use sessions directly. One of them uses LISTEN, which `is_woken_by_listen_dsn` checks instead."""
START_SECONDS_MAX = 30.0


@contextmanager
def pgbouncer(
    program: Path, server: PrivatePostgres, settings: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Start pgbouncer in front of a private PostgreSQL. Yields its port on 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    folder = server.directory
    given = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "max_client_conn": "1000",
        "default_pool_size": "40",
        **(settings or {}),
    }
    lines = [
        "[databases]",
        f"* = host={folder} port=5432 user=postgres",
        "[pgbouncer]",
        *(f"{name} = {value}" for name, value in given.items()),
    ]
    config = folder / f"pgbouncer-{port}.ini"
    config.write_text("\n".join(lines) + "\n")
    config.chmod(0o644)
    account = _unprivileged_account() if os.geteuid() == 0 else None
    with (folder / f"pgbouncer-{port}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(program), str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    try:
        _wait_for_port(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise RuntimeError("pgbouncer did not start")
        time.sleep(0.02)


def dsn_of(port: int, database: str = "postgres") -> str:
    """Return the URL of a database behind pgbouncer."""
    return f"postgresql://postgres@127.0.0.1:{port}/{database}?sslmode=disable"


def run_suite(port: int, more: list[str]) -> str:
    """Run the conformance tests through pgbouncer. Return the last line that pytest prints."""
    ignored = [f"--ignore={SUITE}/{name}" for name in NOT_POOLED]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        SUITE,
        *ignored,
        "-k",
        f"postgres and not ({NOT_POOLED_TESTS})",
    ]
    environment = {**os.environ, "TENURE_TEST_DSN": dsn_of(port)}
    done = subprocess.run([*command, *more], env=environment, check=False, capture_output=True, text=True)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
    if done.returncode != 0:
        print(done.stdout[-6000:], file=sys.stderr)
        raise RuntimeError(f"the suite failed behind pgbouncer: {last}")
    return re.sub(r", \d+ deselected| in .*|=", "", last).strip()


async def is_woken_by_listen_dsn(port: int, server: PrivatePostgres) -> bool:
    """Whether one store behind the pooler wakes another through `listen_dsn`, which bypasses the pooler."""
    database = "tenure_bell"
    owner = await asyncpg.connect(server.dsn())
    await owner.execute(f"create database {database}")
    await owner.close()
    stores = [PostgresStore(dsn_of(port, database), listen_dsn=server.dsn(database)) for _ in range(2)]
    await stores[0].migrate()
    for store in stores:
        await store.open()
        while not await store.wait_for_work(
            START_SECONDS_MAX
        ):  # the store wakes itself once when it starts to listen
            pass
    await stores[0].notify_work()
    heard = await stores[1].wait_for_work(START_SECONDS_MAX)
    for store in stores:
        await store.close()
    return heard


async def set_role(server: PrivatePostgres) -> None:
    """Set the settings of the store on the role, as docs/operating.md describes."""
    connection = await asyncpg.connect(server.dsn())
    for name, value in {**LANE_SETTINGS, "lock_timeout": "30000"}.items():
        await connection.execute(f"alter role postgres set {name} = '{value}'")
    await connection.close()


def main(arguments: list[str]) -> int:
    """Run the program. The arguments go to pytest."""
    new = install("trixie", ["pgbouncer"]) / "usr/sbin/pgbouncer"
    old = install("bookworm", ["pgbouncer"]) / "usr/sbin/pgbouncer"
    with PrivatePostgres(QUICK_SETTINGS) as server:
        with pgbouncer(new, server) as port:
            if not asyncio.run(is_woken_by_listen_dsn(port, server)):
                print("pgbouncer: a store with --listen-db was not woken")
                return 1
            plain = run_suite(port, arguments)
        with pgbouncer(old, server, {"ignore_startup_parameters": "default_transaction_isolation"}) as port:
            refusal = ""
            try:
                asyncio.run(PostgresStore(dsn_of(port)).migrate())
            except TenureError as refused:
                refusal = refused.code
        if refusal != "STORE_POOLER_REFUSED":
            print(f"pgbouncer: version 1.18 was not refused: {refusal!r}")
            return 1
        asyncio.run(set_role(server))
        with pgbouncer(new, server) as port:
            on_role = run_suite(port, arguments)
    print(f"pgbouncer: plain {plain}; settings on the role {on_role}; pgbouncer 1.18 refused ({refusal})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
