"""Whether the running code is in a workflow, in a step, or in neither.

Law: this is the only ambient state of the SDK. Tasks and threads inherit it through their context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.sdk.frame import Frame
    from tenure.sdk.scope import CallScope

_place: ContextVar[CallScope | Frame | None] = ContextVar("tenure_place", default=None)
enter = _place.set
leave = _place.reset


def current_scope() -> CallScope | None:
    """The scope of the running workflow; None outside of workflows and inside steps."""
    place = _place.get()
    return None if place is None else place.scope


def current_frame() -> Frame | None:
    place = _place.get()
    return None if place is None else place.frame


def require_scope(primitive: str) -> CallScope:
    """The scope of the running workflow, for a primitive that only workflows may call."""
    place = _place.get()
    if place is None:
        raise TenureError("INVALID_INPUT", f"tenure.{primitive} can only be used inside a workflow")
    if place.scope is None:
        raise TenureError(
            "INVALID_INPUT",
            f"tenure.{primitive} cannot be used inside a step: call it in the workflow",
        )
    return place.scope
