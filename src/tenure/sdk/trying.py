"""One try of a step's function: where it runs, how long it may, and what is left of it when it is given up.

Laws:
1. Whatever a function raises is its own failure, `SystemExit` and a cancellation of its own among them: nothing it does
   takes down the loop it runs in.
2. A try that is given up (its time is over, it stands still, it is canceled) is over at once for everybody else. Code that
   lets itself be stopped is given STOP_SECONDS; what does not stop keeps a slot, and its result is dropped.
3. A function is called only while its lease is held for certain and its worker does not end: that is looked at just before, in the
   thread or process where it runs.
4. A function that is cut because its worker ends, and returns or raises within OUTCOME_SECONDS, has said how it ended: that counts.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tenure.futures import fail
from tenure.orchestrator import spans
from tenure.sdk import here
from tenure.sdk.faults import Failure
from tenure.sdk.frame import Frame

if TYPE_CHECKING:
    from tenure.sdk.definitions import Step
    from tenure.sdk.line import Line

STOP_SECONDS = 5.0
"""How long code that was told to stop may take before its slot counts as taken."""
OUTCOME_SECONDS = 3.0
"""How long code that is cut at the end of its worker's grace may take to say what it came to."""
STALLED = "STEP_STALLED"


def frame_of(line: Line, run_id: str, workflow: str, key: str, attempt: int) -> Frame:
    """What the code of a step sees of its try."""
    return Frame(run_id, workflow, key, attempt, f"{run_id}/{key}", line, line.lease.trace)


class Left(Failure):
    """The failure of code that wanted to end more than itself; see law 1."""


def left(how: BaseException) -> Left:
    """What is left of it."""
    return Left("STEP_FAILED", f"{type(how).__name__}: {how}".rstrip(": "))


def plainly(function: Callable[[], Any]) -> Any:
    """Call plain code; see law 1. (A future cannot carry StopIteration.)"""
    try:
        return function()
    except (SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError) as how:
        raise left(how) from how


def begun(line: Line, function: Callable[[], Any]) -> Any:
    """Call plain code in its thread, which it may have waited for, if it may still begin."""
    line.check_begin()
    return plainly(function)


async def try_once(
    line: Line, step: Step[..., Any], frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any],
    limit: float | None,
) -> Any:  # fmt: skip
    """Call a step's function once, in a span of its own where somebody wants spans."""
    if not spans.wanted():
        return await _try(line, step, frame, args, kwargs, limit)
    about = {"tenure.run_id": frame.run_id, "tenure.step": frame.step, "tenure.attempt": frame.attempt}
    with spans.span(f"step {step.name}", about=about):
        return await _try(line, step, frame, args, kwargs, limit)


async def _try(
    line: Line, step: Step[..., Any], frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any],
    limit: float | None,
) -> Any:  # fmt: skip
    if limit is None and step.is_async and step.progress_seconds is None:
        line.check_begin()
        token = here.enter(frame)
        try:
            return await step.function(*args, **kwargs)
        except (SystemExit, KeyboardInterrupt) as how:
            raise left(how) from how
        except asyncio.CancelledError as how:
            if not _is_canceled():
                raise left(how) from how
            raise
        finally:
            here.leave(token)
    work = asyncio.ensure_future(_work(line, step, frame, args, kwargs))
    stoppable = step.is_async or step.isolate is not None
    return await within(line, work, frame, f"step {step.name!r}", limit, step.progress_seconds, stoppable)


async def within(
    line: Line,
    work: asyncio.Future[Any],
    frame: Frame,
    what: str,
    limit: float | None,
    progress_seconds: float | None,
    stoppable: bool,
) -> Any:
    """What work under way comes to, unless it takes too long or stands still; see law 2."""
    try:
        async with line.timeout(limit):
            if progress_seconds is None:
                await asyncio.wait((work,))
            else:
                await _moving(line, work, frame, what, progress_seconds)
    except TimeoutError:
        await give_up(line, work, frame, stoppable)
        raise TimeoutError(f"{what} took more than {limit:g} s") from None
    except asyncio.CancelledError:
        if not (line.draining and await _comes_to_an_end(work, stoppable)):
            await give_up(line, work, frame, stoppable)
            raise
    except Failure:
        await give_up(line, work, frame, stoppable)
        raise
    if work.cancelled():
        raise Failure("STEP_FAILED", f"{what} canceled itself")
    return work.result()


async def _moving(
    line: Line, work: asyncio.Future[Any], frame: Frame, what: str, progress_seconds: float
) -> None:
    """Wait for work as long as it says that it gets on."""
    while not work.done():
        moved = asyncio.ensure_future(frame.moved())
        try:
            async with line.timeout(progress_seconds):
                await asyncio.wait((work, moved), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            said = f"; its last word was {frame.progress_text!r}" if frame.progress_text else ""
            raise Failure(STALLED, f"{what} showed no progress for {progress_seconds:g} s{said}") from None
        finally:
            moved.cancel()


async def _comes_to_an_end(work: asyncio.Future[Any], stoppable: bool) -> bool:
    """Tell work to stop whose worker ends; whether its code has come to a result all the same, which then counts."""
    if stoppable:
        work.cancel()
    await asyncio.wait((work,), timeout=OUTCOME_SECONDS)
    return work.done() and not work.cancelled()


async def give_up(line: Line, work: asyncio.Future[Any], frame: Frame | None, stoppable: bool) -> None:
    """Tell work to stop, and leave it alone if it does not."""
    if frame is not None:
        frame.given_up = True
    work.cancel()
    await ended(line, work, STOP_SECONDS if stoppable else 0.0)


async def ended(line: Line, work: asyncio.Future[Any], at_most: float) -> None:
    """Wait a while for work that was told to stop; what does not keeps a slot."""
    with suppress(asyncio.CancelledError):
        await asyncio.wait((work,), timeout=at_most)
    if not work.done():
        line.abandon(work)
    elif not work.cancelled():
        work.exception()


async def _work(
    line: Line, step: Step[..., Any], frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    here.enter(frame)  # in this task's own context
    if step.isolate is not None:
        return await line.in_process(step, args, kwargs)
    if not step.is_async:
        return await line.in_thread(lambda: begun(line, lambda: step.function(*args, **kwargs)))
    line.check_begin()
    try:
        return await step.function(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt) as how:
        raise left(how) from how


def _is_canceled() -> bool:
    """Whether somebody has canceled the task that runs now, rather than its own code."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def in_own_thread(function: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run plain workflow code in a thread of its own, which holds up nobody: neither steps that it waits for, nor the
    end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def tell(value: Any, fault: BaseException | None) -> None:
        if future.done():
            return
        if fault is None:
            future.set_result(value)
        else:
            fail(future, fault)

    def run() -> None:
        value, fault = None, None
        try:
            value = context.run(plainly, function)
        except BaseException as raised:
            fault = raised
        with suppress(RuntimeError):  # the loop is gone, and with it whoever wanted to know
            loop.call_soon_threadsafe(tell, value, fault)

    threading.Thread(target=run, name="tenure-body", daemon=True).start()
    return future
