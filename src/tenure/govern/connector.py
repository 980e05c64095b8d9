"""The interface of connectors. A connector is the only code that knows how to talk to a service.

Laws:
1. A connector declares its operations as data: the schemas of target and fields, and how each operation may be repeated. Undeclared
   operations cannot be done.
2. A connector holds no secret: each call resolves its references.
3. A connector decides nothing: the governor decides whether, when and how often a call is made. The connector classifies failures.
4. A call does not begin after its deadline on the boot clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from tenure import clock
from tenure.kernel.act_commands import RepeatSafety


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """For example `label.add`. With the connector's name it is the action of `tenure.act`: `github.label.add`."""
    summary: str
    target: dict[str, Any]
    fields: dict[str, Any]
    """JSON Schema (an object) of the fields that are written."""
    repeats: RepeatSafety
    reverses_by: str | None = None
    """The operation that undoes it, or None if it cannot be undone."""
    undo_hint: str = ""
    """If it cannot be undone: what a person should do."""
    tier: Literal["low", "med", "high"] = "low"


class ConnectorCall(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    operation: str
    target: dict[str, Any]
    fields: dict[str, Any]
    key: str
    """The idempotency key, which is sent, set as a marker, or looked up."""
    deadline: float
    """By `clock.boot_seconds()`."""

    @property
    def seconds_left(self) -> float:
        return self.deadline - clock.boot_seconds()


class FoundEffect(msgspec.Struct, frozen=True):
    result: Any = None


class CallFault(msgspec.Struct, frozen=True, kw_only=True):
    """What a failed call means (rule 24): `not_done` (it was not sent, or the service refused it) or `unknown` (the answer is lost)."""

    outcome: Literal["not_done", "unknown"]
    code: str
    message: str
    retryable: bool = False
    retry_after_seconds: float | None = None


class Reversal(msgspec.Struct, frozen=True, kw_only=True):
    """The action that undoes another action, and the state that it requires."""

    operation: str
    target: dict[str, Any]
    fields: dict[str, Any]
    expects: dict[str, Any]
    """What was written, in the form of `state`. If the current state differs, someone else has changed the target."""


class Connector(Protocol):
    name: str
    operations: Mapping[str, Operation]

    async def state(self, call: ConnectorCall) -> dict[str, Any] | None:
        """The part of the target's current state that an undo needs or compares; None if there is nothing to keep."""

    async def call(self, call: ConnectorCall) -> Any:
        """Do the operation. Returns the part of the answer that the workflow and the receipt need. Raises what `classify` understands."""

    async def lookup(self, call: ConnectorCall) -> FoundEffect | None:
        """Find the effect of this key."""

    def reverse(
        self,
        operation: str,
        target: dict[str, Any],
        fields: dict[str, Any],
        before: dict[str, Any] | None,
        result: Any,
    ) -> Reversal | None:
        """How to undo a successful action, or None if that is impossible or unnecessary."""

    def classify(self, fault: BaseException) -> CallFault:
        """What an exception of `call` means."""

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        """The proposed writes for people, one per line, made from target and fields alone."""
