"""`sha256(value)` in expressions: the digest of any JSON value.

Laws:
1. The digest is over the canonical JSON of the value (`tenure.canonical`): two values have the same digest exactly if they are equal. A text
   is digested with its quotes, so that `"1"` and `1` differ.
2. A value that JSON does not have (bytes, a time, infinity) has no digest, and the whole expression fails, whatever else it would do with
   the result.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from tenure.canonical import canonical
from tenure.errors import TenureError

if TYPE_CHECKING:
    import cel

SHA256 = "sha256"


def uses_digests(source: str) -> bool:
    """Whether an expression may call `sha256`."""
    return SHA256 in source


def execute_with_digests(program: cel.Program, variables: dict[str, Any]) -> Any:
    """Evaluate a program that may call `sha256`. ValueError if a value has no digest."""
    import cel  # late, as in `expression`

    digests = _Digests()
    value = program.execute(cel.Context(variables, {SHA256: digests.sha256}))
    if digests.fault is not None:
        raise ValueError(digests.fault)
    return value


class _Digests:
    """The digests of one evaluation. It keeps the first fault, because the library writes the exceptions of functions to stderr."""

    def __init__(self) -> None:
        self.fault: str | None = None

    def sha256(self, value: Any) -> str:
        try:
            if (found := _foreign(value)) is not None:
                self.fault = (
                    self.fault or f"sha256() takes a JSON value, and {found} is none; use string(...)"
                )
                return ""
            return hashlib.sha256(canonical(value)).hexdigest()
        except TenureError as refused:
            self.fault = self.fault or f"sha256(): {refused.message}"
            return ""


def _foreign(value: Any) -> str | None:
    """The type of the first part of a value that JSON does not have."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)
        elif part is not None and not isinstance(part, bool | int | float | str):
            return type(part).__name__
    return None
