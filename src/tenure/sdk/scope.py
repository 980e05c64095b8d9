"""Keys of durable calls: (scope path, name, n-th call of that name in that scope).

Laws:
1. A key is given when a call is made, not when it is awaited: `asyncio.gather(build(1), build(2))` has the same keys
   in every replay.
2. Every branch of a gather and every task is a scope of its own, so that what runs side by side cannot
   change each other's keys. A task that is not ours is given its scope at its first durable call.
3. A key that was recorded and is not asked for again, where another is asked for in its place, is a misfit: the
   code has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tenure.errors import TenureError
from tenure.sdk import here

if TYPE_CHECKING:
    from tenure.sdk.body import Body
    from tenure.sdk.definitions import Step

T = TypeVar("T")


class Scope:
    """A sequence of durable calls in a workflow."""

    frame = None

    __slots__ = ("_counts", "_tasks", "body", "path", "plain", "stopped", "task")

    def __init__(self, body: Body, path: str, task: asyncio.Task[Any] | None, *, plain: bool = False) -> None:
        self.body = body
        self.path = path
        self.task = task
        self.plain = plain
        """Whether its code runs in a thread and gets results instead of awaitables."""
        self.stopped = False
        """Whether its thread was given up: nothing it says counts any more."""
        self._counts: dict[str, int] = {}
        self._tasks: dict[asyncio.Task[Any], Scope] = {}

    @property
    def scope(self) -> Scope:
        """The scope of the task that runs now; see law 2."""
        if self.plain:
            return self
        try:
            task = asyncio.current_task()
        except RuntimeError:
            raise TenureError(
                "INVALID_INPUT",
                "an async workflow says what is durable in its own event loop, not in a thread: call a plain step",
            ) from None
        if self.task is task or task is None:
            return self
        known = self._tasks.get(task)
        if known is None:
            if self.body.closed:
                raise asyncio.CancelledError  # the workflow has ended without this task
            known = self._tasks[task] = self.branch("task", task)
            self.body.strand_begins()
            self.body.strand_tasks.add(task)
            task.add_done_callback(self._task_ended)
            here.enter(known)  # in the task's own context
        return known

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        self.body.strand_tasks.discard(task)
        self.body.strand_ends()

    def key(self, name: str) -> str:
        """The key of the next call of this name."""
        n = self._counts.get(name, 0) + 1
        self._counts[name] = n
        key = self.path + name if n == 1 else f"{self.path}{name}#{n}"
        if self.body.past:
            self.body.past.ask(key)
        return key

    def branch(self, name: str, task: asyncio.Task[Any] | None = None) -> Scope:
        """A scope beneath this one."""
        n = self._counts.get(name, 0) + 1
        self._counts[name] = n
        path = f"{self.path}{name}[{n}]/"
        if self.body.past:
            self.body.past.begin(path)
        return Scope(self.body, path, task, plain=self.plain)

    def say(self, key: str, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """A word: awaited, or said at once in plain code. (The types are those of async workflows.)"""
        if self.plain:
            return cast("Coroutine[Any, Any, T]", self.body.bridge(work, self))
        self.body.unbegun[key] = work
        return work

    def call(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A durable call of a step: awaited, or done at once in plain code."""
        key = self.key(step.name)
        calling = self.body.call(key, step, args, kwargs)
        if self.plain:
            return self.body.bridge(calling, self)
        self.body.unbegun[key] = calling
        return calling
