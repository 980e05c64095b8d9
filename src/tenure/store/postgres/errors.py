"""Translates PostgreSQL's errors.

Laws:
1. A lost connection says nothing about a statement that was under way. If that statement was the commit,
   the outcome is `AmbiguousCommit`; before it, nothing was written and the transaction is run again (`ConnectionLost`).
2. A message never repeats the DSN: it may hold a password.
"""

from __future__ import annotations

import asyncpg

from tenure.errors import TenureError
from tenure.store.port import AmbiguousCommit, DataRejected, WriteConflict


class ConnectionLost(Exception):
    """The connection was lost before the commit was sent: nothing was written."""


class WriteRefused(ConnectionLost):
    """The server is read-only, for example a standby after a failover: another server may be writable. Nothing was written."""


class StandbyFound(ConnectionError):
    """The server that answers does not fit `target_session_attrs`; after a failover another one may."""


_CONNECTION = (OSError, TimeoutError, asyncpg.PostgresConnectionError, asyncpg.InternalClientError)
"""OSError: reset by peer, no such socket. TimeoutError: half-open, no answer."""
UNREACHABLE_ERRORS = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""What connecting raises when the server is unreachable, refuses, or closes the connection."""
_SHUTDOWN = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
"""The server ends the session: terminated, crashed, starting up, idle too long (also within a transaction)."""
_CODES = {
    "42501": "STORE_PERMISSION_DENIED",
    "53100": "STORE_FULL",
    "53200": "STORE_UNAVAILABLE",  # out of memory
    "53300": "STORE_UNAVAILABLE",  # too many connections: connecting is tried again
    "55P03": "STORE_BUSY",  # lock_timeout
    "57014": "STORE_BUSY",  # statement_timeout, or canceled by an administrator
    "3D000": "STORE_UNAVAILABLE",  # no such database
    "3F000": "STORE_NOT_MIGRATED",  # no such schema
    "42P01": "STORE_NOT_MIGRATED",  # no such table
    "42704": "STORE_NOT_MIGRATED",  # no such type
}


LATE_SAVE = "TN001"
"""Raised by refuse_late_save(): the save waited for locks until its estimate of the time was wrong. Nothing was written."""
_HEALING = frozenset({"53300", *_SHUTDOWN})


def is_transient_refusal(fault: BaseException) -> bool:
    """Whether a server answered that may be ready later: a standby, a server that starts, stops or is full, a server that closed
    the connection in the middle of its answer, or a pooler without its server (class 08)."""
    if isinstance(fault, asyncpg.PostgresError):
        return fault.sqlstate in _HEALING or (fault.sqlstate or "").startswith("08")
    return isinstance(fault, StandbyFound | asyncpg.InternalClientError)


def is_connection_error(fault: BaseException) -> bool:
    """Whether the session is lost, or was never open."""
    if isinstance(fault, asyncpg.PostgresError) and fault.sqlstate in _SHUTDOWN:
        return True
    if isinstance(fault, asyncpg.InterfaceError):
        return not isinstance(
            fault, ValueError
        )  # a ValueError is refused data, any other is a closed connection
    return isinstance(fault, _CONNECTION)


def translate_error(fault: Exception, *, in_commit: bool = False) -> Exception:
    """The store's error for an error of PostgreSQL; an unknown error is returned as it is. `in_commit`: the commit may have
    happened."""
    if isinstance(fault, asyncpg.InvalidCachedStatementError):
        return ConnectionLost(str(fault))  # a migration was applied: a new connection works
    if isinstance(fault, asyncpg.PostgresError) and fault.sqlstate not in _SHUTDOWN:
        state = fault.sqlstate or ""
        if state == "25006":
            return WriteRefused(str(fault))
        if state in _CODES:
            return TenureError(_CODES[state], f"PostgreSQL: {fault}")
        if state == LATE_SAVE or state.startswith("40"):
            return WriteConflict(str(fault))
        # 21: two rows of one key in a save; 54: too large an index row.
        if state.startswith(("21", "22", "23", "54")):
            return DataRejected(str(fault))
    if is_connection_error(fault):
        return AmbiguousCommit(str(fault)) if in_commit else ConnectionLost(str(fault))
    return fault


def unavailable_error(fault: BaseException) -> TenureError:
    """The error if the database cannot be reached, or only its standbys can."""
    if isinstance(fault, StandbyFound | WriteRefused | asyncpg.ReadOnlySQLTransactionError):
        return TenureError("STORE_READ_ONLY", f"PostgreSQL: {fault}")
    return TenureError("STORE_UNAVAILABLE", f"PostgreSQL cannot be reached: {type(fault).__name__}: {fault}")
