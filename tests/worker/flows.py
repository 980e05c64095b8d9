"""Workflows for the tests. Steps write notes to a folder, and wait there for gates: files that a test creates."""

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
    """Append a line with the note and its time, in one write."""
    with open(Path(folder) / "notes.txt", "ab", buffering=0) as file:
        file.write(f"{text}\t{time.time_ns() // 1000}\n".encode())


def notes(folder: str) -> list[str]:
    """All notes, in order."""
    return [line.partition("\t")[0] for line in _lines(folder)]


def noted_at(folder: str, text: str) -> int:
    """The time of the first note with this text, in microseconds."""
    return next(int(line.partition("\t")[2]) for line in _lines(folder) if line.startswith(f"{text}\t"))


def _lines(folder: str) -> list[str]:
    path = Path(folder) / "notes.txt"
    return path.read_text().splitlines() if path.exists() else []


def open_gate(folder: str, name: str) -> None:
    """Let steps pass a gate."""
    (Path(folder) / name).touch()


def is_open(folder: str, name: str) -> bool:
    """Whether steps may pass a gate."""
    return (Path(folder) / name).exists()


# ------------------------------------------------------------------------------------------------ steps


@tenure.step
async def mark(folder: str, name: str) -> str:
    """Write a note."""
    note(folder, name)
    return name


@tenure.step
def mark_plainly(folder: str, name: str) -> str:
    """Write a note, in a thread."""
    note(folder, name)
    return name


@tenure.step(idempotent=False)
async def mark_once(folder: str, name: str) -> str:
    """Write a note; may not be repeated."""
    note(folder, name)
    return name


@tenure.step(idempotent=False, resumable=False)
async def mark_for_good(folder: str, name: str) -> str:
    """Write a note; can be neither skipped nor repeated."""
    note(folder, name)
    return name


@tenure.step
async def wait_at(folder: str, gate: str) -> str:
    """Wait at a gate, and stop when canceled."""
    note(folder, f"at {gate}")
    try:
        while not is_open(folder, gate):
            if is_open(folder, "memory is short"):
                os.remove(Path(folder) / "memory is short")
                os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory is short
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        note(folder, f"stopped at {gate}")
        raise
    note(folder, f"past {gate}")
    return gate


@tenure.step
def wait_plainly_at(folder: str, gate: str) -> str:
    """Wait at a gate in a thread, and ignore cancellation."""
    note(folder, f"at {gate}")
    while not is_open(folder, gate):
        time.sleep(0.02)
    note(folder, f"past {gate}")
    return gate


@tenure.step(timeout=0.3, retries=0)
def wait_too_long_at(folder: str, gate: str) -> str:
    """Wait at a gate in a thread, beyond the timeout."""
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
    """Block the event loop, which no async code should do."""
    note(folder, "blocking")
    time.sleep(seconds)  # noqa: ASYNC251 - blocking is the point


@tenure.step(retries=3, backoff=[4.0], jitter=0)
async def fail_always(folder: str) -> None:
    """Fail, with a long delay before the next try."""
    note(folder, "failing")
    raise RuntimeError("as always")


# ------------------------------------------------------------------------------ steps in their own process


@tenure.step(isolate="process", retries=0)
def vanish() -> None:
    """End the process without a message."""
    os._exit(3)


@tenure.step(isolate="process", retries=0)
def segfault() -> None:
    """Read from address 0."""
    ctypes.string_at(0)


@tenure.step(isolate="process", retries=2, backoff=[0.05])
def run_out_of_memory(folder: str) -> int:
    """Be killed twice, as the kernel does when memory is short; then succeed."""
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
    """`have_children` with a timeout."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note(folder, f"pids {os.getpid()} {child.pid}")
    child.wait()


# -------------------------------------------------------------------------------------------- workflows


@tenure.workflow(lease="2s")
async def gated(folder: str) -> str:
    """Three steps. The second one waits at a gate."""
    await mark(folder, "first")
    await wait_at(folder, "gate")
    await mark(folder, "last")
    return "done"


@tenure.workflow(lease="1s")
async def blocking(folder: str, seconds: float) -> str:
    """A step that blocks its worker's event loop."""
    await block_the_loop(folder, seconds)
    await mark(folder, "last")
    return "done"


