"""A base class for connectors without state, look-up and undo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.govern.connector import CallFault, ConnectorCall, FoundEffect, Operation, Reversal
from tenure.govern.connectors.faults import classify_exception
from tenure.govern.display_text import display_lines, display_value


class ConnectorBase:
    name: str
    operations: Mapping[str, Operation]

    async def state(self, call: ConnectorCall) -> dict[str, Any] | None:  # noqa: ARG002 # for connectors with state
        return None

    async def lookup(self, call: ConnectorCall) -> FoundEffect | None:  # noqa: ARG002 # for connectors with a look-up
        return None

    def reverse(
        self,
        operation: str,  # noqa: ARG002 # for connectors with an undo
        target: dict[str, Any],  # noqa: ARG002 # the same
        fields: dict[str, Any],  # noqa: ARG002 # the same
        before: dict[str, Any] | None,  # noqa: ARG002 # the same
        result: Any,  # noqa: ARG002 # the same
    ) -> Reversal | None:
        return None

    def classify(self, fault: BaseException) -> CallFault:
        """Classifies the exceptions of `tenure.outbound.http`; others are `unknown`."""
        return classify_exception(fault)

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        return display_lines(
            f"{self.name}.{operation}",
            *(f"{display_value(name)}: {display_value(value)}" for name, value in target.items()),
            *(f"{display_value(name)} = {display_value(value)}" for name, value in fields.items()),
        )
