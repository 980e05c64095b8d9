"""Workflows of one test: made without telling the registry that all share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from tenure.sdk import Workflow
from tenure.sdk.definitions import StepFunction

Steps = list[str]
"""What steps have really done, in order."""


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
    """An async step that notes its name and arguments, and answers them."""

    async def function(*args: Any) -> str:
        said = " ".join(map(str, (name, *args)))
        done.append(said)
        return said

    return StepFunction(function, name=name, **options)
