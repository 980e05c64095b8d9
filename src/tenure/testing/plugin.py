"""The pytest plugin: the `tenure_lab` fixture, and async tests that use it.

    async def test_release(tenure_lab):
        async with tenure_lab(release) as lab:
            ...

Law: an `async def` test that asks for `tenure_lab` just runs. One that another plugin runs (pytest-asyncio, anyio,
pytest-trio) is left to it.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tenure.testing.lab import Lab

OTHERS = ("asyncio", "anyio", "trio", "asyncio_cooperative", "twisted")
"""Marks by which other plugins know their tests."""


@pytest.fixture
def tenure_lab() -> type[Lab]:
    """`async with tenure_lab(workflow, …) as lab:` - see `tenure.testing.Lab`."""
    from tenure.testing.lab import Lab  # late: this plugin is loaded in every pytest run

    return Lab


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """See the law above. Whoever runs a test of theirs has replaced the function, is called before, or marked it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj) or "tenure_lab" not in pyfuncitem.fixturenames:
        return None
    if any(pyfuncitem.get_closest_marker(mark) for mark in OTHERS):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    with asyncio.Runner() as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True
