"""What workflows, plan steps and runners request from a governor, and what it replies.

Law: this is all that the SDK, the worker and the runner protocol know of governance. The governor (`tenure.govern.governor`) is above
them; a work source passes requests to a local one or to a server's.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class ActRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    label: str
    """Names the act within its step; the same in every replay."""
    action: str
    """`connector.operation`."""
    target: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    key: str = ""
    """The idempotency key; if empty, it is made from run, step and label."""
    why: str = ""
    """The agent's own words, shown to people apart from the proposal itself."""
    reverses: tuple[str, int] | None = None
    """For a reversal: the run and number of the receipt that it reverses."""
    expects: dict[str, Any] | None = None
    """For a reversal: what the target must look like."""
    retries: int | None = None
    """How often it is tried again if it is known not to have happened; None: the caller counts."""
    fresh: bool = False
    """Whether nothing was recorded of this act before: then no receipt is searched."""


class ActResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a request.

    done: `result` is what the service answered. wait: suspend on the wait `no`, and request again when it has settled. failed: it was
    not done; `retry_at` is when it may be requested again (microseconds by the store's clock; None: never). conflict: the target of a
    reversal is no longer what was written. refused: the step has ended (policy, people, freeze, budget). misfit: another action was
    recorded under this label. cancel: the run is being canceled."""

    state: Literal["done", "wait", "failed", "conflict", "refused", "misfit", "cancel"]
    result: Any = None
    no: int | None = None
    code: str = ""
    message: str = ""
    retry_at: int | None = None
    tried: bool = False
    """For a failed act: whether this request tried it."""
    receipt: int | None = None
