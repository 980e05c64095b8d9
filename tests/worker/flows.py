"""Workflows for the stories. Steps leave notes in a folder, and wait there for gates: files that a test makes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tenure
from tenure.sdk import Workflow


def note(folder: str, text: str) -> None:
    """Leave a note: one line, written at once, and when."""
    with open(Path(folder) / "notes.txt", "ab", buffering=0) as file:
        file.write(f"{text}\t{time.time_ns() // 1000}\n".encode())


def notes(folder: str) -> list[str]:
    """All notes, in order."""
    return [line.partition("\t")[0] for line in _lines(folder)]


def noted_at(folder: str, text: str) -> int:
    """When a note was left for the first time, in microseconds."""
    return next(int(line.partition("\t")[2]) for line in _lines(folder) if line.startswith(f"{text}\t"))


def _lines(folder: str) -> list[str]:
    path = Path(folder) / "notes.txt"
    return path.read_text().splitlines() if path.exists() else []


def open_gate(folder: str, name: str) -> None:
    """Let steps pass."""
    (Path(folder) / name).touch()


def is_open(folder: str, name: str) -> bool:
    """Whether steps may pass."""
    return (Path(folder) / name).exists()


# ------------------------------------------------------------------------------------------------ steps


@tenure.step
async def mark(folder: str, name: str) -> str:
    """Leave a note."""
    note(folder, name)
    return name


@tenure.step
def mark_plainly(folder: str, name: str) -> str:
    """Leave a note, in a thread."""
    note(folder, name)
    return name


@tenure.step(idempotent=False)
async def mark_once(folder: str, name: str) -> str:
    """Leave a note that may not be left twice."""
    note(folder, name)
    return name


@tenure.step(idempotent=False, resumable=False)
async def mark_for_good(folder: str, name: str) -> str:
    """Leave a note that can be neither skipped nor left again."""
    note(folder, name)
    return name


@tenure.step
async def wait_at(folder: str, gate: str) -> str:
    """Wait at a gate, and stop when asked to."""
    note(folder, f"at {gate}")
    try:
        while not is_open(folder, gate):  # noqa: ASYNC110 - a file makes no event
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        note(folder, f"stopped at {gate}")
        raise
    note(folder, f"past {gate}")
    return gate


@tenure.step
def wait_plainly_at(folder: str, gate: str) -> str:
    """Wait at a gate in a thread, whatever happens."""
    note(folder, f"at {gate}")
    while not is_open(folder, gate):
        time.sleep(0.02)
    note(folder, f"past {gate}")
    return gate


@tenure.step(timeout=0.3, retries=0)
def wait_too_long_at(folder: str, gate: str) -> str:
    """Wait at a gate in a thread, for longer than it may."""
    note(folder, f"at {gate}")
    while not is_open(folder, gate):
        time.sleep(0.02)
    note(folder, f"past {gate}, told to stop: {tenure.current().canceled}")
    return gate


@tenure.step
async def deafly_wait_at(folder: str, gate: str) -> str:
    """Wait at a gate and swallow every cancellation."""
    note(folder, f"at {gate}")
    while not is_open(folder, gate):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            note(folder, f"deaf at {gate}")
    note(folder, f"past {gate}")
    return gate


@tenure.step
async def block_the_loop(folder: str, seconds: float) -> None:
    """What no async code should do."""
    note(folder, "blocking")
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point


@tenure.step(retries=3, backoff=[4.0], jitter=0)
async def fail_always(folder: str) -> None:
    """Fail, and be tried again much later."""
    note(folder, "failing")
    raise RuntimeError("as always")


# ------------------------------------------------------------------------------ steps in their own process


@tenure.step(isolate="process", retries=0)
def vanish() -> None:
    """End the process without a word."""
    os._exit(3)


@tenure.step(isolate="process", retries=0)
def segfault() -> None:
    """Read from nowhere."""
    ctypes.string_at(0)


@tenure.step(isolate="process", retries=2, backoff=[0.05])
def run_out_of_memory(folder: str) -> int:
    """Be killed as the kernel would, twice; then succeed."""
    tries = tenure.current().attempt
    note(folder, f"try {tries}")
    if tries < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return tries


@tenure.step(isolate="process", retries=0, timeout="60s")
def have_children(folder: str) -> None:
    """Start a process that would outlive this one, and wait for it."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note(folder, f"pids {os.getpid()} {child.pid}")
    child.wait()


