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

_current: ContextVar[CallScope | Frame | None] = ContextVar("tenure_current", default=None)
enter = _current.set
leave = _current.reset


def current_scope() -> CallScope | None:
    """The scope of the running workflow; None outside of workflows and inside steps."""
    current = _current.get()
    return None if current is None else current.scope


def current_frame() -> Frame | None:
    current = _current.get()
    return None if current is None else current.frame


def require_scope(primitive: str) -> CallScope:
    """The scope of the running workflow, for a primitive that only workflows may call."""
    current = _current.get()
    if current is None:
        raise TenureError("INVALID_INPUT", f"tenure.{primitive} can only be used inside a workflow")
    if (scope := current.scope) is None:
        raise TenureError(
            "INVALID_INPUT",
            f"tenure.{primitive} cannot be used inside a step: call it in the workflow",
        )
    return scope
