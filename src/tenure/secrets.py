"""Secrets that others share with us, by reference.

Laws:
1. What is kept, shown and logged is the reference: `env:NAME` or `file:/ABSOLUTE/PATH`. Its value is read where it is used,
   each time, so that a changed secret counts at once.
2. No message says anything of a value, nor whether it was nearly right.
3. An empty secret is none: it would let everybody in.
4. A tenant names its own only: variables `TENURE_SECRET_{tenant}_...`, and files below the folder of secrets in a folder
   with its id, wherever links lead. Else an admin of one tenant could have things signed by another's secret, or by the
   server's own. Where the installation says that its tenants share, all with that prefix and in that folder are everybody's.
   What the installation's own settings name is anywhere: whoever writes them has it all.
5. Who resolves one on behalf of something that could repeat it hears which were (`record_resolved`), to take them out again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
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
REFERENCE_FORM = "is a reference, `env:NAME` or `file:/PATH`; the secret itself is never sent here"

_heard: ContextVar[list[bytes] | None] = ContextVar("secrets_heard", default=None)


@contextmanager
def record_resolved() -> Iterator[list[bytes]]:
    """The values that are resolved inside, as they are (law 5)."""
    values: list[bytes] = []
    outer = _heard.get()
    token = _heard.set(values)
    try:
        yield values
    finally:
        _heard.reset(token)
        if outer is not None:
            outer += values


def resolved_so_far() -> tuple[bytes, ...]:
    """The values that were resolved inside the nearest `record_resolved`."""
    return tuple(_heard.get() or ())


def _noted(value: bytes) -> bytes:
    values = _heard.get()
    if values is not None and value not in values:
        values.append(value)
    return value


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """What may be named where this process runs (law 4)."""

    folder: str | None = None
    """Where files with secrets are; nowhere: there are none."""
    shared: bool = False

    def __post_init__(self) -> None:
        if self.folder is not None:
            hide(self.folder)

    def problem(self, reference: str, tenant: str) -> str | None:
        """What is wrong with a tenant's reference, as far as its text tells; whether it leads anywhere is known where it is
        used. (A text that is no reference may be the secret itself: it is not repeated.)"""
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
        """The value behind a reference, without its last line's end; SECRET_UNAVAILABLE where there is none."""
        problem = self.problem(reference, tenant)
        if problem is not None:
            raise TenureError("SECRET_UNAVAILABLE", f"a secret's reference {problem}")
        kind, _, where = reference.partition(":")
        value = os.environb.get(where.encode()) if kind == "env" else self._read(where, tenant)
        if not value:
            raise TenureError("SECRET_UNAVAILABLE", f"{reference} leads to nothing here")
        return _noted(value)

    def _below(self, tenant: str) -> list[str]:
        return [] if self.shared else [tenant]

    def _variables(self, tenant: str) -> str | tuple[str, ...]:
        """How a tenant's variables begin. With an underscore in its id, `a` would have those of `a_b`: it has none."""
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
            with file.open("rb") as opened:
                value = opened.read(SECRET_BYTES_MAX + 1)
        except (OSError, RuntimeError):  # the latter: links that lead in a circle
            return None
        return _bounded(value)


def _bounded(value: bytes) -> bytes | None:
    return None if len(value) > SECRET_BYTES_MAX else value.removesuffix(b"\n").removesuffix(b"\r")


def resolve_own(reference: str) -> bytes:
    """The value behind a reference of the installation's own settings; SECRET_UNAVAILABLE where there is none."""
    if not is_reference(reference):
        raise TenureError("SECRET_UNAVAILABLE", f"a secret's reference {REFERENCE_FORM}")
    kind, _, where = reference.partition(":")
    value: bytes | None
    if kind == "env":
        value = os.environb.get(where.encode())
    else:
        hide(where)
        try:
            with Path(where).open("rb") as opened:
                value = _bounded(opened.read(SECRET_BYTES_MAX + 1))
        except OSError:
            value = None
    if not value:
        raise TenureError("SECRET_UNAVAILABLE", f"{reference} leads to nothing here")
    return _noted(value)


def is_reference(text: str) -> bool:
    """Whether a text is a reference, as far as its form tells."""
    fits = _ENV.fullmatch(text) or _FILE.fullmatch(text)
    return fits is not None and len(text) <= REFERENCE_CHARS_MAX and text.isprintable()
