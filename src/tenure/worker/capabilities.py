"""What a worker can do, as the capabilities it claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tenure.errors import TenureError
from tenure.kernel import capability
from tenure.sdk.definitions import Registry, Tool, Workflow, registry
from tenure.worker.plan_step import CHILD


def collect_definitions(definitions: tuple[Workflow[..., Any] | Tool | Registry, ...]) -> Registry:
    """The definitions that a worker is given, or else everything that decorators have registered."""
    if not definitions:
        return registry
    mine = Registry()
    for definition in definitions:
        for each in definition if isinstance(definition, Registry) else (definition,):
            mine.add(each)
    return mine


def list_capabilities(known: Registry, only: tuple[str, ...] | None, commands: bool) -> tuple[str, ...]:
    """The capabilities that a worker claims. Without `only`, those on each workflow's own queue, and on `default` for tools."""
    if commands and capability.RUN in known.tools:
        raise TenureError(
            "INVALID_INPUT",
            f"a worker for commands cannot have a tool named {capability.RUN!r}: rename the tool",
        )
    flows = (flow for flow in known.workflows.values() if only is None or flow.queue in only)
    serves = [queue for flow in flows for queue in flow.serves]
    queues = only or ("default",)
    whats = [capability.tool(name) for name in known.tools] + ([capability.RUN] if commands else [])
    whats += [capability.tool(CHILD + name) for name in known.workflows]
    serves += [capability.capability(queue, what) for queue in queues for what in whats]
    return tuple(dict.fromkeys(serves))


def list_action_capabilities(
    actions: Iterable[str], known: Registry, only: tuple[str, ...] | None
) -> Iterator[str]:
    """The actions of a governor as capabilities. A tool with the name of an action takes precedence."""
    for queue in only or ("default",):
        for action in actions:
            if action not in known.tools:
                yield capability.capability(queue, capability.tool(action))
