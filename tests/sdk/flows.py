"""Workflows of a single test, which are not in the global registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from tenure.sdk import Workflow
from tenure.sdk.definitions import StepFunction

Steps = list[str]
"""The steps that were really executed, in order."""


@overload
def flow(function: Callable[..., Any], /) -> Workflow[..., Any]: ...
@overload
def flow(**options: Any) -> Callable[[Callable[..., Any]], Workflow[..., Any]]: ...
def flow(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """`@flow`: a workflow named `flow` unless the options say otherwise."""
    options.setdefault("name", "flow")
    if function is not None:
        return Workflow(function, **options)
    return lambda f: Workflow(f, **options)


def noted(done: Steps, name: str, **options: Any) -> StepFunction[..., Any]:
    """An async step that records its name and arguments as a text, and returns the text."""

    async def function(*args: Any) -> str:
        said = " ".join(map(str, (name, *args)))
        done.append(said)
        return said

    return StepFunction(function, name=name, **options)
