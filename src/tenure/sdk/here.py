"""Where the code that runs now stands: in a workflow, in a step of one, or nowhere.

Law: this is the one ambient fact of the SDK. Tasks and threads inherit it through their context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.sdk.frame import Frame
    from tenure.sdk.scope import Scope

_here: ContextVar[Scope | Frame | None] = ContextVar("tenure_here", default=None)
enter = _here.set
leave = _here.reset


def here() -> Scope | None:
    """The workflow scope that runs now; None outside of workflows and inside steps."""
    place = _here.get()
    return None if place is None else place.scope


def frame() -> Frame | None:
    """The step or tool that runs now."""
    place = _here.get()
    return None if place is None else place.frame


def scope(word: str) -> Scope:
    """The workflow scope that runs now, for a word that means nothing elsewhere."""
    place = _here.get()
    if place is None:
        raise TenureError("INVALID_INPUT", f"tenure.{word} is used inside a workflow")
    if place.scope is None:
        raise TenureError(
            "INVALID_INPUT",
            f"tenure.{word} is used in the workflow itself, not inside a step: a step is one thing that is done or not",
        )
    return place.scope
