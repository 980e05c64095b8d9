"""Run one workflow from ordinary code: an engine, a worker and a run, in one call."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import uvloop

from tenure.engine.engine import Engine
from tenure.sdk.definitions import Workflow

P = ParamSpec("P")
T = TypeVar("T")

COLLECT_AFTER = 10_000
"""New objects after which the garbage collector runs; Python's default is 700."""


def run(workflow: Workflow[P, Any] | Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
    """Run a workflow to its end and return its result. The database is TENURE_DB, else `tenure.db` in the current folder.

    Inside async code use an engine: `async with tenure.Engine() as engine, engine.worker(): …`.
    """
    if not isinstance(workflow, Workflow):
        raise TypeError(f"tenure.run takes a workflow; decorate {workflow!r} with @tenure.workflow")
    return run_in_loop(_run(workflow, args, kwargs))


async def _run(workflow: Workflow[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    async with Engine() as engine, engine.worker():
        started = await engine.start(workflow, *args, **kwargs)
        return await started.result()


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new uvloop event loop."""
    with reduced_garbage_collection(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@contextmanager
def reduced_garbage_collection() -> Iterator[None]:
    """Run the garbage collector less often. The objects of running workflows live for a moment and form no cycles; with Python's
    default, collecting them would be a seventh of the cost of a step."""
    before = gc.get_threshold()
    if 0 < before[0] < COLLECT_AFTER:
        gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
