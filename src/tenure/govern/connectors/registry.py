"""The connectors of an installation: found by name, checked before calls, redacted after calls.

Laws:
1. An action is `connector.operation`. An undeclared action is UNKNOWN_OPERATION and cannot be done.
2. Target and fields are checked against the operation's schemas before anything is decided.
3. Nothing that a connector returns or raises contains a secret that it resolved (I53). `CheckedConnector` wraps every connector for that.
4. A failed read does not mean the same as a failed call: if the state cannot be read, nothing was done; a failed look-up proves
   nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.errors import TenureError
from tenure.expressions import json_schema
from tenure.govern.connector import CallFault, Connector, ConnectorCall, FoundEffect, Operation, Reversal
from tenure.govern.connectors.faults import CallFailed, classify_safely
from tenure.govern.display_text import display_lines, truncate_text
from tenure.govern.redaction import Redactor
from tenure.kernel.act_commands import RepeatSafety
from tenure.limits import PAYLOAD_BYTES_MAX
from tenure.secrets import record_resolved
from tenure.suggestions import did_you_mean

if TYPE_CHECKING:
    from tenure.secrets import Secrets

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
OPERATION = re.compile(r"[a-z][a-z0-9_]{0,62}(\.[a-z][a-z0-9_]{0,62}){0,3}")
RESULT_BYTES_MAX = PAYLOAD_BYTES_MAX // 4
"""A result is only a part of what its step stores."""


class CheckedConnector:
    """A connector whose results and errors are redacted (law 3)."""

    def __init__(self, inner: Connector) -> None:
        self._inner = inner
        self.name = inner.name
        self.operations = inner.operations

    async def _redacted(self, asked: Callable[[], Awaitable[Any]], reads: str = "") -> Any:
        """Await an answer of the connector, as JSON without secrets. A failure is classified and redacted; `reads` is its outcome for reads."""
        with record_resolved() as values:
            try:
                given = _plain(await asked())
                return Redactor(values).clean(given)  # only now are all resolved values known
            except Exception as raised:  # any exception of a connector
                fault = classify_safely(self._inner, raised)
                if reads:
                    fault = msgspec.structs.replace(
                        fault, outcome=reads, retryable=fault.retryable or fault.outcome == "unknown"
                    )
                clean = msgspec.structs.replace(fault, message=Redactor(values).text(fault.message))
        # Outside of the handler: the cause would contain what was removed.
        raise CallFailed(clean)

    async def state(self, call: ConnectorCall) -> Any:
        return await self._redacted(lambda: self._inner.state(call), "not_done")

    async def call(self, call: ConnectorCall) -> Any:
        return _limited(await self._redacted(lambda: self._inner.call(call)))

    async def lookup(self, call: ConnectorCall) -> FoundEffect | None:
        found = await self._redacted(lambda: self._inner.lookup(call), "unknown")
        return None if found is None else FoundEffect(_limited(found.get("result")))

    def reverse(
        self,
        operation: str,
        target: dict[str, Any],
        fields: dict[str, Any],
        before: dict[str, Any] | None,
        result: Any,
    ) -> Reversal | None:
        return self._inner.reverse(operation, target, fields, before, result)

    def classify(self, fault: BaseException) -> CallFault:
        return fault.fault if isinstance(fault, CallFailed) else self._inner.classify(fault)

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        return display_lines(
            *(truncate_text(line, 2_000) for line in self._inner.render(operation, target, fields))
        )


def _plain(given: Any) -> Any:
    """A value as plain JSON, so that all its strings can be redacted."""
    try:
        return msgspec.json.decode(msgspec.json.encode(given))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return {"omitted": "it is not JSON"}


def _limited(result: Any) -> Any:
    """A result, or a note if it is too large to store."""
    size = len(msgspec.json.encode(result))
    return result if size <= RESULT_BYTES_MAX else {"omitted": f"it has {size} bytes"}


class Connectors(Mapping[str, Connector]):
    def __init__(self, connectors: Iterable[Connector] = ()) -> None:
        self._all: dict[str, Connector] = {}
        for connector in connectors:
            self._check(connector)
            self._all[connector.name] = (
                connector if isinstance(connector, CheckedConnector) else CheckedConnector(connector)
            )

    def _check(self, connector: Connector) -> None:
        if not NAME.fullmatch(connector.name):
            raise ValueError(f"{connector.name!r} is not a valid connector name: {NAME.pattern}")
        if connector.name in self._all:
            raise ValueError(f"two connectors are named {connector.name}")
        for name, operation in connector.operations.items():
            whole = f"{connector.name}.{name}"
            if name != operation.name or not OPERATION.fullmatch(name):
                raise ValueError(f"{whole} is not a valid operation name: {OPERATION.pattern}")
            if operation.repeats not in RepeatSafety.__args__:  # type: ignore[attr-defined]  # what a Literal allows
                raise ValueError(f"{whole}: {operation.repeats!r} is not a valid value of `repeats`")
            for part, schema in (("target", operation.target), ("fields", operation.fields)):
                json_schema.check_schema(schema, f"{whole}.{part}")
                if json_schema.allowed_types(schema) != ("object",):
                    raise ValueError(f"{whole}.{part} must be the schema of an object")
            back = operation.reverses_by
            if back is not None and back not in connector.operations:
                raise ValueError(
                    f"{whole}: `reverses_by` names {back}, which is not an operation of {connector.name}"
                )

    def __getitem__(self, name: str) -> Connector:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def find(self, action: str) -> tuple[Connector, Operation]:
        """The connector and the operation of an action; UNKNOWN_OPERATION if there is none."""
        name, _, rest = action.partition(".")
        connector = self._all.get(name)
        if connector is None:
            there = f"there are {', '.join(self._all)}" if self._all else "none is configured here"
            guess = did_you_mean(name, list(self._all)) or f"; {there}"
            raise TenureError(
                "UNKNOWN_OPERATION", f"{action[:100]!r}: there is no connector {name[:60]!r}{guess}"
            )
        operation = connector.operations.get(rest)
        if operation is None:
            guess = (
                did_you_mean(rest, list(connector.operations))
                or f"; it has {', '.join(connector.operations)}"
            )
            raise TenureError("UNKNOWN_OPERATION", f"{action[:100]!r}: {name} has no {rest[:60]!r}{guess}")
        return connector, operation

    def check(self, action: str, target: Any, fields: Any) -> tuple[Connector, Operation]:
        connector, operation = self.find(action)
        json_schema.check_value(operation.target, target, "target")
        json_schema.check_value(operation.fields, fields, "fields")
        return connector, operation

    def actions(self) -> Iterator[tuple[str, Operation]]:
        return (
            (f"{name}.{operation.name}", operation)
            for name, connector in self._all.items()
            for operation in connector.operations.values()
        )


# ---- Which connectors an engine has.

VARIABLE = "TENURE_CONNECTORS"


def choose_connectors(
    given: Connectors | Iterable[Connector] | str | Path | None = None,
    *,
    secrets: Secrets | None = None,
    environment: Mapping[str, str] | None = None,
) -> Connectors:
    """The given connectors, or those of the given file, or those of the file in TENURE_CONNECTORS, or none.

    The file's reader, every connector and httpx are loaded only if there is a file.
    """
    if given is None:
        given = (os.environ if environment is None else environment).get(VARIABLE) or ()
    if isinstance(given, str | Path):
        from tenure.govern.connectors.settings import load_connectors

        return load_connectors(given, secrets=secrets)
    return given if isinstance(given, Connectors) else Connectors(given)
