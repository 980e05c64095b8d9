"""The pytest plugin in a user's project."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import tenure

@tenure.workflow
async def greet(name: str) -> str:
    await tenure.sleep("1d")
    return f"hello {name}"

async def test_with_the_fixture(tenure_lab):
    async with tenure_lab(greet) as lab:
        run = await lab.start(greet, "ada")
        assert await run.result() == "hello ada"

async def test_that_fails(tenure_lab):
    async with tenure_lab(greet) as lab:
        run = await lab.start(greet, "ada")
        assert await run.result() == "hello bob"

async def test_without_the_fixture():
    raise AssertionError("nobody runs it")
"""

OTHER_PLUGIN = """
import inspect
import pytest

ran = []

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if pyfuncitem.get_closest_marker("anyio"):
        ran.append(pyfuncitem.name)
        return True

def pytest_configure(config):
    config.addinivalue_line("markers", "anyio: theirs")

def pytest_sessionfinish():
    print("theirs:", ran)
"""

MARKED = """
import pytest

@pytest.mark.anyio
async def test_of_another_plugin(tenure_lab):
    raise AssertionError("not ours to run")
"""


def run_pytest(folder: Path, *arguments: str) -> str:
    """Run pytest as a user would, with our plugin only."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tenure.testing.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *arguments],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout + done.stderr


def test_async_tests_with_the_lab_fixture_run(tmp_path: Path) -> None:
    (tmp_path / "test_greet.py").write_text(TESTS)
    output = run_pytest(
        tmp_path, "-k", "fixture or fails", "--deselect", "test_greet.py::test_without_the_fixture"
    )
    assert "1 failed, 1 passed" in output, output
    assert "hello bob" in output  # with pytest's own explanation of the assertion


def test_tests_of_other_async_plugins_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(OTHER_PLUGIN)
    (tmp_path / "test_marked.py").write_text(MARKED)
    output = run_pytest(tmp_path, "-s")
    assert "1 passed" in output, output
    assert "theirs: ['test_of_another_plugin']" in output


def test_async_tests_without_the_lab_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "test_greet.py").write_text(TESTS)
    output = run_pytest(tmp_path, "-k", "without")
    assert "async def functions are not natively supported" in output, output


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"tenure": "tenure.testing.plugin"}
