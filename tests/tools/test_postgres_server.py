"""The private PostgreSQL of the tests: its start, its end and its address."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest

from tools.postgres_server import QUICK_SETTINGS, ExternalPostgres, PostgresUnavailable, PrivatePostgres


async def fetch(dsn: str, query: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def test_each_test_gets_an_empty_database_of_its_own(postgres_dsn: str) -> None:
    assert await fetch(postgres_dsn, "select count(*) from pg_tables where schemaname = 'public'") == 0
    assert str(await fetch(postgres_dsn, "select current_database()")).startswith("tenure_test_")


async def test_a_committed_row_survives_a_killed_server() -> None:
    with PrivatePostgres(QUICK_SETTINGS) as server:
        await fetch(server.dsn(), "create table kept as select 1 as one")
        for mode in ("fast", "immediate", "kill"):
            server.stop(mode)
            server.start()
            assert await fetch(server.dsn(), "select one from kept") == 1
        directory = server.directory
    assert not directory.exists()


async def test_over_tcp_a_password_is_needed() -> None:
    with PrivatePostgres(QUICK_SETTINGS, tcp=True) as server:
        assert await fetch(server.dsn(), "select 1") == 1
        password = server.dsn().split(":")[2].partition("@")[0]
        with pytest.raises(asyncpg.InvalidPasswordError):
            await fetch(server.dsn().replace(password, "wrong"), "select 1")


def test_a_server_that_cannot_start_shows_the_end_of_its_log() -> None:
    with pytest.raises(PostgresUnavailable, match="invalid value for parameter"):
        PrivatePostgres({"shared_buffers": "plenty"}).__enter__()


def test_a_server_ends_with_its_owner_even_when_that_is_killed() -> None:
    code = (
        "import time; from tools.postgres_server import *\n"
        "with PrivatePostgres(QUICK_SETTINGS) as server: print(server.directory, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        directory = Path(owner.stdout.readline().strip())
        assert (directory / "data" / "postmaster.pid").exists()
        owner.send_signal(signal.SIGKILL)
    give_up_at = time.monotonic() + 20
    while directory.exists() and time.monotonic() < give_up_at:
        time.sleep(0.02)
    assert not directory.exists()


def test_the_address_of_a_database_on_an_external_server_keeps_the_rest_of_the_dsn() -> None:
    server = ExternalPostgres("postgresql://me:secret@db.example:6432/main?ssl=require")
    assert server.dsn("other") == "postgresql://me:secret@db.example:6432/other?ssl=require"
    assert server.dsn() == "postgresql://me:secret@db.example:6432/main?ssl=require"
