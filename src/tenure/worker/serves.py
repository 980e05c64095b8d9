"""What a worker can do, as the queue texts it claims from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tenure.errors import TenureError
from tenure.kernel import capability
from tenure.sdk.definitions import Registry, Tool, Workflow, registry
from tenure.worker.declared import CHILD


def collected(definitions: tuple[Workflow[..., Any] | Tool | Registry, ...]) -> Registry:
    """What a worker is given, or everything the decorators have collected."""
    if not definitions:
        return registry
    mine = Registry()
    for definition in definitions:
        for each in definition if isinstance(definition, Registry) else (definition,):
            mine.add(each)
    return mine


def queues_of(known: Registry, only: tuple[str, ...] | None, commands: bool) -> tuple[str, ...]:
    """Everything a worker can do on its queues, as the queue texts it claims from; see law 1. Without a choice of
    queues: each workflow's own, and `default` for tools."""
    if commands and capability.RUN in known.tools:
        raise TenureError(
            "INVALID_INPUT", f"a worker for commands has no tool named {capability.RUN!r}: rename the tool"
        )
    flows = (flow for flow in known.workflows.values() if only is None or flow.queue in only)
    serves = [queue for flow in flows for queue in flow.serves]
    queues = only or ("default",)
    whats = [capability.tool(name) for name in known.tools] + ([capability.RUN] if commands else [])
    whats += [capability.tool(CHILD + name) for name in known.workflows]
    serves += [capability.capability(queue, what) for queue in queues for what in whats]
    return tuple(dict.fromkeys(serves))


def governed(actions: Iterable[str], known: Registry, only: tuple[str, ...] | None) -> Iterator[str]:
    """The actions of a governor as queue texts; see law 1."""
    for queue in only or ("default",):
        for action in actions:
            if action not in known.tools:
                yield capability.capability(queue, capability.tool(action))
