"""The workflows of a hunt. Each step writes to a ledger outside Tenure when it begins and when it ends."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import tenure

LEDGER = "HUNT_LEDGER"
SEED = "HUNT_SEED"


def note(what: str, number: int, step: str) -> None:
    """Append a line to the ledger immediately, so that a crash cannot lose it."""
    line = f"{time.time_ns() // 1000} {os.getpid()} {what} {number} {step}\n".encode()
    ledger = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(ledger, line)
    finally:
        os.close(ledger)


class Line:
    """One line of the ledger."""

    def __init__(self, text: str) -> None:
        at, pid, self.what, number, self.step = text.split()
        self.at_us, self.pid, self.number = int(at), int(pid), int(number)


def ledger_lines(path: Path) -> list[Line]:
    """Return all complete lines."""
    text = path.read_text() if path.exists() else ""
    return [Line(line) for line in text.splitlines(keepends=False) if line.count(" ") == 4]


async def _work(number: int, name: str) -> str:
    note("begin", number, name)
    # With the same seed, a step takes the same time in every process and every hunt.
    chance = random.Random(f"{os.environ.get(SEED)} {number} {name}")
    await asyncio.sleep(chance.uniform(0.0, 0.08))
    note("end", number, name)
    return f"{name} of {number}"


@tenure.step(retries=5)
async def repeatable(number: int, name: str) -> str:
    """A step that may be repeated until it is recorded."""
    return await _work(number, name)


@tenure.step(retries=0, idempotent=False)
async def unrepeatable(number: int, name: str) -> str:
    """A step that may begin only once."""
    return await _work(number, name)


STEPS = {
    "chain": ("a", "b", "c", "d"),
    "careful": ("a", "once", "z"),
    "family": ("a", "child0", "child1", "z"),
    "signaled": ("a", "z"),
}
"""Workflow -> its steps. Steps of children have the number of the parent run."""
UNREPEATABLE = frozenset({"once"})


async def _chain(number: int) -> None:
    for name in STEPS["chain"]:
        await repeatable(number, name)


async def _careful(number: int) -> None:
    await repeatable(number, "a")
    await unrepeatable(number, "once")
    await repeatable(number, "z")


async def _signaled(number: int) -> None:
    await repeatable(number, "a")
    await tenure.wait("go")
    await repeatable(number, "z")


@tenure.workflow
async def hunted_child(number: int, name: str) -> None:
    """The child workflow of `family`."""
    await repeatable(number, name)


async def _family(number: int) -> None:
    await repeatable(number, "a")
    children = [await tenure.start(hunted_child, number, f"child{n}") for n in range(2)]
    for child in children:
        await child.result()
    await repeatable(number, "z")


BODIES = {"chain": _chain, "careful": _careful, "signaled": _signaled, "family": _family}
ORDINARY = {name: tenure.workflow(name=f"hunted_{name}")(body) for name, body in BODIES.items()}
"""Workflows with the default lease."""
SHORT = {name: tenure.workflow(name=f"short_{name}", lease="2s")(body) for name, body in BODIES.items()}
"""Workflows with a short lease, which expires during a pause of a worker."""
globals().update({flow.name: flow for flow in (*ORDINARY.values(), *SHORT.values())})