@tenure.step(isolate="process", retries=0, timeout="2s")
def have_children_too_long(folder: str) -> None:
    """As above, with a timeout."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note(folder, f"pids {os.getpid()} {child.pid}")
    child.wait()


# -------------------------------------------------------------------------------------------- workflows


@tenure.workflow(lease="2s")
async def gated(folder: str) -> str:
    """Three steps; the one in the middle waits at a gate."""
    await mark(folder, "first")
    await wait_at(folder, "gate")
    await mark(folder, "last")
    return "done"


@tenure.workflow(lease="1s")
async def blocking(folder: str, seconds: float) -> str:
    """A step that holds up its worker's loop."""
    await block_the_loop(folder, seconds)
    await mark(folder, "last")
    return "done"


@tenure.workflow(lease="1s")
async def quick(folder: str, name: str) -> str:
    """One note."""
    await mark(folder, name)
    return name


@tenure.workflow(lease="1s")
async def poison(folder: str) -> None:
    """Kill the worker."""
    note(folder, "poison")
    os.kill(os.getpid(), signal.SIGKILL)


@tenure.workflow(lease="2s")
async def pair(folder: str, name: str) -> str:
    """Two steps that count: one at least once, one at most once."""
    await mark(folder, f"{name} a")
    await mark_once(folder, f"{name} b")
    await asyncio.sleep(0.01)
    await mark(folder, f"{name} c")
    return name


@tenure.workflow(lease="2s")
async def orphan_of_a_children_step(folder: str) -> None:
    """A step in a process of its own, with a child."""
    await have_children(folder)


@tenure.step
async def tell(folder: str) -> None:
    """Say how far it is, and wait."""
    tenure.current().progress("2 of 3 pages")
    while not is_open(folder, "gate"):  # noqa: ASYNC110 - a file makes no event
        await asyncio.sleep(0.02)


@tenure.workflow(lease="1s")
async def telling(folder: str) -> str:
    """A step that says how far it is."""
    await tell(folder)
    return "told"


@tenure.step(progress_within=0.5, retries=0)
async def stall_after_three(folder: str) -> None:
    """Get on three times, then stand still."""
    try:
        for page in (1, 2, 3):
            note(folder, f"page {page}")
            tenure.current().progress(f"page {page}")
            await asyncio.sleep(0.25)
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        note(folder, "stopped")
        raise


@tenure.workflow(lease="1s")
async def stalling(folder: str) -> str:
    """A step that stands still."""
    try:
        await stall_after_three(folder)
    except tenure.StepFailed as failed:
        return failed.code
    return "done"


@tenure.step(progress_within=0.3, retries=0)
def stall_in_a_thread(folder: str) -> None:
    """Stand still where nobody can interrupt."""
    while not tenure.current().canceled:
        time.sleep(0.02)
    note(folder, "told to stop")


@tenure.workflow(lease="1s")
def stalling_plainly(folder: str) -> str:
    """A plain workflow with a step that stands still."""
    try:
        stall_in_a_thread(folder)
    except tenure.StepFailed as failed:
        return failed.code
    return "done"


@tenure.tool("tests.stall", progress_within=0.3)
async def stall() -> None:
    """A tool that stands still."""
    await asyncio.sleep(600)


@tenure.step
def wait_attentively_at(folder: str, gate: str) -> str:
    """Wait at a gate in a thread, and stop when asked to."""
    note(folder, f"at {gate}")
    while not is_open(folder, gate):
        if tenure.current().canceled:
            note(folder, f"stopped at {gate}")
            raise RuntimeError("told to stop")
        time.sleep(0.02)
    note(folder, f"past {gate}")
    return gate


@tenure.workflow(lease="2s")
def gated_plainly(folder: str) -> str:
    """As `gated`, in threads."""
    mark_plainly(folder, "first")
    wait_attentively_at(folder, "gate")
    mark_plainly(folder, "last")
    return "done"


Gated = Workflow[[str], Any]

SOME = [quick, blocking]
