"""What PostgreSQL's errors mean to us.

Laws:
1. A lost connection says nothing about a statement that was under way. If that statement was the commit,
   the outcome is `Ambiguous`; before it, nothing was written and the transaction is run again (`Lost`).
2. A message never repeats the DSN: it may hold a password.
"""

from __future__ import annotations

import asyncpg

from tenure.errors import TenureError
from tenure.store.port import Ambiguous, Conflict, Rejected


class Lost(Exception):
    """The connection went away before the commit was sent: nothing was written."""


class WriteRefused(Lost):
    """The server cannot be written: a standby since a failover, and then another server can be. Nothing was written."""


class StandbyFound(ConnectionError):
    """The server that answers is not the one that is wanted; after a failover another one is."""


_CONNECTION = (OSError, TimeoutError, asyncpg.PostgresConnectionError, asyncpg.InternalClientError)
"""OSError: reset by peer, no such socket. TimeoutError: half-open, nobody answers."""
NOT_REACHED = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""What making a connection raises where the server is not there, does not want us, or goes away meanwhile."""
_SHUTDOWN = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
"""The server ends the session: terminated, crashed, starting up, idle too long (also within a transaction)."""
_CODES = {
    "42501": "STORE_PERMISSION_DENIED",
    "53100": "STORE_FULL",
    "53200": "STORE_UNAVAILABLE",  # out of memory
    "53300": "STORE_UNAVAILABLE",  # too many connections: asked for again where a connection is made
    "55P03": "STORE_BUSY",  # lock_timeout
    "57014": "STORE_BUSY",  # statement_timeout, or canceled by an administrator
    "3D000": "STORE_UNAVAILABLE",  # no such database
    "3F000": "STORE_NOT_MIGRATED",  # no such schema
    "42P01": "STORE_NOT_MIGRATED",  # no such table
    "42704": "STORE_NOT_MIGRATED",  # no such type
}


_HEALING = frozenset({"53300", *_SHUTDOWN})


def heals(fault: BaseException) -> bool:
    """Whether a server answered that is not ready to serve us: a standby, one that starts or ends, one that is full, one that
    went away in the middle of its answer, or a pooler without its server (class 08)."""
    if isinstance(fault, asyncpg.PostgresError):
        return fault.sqlstate in _HEALING or (fault.sqlstate or "").startswith("08")
    return isinstance(fault, StandbyFound | asyncpg.InternalClientError)


def is_connection_fault(fault: BaseException) -> bool:
    """Whether the session is gone, or was never there."""
    if isinstance(fault, asyncpg.PostgresError) and fault.sqlstate in _SHUTDOWN:
        return True
    if isinstance(fault, asyncpg.InterfaceError):
        # asyncpg's own errors: a closed connection. (Refused data is an InterfaceError only on the client's
        # side of asyncpg.DataError, which is asked for first.)
        return not isinstance(fault, ValueError)
    return isinstance(fault, _CONNECTION)


def translated(fault: Exception, *, in_commit: bool = False) -> Exception:
    """The error our callers know; anything unforeseen stays what it is. `in_commit`: it may have happened."""
    if isinstance(fault, asyncpg.InvalidCachedStatementError):
        return Lost(str(fault))  # a migration went by: the server refused, and a new connection will do
    if isinstance(fault, asyncpg.PostgresError) and fault.sqlstate not in _SHUTDOWN:
        state = fault.sqlstate or ""
        if state == "25006":
            return WriteRefused(str(fault))
        if state in _CODES:
            return TenureError(_CODES[state], f"PostgreSQL: {fault}")
        if state.startswith("40"):
            return Conflict(str(fault))
        if state.startswith(
            ("21", "22", "23", "54")
        ):  # 21: two rows of one key in a save; 54: too large an index row
            return Rejected(str(fault))
    if is_connection_fault(fault):
        return Ambiguous(str(fault)) if in_commit else Lost(str(fault))
    return fault


def unavailable(fault: BaseException) -> TenureError:
    """The database cannot be reached, or nothing but standbys of it."""
    if isinstance(fault, StandbyFound | WriteRefused | asyncpg.ReadOnlySQLTransactionError):
        return TenureError("STORE_READ_ONLY", f"PostgreSQL: {fault}")
    return TenureError("STORE_UNAVAILABLE", f"PostgreSQL cannot be reached: {type(fault).__name__}: {fault}")
