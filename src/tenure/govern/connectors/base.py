"""The least that a connector is: it keeps nothing, finds nothing and takes nothing back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.govern.connector import Call, Fault, Found, Operation, Reversal
from tenure.govern.connectors.faults import fault_of
from tenure.govern.wording import lines, shown


class ConnectorBase:
    """What connectors begin with; they say what they do otherwise."""

    name: str
    operations: Mapping[str, Operation]

    async def state(self, call: Call) -> dict[str, Any] | None:  # noqa: ARG002 # for whoever reads something
        """Nothing is kept."""
        return None

    async def lookup(self, call: Call) -> Found | None:  # noqa: ARG002 # for whoever can look
        """Nothing is found."""
        return None

    def reverse(
        self,
        operation: str,  # noqa: ARG002 # for whoever takes something back
        target: dict[str, Any],  # noqa: ARG002 # the same
        fields: dict[str, Any],  # noqa: ARG002 # the same
        before: dict[str, Any] | None,  # noqa: ARG002 # the same
        result: Any,  # noqa: ARG002 # the same
    ) -> Reversal | None:
        """Nothing is taken back."""
        return None

    def classify(self, fault: BaseException) -> Fault:
        """What is known of the faults of `govern.outgoing`; anything else is unknown."""
        return fault_of(fault)

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        """Target and fields, a line each."""
        return lines(
            f"{self.name}.{operation}",
            *(f"{shown(name)}: {shown(value)}" for name, value in target.items()),
            *(f"{shown(name)} = {shown(value)}" for name, value in fields.items()),
        )
