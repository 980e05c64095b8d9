"""How a SQLite file is opened: the settings of a connection, and errors when the file cannot be opened."""

from __future__ import annotations

import os
from contextlib import suppress

import apsw

from tenure.errors import TenureError
from tenure.private_files import make_database_file

IN_MEMORY = ":memory:"
STATEMENTS_CACHED = 256
WAL_PAGES_MAX = 4000
"""The length of the write-ahead log at which it is checkpointed."""
PRAGMAS: tuple[tuple[str, str | int], ...] = (
    ("synchronous", "full"),
    ("foreign_keys", 0),
    ("temp_store", "memory"),
    ("cache_size", -64 * 1024),
    ("wal_autocheckpoint", WAL_PAGES_MAX),
)
_EFFECTIVE = os.access in os.supports_effective_ids


def open_connection(path: str, *, create: bool) -> apsw.Connection:
    """A connection to an existing file, or, with `create`, to one that may be created."""
    if path != IN_MEMORY and not path.startswith("file:"):
        _check_path(path, create=create)
        if create and not os.path.exists(path):
            # SQLite gives the mode of this private file to the files that it creates in the same folder.
            with suppress(OSError):  # SQLite's own error is clearer
                make_database_file(path)
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI | (apsw.SQLITE_OPEN_CREATE if create else 0)
    return apsw.Connection(path, flags=flags, statementcachesize=STATEMENTS_CACHED)


def _check_path(path: str, *, create: bool) -> None:
    """Raise a clear error if SQLite would only report that it cannot open the file."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise TenureError("STORE_NOT_A_DATABASE", f"{path} is a folder, not a database")
    if os.path.exists(path):
        if not os.access(path, os.R_OK, effective_ids=_EFFECTIVE):
            raise TenureError("STORE_UNAVAILABLE", f"{path} may not be read by this account")
    elif not os.path.isdir(folder):
        raise TenureError(
            "STORE_READ_ONLY" if create else "STORE_NOT_MIGRATED",
            f"there is no database at {path}: the folder {folder} does not exist",
            missing=os.path.abspath(path),
        )
    elif not create:
        raise TenureError(
            "STORE_NOT_MIGRATED", f"there is no database at {path}", missing=os.path.abspath(path)
        )


def configure_connection(connection: apsw.Connection) -> None:
    # Without this SQLite replans some of our statements for every bound value, at five times their cost.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    for pragma, value in PRAGMAS:
        connection.pragma(pragma, value)
