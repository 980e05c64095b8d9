"""The registry of error codes. Codes are stable.

`docs/errors/CODE.md` says what each code means and what to do. An error links to its page.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.errors import governance, pipelines, runs, sandbox, server
from tenure.errors.spec import ErrorSpec as ErrorSpec

DOCS_PREFIX = "docs/errors/"
CODES: dict[str, ErrorSpec] = {
    **runs.CODES,
    **server.CODES,
    **governance.CODES,
    **pipelines.CODES,
    **sandbox.CODES,
}


class Detail(msgspec.Struct, frozen=True):
    """One problem of the input, and where it is."""

    path: str
    problem: str


class TenureError(Exception):
    """An error with a stable code. What was asked for was refused, and nothing changed."""

    def __init__(self, code: str, message: str = "", details: tuple[Detail, ...] = (), **data: Any) -> None:
        self.spec = CODES[code]
        self.code = code
        self.message = message or self.spec.meaning
        self.details = details
        self.data = data
        super().__init__(f"{code}: {self.message}")

    @property
    def docs(self) -> str:
        return f"{DOCS_PREFIX}{self.code}.md"

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.spec.retryable

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.code, self.message, self.details, self.data))


def _rebuild(code: str, message: str, details: tuple[Detail, ...], data: dict[str, Any]) -> TenureError:
    return TenureError(code, message, details, **data)


def field_error(path: str, problem: str, code: str = "INVALID_INPUT") -> TenureError:
    """The refusal of one field of the input."""
    return TenureError(code, f"{path}: {problem}", (Detail(path, problem),))