@tenure.workflow(lease="1s")
async def quick(folder: str, name: str) -> str:
    """Write one note."""
    await mark(folder, name)
    return name


@tenure.workflow(lease="1s")
async def poison(folder: str) -> None:
    """Kill the worker."""
    note(folder, "poison")
    os.kill(os.getpid(), signal.SIGKILL)


@tenure.workflow(lease="2s")
async def pair(folder: str, name: str) -> str:
    """Two steps: one runs at least once, one at most once."""
    await mark(folder, f"{name} a")
    await mark_once(folder, f"{name} b")
    await asyncio.sleep(0.01)
    await mark(folder, f"{name} c")
    return name


@tenure.step
async def tell(folder: str) -> None:
    """Report progress, and wait."""
    tenure.current().progress("2 of 3 pages")
    while not is_open(folder, "gate"):  # noqa: ASYNC110 - a file makes no event
        await asyncio.sleep(0.02)


@tenure.workflow(lease="1s")
async def telling(folder: str) -> str:
    """A step that reports progress."""
    await tell(folder)
    return "told"


@tenure.step(progress_within=0.5, retries=0)
async def stall_after_three(folder: str) -> None:
    """Report progress three times, then stall."""
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
    """A step that stalls."""
    try:
        await stall_after_three(folder)
    except tenure.StepFailed as failed:
        return failed.code
    return "done"


@tenure.step(progress_within=0.3, retries=0)
def stall_in_a_thread(folder: str) -> None:
    """Stall in a thread, which cannot be interrupted."""
    while not tenure.current().canceled:
        time.sleep(0.02)
    note(folder, "told to stop")


@tenure.workflow(lease="1s")
def stalling_plainly(folder: str) -> str:
    """A plain workflow with a step that stalls."""
    try:
        stall_in_a_thread(folder)
    except tenure.StepFailed as failed:
        return failed.code
    return "done"


@tenure.tool("tests.stall", progress_within=0.3)
async def stall() -> None:
    """A tool that stalls."""
    await asyncio.sleep(600)


@tenure.step
def wait_attentively_at(folder: str, gate: str) -> str:
    """Wait at a gate in a thread, and stop when canceled."""
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
    """`gated` in threads."""
    mark_plainly(folder, "first")
    wait_attentively_at(folder, "gate")
    mark_plainly(folder, "last")
    return "done"


Gated = Workflow[[str], Any]


@tenure.workflow(lease="2s")
async def too_long(folder: str) -> str:
    """A step in a thread that times out."""
    try:
        waited: str = await wait_too_long_at(folder, "gate")
        return waited
    except tenure.StepFailed as failed:
        return failed.code


@tenure.step(timeout=0.3, retries=1, backoff=[0.01])
def hang_once(folder: str) -> int:
    """Hang in the first try."""
    tries = tenure.current().attempt
    note(folder, f"try {tries}")
    while tries == 1 and not is_open(folder, "gate"):
        time.sleep(0.02)
    return tries


@tenure.workflow(lease="2s")
def second_try(folder: str) -> int:
    """A thread that hangs in its first try."""
    result: int = hang_once(folder)
    return result


@tenure.step(retries=0)
def begin(folder: str, name: str) -> str:
    """Occupy the only thread until the gate opens."""
    note(folder, f"begun {name}")
    time.sleep(0.6)
    return name


@tenure.step(timeout=0.2, retries=0)
def begin_later(folder: str, name: str) -> str:
    """Wait for a thread, beyond the timeout."""
    note(folder, f"begun {name}")
    return name


@tenure.workflow(lease="2s")
async def queueing(folder: str) -> list[str]:
    """Two steps for one thread."""

    async def second() -> str:
        await asyncio.sleep(0.1)
        try:
            begun: str = await begin_later(folder, "second")
            return begun
        except tenure.StepFailed as failed:
            return failed.code

    return await tenure.gather(begin(folder, "first"), second())


@tenure.step(timeout=0.2, retries=0)
async def deafly_wait_too_long(folder: str) -> None:
    """Swallow the cancellation by a timeout."""
    note(folder, "at deaf")
    while not is_open(folder, "deaf"):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            note(folder, "deaf at deaf")
    note(folder, "past deaf")


