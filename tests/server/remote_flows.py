"""Workflows and tools for remote workers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import tenure
from tests.worker.flows import is_open, note


@tenure.step
async def doubled(number: int) -> int:
    """A small result."""
    return 2 * number


@tenure.step
async def noted(folder: str, text: str) -> str:
    """Leave a note."""
    note(folder, text)
    return text


@tenure.step
async def large(chars: int) -> str:
    """A result that is too large for the database."""
    return "x" * chars


@tenure.workflow(lease="3s")
async def remote_child(number: int) -> int:
    """A child run."""
    await tenure.sleep(0.01)
    return await doubled(number)


@tenure.workflow(lease="3s")
async def remote_whole(folder: str) -> dict[str, Any]:
    """Every primitive: parallel steps, a child, a short sleep, an approval, a log."""
    numbers = await tenure.gather(doubled(1), doubled(2), doubled(3))
    tenure.log("numbers are there", count=len(numbers))
    started = await tenure.start(remote_child, sum(numbers))
    from_child = await started.result()
    await tenure.sleep(0.05)
    await noted(folder, "before the question")
    answer = await tenure.approve("ship it?", show={"numbers": numbers})
    await noted(folder, "after the question")
    return {"numbers": numbers, "child": from_child, "reason": answer.reason}


@tenure.workflow(lease="3s")
async def remote_heavy(chars: int) -> int:
    """Passes large payloads between its steps."""
    text = await large(chars)
    await tenure.sleep(0.01)
    again = await large(chars)
    return len(text) + len(again)


@tenure.workflow(lease="2s")
async def remote_gated(folder: str) -> str:
    """Three steps. The second waits for a file or for its cancellation."""
    await noted(folder, "first")
    await at_gate(folder)
    await noted(folder, "last")
    return "done"


@tenure.step
async def at_gate(folder: str) -> int:
    """Wait for a file."""
    note(folder, f"at the gate in {os.getpid()}")
    while not is_open(folder, "gate"):  # noqa: ASYNC110 - a file has no event to wait for
        await asyncio.sleep(0.02)
    return os.getpid()


@tenure.tool("tests.nothing")
async def nothing() -> None:
    """Do nothing."""


@tenure.tool("tests.deep")
async def deep() -> Any:
    """A result that the server refuses: lists nested too deeply."""
    value: Any = 1
    for _ in range(400):
        value = [value]
    return value


@tenure.tool("tests.add")
async def add(left: int, right: int = 0) -> int:
    """Add two numbers."""
    return left + right


def pids(folder: str) -> list[int]:
    """The ids of the processes that have waited at the gate."""
    path = Path(folder) / "notes.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        int(line.partition("\t")[0].rpartition(" ")[2]) for line in lines if line.startswith("at the gate")
    ]


@tenure.workflow(lease="3s")
async def remote_restarting(left: int) -> str:
    """Restart as a new run, a few times."""
    await doubled(left)
    if left:
        tenure.restart(left - 1)
    return "at last"


app = [remote_whole, remote_child, remote_heavy, remote_gated, remote_restarting, nothing, add]
