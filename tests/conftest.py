"""What every test can use: async tests, clause markers, a PostgreSQL of its own.

- `async def test_…` runs under `asyncio.Runner`, with a limit of 60 seconds unless
  `@pytest.mark.guard_seconds(n)` gives another. Set up what it needs with async context managers.
- `@pytest.mark.clause("GWI-12")` names a clause the test proves; an unknown id stops the run.
- Every move, path and approval edge the kernel takes in this process is noted; when the whole suite runs,
  `test_edges.py` comes last and fails for those nobody walked.
- `postgres_dsn` is the address of an empty database, made for this test and dropped after it.
"""

import asyncio
import inspect
import itertools
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import asyncpg
import hypothesis
import pytest

from tenure.devtools.postgres import QUICK_SETTINGS, ExternalPostgres, PrivatePostgres, open_server
from tenure.kernel import draft
from tenure.kernel.decide import closing, ticks, waits
from tenure.kernel.machine import Edge, Machine
from tenure.kernel.machines import APPROVAL
from tools.clauses import load_clauses, unknown_clauses

GUARD_SECONDS = 60.0

# A shared machine may stall: time limits are the guard's business. A failure prints its reproduction.
hypothesis.settings.register_profile("tenure", deadline=None, print_blob=True)
hypothesis.settings.load_profile("tenure")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unknown = unknown_clauses(items, load_clauses())
    if unknown:
        raise pytest.UsageError("\n".join(dict.fromkeys(unknown)))
    last = [item for item in items if item.path.name == "test_edges.py"]
    if last:
        whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not any(
            config.getoption(name, None)
            for name in ("keyword", "markexpr", "deselect", "lf", "ignore", "ignore_glob")
        )
        items[:] = [item for item in items if item not in last] + (last if whole else [])
        if not whole:
            config.hook.pytest_deselected(items=last)


class NotingMachine(Machine):
    """A machine that notes the rows it is asked for."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.name, machine.first, machine.terminal, machine.edges)
        self.walked: set[Edge] = set()

    def take(self, state: str, given: str) -> Edge:
        edge = super().take(state, given)
        self.walked.add(edge)
        return edge


def pytest_sessionstart() -> None:
    """Have the kernel note what it walks."""
    draft.walked_moves, draft.walked_paths = set(), set()
    noting = NotingMachine(APPROVAL)
    for module in (waits, ticks, closing):
        vars(module)["APPROVAL"] = noting


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    marker = pyfuncitem.get_closest_marker("guard_seconds")
    seconds = float(marker.args[0]) if marker else GUARD_SECONDS
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    with asyncio.Runner() as runner:
        runner.run(_guarded(pyfuncitem.obj(**arguments), seconds))
    return True


async def _guarded(test: Coroutine[Any, Any, None], seconds: float) -> None:
    guard = asyncio.timeout(seconds)
    try:
        async with guard:
            await test
    except TimeoutError:
        if guard.expired():
            pytest.fail(f"The test was still running after {seconds:g} seconds.")
        raise


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[ExternalPostgres | PrivatePostgres]:
    """A throw-away PostgreSQL for the whole session; `.dsn(database)` is its address."""
    with open_server(QUICK_SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def _postgres_execute(postgres_server: ExternalPostgres | PrivatePostgres) -> Iterator[Callable[[str], None]]:
    """Runs one statement as the server's owner, on a connection of its own."""
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(postgres_server.dsn()))
        yield lambda statement: runner.run(connection.execute(statement))
        runner.run(connection.close())


_database_numbers = itertools.count(1)


@pytest.fixture
def postgres_dsn(
    postgres_server: ExternalPostgres | PrivatePostgres, _postgres_execute: Callable[[str], None]
) -> Iterator[str]:
    """The address of an empty database that only this test uses."""
    name = f"tenure_test_{os.getpid()}_{next(_database_numbers)}"
    _postgres_execute(f"create database {name}")
    yield postgres_server.dsn(name)
    _postgres_execute(f"drop database {name} with (force)")
