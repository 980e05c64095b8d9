"""One try of a step's function: where it runs, how long it may take, and how it is stopped.

Laws:
1. Whatever a function raises is its own failure, including SystemExit and a CancelledError of its own: it never ends the loop it runs
   in.
2. A try that is abandoned (it timed out, stalled or was canceled) is over for its run at once. Code that can be canceled has
   STOP_SECONDS to stop. Code that does not stop keeps a slot, and its result is dropped.
3. A function is called only while its lease is certainly held and its worker is not stopping. That is checked just before the call, in
   the thread or process where the function runs.
4. If a function is cut because its worker stops, and returns or raises within OUTCOME_SECONDS, that outcome counts.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tenure import tracing
from tenure.futures import fail_future, ignore_outcome
from tenure.sdk import context
from tenure.sdk.errors import Failure
from tenure.sdk.frame import Frame

if TYPE_CHECKING:
    from tenure.sdk.definitions import StepFunction
    from tenure.sdk.lease_port import LeasePort

STOP_SECONDS = 5.0
"""How long code that is canceled may take before its slot counts as taken."""
OUTCOME_SECONDS = 3.0
"""How long code that is cut at the end of its worker's grace period may take to return or raise."""


class ExitFailure(Failure):
    """The failure of code that raised SystemExit, KeyboardInterrupt or the like; see law 1."""


def exit_failure(how: BaseException) -> ExitFailure:
    return ExitFailure("STEP_FAILED", f"{type(how).__name__}: {how}".rstrip(": "))


def call_plain(function: Callable[[], Any]) -> Any:
    """Call plain code; see law 1. (A future cannot carry StopIteration.)"""
    try:
        return function()
    except (SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError) as how:
        raise exit_failure(how) from how


def call_if_held(lease_port: LeasePort, function: Callable[[], Any]) -> Any:
    """Call plain code in its thread, unless it may no longer begin because it waited too long for the thread."""
    lease_port.check_begin()
    return call_plain(function)


async def try_once(
    lease_port: LeasePort, step: StepFunction[..., Any], frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any],
    limit: float | None,
) -> Any:  # fmt: skip
    if not tracing.is_enabled():
        return await _try(lease_port, step, frame, args, kwargs, limit)
    about = {"tenure.run_id": frame.run_id, "tenure.step": frame.step, "tenure.attempt": frame.attempt}
    with tracing.span(f"step {step.name}", about=about):
        return await _try(lease_port, step, frame, args, kwargs, limit)


async def _try(
    lease_port: LeasePort, step: StepFunction[..., Any], frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any],
    limit: float | None,
) -> Any:  # fmt: skip
    if limit is None and step.is_async and step.progress_seconds is None:
        lease_port.check_begin()
        token = context.enter(frame)
        try:
            return await step.function(*args, **kwargs)
        except (SystemExit, KeyboardInterrupt) as how:
            raise exit_failure(how) from how
        except asyncio.CancelledError as how:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise  # canceled from outside, not by its own code
            raise exit_failure(how) from how
        finally:
            context.leave(token)
    work = asyncio.ensure_future(_work(lease_port, step, frame, args, kwargs))
    stoppable = step.is_async or step.isolate is not None
    return await wait_within(
        lease_port, work, frame, f"step {step.name!r}", limit, step.progress_seconds, stoppable
    )


async def wait_within(
    lease_port: LeasePort,
    work: asyncio.Future[Any],
    frame: Frame,
    what: str,
    limit: float | None,
    progress_seconds: float | None,
    stoppable: bool,
) -> Any:
    """The outcome of running work, unless it times out or stalls; see law 2."""
    try:
        async with lease_port.timers.timeout(limit):
            if progress_seconds is None:
                await asyncio.wait((work,))
            else:
                await _wait_while_progressing(lease_port, work, frame, what, progress_seconds)
    except TimeoutError:
        await _abandon_work(lease_port, work, frame, stoppable)
        raise TimeoutError(f"{what} took more than {limit:g} s") from None
    except asyncio.CancelledError:
        if not (lease_port.draining and await _cut(work, stoppable)):
            await _abandon_work(lease_port, work, frame, stoppable)
            raise
    except Failure:  # it stalled
        await _abandon_work(lease_port, work, frame, stoppable)
        raise
    if work.cancelled():
        raise Failure("STEP_FAILED", f"{what} canceled itself")
    return work.result()


async def _wait_while_progressing(
    lease_port: LeasePort, work: asyncio.Future[Any], frame: Frame, what: str, progress_seconds: float
) -> None:
    while not work.done():
        progressed = asyncio.ensure_future(frame.progressed())
        try:
            async with lease_port.timers.timeout(progress_seconds):
                await asyncio.wait((work, progressed), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            last = f"; it last reported {frame.progress_text!r}" if frame.progress_text else ""
            raise Failure(
                "STEP_STALLED", f"{what} reported no progress for {progress_seconds:g} s{last}"
            ) from None
        finally:
            progressed.cancel()


async def _cut(work: asyncio.Future[Any], stoppable: bool) -> bool:
    """Stop work whose worker is stopping. Returns whether the work has an outcome all the same; see law 4."""
    if stoppable:
        work.cancel()
    await asyncio.wait((work,), timeout=OUTCOME_SECONDS)
    return work.done() and not work.cancelled()


async def _abandon_work(
    lease_port: LeasePort, work: asyncio.Future[Any], frame: Frame, stoppable: bool
) -> None:
    frame.abandoned = True
    work.cancel()
    await wait_until_stopped(lease_port, work, STOP_SECONDS if stoppable else 0.0)


async def wait_until_stopped(lease_port: LeasePort, work: asyncio.Future[Any], at_most: float) -> None:
    """Wait for canceled work; if it does not stop, it keeps a slot."""
    with suppress(asyncio.CancelledError):
        await asyncio.wait((work,), timeout=at_most)
    if work.done():
        ignore_outcome(work)
    else:
        lease_port.abandon(work)


async def _work(
    lease_port: LeasePort,
    step: StepFunction[..., Any],
    frame: Frame,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    context.enter(frame)  # in this task's own context
    if step.isolate is not None:
        return await lease_port.run_in_process(step, args, kwargs)
    if not step.is_async:
        return await lease_port.run_in_thread(
            lambda: call_if_held(lease_port, lambda: step.function(*args, **kwargs))
        )
    lease_port.check_begin()
    try:
        return await step.function(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt) as how:
        raise exit_failure(how) from how


def run_in_own_thread(function: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run plain workflow code in its own daemon thread: it blocks neither the steps that it waits for nor the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    variables = contextvars.copy_context()

    def settle(value: Any, fault: BaseException | None) -> None:
        if fault is not None:
            fail_future(future, fault)
        elif not future.done():
            future.set_result(value)

    def run() -> None:
        value, fault = None, None
        try:
            value = variables.run(call_plain, function)
        except BaseException as raised:
            fault = raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, value, fault)

    threading.Thread(target=run, name="tenure-workflow", daemon=True).start()
    return future
