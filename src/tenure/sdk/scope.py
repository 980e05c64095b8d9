"""Keys of durable calls: (scope path, name, n-th call of that name in that scope).

Laws:
1. A call gets its key when it is made, not when it is awaited: `asyncio.gather(build(1), build(2))` has the same keys in every replay.
2. Every branch of a gather and every task is its own scope, so that concurrent calls cannot change each other's keys. A task that the
   SDK did not make gets its scope at its first durable call.
3. If a recorded key is not asked for again and another is asked for in its place, the code has changed: ReplayMismatch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tenure.errors import TenureError
from tenure.sdk import context

if TYPE_CHECKING:
    from tenure.sdk.definitions import StepFunction
    from tenure.sdk.execution import WorkflowExecution

T = TypeVar("T")


class CallScope:
    frame = None

    __slots__ = ("_counts", "_tasks", "execution", "path", "plain", "stopped", "task")

    def __init__(
        self, execution: WorkflowExecution, path: str, task: asyncio.Task[Any] | None, *, plain: bool = False
    ) -> None:
        self.execution = execution
        self.path = path
        self.task = task
        self.plain = plain
        """Whether its code runs in a thread and gets results instead of awaitables."""
        self.stopped = False
        """Whether its thread was abandoned: its calls no longer count."""
        self._counts: dict[str, int] = {}
        self._tasks: dict[asyncio.Task[Any], CallScope] = {}

    @property
    def scope(self) -> CallScope:
        """The scope of the task that runs now; see law 2."""
        if self.plain:
            return self
        try:
            task = asyncio.current_task()
        except RuntimeError:
            raise TenureError(
                "INVALID_INPUT",
                "an async workflow makes durable calls in its own event loop, not in a thread: call a plain step",
            ) from None
        if self.task is task or task is None:
            return self
        known = self._tasks.get(task)
        if known is None:
            if self.execution.journal.closed:
                raise asyncio.CancelledError  # the workflow has ended without this task
            known = self._tasks[task] = self.branch("task", task)
            self.execution.waits.add_branch()
            self.execution.waits.branch_tasks.add(task)
            task.add_done_callback(self._task_ended)
            context.enter(known)  # in the task's own context
        return known

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        self.execution.waits.branch_tasks.discard(task)
        self.execution.waits.remove_branch()

    def key(self, name: str) -> str:
        """The key of the next call of this name."""
        n = self._counts.get(name, 0) + 1
        self._counts[name] = n
        key = self.path + name if n == 1 else f"{self.path}{name}#{n}"
        replay_log = self.execution.journal.replay_log
        if replay_log:
            replay_log.ask(key)
        return key

    def branch(self, name: str, task: asyncio.Task[Any] | None = None) -> CallScope:
        n = self._counts.get(name, 0) + 1
        self._counts[name] = n
        path = f"{self.path}{name}[{n}]/"
        replay_log = self.execution.journal.replay_log
        if replay_log:
            replay_log.begin(path)
        return CallScope(self.execution, path, task, plain=self.plain)

    def submit(self, key: str, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Make a durable call: an async workflow awaits it, a plain one has its result at once. (The types are those of async workflows.)"""
        if self.plain:
            return cast("Coroutine[Any, Any, T]", self.execution.bridge(work, self))
        self.execution.journal.unawaited[key] = work
        return work

    def call(self, step: StepFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = self.key(step.name)
        calling = self.execution.steps.call(key, step, args, kwargs)
        if self.plain:
            return self.execution.bridge(calling, self)
        self.execution.journal.unawaited[key] = calling
        return calling
