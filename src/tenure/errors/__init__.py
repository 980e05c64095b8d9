"""Every error of Tenure has a stable code; this registry is the one list of them.

`docs/errors/CODE.md` says for each what it means and what to do; the error links to it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.errors import governed, runs, service
from tenure.errors.spec import ErrorSpec as ErrorSpec  # what a line of the registry is

DOCS_PREFIX = "docs/errors/"
CODES: dict[str, ErrorSpec] = {**runs.CODES, **service.CODES, **governed.CODES}


class Detail(msgspec.Struct, frozen=True):
    """One problem at one place of the input."""

    path: str
    problem: str


class TenureError(Exception):
    """A refusal with a stable code. It changed nothing."""

    def __init__(self, code: str, message: str = "", details: tuple[Detail, ...] = (), **data: Any) -> None:
        self.spec = CODES[code]
        self.code = code
        self.message = message or self.spec.meaning
        self.details = details
        self.data = data
        super().__init__(f"{code}: {self.message}")

    @property
    def docs(self) -> str:
        """Where the page of this code lies."""
        return f"{DOCS_PREFIX}{self.code}.md"

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.spec.retryable

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.code, self.message, self.details, self.data))


def _rebuild(code: str, message: str, details: tuple[Detail, ...], data: dict[str, Any]) -> TenureError:
    return TenureError(code, message, details, **data)