@tenure.workflow(lease="2s")
async def deaf(folder: str) -> str:
    """A step that ignores its timeout."""
    try:
        await deafly_wait_too_long(folder)
    except tenure.StepFailed as failed:
        return failed.code
    return "done"


@tenure.workflow(lease="2s")
async def deaf_for_good(folder: str) -> None:
    """A step that cannot be stopped, and a step after it."""
    await deafly_wait_at(folder, "deaf")
    await mark(folder, "after")


class Unspeakable(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise ValueError("no text")


@tenure.step(retries=0)
async def exit_async() -> None:
    """Call sys.exit."""
    sys.exit(3)


@tenure.step(retries=0)
def exit_plainly() -> None:
    """Call sys.exit in a thread."""
    sys.exit(4)


@tenure.step(retries=0, timeout="1m")
async def interrupt() -> None:
    """Raise KeyboardInterrupt."""
    raise KeyboardInterrupt


@tenure.step(retries=0)
def stop_iteration() -> None:
    """Raise StopIteration, which a future cannot carry."""
    raise StopIteration(5)


@tenure.step(retries=0)
async def cancel_itself() -> None:
    """Raise CancelledError without having been canceled."""
    raise asyncio.CancelledError


@tenure.step(retries=0, timeout="1m")
async def cancel_itself_slowly() -> None:
    """Raise CancelledError without having been canceled, in a step with a timeout."""
    raise asyncio.CancelledError


@tenure.step(retries=0)
async def unspeakable() -> None:
    """Raise an error whose text cannot be read."""
    raise Unspeakable


@tenure.step(retries=0)
async def without_a_code() -> None:
    """Fail without a code and without a message."""
    raise tenure.Failure("", "?")


@tenure.step(retries=0)
async def not_a_text() -> None:
    """Fail with a text that cannot be encoded as UTF-8."""
    raise UnicodeError("a lone \udc80")


@tenure.workflow(lease="2s")
async def raising() -> list[str]:
    """Steps that raise every kind of exception."""
    told = []
    for step in (
        exit_async,
        exit_plainly,
        interrupt,
        stop_iteration,
        cancel_itself,
        cancel_itself_slowly,
        unspeakable,
        without_a_code,
        not_a_text,
    ):
        try:
            await step()
        except tenure.StepFailed as failed:
            told.append(failed.message.encode(errors="replace").decode())
    return told


@tenure.workflow(lease="2s")
async def raising_itself(how: str) -> None:
    """Raise in the workflow itself."""
    if how == "exit":
        sys.exit(1)
    if how == "cancel":
        raise asyncio.CancelledError
    raise StopAsyncIteration


@tenure.workflow(lease="2s")
async def miscoded() -> None:
    """Fail with an invalid code."""
    raise tenure.Failure("two\nlines" * 20, "it is no code")


@tenure.workflow(lease="2s")
async def crashing() -> list[str]:
    """Two processes that end without a message."""
    told = []
    for step in (vanish, segfault):
        try:
            await step()
        except tenure.StepFailed as failed:
            told.append(failed.message)
    return told


@tenure.workflow(lease="2s")
async def hungry(folder: str) -> int:
    """A process that is killed for its memory."""
    tries: int = await run_out_of_memory(folder)
    return tries


@tenure.workflow(lease="2s")
async def parent(folder: str) -> None:
    """A process with a child."""
    await have_children(folder)


@tenure.workflow(lease="2s")
async def parent_too_long(folder: str) -> str:
    """A process with a child, which times out."""
    try:
        await have_children_too_long(folder)
    except tenure.StepFailed as failed:
        return failed.code
    return "done"


@tenure.step(isolate="process")
def talk(folder: str) -> str:
    """Report progress from another process."""
    tenure.current().progress("half way")
    tenure.log("from another process", where="there")
    while not is_open(folder, "gate"):
        time.sleep(0.02)
    return tenure.current().key


@tenure.workflow(lease="1s")
async def talkative(folder: str) -> str:
    """A process that reports progress."""
    key: str = await talk(folder)
    return key


@tenure.workflow(lease="2s")
async def waiting(folder: str) -> None:
    """Wait for an event that never comes."""
    await mark(folder, "first")
    await tenure.wait("never")


@tenure.workflow(lease="2s")
def waiting_plainly(folder: str) -> None:
    """`waiting` in a thread."""
    mark_plainly(folder, "first")
    _ = tenure.wait("never")


@tenure.workflow(lease="2s")
async def waiting_beside(folder: str) -> None:
    """Wait while another branch works, so that the lease is kept."""
    await tenure.gather(wait_at(folder, "gate"), tenure.wait("never"))
    await mark(folder, "last")


@tenure.workflow(lease="2s")
async def backing_off(folder: str) -> None:
    """Wait between two tries."""
    await fail_always(folder)
    await mark(folder, "last")


@tenure.step(retries=3, backoff=[4.0], jitter=0)
def fail_always_plainly(folder: str) -> None:
    """Fail, with a long delay before the next try."""
    note(folder, "failing")
    raise RuntimeError("as always")


@tenure.workflow(lease="2s")
def backing_off_plainly(folder: str) -> None:
    """`backing_off` in a thread."""
    fail_always_plainly(folder)
    mark_plainly(folder, "last")


@tenure.step
async def first(folder: str) -> None:
    """The step before the cancellation."""
    note(folder, "first")


@tenure.step
async def clean(folder: str) -> None:
    """The step that cleans up."""
    note(folder, "cleaned up")


@tenure.workflow(lease="2s")
async def tidy(folder: str) -> None:
    """Clean up after any outcome."""
    await first(folder)
    try:
        await wait_at(folder, "gate")
    finally:
        await clean(folder)


async def _three(folder: str, name: str, seconds: float) -> str:
    await mark(folder, f"{name} a")
    await asyncio.sleep(seconds)
    await mark_once(folder, f"{name} b")
    await asyncio.sleep(seconds)
    await mark(folder, f"{name} c")
    return name


@tenure.workflow(lease="30s")
async def patient_pair(folder: str, name: str) -> str:
    """Three steps, one of which may not be repeated, with a lease that outlasts any stall of a busy machine."""
    return await _three(folder, name, 0.01)


@tenure.workflow(lease="2s")
async def slow_pair(folder: str, name: str) -> str:
    """The same steps, slow enough to be killed in between."""
    return await _three(folder, name, 0.1)


@tenure.workflow(lease="3s", profile="git-with-intent")
async def intent(folder: str) -> str:
    """A run under the profile of git-with-intent. It resumes from a checkpoint."""
    await mark(folder, "first")
    await wait_at(folder, "gate")
    await mark(folder, "last")
    return "done"


@tenure.step(agent="coder")
async def generate(folder: str, issue: int) -> str:
    """A resumable step, as an agent makes it."""
    note(folder, "generated")
    tenure.report_cost("acme", "large", tokens_in=1200, tokens_out=340)
    return f"patch {issue} {notes(folder).count('generated')}"


@tenure.step(agent="tester", resumable=False)
async def check_patch(folder: str, patch: str) -> str:
    """A step that is repeated after a crash."""
    note(folder, "tested")
    return f"{patch} tested"


@tenure.step(agent="publisher", resumable=False, idempotent=False)
async def publish_patch(folder: str) -> None:
    """A step that may be neither skipped nor repeated."""
    note(folder, "published")


@tenure.workflow(lease="3s", profile="git-with-intent")
async def intent_resuming(folder: str, risky: bool) -> str:
    """A run with a step of each kind before its gate."""
    patch = await generate(folder, 7)
    tested = await check_patch(folder, patch)
    if risky:
        await publish_patch(folder)
    await wait_at(folder, "gate")
    return tested


@tenure.workflow(lease="3s", profile="git-with-intent")
async def intent_without_checkpoint(folder: str) -> str:
    """`intent` without a checkpoint to resume from."""
    await wait_at(folder, "gate")
    return "done"


@tenure.workflow(lease="3s", profile="git-with-intent")
async def intent_asking(folder: str) -> str:
    """A run that waits for an approval."""
    await mark(folder, "first")
    await tenure.approve("merge it?")
    await mark(folder, "last")
    return "done"


SOME = [quick, blocking]
