"""The suite itself: no test hangs forever, and the way in which the suite was started does not change what it tests."""

import asyncio
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.conftest import TIMEOUT_SECONDS
from tests.databases import Databases

ROOT = Path(__file__).resolve().parent.parent
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]


def test_a_process_gets_the_default_signal_dispositions() -> None:
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_the_suite_ignores_inherited_signal_dispositions() -> None:
    """A shell starts background jobs with SIGINT ignored."""
    words = [*PYTEST, __file__, "-k", test_a_process_gets_the_default_signal_dispositions.__name__]
    done = subprocess.run(
        words,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert "1 passed" in done.stdout, done.stdout


def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("timeout")) == TIMEOUT_SECONDS


def test_the_makefile_names_existing_tests() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = re.findall(r"^(?:NOT_)?QUICK +:= (.+)$", makefile, re.MULTILINE)
    assert len(named) == 2
    assert [name for line in named for name in line.split() if not (ROOT / "tests" / name).exists()] == []


def test_a_plain_test_that_hangs_is_stopped(tmp_path: Path) -> None:
    hangs = tmp_path / "test_hangs.py"
    hangs.write_text("import os\ndef test_hangs():\n    read, write = os.pipe()\n    os.read(read, 1)\n")
    words = [
        *PYTEST,
        "--rootdir",
        str(tmp_path),
        "-o",
        "timeout=0.5",
        "-o",
        "timeout_func_only=true",
        str(hangs),
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed" in done.stdout, done.stdout
    assert "Timeout" in done.stdout


def test_a_lent_database_is_empty_and_has_the_migrated_schema(
    databases: Databases,
) -> None:
    async def ask(dsn: str, statement: str) -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    keys = "select count(*) from tenure.feed_key"
    with databases.migrated() as first:
        asyncio.run(ask(first, "insert into tenure.feed_key values (1, decode(repeat('00', 32), 'hex'))"))
        assert asyncio.run(ask(first, keys)) == 1
    with databases.migrated() as second:
        assert (second, asyncio.run(ask(second, keys))) == (first, 0)
        asyncio.run(ask(second, "alter table tenure.feed_key drop constraint feed_key_id_check"))
    with databases.migrated() as third:
        assert (third != second, asyncio.run(ask(third, keys))) == (True, 0)
