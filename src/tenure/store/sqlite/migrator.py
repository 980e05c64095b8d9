"""The schema of a file: which migrations were applied, and how the missing ones are.

Laws:
1. One transaction applies all missing migrations, under the write lock: two processes cannot migrate at once.
2. A migration that was applied is never changed; its checksum is kept and compared.
3. A file of another program is refused: Tenure's files carry APPLICATION_ID.
"""

from __future__ import annotations

import apsw

from tenure.errors import TenureError
from tenure.store.migrations import Migration, checksum, read_migrations, select_missing
from tenure.store.sqlite.statements import SQL

APPLICATION_ID = 0x54656E75
"""`Tenu`, in the header of each of Tenure's files."""

MIGRATIONS = read_migrations("sqlite")


def find_missing_migrations(connection: apsw.Connection) -> list[Migration]:
    """The migrations that a file lacks. Refuses files of other programs, and files newer than this code."""
    cursor = connection.cursor()
    tables = {row[0] for row in cursor.execute("select name from sqlite_schema where type = 'table'")}
    if not tables:
        return MIGRATIONS
    if connection.pragma("application_id") != APPLICATION_ID or "schema_version" not in tables:
        raise TenureError("STORE_NOT_A_DATABASE", "the file is a database of another program")
    return select_missing(MIGRATIONS, cursor.execute(SQL["schema_applied"]).fetchall(), "the file")


def apply_migrations(connection: apsw.Connection, todo: list[Migration], now_us: int) -> list[str]:
    """Apply migrations inside the caller's transaction."""
    cursor = connection.cursor()
    cursor.execute(f"pragma application_id = {APPLICATION_ID}")
    for number, name, text in todo:
        cursor.execute(text)
        cursor.execute(SQL["schema_record"], (number, name, now_us, checksum(text)))
    return [name for _, name, _ in todo]
