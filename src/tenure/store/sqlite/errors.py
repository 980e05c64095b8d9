"""Translates SQLite's errors."""

from __future__ import annotations

import apsw

from tenure.errors import TenureError
from tenure.store.port import DataRejected

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (apsw.BusyError, "STORE_BUSY"),
    (apsw.LockedError, "STORE_BUSY"),
    (apsw.ReadOnlyError, "STORE_READ_ONLY"),
    (apsw.CantOpenError, "STORE_READ_ONLY"),
    (apsw.PermissionsError, "STORE_READ_ONLY"),
    (apsw.FullError, "STORE_FULL"),
    (apsw.IOError, "STORE_UNAVAILABLE"),
    (apsw.NotADBError, "STORE_NOT_A_DATABASE"),
    (apsw.CorruptError, "STORE_NOT_A_DATABASE"),
)
_REFUSED_DATA = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, OverflowError, UnicodeError)
"""CHECKs, unique indexes and strict types; numbers beyond 64 bits; text that is not Unicode."""


def translate_error(fault: Exception, path: str = "") -> Exception:
    """The store's error for an error of SQLite; an unknown error is returned as it is. `path`: the file to name."""
    if isinstance(fault, _REFUSED_DATA):
        return DataRejected(str(fault))
    for kind, code in _CODES:
        if isinstance(fault, kind):
            return TenureError(code, f"{path}: {fault} (SQLite)" if path else f"SQLite: {fault}")
    return fault
