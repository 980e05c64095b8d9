"""Run one workflow from ordinary code: an engine, a worker and a run, in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import uvloop

from tenure.embedded.engine import Engine
from tenure.sdk.definitions import Workflow

P = ParamSpec("P")
T = TypeVar("T")


def run(workflow: Workflow[P, Any] | Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
    """Run a workflow to its end and answer what it returns. The database is TENURE_DB, else `tenure.db` here.

    Inside async code use an engine: `async with tenure.Engine() as engine, engine.worker(): …`.
    """
    if not isinstance(workflow, Workflow):
        raise TypeError(f"tenure.run takes a workflow; decorate {workflow!r} with @tenure.workflow")
    return in_loop(_run(workflow, args, kwargs))


async def _run(workflow: Workflow[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    async with Engine() as engine, engine.worker():
        started = await engine.start(workflow, *args, **kwargs)
        return await started.result()


def in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run something in a fresh, fast loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
