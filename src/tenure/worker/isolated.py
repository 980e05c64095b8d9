"""A step's function in a process of its own, which can be killed.

Laws:
1. What goes in and comes out is JSON by the types the function declares: nothing is unpickled.
2. The process and everything it started is killed when the step is cancelled or times out.
3. What it prints goes to the worker's stderr; its answer has a pipe of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from contextlib import suppress
from typing import Any

import msgspec

from tenure.sdk.codec import Parameters, encode
from tenure.sdk.definitions import Step
from tenure.sdk.faults import Failure

ANSWER_BYTES_MAX = 64 * 1024 * 1024


class _Call(msgspec.Struct):
    module: str
    name: str
    path: list[str]
    arguments: msgspec.Raw


class _Answer(msgspec.Struct, omit_defaults=True):
    value: msgspec.Raw = msgspec.Raw(b"null")
    code: str | None = None
    message: str = ""
    retryable: bool | None = None


async def run_isolated(step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a step's function in a fresh process and answer what it returns."""
    function = step.function
    if "<locals>" in function.__qualname__:
        raise Failure("STEP_FAILED", f"{function.__qualname__} cannot run in a process of its own: define it in a module",
                      retryable=False)  # fmt: skip
    module = function.__module__
    if module == "__main__":
        raise Failure("STEP_FAILED", "a function of __main__ cannot run in a process of its own: move it to a module",
                      retryable=False)  # fmt: skip
    arguments = Parameters(function, f"step {step.name!r}").bind(args, kwargs)
    call = msgspec.json.encode(_Call(module, function.__qualname__, sys.path, msgspec.Raw(arguments)))
    reading, writing = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tenure.worker.isolated",
            str(writing),
            stdin=asyncio.subprocess.PIPE,
            stdout=sys.stderr.fileno() if _has_fileno() else asyncio.subprocess.DEVNULL,
            pass_fds=(writing,),
            start_new_session=True,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    try:
        answering = asyncio.ensure_future(asyncio.to_thread(_read_all, reading))
        assert process.stdin is not None
        with suppress(ConnectionError):
            process.stdin.write(call)
            await process.stdin.drain()
            process.stdin.close()
        await process.wait()
        raw = await answering
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if not raw:
        raise Failure(
            "STEP_FAILED",
            f"the process of step {step.name!r} ended with {process.returncode} and said nothing",
        )
    answer = msgspec.json.decode(raw, type=_Answer)
    if answer.code is not None:
        raise Failure(answer.code, answer.message, retryable=answer.retryable)
    return step.codec.decode(bytes(answer.value))


def _has_fileno() -> bool:
    try:
        sys.stderr.fileno()
    except (OSError, AttributeError, ValueError):
        return False
    return True


def _read_all(reading: int) -> bytes:
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read(ANSWER_BYTES_MAX)


def main() -> None:
    """In the process: read the call, make it, write the answer."""
    from tenure.sdk.body import failure_of

    answering = int(sys.argv[1])
    call = msgspec.json.decode(sys.stdin.buffer.read(), type=_Call)
    sys.path[:] = call.path
    answer = _Answer()
    try:
        target: Any = importlib.import_module(call.module)
        for part in call.name.split("."):
            target = getattr(target, part)
        function = target.function if isinstance(target, Step) else target
        value = Parameters(function, f"step {call.name!r}").call(function, bytes(call.arguments))
        body = encode(value, f"the result of {call.name}")
        answer.value = msgspec.Raw(body or b"null")
    except Exception as fault:
        answer.code, answer.message, answer.retryable = failure_of(fault)
    with os.fdopen(answering, "wb") as pipe:
        pipe.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
