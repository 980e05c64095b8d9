"""Durable calls that were made and never awaited: a mistake that would pass as success.

Law: only what nobody can await any more is one. What a gather or a task closed before it began was given up by the code, and
what a task that nobody waits for still holds ends with its body.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Coroutine
from typing import Any

from tenure.sdk.faults import Failure

_OURS = 2
"""How many references there are to a coroutine that is known here alone: our name for it, and the count's own."""


def check_awaited(unbegun: dict[str, Coroutine[Any, Any, Any]], value: Any) -> None:
    """The code has ended with this value: fail it when a durable call of its was forgotten."""
    forgotten = None
    while unbegun:
        key, call = unbegun.popitem()  # the last first, so that the first one is told
        if not inspect.iscoroutine(call) or inspect.getcoroutinestate(call) != inspect.CORO_CREATED:
            continue
        if call is value or sys.getrefcount(call) <= _OURS:
            forgotten = _called(key, call.cr_code.co_name)
            call.close()
    if forgotten is not None:
        raise Failure("WORKFLOW_FAILED", f"{forgotten} was called and never awaited", retryable=False)


def _called(key: str, function: str) -> str:
    """A call as its author knows it."""
    name = key.rpartition("/")[2].partition("#")[0]
    if function == "call":
        return f"step {name!r}"
    return "child.result()" if function == "_result" else f"tenure.{name.partition(':')[0]}"
