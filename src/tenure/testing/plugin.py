"""The pytest plugin: the `tenure_lab` fixture, and async tests that use it.

    async def test_release(tenure_lab):
        async with tenure_lab(release) as lab:
            ...

Law: this plugin runs `async def` tests that use `tenure_lab`, unless another plugin (pytest-asyncio, anyio, pytest-trio) does.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tenure.testing.lab import Lab

OTHER_MARKS = ("asyncio", "anyio", "trio", "asyncio_cooperative", "twisted")
"""Marks of tests that other plugins run."""


@pytest.fixture
def tenure_lab() -> type[Lab]:
    """`async with tenure_lab(workflow, …) as lab:` - see `tenure.testing.Lab`."""
    from tenure.testing.lab import Lab  # late: this plugin is loaded in every pytest run

    return Lab


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """See the law above. Another plugin replaces the function, is called earlier, or marks its tests."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj) or "tenure_lab" not in pyfuncitem.fixturenames:
        return None
    if any(pyfuncitem.get_closest_marker(mark) for mark in OTHER_MARKS):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    with asyncio.Runner() as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True
