"""Commands run inside this process, with an empty workflow registry as in a new process."""

from collections.abc import Iterator

import pytest

from tenure.sdk.definitions import registry


@pytest.fixture(autouse=True)
def empty_registry() -> Iterator[None]:
    """Clear the registry, because a separate process would start with an empty one."""
    workflows, tools = dict(registry.workflows), dict(registry.tools)
    registry.workflows.clear()
    registry.tools.clear()
    yield
    registry.workflows.clear()
    registry.tools.clear()
    registry.workflows.update(workflows)
    registry.tools.update(tools)
