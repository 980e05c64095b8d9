"""Workflows for the tests of workers that end; see `tests.worker.flows` for notes and gates."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import tenure
from tests.worker.flows import is_open, mark, mark_plainly, note, wait_at

LEASE = "30s"
"""Longer than any stall of a busy machine."""


@tenure.step(idempotent=False)
async def wait_once_at(folder: str, gate: str) -> str:
    """Wait at a gate; may not be started twice."""
    note(folder, f"at {gate}")
    while not is_open(folder, gate):  # noqa: ASYNC110 - a file makes no event
        await asyncio.sleep(0.02)
    note(folder, f"past {gate}")
    return gate


@tenure.step(idempotent=False)
def wait_once_plainly_at(folder: str, gate: str) -> str:
    """`wait_once_at` in a thread."""
    note(folder, f"at {gate}")
    while not is_open(folder, gate):
        time.sleep(0.02)
    note(folder, f"past {gate}")
    return gate


@tenure.step(idempotent=False, isolate="process")
def wait_once_apart_at(folder: str, gate: str) -> str:
    """`wait_once_at` in its own process."""
    note(folder, f"at {gate}")
    while not is_open(folder, gate):
        time.sleep(0.02)
    note(folder, f"past {gate}")
    return gate


@tenure.workflow(name="drained_patient", lease=LEASE)
async def patient(folder: str) -> str:
    """Repeatable steps, under a lease whose expiry no test waits for."""
    await mark(folder, "first")
    await wait_at(folder, "gate")
    return "done"


@tenure.workflow(lease=LEASE)
async def once(folder: str) -> str:
    """A step that may not be started twice, between two others."""
    await mark(folder, "first")
    await wait_once_at(folder, "gate")
    await mark(folder, "last")
    return "done"


@tenure.workflow(lease=LEASE)
def once_plainly(folder: str) -> str:
    """`once` in threads."""
    mark_plainly(folder, "first")
    wait_once_plainly_at(folder, "gate")
    mark_plainly(folder, "last")
    return "done"


@tenure.workflow(lease=LEASE)
async def once_apart(folder: str) -> str:
    """`once` in a process."""
    await mark(folder, "first")
    await wait_once_apart_at(folder, "gate")
    await mark(folder, "last")
    return "done"


@tenure.step(idempotent=False)
def mark_slowly(folder: str, number: int) -> int:
    """Occupy a thread until the gate opens; may not be started twice."""
    note(folder, f"item {number}")
    while not is_open(folder, "gate"):
        time.sleep(0.02)
    return number


@tenure.workflow(lease=LEASE)
async def crowd(folder: str, size: int) -> list[int]:
    """More concurrent steps than there are threads."""
    done = await tenure.map(lambda number: mark_slowly(folder, number), range(size))
    await mark(folder, "last")
    return done


@tenure.workflow(lease=LEASE)
async def napping(folder: str) -> str:
    """A sleep that passes in memory."""
    await mark(folder, "first")
    await tenure.sleep(4.5)
    await mark(folder, "last")
    return "done"


@tenure.workflow(lease=LEASE)
async def away(folder: str) -> str:
    """Await something that is not durable."""
    await mark(folder, "first")
    if not is_open(folder, "gate"):
        await asyncio.sleep(600)
    await mark(folder, "last")
    return "done"


@tenure.workflow(lease=LEASE)
def away_plainly(folder: str) -> str:
    """Block a thread with something that is not durable and cannot be stopped."""
    mark_plainly(folder, "first")
    while not is_open(folder, "gate"):
        time.sleep(0.02)
    mark_plainly(folder, "last")
    return "done"


@tenure.workflow(lease=LEASE)
async def step_and_wait(folder: str) -> Any:
    """A step next to a wait: after the step, the run only waits."""
    return await tenure.gather(wait_at(folder, "gate"), tenure.wait("go"))


@tenure.workflow(lease=LEASE)
async def late_child(number: int) -> int:
    """Do nothing."""
    return number


@tenure.workflow(lease=LEASE)
async def late_parent(folder: str) -> int:
    """Start a child after a step."""
    await wait_at(folder, "gate")
    started = await tenure.start(late_child, 7)
    result: int = await started.result()
    return result


@tenure.step(idempotent=False, retries=1, backoff=[0.01])
async def report_outcome(folder: str, how: str) -> str:
    """Be cut off, and report the outcome."""
    note(folder, f"begun {how}")
    try:
        while not is_open(folder, "gate"):  # noqa: ASYNC110 - a file makes no event
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        if how == "done":
            return "done all the same"
        if how == "not done":
            raise tenure.Failure("NOT_SENT", "nothing was sent", retryable=True) from None
        raise
    return "done in peace"


@tenure.workflow(lease=LEASE)
async def cut(folder: str, how: str) -> str:
    """A step that is cut off at the end of the grace period."""
    ended = await report_outcome(folder, how)
    await mark(folder, "last")
    return ended


@tenure.step(idempotent=False, timeout="60s", retries=1, backoff=[0.01])
def notice_that_it_is_cut(folder: str) -> str:
    """Poll for cancellation, and report that nothing was done."""
    note(folder, "begun")
    while not is_open(folder, "gate"):
        if tenure.current().canceled:
            raise tenure.Failure("NOT_SENT", "nothing was sent", retryable=True)
        time.sleep(0.02)
    return "done in peace"


@tenure.workflow(lease=LEASE)
async def cut_in_a_thread(folder: str) -> str:
    """`cut` in a thread."""
    ended: str = await notice_that_it_is_cut(folder)
    return ended


@tenure.workflow(lease=LEASE)
def cut_plainly(folder: str) -> str:
    """`cut` in a plain workflow."""
    ended: str = notice_that_it_is_cut(folder)
    return ended


@tenure.tool("drain.wait")
async def wait_as_a_tool(folder: str) -> str:
    """A step of a plan."""
    note(folder, "at gate")
    while not is_open(folder, "gate"):  # noqa: ASYNC110 - a file makes no event
        await asyncio.sleep(0.02)
    note(folder, "past gate")
    return "done"


@tenure.workflow(lease=LEASE)
async def single_step(folder: str) -> str:
    """One step."""
    await mark(folder, "only")
    return "done"


@tenure.workflow(lease="3s")
async def short_single_step(folder: str, name: str) -> str:
    """One step, under a lease short enough for a test to wait for."""
    await mark(folder, name)
    return name


SERIES = 8


@tenure.step(idempotent=False)
async def mark_and_rest(folder: str, text: str) -> None:
    """A step that takes a moment and may not be repeated."""
    note(folder, text)
    await asyncio.sleep(0.3)


@tenure.workflow(lease=LEASE)
async def series(folder: str, name: str) -> str:
    """Many steps in a row, none of which may be repeated."""
    for number in range(SERIES):
        await mark_and_rest(folder, f"{name} step {number}")
    return name
