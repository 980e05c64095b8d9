"""What a connector is: the one place that knows how another service is spoken to.

Laws:
1. A connector declares its operations as data: the schemas of target and fields, and how each may be repeated. What it does not
   declare cannot be done.
2. It holds no secret: the call it makes resolves references at that moment, for that one call.
3. It decides nothing: whether, when and how often a call is made is the governor's business. It says what a fault means.
4. A call is not begun after its deadline on the clock since boot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from tenure import clock
from tenure.kernel.actions import Repeats


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """Something a connector can do."""

    name: str
    """As in `label.add`; with its connector's name before it, what `tenure.act` is told: `github.label.add`."""
    summary: str
    target: dict[str, Any]
    """JSON Schema (an object) of what it is done to."""
    fields: dict[str, Any]
    """JSON Schema (an object) of what is written there."""
    repeats: Repeats
    reverses_by: str | None = None
    """The operation that takes it back; None: it cannot be taken back."""
    undo_hint: str = ""
    """Of one that cannot be taken back: what a person should do."""
    tier: Literal["low", "med", "high"] = "low"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call, as the governor orders it."""

    tenant: str
    operation: str
    target: dict[str, Any]
    fields: dict[str, Any]
    key: str
    """The idempotency key: passed on, set as a marker, or looked up by."""
    deadline: float
    """By `clock.boot_seconds()`."""

    @property
    def seconds_left(self) -> float:
        """How long it may still take."""
        return self.deadline - clock.boot_seconds()


class Found(msgspec.Struct, frozen=True):
    """What a look-up found: the effect is there."""

    result: Any = None


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What a failed call means (decision 24): `not_done` (refused before it was sent, or by an answer that says so) or `unknown`
    (the answer is lost)."""

    outcome: Literal["not_done", "unknown"]
    code: str
    message: str
    retryable: bool = False
    retry_after_seconds: float | None = None


class Reversal(msgspec.Struct, frozen=True, kw_only=True):
    """The action that takes another one back, and what the target must look like for it to be tried."""

    operation: str
    target: dict[str, Any]
    fields: dict[str, Any]
    expects: dict[str, Any]
    """What we wrote, in the form of `state`: if the current state differs there, somebody else has changed it."""


class Connector(Protocol):
    """See the laws above."""

    name: str
    operations: Mapping[str, Operation]

    async def state(self, call: Call) -> dict[str, Any] | None:
        """The part of the target's current state that a reversal needs or that it is compared with; None: nothing to keep."""
        ...

    async def call(self, call: Call) -> Any:
        """Do it; what the service answered, as far as the workflow and the receipt need it. Raises what `classify` understands."""
        ...

    async def lookup(self, call: Call) -> Found | None:
        """Whether the effect of this key is there."""
        ...

    def reverse(
        self,
        operation: str,
        target: dict[str, Any],
        fields: dict[str, Any],
        before: dict[str, Any] | None,
        result: Any,
    ) -> Reversal | None:
        """How to take an action back that succeeded; None: it cannot be, or there is nothing to take back."""
        ...

    def classify(self, fault: BaseException) -> Fault:
        """What a fault of `call` means."""
        ...

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        """The proposed writes in words for people, a line each, made from the fields alone."""
        ...
