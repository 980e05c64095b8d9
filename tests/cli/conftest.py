"""The command line is run inside this process: what other tests have defined is not there for it."""

from collections.abc import Iterator

import pytest

from tenure.sdk.definitions import registry


@pytest.fixture(autouse=True)
def nothing_is_defined() -> Iterator[None]:
    """A process of its own would begin with an empty registry."""
    workflows, tools = dict(registry.workflows), dict(registry.tools)
    registry.workflows.clear()
    registry.tools.clear()
    yield
    registry.workflows.clear()
    registry.tools.clear()
    registry.workflows.update(workflows)
    registry.tools.update(tools)
