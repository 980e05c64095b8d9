"""Workers and servers that start while PostgreSQL is down report this, wait, and start later or give up at the limit."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tenure.store.postgres import PostgresStore
from tools.postgres_server import QUICK_SETTINGS, PrivatePostgres

APP = """
import tenure

@tenure.workflow
async def hello() -> str:
    return "hello"
"""
MAIN = "from tenure.cli.main import main; main()"
COMMANDS = {
    "worker": ("worker", "app", "--json"),
    "serve": ("serve", "--port", "0"),
    "dev": ("dev", "app", "--no-api", "--no-commands"),
}
BEGUN = {"worker": b"hello", "serve": b"server_started", "dev": b"worker_started"}


@asynccontextmanager
async def started(folder: Path, dsn: str, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MAIN, *command, "--db", dsn, cwd=folder, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line_with(stream: asyncio.StreamReader | None, text: bytes) -> bytes:
    """Return the next line that contains the text."""
    assert stream is not None
    while line := await stream.readline():
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r}")


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.guard_seconds(90)
async def test_commands_wait_for_postgresql_to_start(kind: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with PrivatePostgres(QUICK_SETTINGS) as server:
        await PostgresStore(server.dsn()).migrate()
        server.stop()
        async with started(tmp_path, server.dsn(), *COMMANDS[kind], "--wait-for-database", "0") as process:
            _, errors = await process.communicate()
            assert b"STORE_UNAVAILABLE" in errors
            assert b"waiting" not in errors
            assert process.returncode == 1
        async with started(tmp_path, server.dsn(), *COMMANDS[kind]) as process:
            assert b"60s at most" in await line_with(process.stderr, b"waiting for the database")
            await asyncio.to_thread(server.start)
            await line_with(process.stderr if kind == "dev" else process.stdout, BEGUN[kind])
