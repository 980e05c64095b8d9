"""What workflows, declared steps and runners ask of a governor, and what it answers.

Law: this is all that the SDK, the worker and the runner protocol know of governing. The governor itself is above them
(`tenure.govern.governor`); a station hands their asks on to one beside it, or to a server's.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An action that a workflow wants to be done."""

    label: str
    """Which act of its step this is; the same in every replay."""
    action: str
    """`connector.operation`."""
    target: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    key: str = ""
    """Its idempotency key; empty: made from run, step and label."""
    why: str = ""
    """The agent's own words, shown to people apart from what is proposed."""
    reverses: tuple[str, int] | None = None
    """Of a reversal: the run and the number of the receipt that it takes back."""
    expects: dict[str, Any] | None = None
    """Of a reversal: what the target must look like."""
    retries: int | None = None
    """How often it is tried again where it is known not to have happened; None: whoever asks counts."""
    fresh: bool = False
    """Nothing was recorded of this act before: no receipt has to be looked for."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an ask.

    done: `result` is what the service answered. wait: suspend on the wait `no`, and ask again when it has settled. failed: it was
    not done; `retry_at` says when it may be asked again (microseconds by the store's clock; None: never). conflict: of a
    reversal: the target is no longer what was written. refused: the step has ended (policy, people, freeze, budget). misfit: another
    action was recorded at this place. cancel: the run is being canceled."""

    state: Literal["done", "wait", "failed", "conflict", "refused", "misfit", "cancel"]
    result: Any = None
    no: int | None = None
    code: str = ""
    message: str = ""
    retry_at: int | None = None
    tried: bool = False
    """Of a failed one: whether it was tried now, and not before."""
    receipt: int | None = None
