"""The connectors of an installation: found by name, checked before they are asked, cleaned after.

Laws:
1. An action is `connector.operation`; what no connector declares is UNKNOWN_OPERATION, and cannot be done.
2. Target and fields fit the operation's schemas before anything is decided about them.
3. Whatever a connector gives back or raises has none of the secrets that it resolved (I53). `find` gives connectors in a cover that sees to
   it, those of others too.
4. What a failed reading means is not what a failed call means: a state that cannot be read says that nothing was done, a look-up that
   fails says nothing at all.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.govern.connector import Call, Connector, Fault, Found, Operation, Reversal
from tenure.govern.connectors import schemas
from tenure.govern.connectors.faults import LOST, CallFailed
from tenure.govern.redacting import Redactor
from tenure.govern.wording import bounded, lines
from tenure.kernel.actions import Repeats
from tenure.limits import PAYLOAD_BYTES_MAX
from tenure.secrets import heard
from tenure.suggestions import close_to

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
OPERATION = re.compile(r"[a-z][a-z0-9_]{0,62}(\.[a-z][a-z0-9_]{0,62}){0,3}")
RESULT_BYTES_MAX = PAYLOAD_BYTES_MAX // 4
"""A result is a part of what its step keeps."""


class Covered:
    """A connector in its cover; see law 3 above."""

    def __init__(self, inner: Connector) -> None:
        self._inner = inner
        self.name = inner.name
        self.operations = inner.operations

    async def _kept_clean(self, asked: Callable[[], Awaitable[Any]], reads: str = "") -> Any:
        """What is asked for, as JSON and without any secret; a fault of it as what it means, without any either."""
        with heard() as values:
            try:
                given = _plain(await asked())
                return Redactor(values).clean(given)
            except Exception as raised:  # a connector's own, whatever it is
                fault = self._meaning(raised)
                if reads:
                    fault = msgspec.structs.replace(
                        fault, outcome=reads, retryable=fault.retryable or fault.outcome == "unknown"
                    )
                clean = msgspec.structs.replace(fault, message=Redactor(values).text(fault.message))
        # Outside of the handler: the cause would bring back what was taken out.
        raise CallFailed(clean)

    def _meaning(self, raised: Exception) -> Fault:
        try:
            return self._inner.classify(raised)
        except Exception:  # a connector that cannot say what its fault means says nothing
            return Fault(outcome="unknown", code=LOST, message=type(raised).__name__)

    async def state(self, call: Call) -> dict[str, Any] | None:
        """See `Connector`."""
        found: dict[str, Any] | None = await self._kept_clean(lambda: self._inner.state(call), "not_done")
        return found

    async def call(self, call: Call) -> Any:
        """See `Connector`."""
        return _fitting(await self._kept_clean(lambda: self._inner.call(call)))

    async def lookup(self, call: Call) -> Found | None:
        """See `Connector`."""
        found = await self._kept_clean(lambda: self._inner.lookup(call), "unknown")
        return None if found is None else Found(_fitting(found.get("result")))

    def reverse(
        self,
        operation: str,
        target: dict[str, Any],
        fields: dict[str, Any],
        before: dict[str, Any] | None,
        result: Any,
    ) -> Reversal | None:
        """See `Connector`."""
        return self._inner.reverse(operation, target, fields, before, result)

    def classify(self, fault: BaseException) -> Fault:
        """See `Connector`."""
        return fault.fault if isinstance(fault, CallFailed) else self._inner.classify(fault)

    def render(self, operation: str, target: dict[str, Any], fields: dict[str, Any]) -> list[str]:
        """See `Connector`."""
        return lines(*(bounded(line, 2_000) for line in self._inner.render(operation, target, fields)))


def _plain(given: Any) -> Any:
    """A value as JSON has it: whatever it was made of, its texts can be looked at."""
    try:
        return msgspec.json.decode(msgspec.json.encode(given))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return {"omitted": "it is no JSON"}


def _fitting(result: Any) -> Any:
    """A result that can be kept."""
    size = len(msgspec.json.encode(result))
    return result if size <= RESULT_BYTES_MAX else {"omitted": f"it has {size} bytes"}


class Connectors(Mapping[str, Connector]):
    """Name -> connector."""

    def __init__(self, connectors: Iterable[Connector] = ()) -> None:
        self._all: dict[str, Connector] = {}
        for connector in connectors:
            self._add(connector)

    def _add(self, connector: Connector) -> None:
        if not NAME.fullmatch(connector.name):
            raise ValueError(f"{connector.name!r} is no name of a connector: {NAME.pattern}")
        if connector.name in self._all:
            raise ValueError(f"there are two connectors named {connector.name}")
        for name, operation in connector.operations.items():
            whole = f"{connector.name}.{name}"
            if name != operation.name or not OPERATION.fullmatch(name):
                raise ValueError(f"{whole} is no name of an operation: {OPERATION.pattern}")
            if operation.repeats not in Repeats.__args__:  # type: ignore[attr-defined]  # what a Literal allows
                raise ValueError(f"{whole}: it repeats by {operation.repeats!r}, which is no way to")
            for part, schema in (("target", operation.target), ("fields", operation.fields)):
                schemas.check_schema(schema, f"{whole}.{part}")
                if schemas.types_of(schema) != ("object",):
                    raise ValueError(f"{whole}.{part} is the schema of an object")
            back = operation.reverses_by
            if back is not None and back not in connector.operations:
                raise ValueError(f"{whole} is taken back by {back}, which is no operation of it")
        self._all[connector.name] = connector if isinstance(connector, Covered) else Covered(connector)

    def __getitem__(self, name: str) -> Connector:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def find(self, action: str) -> tuple[Connector, Operation]:
        """Who does an action, and what it is; UNKNOWN_OPERATION where nobody does."""
        name, _, rest = action.partition(".")
        connector = self._all.get(name)
        if connector is None:
            there = f"there are {', '.join(self._all)}" if self._all else "none is set up here"
            guess = close_to(name, list(self._all)) or f"; {there}"
            raise TenureError(
                "UNKNOWN_OPERATION", f"{action[:100]!r}: there is no connector {name[:60]!r}{guess}"
            )
        operation = connector.operations.get(rest)
        if operation is None:
            known = list(connector.operations)
            guess = close_to(rest, known) or f"; it has {', '.join(known)}"
            raise TenureError("UNKNOWN_OPERATION", f"{action[:100]!r}: {name} has no {rest[:60]!r}{guess}")
        return connector, operation

    def check(self, action: str, target: Any, fields: Any) -> tuple[Connector, Operation]:
        """Who does an action, when its target and fields fit."""
        connector, operation = self.find(action)
        schemas.check(operation.target, target, "target")
        schemas.check(operation.fields, fields, "fields")
        return connector, operation

    def actions(self) -> Iterator[tuple[str, Operation]]:
        """All that can be done: (`connector.operation`, what it is)."""
        for name, connector in self._all.items():
            for operation in connector.operations.values():
                yield f"{name}.{operation.name}", operation
