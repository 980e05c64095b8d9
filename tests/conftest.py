"""What every test can use: async tests, clause markers, a PostgreSQL of its own.

- `async def test_…` runs under `asyncio.Runner`, with a limit of 60 seconds unless
  `@pytest.mark.guard_seconds(n)` gives another. Set up what it needs with async context managers.
- Every test is stopped after `timeout` of pyproject.toml, also a plain one that hangs in a system call (pytest-timeout).
- Processes that tests start get the default signal dispositions, however the suite itself was started.
- A task or future of the test that fails, and that nobody asks how it ended, fails the test.
- `@pytest.mark.clause("GWI-12")` names a clause the test proves; an unknown id stops the run.
- Every move, path and approval edge the kernel takes is noted; when the whole suite runs, also divided over several
  processes, it fails in the end for those nobody walked (`test_edges.py`).
- `postgres_dsn` is the address of an empty database, made for this test and dropped after it; `migrated_dsn` of a migrated one
  without a row (`tests/databases.py`).
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
from tools.clauses import load_clauses, unknown_clauses
from tools.postgres_server import QUICK_SETTINGS, ExternalPostgres, PrivatePostgres, open_server
from tools.s3_server import PrivateS3

GUARD_SECONDS = 60.0
TIMEOUT_SECONDS = 300.0
"""Of every test; `timeout` in pyproject.toml."""
LONGEST = ("docs", "simulation", "worker", "chaos", "server", "cli", "sdk")
"""Folders whose files take longest: they go first, so that no process is left alone with one of them at the end."""

# A shared machine may stall: time limits are the guard's business. A failure prints its reproduction.
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
        if guard is not None:  # the guard's own message comes first
            seconds = max(float(guard.args[0]) + 60.0, TIMEOUT_SECONDS)
            item.add_marker(pytest.mark.timeout(seconds * cases(1)))  # a hunt draws more cases
    last = [item for item in items if item.path.name == "test_edges.py"]
    if last:
        whole = _is_whole(config) and not hasattr(config, "workeroutput")
        items[:] = [item for item in items if item not in last] + (last if whole else [])
        if not whole:
            config.hook.pytest_deselected(items=last)


def _is_whole(config: pytest.Config) -> bool:
    """Whether nothing of the suite is left out."""
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not any(
        config.getoption(name, None)
        for name in ("keyword", "markexpr", "deselect", "lf", "ignore", "ignore_glob")
    )


def pytest_configure() -> None:
    """A shell starts its background jobs with SIGINT ignored, and ignored signals are inherited by every process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for inherited in (signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(inherited) is signal.SIG_IGN:
            signal.signal(inherited, signal.SIG_DFL)


def pytest_sessionstart() -> None:
    """Have the kernel note what it walks."""
    note_walks()


# Where the suite is divided over several processes (`pytest -n`), each sends what it has walked to the one that waits.

_walked: Walked = {}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of the suite has ended."""
    for kind, found in getattr(node, "workeroutput", {}).get("walked", {}).items():
        _walked[kind] = sorted({*_walked.get(kind, ()), *found})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send it; or, where everything has come together, be the gate of test_edges.py."""
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
    unasked: list[str] = []
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(partial(_note_unasked, unasked))
        runner.run(_guarded(pyfuncitem.obj(**arguments), seconds))
    if unasked:
        pytest.fail("\n".join(unasked))
    return True


def _note_unasked(unasked: list[str], loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A future or task has failed and nobody has asked it: see `tenure.futures`."""
    if "never retrieved" in context["message"]:
        unasked.append(f"{context['message']}: {context.get('exception')!r} of {context.get('future')!r}")
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
def _nothing_hidden_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier tests have kept from commands is not kept from this test's: each hidden path is work for each command."""
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
    """The address of a migrated database without a row, that only this test uses."""
    with databases.migrated() as dsn:
        yield dsn
