"""The modules that a process loads: only the libraries that it uses. Each program here runs in its own interpreter."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SERVING = ("litestar", "prometheus_client", "slack_sdk", "uvicorn")
REACHING_OUT = ("asyncpg", "httpcore", "httpx")
SEALING = ("cryptography", "securesystemslib")
EXPRESSIONS_AND_FILES = ("cel", "yaml")
RARE = (*SERVING, *REACHING_OUT, *SEALING, *EXPRESSIONS_AND_FILES, "opentelemetry")
"""Modules that only some processes need, and none of the processes below."""
LOGGING = ("structlog", "rich.traceback")
TERMINAL = ("pydantic", "rich", "typer")
OURS = ("tenure.engine", "tenure.kernel", "tenure.orchestrator", "tenure.sdk", "tenure.store")

APP = """
import tenure


@tenure.step
async def greeting(name: str) -> str:
    return f"hello {name}"


@tenure.workflow
async def greet(name: str = "Ada") -> str:
    return await greeting(name)
"""
COMMAND = """
import sys
from tenure.cli.main import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
"""
TOLD = """
import json, sys
print("\\n" + json.dumps(sorted(sys.modules)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an application."""
    made = tmp_path_factory.mktemp("loading")
    (made / "app.py").write_text(APP)
    return made


def run(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


def loaded(folder: Path, program: str, *words: str) -> set[str]:
    """The modules that a program has loaded by its end."""
    return set(json.loads(run(folder, program + TOLD, *words).stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def run_id(folder: Path) -> str:
    """The id of a finished run in the folder's runs.db."""
    run(folder, COMMAND, "run", "app.py:greet", "--db", "runs.db")
    (line,) = json.loads(run(folder, COMMAND, "runs", "list", "--json", "--db", "runs.db").stdout)
    return str(line["id"])


@pytest.mark.parametrize("name", [*RARE, *LOGGING, *TERMINAL, *OURS])
def test_the_watched_modules_exist(name: str) -> None:
    assert find_spec(name) is not None


def test_importing_tenure_loads_no_submodules(folder: Path) -> None:
    assert loaded(folder, "import tenure") & {*RARE, *LOGGING, *TERMINAL, *OURS, "asyncio"} == set()


def test_an_application_does_not_load_the_command_line(folder: Path) -> None:
    found = loaded(folder, "import app, tenure; assert tenure.run(app.greet, 'Bo') == 'hello Bo'")
    assert "tenure.store.sqlite.store" in found
    assert found & {*RARE, *LOGGING, *TERMINAL} == set()


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_and_version_load_only_the_command_line(folder: Path, word: str) -> None:
    assert loaded(folder, COMMAND, word) & {*RARE, *OURS, "pydantic", "structlog", "asyncio"} == set()


@pytest.mark.parametrize(
    "words", [["list"], ["list", "--json"], ["show", "RUN"], ["why", "RUN"], ["events", "RUN"]]
)
def test_listing_runs_loads_only_the_engine(folder: Path, run_id: str, words: list[str]) -> None:
    asked = [run_id if word == "RUN" else word for word in words]
    found = loaded(folder, COMMAND, "runs", *asked, "--db", "runs.db")
    assert "tenure.engine.engine" in found
    assert found & {*RARE, *LOGGING} == set()


def test_the_help_of_a_command_does_not_load_the_engine(folder: Path) -> None:
    assert loaded(folder, COMMAND, "runs", "--help") & {*RARE, *OURS, "structlog"} == set()


def test_running_a_workflow_loads_only_logging_in_addition(folder: Path) -> None:
    found = loaded(folder, COMMAND, "run", "app.py:greet")
    assert "structlog" in found  # workflow code may log
    assert found & set(RARE) == set()


def test_late_log_lines_go_to_stderr(folder: Path, run_id: str) -> None:
    logging = "\nfrom tenure.logs import get_logger\nget_logger('x').warning('it broke', n=1)"
    done = run(folder, COMMAND + logging, "runs", "list", "--json", "--db", "runs.db")
    assert [line["id"] for line in json.loads(done.stdout)] == [run_id]
    assert "it broke" in done.stderr
    assert "n=1" in done.stderr


def test_an_existing_structlog_configuration_is_kept(folder: Path) -> None:
    theirs = """
import structlog
from tenure import logs
structlog.configure(processors=[structlog.processors.JSONRenderer()])
logs.configure_on_first_use(lambda: structlog.configure(processors=[]))
logs.get_logger("x").warning("it broke")
"""
    assert json.loads(run(folder, theirs).stdout) == {"event": "it broke"}
