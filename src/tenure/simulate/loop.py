"""An event loop in which time is virtual and the order of things is a matter of the seed.

Laws:
1. No threads, no sockets, no clock: when nothing is ready, time jumps to the next timer.
2. Everything belongs to a *host* (a simulated machine or process), by the context it was scheduled in.
   Within a host things happen in the order they were scheduled, as asyncio promises; between hosts the
   seed decides.
3. A dead host never runs again, not even its `finally` blocks; a paused one goes on where it stopped.
4. The same seed and the same program make the same run.
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
    """A machine or process that can die or stand still."""

    __slots__ = ("alive", "held", "name", "paused_until", "ready")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused_until = 0.0
        self.held = False
        """Whether a timer will make it go on after a pause."""
        self.ready: deque[asyncio.Handle] = deque()

    def context(self) -> contextvars.Context:
        """A context of its own: what is scheduled in it belongs to this host."""
        context = contextvars.copy_context()
        context.run(HOST.set, self)
        return context


NOBODY = Host("the world")
HOST: contextvars.ContextVar[Host] = contextvars.ContextVar("host", default=NOBODY)


class Stalled(Exception):
    """Nothing is ready and no timer is set: whoever is waited for will never come."""


class SimLoop(asyncio.AbstractEventLoop):
    """See the laws above."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._now = 0.0
        self._world = Host("the world")
        self._runnable: list[Host] = []
        self._timers: list[tuple[float, float, int, asyncio.Handle, Host]] = []
        self._scheduled = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._closed = False
        self._stopping = False
        self.handles = 0
        """How many callbacks have been run."""
        self.handles_max = 1 << 62
        self.broken: list[str] = []
        """Callbacks that raised: a defect of the simulation or of what it simulates."""

    # ------------------------------------------------------------------------------------------- time

    def time(self) -> float:
        """Virtual seconds since the beginning."""
        return self._now

    def call_soon(  # type: ignore[override]  # a TypeVarTuple says no more here than Any
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback of the context's host, behind what that host has to do already."""
        if context is None:
            context = contextvars.copy_context()
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
        """Schedule a callback after some virtual seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # a TypeVarTuple says no more here than Any
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a virtual moment."""
        if context is None:
            context = contextvars.copy_context()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._closed:
            self._push(when, handle, context.get(HOST, NOBODY))
        return handle

    def _push(self, when: float, handle: asyncio.Handle, host: Host) -> None:
        self._scheduled += 1
        heapq.heappush(self._timers, (when, self._rng.random(), self._scheduled, handle, host))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their moment comes."""

    def _enqueue(self, host: Host, handle: asyncio.Handle) -> None:
        ready = host.ready
        if not ready and not host.held:
            self._runnable.append(host)
        ready.append(handle)

    # ----------------------------------------------------------------------------------------- running

    def run_until_complete(self, future: Any) -> Any:
        """Run until this is done; `Stalled` when it never will be."""
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
            self._push(host.paused_until, asyncio.Handle(self._go_on, (host,), self), NOBODY)
            return
        handle = host.ready.popleft()
        if not host.ready:
            del runnable[at]
        if not handle.cancelled():
            self.handles += 1
            handle._run()

    def _go_on(self, host: Host) -> None:
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
        """End the run after the callback under way."""
        self._stopping = True

    def close(self) -> None:
        """End everything: what is still waiting is closed where it stands."""
        self._closed = True
        asyncio._set_running_loop(self)  # what is closed may look for its loop
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own flag
                    with contextlib.suppress(RuntimeError):  # in the middle of something; the world is over
                        task.get_coro().close()
        finally:
            asyncio._set_running_loop(None)
        self._tasks.clear()
        self._timers.clear()
        self._runnable.clear()

    # -------------------------------------------------------------------------------------- the rest

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """A task; it belongs to the context's host."""
        task = asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context)
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback that raised is a finding; a task nobody looked at has been answered elsewhere."""
        if context.get("handle") is not None:
            self.broken.append(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        """Never: debugging asyncio reads the real clock."""
        return False

    def is_running(self) -> bool:
        """Whether callbacks may be scheduled."""
        return not self._closed

    def is_closed(self) -> bool:
        """Whether the world is over."""
        return self._closed


class TooManyCallbacks(Exception):
    """More has been done than anything here needs: something goes round in circles."""


class Stopped(Exception):
    """The run was stopped before it was done."""
