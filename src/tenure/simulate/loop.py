"""An event loop with virtual time, in which the seed decides the order of callbacks.

Laws:
1. There are no threads, sockets or clocks. If nothing is ready, time jumps to the next timer.
2. Every callback belongs to a *host* (a simulated machine or process), by the context in which it was scheduled. The
   callbacks of a host run in the order in which they were scheduled, as in asyncio. Between hosts the seed decides.
3. A dead host never runs again, not even its `finally` blocks. A paused host continues where it stopped.
4. The same seed and the same program have the same order of callbacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


class Host:
    """A machine or process, which can die or pause."""

    __slots__ = ("alive", "held", "name", "paused_until", "ready")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused_until = 0.0
        self.held = False
        """Whether a timer will end its pause."""
        self.ready: deque[asyncio.Handle] = deque()

    def context(self) -> contextvars.Context:
        """A new context. Callbacks scheduled in it belong to this host."""
        context = contextvars.copy_context()
        context.run(HOST.set, self)
        return context


NOBODY = Host("the world")
HOST: contextvars.ContextVar[Host] = contextvars.ContextVar("host", default=NOBODY)


class Stalled(Exception):
    """Nothing is ready and no timer is set, so the result will never come."""


class TooManyCallbacks(Exception):
    """`handles_max` callbacks have run, and the result has not come."""


class Stopped(Exception):
    """The loop was stopped before the result came."""


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._now = 0.0
        self._runnable: list[Host] = []
        self._timers: list[tuple[float, float, int, asyncio.Handle, Host]] = []
        self._scheduled = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._closed = False
        self._stopping = False
        self.handles = 0
        """How many callbacks have run."""
        self.handles_max = 1 << 62
        self.broken: list[str] = []
        """Callbacks that raised, which is a defect of the simulation or of the product."""

    # ------------------------------------------------------------------------------------------- time

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]  # a TypeVarTuple says no more here than Any
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        if not self._closed:
            self._enqueue(context.get(HOST, NOBODY), handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # likewise

    def call_later(  # type: ignore[override]  # a TypeVarTuple says no more here than Any
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # a TypeVarTuple says no more here than Any
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._closed:
            self._push(when, handle, context.get(HOST, NOBODY))
        return handle

    def _push(self, when: float, handle: asyncio.Handle, host: Host) -> None:
        self._scheduled += 1
        heapq.heappush(self._timers, (when, self._rng.random(), self._scheduled, handle, host))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: `_jump` drops cancelled timers."""

    def _enqueue(self, host: Host, handle: asyncio.Handle) -> None:
        ready = host.ready
        if not ready and not host.held:
            self._runnable.append(host)
        ready.append(handle)

    # ----------------------------------------------------------------------------------------- running

    def run_until_complete(self, future: Any) -> Any:
        """The result of a future; `Stalled`, `TooManyCallbacks` or `Stopped` if it does not come."""
        asyncio._set_running_loop(self)
        try:
            task: asyncio.Future[Any] = asyncio.ensure_future(future, loop=self)
            while not task.done() and not self._stopping:
                self._step()
            if not task.done():
                raise Stopped
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def _step(self) -> None:
        """One callback of one host, or a jump in time."""
        runnable = self._runnable
        if not runnable:
            self._jump()
            return
        at = int(self._rng.random() * len(runnable)) if len(runnable) > 1 else 0
        host = runnable[at]
        if not host.alive:
            host.ready.clear()
            del runnable[at]
            return
        if host.paused_until > self._now:
            del runnable[at]
            host.held = True
            self._push(host.paused_until, asyncio.Handle(self._continue, (host,), self), NOBODY)
            return
        handle = host.ready.popleft()
        if not host.ready:
            del runnable[at]
        if not handle.cancelled():
            self.handles += 1
            handle._run()

    def _continue(self, host: Host) -> None:
        host.held = False
        if host.ready:
            self._runnable.append(host)

    def _jump(self) -> None:
        timers = self._timers
        if not timers:
            raise Stalled
        if self.handles > self.handles_max:
            raise TooManyCallbacks
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            _, _, _, handle, host = heapq.heappop(timers)
            if not handle.cancelled() and host.alive:
                self._enqueue(host, handle)

    def stop(self) -> None:
        """End the run after the current callback."""
        self._stopping = True

    def close(self) -> None:
        """Close the coroutines of all tasks that are not done."""
        self._closed = True
        asyncio._set_running_loop(self)  # a coroutine that is closed may ask for its loop
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own flag
                    with contextlib.suppress(RuntimeError):  # it is running, or awaits again while it closes
                        task.get_coro().close()
        finally:
            asyncio._set_running_loop(None)
        self._tasks.clear()
        self._timers.clear()
        self._runnable.clear()

    # -------------------------------------------------------------------------------------- the rest

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context)
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep callbacks that raised. The exceptions of tasks reach those who await them."""
        if context.get("handle") is not None:
            self.broken.append(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False  # the debug mode of asyncio reads the real clock

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed
