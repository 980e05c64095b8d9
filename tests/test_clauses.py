"""The rules of the suite: the clause table, the check of the marker, the guard of async tests."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.clauses import ROOT, load_clauses

RunInCopy = Callable[[str, str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_in_copy(tmp_path: Path) -> RunInCopy:
    """Run a command in a small copy of the project whose only test file is the given one."""
    for name in (
        "tools/clauses.py",
        "tools/real_parts.py",
        "tools/chromium.py",
        "tools/postgres_server.py",
        "tools/s3_server.py",
        "tools/server_supervisor.py",
        "tests/conftest.py",
        "tests/cases.py",
        "tests/databases.py",
        "tests/edge_coverage.py",
        "docs/spec/clauses.toml",
        "pyproject.toml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    def run(command: str, tests: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "tests" / "test_planted.py").write_text(f"import asyncio, pytest\n{tests}")
        return subprocess.run(
            [sys.executable, *command.split()], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    return run


def test_every_clause_names_a_section_of_a_document_that_exists() -> None:
    assert len(load_clauses()) == (ROOT / "docs/spec/clauses.toml").read_text().count('\nseed = "')
    for line in (ROOT / "docs/spec/clauses.toml").read_text().splitlines():
        if line.startswith("seed = "):
            assert (ROOT / "docs/spec/seeds" / line.split('"')[1]).is_file(), line


def test_only_tests_that_will_run_prove_a_clause(run_in_copy: RunInCopy) -> None:
    done = run_in_copy(
        "-m tools.clauses",
        '@pytest.mark.clause("GWI-01", "GWI-02")\n@pytest.mark.parametrize("n", [1, 2])\ndef test_a(n): ...\n'
        '@pytest.mark.clause("GWI-02")\ndef test_b(): ...\n'
        '@pytest.mark.skip\n@pytest.mark.clause("GWI-03")\ndef test_c(): ...\n'
        '@pytest.mark.skipif(True, reason="never")\n@pytest.mark.clause("GWI-04")\ndef test_d(): ...\n'
        '@pytest.mark.xfail\n@pytest.mark.clause("GWI-05")\ndef test_e(): ...\n',
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1] == "GWI-01  store    store    tests/test_planted.py::test_a"
    assert lines[2] == "GWI-02  store    store    tests/test_planted.py::test_a  (+1 more)"
    assert lines[3] == "GWI-03  http     -        -"
    assert lines[-1] == f"clauses proven: 2/{len(load_clauses())}"


PARTS = """
import subprocess
from contextlib import contextmanager
from functools import partial
from tenure.server.http_server import serving

@contextmanager
def site(): yield serving

class Workers:
    def __init__(self): self.name = "workers"
    def start(self): return subprocess.Popen(["true"])
    def describe(self): return self.name

@pytest.fixture
def later(request): return request.getfixturevalue("s3_server")

@pytest.mark.clause("GWI-07")
def test_a_helper():
    with site(): ...

@pytest.mark.clause("GWI-16")
def test_a_method(): Workers().start()

@pytest.mark.clause("GWI-25")
def test_a_fixture(later): ...

@pytest.mark.clause("APR-10")
@pytest.mark.parametrize("place", [partial(site)])
def test_a_parameter(place): place()

@pytest.mark.clause("AGR-06")
def test_a_browser():
    from playwright.async_api import async_playwright
    async_playwright()
"""


def test_the_level_of_a_test_comes_from_the_real_parts_that_its_code_reaches(run_in_copy: RunInCopy) -> None:
    done = run_in_copy("-m tools.clauses", PARTS)
    assert done.returncode == 0, done.stderr
    shown = {line.split()[0]: line.split(maxsplit=3)[1:] for line in done.stdout.splitlines()[1:-1]}
    assert shown["GWI-07"] == ["http", "http", "tests/test_planted.py::test_a_helper  [server]"]
    assert shown["GWI-16"] == ["process", "process", "tests/test_planted.py::test_a_method  [processes]"]
    assert shown["GWI-25"] == ["service", "service", "tests/test_planted.py::test_a_fixture  [S3]"]
    assert shown["APR-10"] == ["http", "http", "tests/test_planted.py::test_a_parameter  [server]"]
    assert shown["AGR-06"] == ["browser", "browser", "tests/test_planted.py::test_a_browser  [browser]"]
    assert done.stdout.splitlines()[-1] == f"clauses proven: 5/{len(load_clauses())}"


def test_a_mark_on_a_test_that_shows_less_is_an_error(run_in_copy: RunInCopy) -> None:
    done = run_in_copy(
        "-m tools.clauses",
        f"{PARTS}\n"
        '@pytest.mark.clause("GOV-08")\ndef test_names_a_class_but_starts_nothing(): Workers().describe()\n'
        '@pytest.mark.clause("GOV-11")\ndef test_has_only_a_server():\n    with site(): ...\n'
        '@pytest.mark.clause("GOV-09")\ndef test_has_a_postgres(postgres_dsn): ...\n',
    )
    assert done.returncode == 1
    for line in (
        "test_names_a_class_but_starts_nothing names GOV-08, which wants process; the test uses the store alone",
        "test_has_only_a_server names GOV-11, which wants service; the test uses server",
        "test_has_a_postgres names GOV-09, which wants process; the test uses the store alone",
    ):
        assert line in done.stderr
    assert done.stdout.splitlines()[-1] == f"clauses proven: 5/{len(load_clauses())}"


@pytest.mark.parametrize(("command", "status"), [("-m tools.clauses", 1), ("-m pytest", 4)])
def test_a_clause_that_does_not_exist_stops_the_run(
    run_in_copy: RunInCopy, command: str, status: int
) -> None:
    done = run_in_copy(command, '@pytest.mark.clause("GWI-99")\ndef test_a(): ...\n')
    assert done.returncode == status
    assert "test_a names the clause 'GWI-99', which is not in docs/spec/clauses.toml" in done.stderr
    assert "clauses proven" not in done.stdout


def test_an_async_test_is_awaited_and_guarded(run_in_copy: RunInCopy) -> None:
    done = run_in_copy(
        "-m pytest",
        "async def test_passes(tmp_path): await asyncio.sleep(0); assert tmp_path.exists()\n"
        "async def test_fails(): await asyncio.sleep(0); assert False\n"
        "@pytest.mark.guard_seconds(0.05)\nasync def test_hangs(): await asyncio.sleep(30)\n",
    )
    assert "2 failed, 1 passed" in done.stdout
    assert "still running after 0.05 seconds" in done.stdout
