"""Secrets by reference.

Laws:
1. Tenure stores, shows and logs only the reference: `env:NAME` or `file:/ABSOLUTE/PATH`. The value is read at each use, so a changed
   secret takes effect immediately.
2. No message reveals anything about a value.
3. An empty secret counts as missing: it would authenticate everybody.
4. A tenant can name only its own secrets: variables `TENURE_SECRET_{tenant}_...`, and files in the folder of secrets below a folder with
   its id, after links are followed. Otherwise an admin of one tenant could sign with the secret of another tenant or of the server.
   With `shared`, all tenants can name all variables with the prefix and all files in the folder. The installation's own settings can
   name any variable and file.
5. `record_resolved` collects the values that were resolved, so that its caller can redact them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

import msgspec

from tenure.errors import TenureError
from tenure.private_files import hide

SECRET_BYTES_MAX = 64 * 1024
REFERENCE_CHARS_MAX = 1_000
PREFIX = "TENURE_SECRET_"
_ENV = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_FILE = re.compile(r"file:(/[^\0]+)")
_LETTERS = re.compile(r"[A-Za-z0-9]+")
REFERENCE_FORM = "must be a reference, `env:NAME` or `file:/PATH`; never send the secret itself"

_resolved: ContextVar[list[bytes] | None] = ContextVar("secrets_resolved", default=None)


@contextmanager
def record_resolved() -> Iterator[list[bytes]]:
    """Collect the values that are resolved inside (law 5)."""
    values: list[bytes] = []
    outer = _resolved.get()
    token = _resolved.set(values)
    try:
        yield values
    finally:
        _resolved.reset(token)
        if outer is not None:
            outer += values


def resolved_so_far() -> tuple[bytes, ...]:
    """The values that the innermost `record_resolved` has collected."""
    return tuple(_resolved.get() or ())


def note_resolved(value: bytes) -> None:
    """Let the innermost `record_resolved` collect a value that did not come from a reference: a token that a service issued."""
    values = _resolved.get()
    if values is not None and value not in values:
        values.append(value)


def _checked(reference: str, value: bytes | None) -> bytes:
    if not value:
        raise TenureError("SECRET_UNAVAILABLE", f"{reference} is missing or empty on this host")
    note_resolved(value)
    return value


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets that tenants may name in this process (law 4)."""

    folder: str | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        if self.folder is not None:
            hide(self.folder)

    def problem(self, reference: str, tenant: str) -> str | None:
        """What is wrong with the text of a tenant's reference. A text that is not a reference may be the secret itself, so it is not
        repeated."""
        if not is_reference(reference):
            return REFERENCE_FORM
        kind, _, where = reference.partition(":")
        if kind == "env":
            if where.startswith(self._variables(tenant)):
                return None
        elif self.folder is not None and os.path.normpath(where) == where:
            inside = Path(where).parts
            above = Path(os.path.abspath(self.folder), *self._below(tenant)).parts
            if inside[: len(above)] == above and len(inside) > len(above):
                return None
        return f"is not this tenant's: {self._own(tenant)}"

    def resolve(self, reference: str, tenant: str) -> bytes:
        """The value of a reference, without the line end of a file; SECRET_UNAVAILABLE if there is none."""
        problem = self.problem(reference, tenant)
        if problem is not None:
            raise TenureError("SECRET_UNAVAILABLE", f"the reference of a secret {problem}")
        kind, _, where = reference.partition(":")
        value = os.environb.get(where.encode()) if kind == "env" else self._read(where, tenant)
        return _checked(reference, value)

    def _below(self, tenant: str) -> list[str]:
        return [] if self.shared else [tenant]

    def _variables(self, tenant: str) -> str | tuple[str, ...]:
        """The prefix of a tenant's variables. A tenant with an underscore in its id has none: tenant `a` could name those of `a_b`."""
        if self.shared:
            return PREFIX
        return f"{PREFIX}{tenant}_" if _LETTERS.fullmatch(tenant) else ()

    def _own(self, tenant: str) -> str:
        begins = self._variables(tenant)
        named = f"`env:{begins}NAME` or " if isinstance(begins, str) else ""
        return f"{named}`file:` and a path below {'/'.join(['$TENURE_SECRETS', *self._below(tenant)])}"

    def _read(self, where: str, tenant: str) -> bytes | None:
        assert self.folder is not None
        try:
            folder = Path(self.folder).resolve(strict=True)
            own = folder.joinpath(*self._below(tenant)).resolve(strict=True)
            file = Path(where).resolve(strict=True)
            if not (own.is_relative_to(folder) and file.is_relative_to(own) and file.is_file()):
                return None
            return _read_file(file)
        except (OSError, RuntimeError):  # RuntimeError: a cycle of links
            return None


def _read_file(file: Path) -> bytes | None:
    with file.open("rb") as opened:
        value = opened.read(SECRET_BYTES_MAX + 1)
    return None if len(value) > SECRET_BYTES_MAX else value.removesuffix(b"\n").removesuffix(b"\r")


def resolve_own(reference: str) -> bytes:
    """The value of a reference in the installation's own settings; SECRET_UNAVAILABLE if there is none."""
    if not is_reference(reference):
        raise TenureError("SECRET_UNAVAILABLE", f"the setting for a secret {REFERENCE_FORM}")
    kind, _, where = reference.partition(":")
    if kind == "env":
        return _checked(reference, os.environb.get(where.encode()))
    hide(where)
    value: bytes | None = None
    with suppress(OSError):
        value = _read_file(Path(where))
    return _checked(reference, value)


def is_reference(text: str) -> bool:
    """Whether a text has the form of a reference."""
    fits = _ENV.fullmatch(text) or _FILE.fullmatch(text)
    return fits is not None and len(text) <= REFERENCE_CHARS_MAX and text.isprintable()
