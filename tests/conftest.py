"""Fixtures and hooks for all tests: async tests, clause markers, a private PostgreSQL.

- `async def test_…` runs under `asyncio.Runner`, with a limit of 60 seconds unless
    `@pytest.mark.guard_seconds(n)` gives another. Use async context managers for set-up.
- Every test is stopped after `timeout` of pyproject.toml (pytest-timeout), even if it hangs in a system call.
- Processes that tests start get the default signal dispositions, even if the suite was started with others.
- A test fails if one of its tasks or futures fails and the exception is never retrieved.
- `@pytest.mark.clause("GWI-12")` names a clause the test proves; an unknown id stops the run.
- Every move, path and approval edge that the kernel takes is recorded. When the whole suite runs, in one process or in
  several, it fails at the end if an edge was never taken (`test_edges.py`).
- `postgres_dsn` is the address of an empty database, which is created for the test and dropped after it. `migrated_dsn` is
  the address of a migrated database without rows (`tests/databases.py`).
"""

import asyncio
import inspect
import signal
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

import hypothesis
import pytest

from tenure import private_files
from tests.cases import EXAMPLES, cases
from tests.databases import Databases
from tests.edge_coverage import Walked, missing, note_walks, walked_here
from tools.chromium import Chromium, find_chromium
from tools.clauses import load_clauses, unknown_clauses
from tools.postgres_server import QUICK_SETTINGS, ExternalPostgres, PrivatePostgres, open_server
from tools.s3_server import PrivateS3

GUARD_SECONDS = 60.0
TIMEOUT_SECONDS = 300.0
"""For every test; the same as `timeout` in pyproject.toml."""
LONGEST = ("docs", "simulation", "worker", "chaos", "server", "cli", "sdk")
"""The folders with the slowest files. They run first, so that no process is left with a slow file at the end."""

# No deadline, because a shared machine may stall; the guard limits the time. A failure prints how to reproduce it.
hypothesis.settings.register_profile("tenure", deadline=None, print_blob=True, max_examples=cases(EXAMPLES))
hypothesis.settings.load_profile("tenure")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unknown = unknown_clauses(items, load_clauses())
    if unknown:
        raise pytest.UsageError("\n".join(dict.fromkeys(unknown)))
    items.sort(
        key=lambda item: (
            LONGEST.index(folder) if (folder := item.path.parent.name) in LONGEST else len(LONGEST)
        )
    )
    for item in items:
        guard = item.get_closest_marker("guard_seconds")
        if guard is not None:  # so that the guard reports first
            seconds = max(float(guard.args[0]) + 60.0, TIMEOUT_SECONDS)
            item.add_marker(pytest.mark.timeout(seconds * cases(1)))  # a hunt draws more cases
    last = [item for item in items if item.path.name == "test_edges.py"]
    if last:
        whole = _is_whole(config) and not hasattr(config, "workeroutput")
        items[:] = [item for item in items if item not in last] + (last if whole else [])
        if not whole:
            config.hook.pytest_deselected(items=last)


def _is_whole(config: pytest.Config) -> bool:
    """Whether the whole suite was selected."""
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not any(
        config.getoption(name, None)
        for name in ("keyword", "markexpr", "deselect", "lf", "ignore", "ignore_glob")
    )


def pytest_configure() -> None:
    """Reset inherited signal dispositions: a shell starts background jobs with SIGINT ignored, and child processes inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for inherited in (signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(inherited) is signal.SIG_IGN:
            signal.signal(inherited, signal.SIG_DFL)


def pytest_sessionstart() -> None:
    """Let the kernel record the edges that it takes."""
    note_walks()


# With several processes (`pytest -n`), each one sends the edges that it took to the main process.

_walked: Walked = {}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the edges of a process that has ended."""
    for kind, found in getattr(node, "workeroutput", {}).get("walked", {}).items():
        _walked[kind] = sorted({*_walked.get(kind, ()), *found})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker process, send the edges. In the main process, fail if an edge is missing, as test_edges.py does."""
    sent: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if sent is not None:
        sent["walked"] = walked_here()
    elif _walked and _is_whole(session.config) and not session.testsfailed:
        left = missing(_walked)
        if left:
            session.config.get_terminal_writer().line("\n" + "\n".join(left), red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    marker = pyfuncitem.get_closest_marker("guard_seconds")
    seconds = float(marker.args[0]) if marker else GUARD_SECONDS
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    unretrieved: list[str] = []
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(partial(_note_unretrieved, unretrieved))
        runner.run(_guarded(pyfuncitem.obj(**arguments), seconds))
    if unretrieved:
        pytest.fail("\n".join(unretrieved))
    return True


def _note_unretrieved(
    unretrieved: list[str], loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """Record a failed future or task whose exception was never retrieved: see `tenure.futures`."""
    if "never retrieved" in context["message"]:
        unretrieved.append(f"{context['message']}: {context.get('exception')!r} of {context.get('future')!r}")
    else:
        loop.default_exception_handler(context)


async def _guarded(test: Coroutine[Any, Any, None], seconds: float) -> None:
    guard = asyncio.timeout(seconds)
    try:
        async with guard:
            await test
    except TimeoutError:
        if guard.expired():
            pytest.fail(f"The test was still running after {seconds:g} seconds.")
        raise


@pytest.fixture(autouse=True)
def _reset_hidden_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the paths that earlier tests hid from commands, because every hidden path slows commands down."""
    monkeypatch.setattr(private_files, "_hidden", {})


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[ExternalPostgres | PrivatePostgres]:
    """A throw-away PostgreSQL for the whole session; `.dsn(database)` is its address."""
    with open_server(QUICK_SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[PrivateS3]:
    """A throw-away S3 for the whole session."""
    with PrivateS3() as server:
        yield server


@pytest.fixture(scope="session")
def chromium() -> Chromium:
    """A real browser for Playwright. The first run on a machine downloads it."""
    return find_chromium()


@pytest.fixture(scope="session")
def databases(postgres_server: ExternalPostgres | PrivatePostgres) -> Iterator[Databases]:
    databases = Databases(postgres_server)
    yield databases
    databases.close()


@pytest.fixture
def postgres_dsn(databases: Databases) -> Iterator[str]:
    """The address of an empty database that only this test uses."""
    with databases.empty() as dsn:
        yield dsn


@pytest.fixture
def migrated_dsn(databases: Databases) -> Iterator[str]:
    """The address of a migrated database without rows that only this test uses."""
    with databases.migrated() as dsn:
        yield dsn
