"""The schema of a file: which migrations it has had, and how it gets the rest.

Laws:
1. All missing migrations are applied in one transaction, under the write lock: two processes never meet.
2. A migration that was applied is never changed; its checksum is kept and compared.
3. A file that somebody else made is left alone: ours carry APPLICATION_ID.
"""

from __future__ import annotations

import hashlib

import apsw

from tenure.errors import TenureError
from tenure.store.sqlfile import migrations
from tenure.store.sqlite.running import SQL

APPLICATION_ID = 0x54656E75
"""`Tenu`, in the header of every file of ours."""

MIGRATIONS = migrations("tenure.store.sqlite")


def checksum(text: str) -> str:
    """What is kept of a migration that was applied."""
    return hashlib.sha256(text.encode()).hexdigest()


def missing(connection: apsw.Connection) -> list[tuple[int, str, str]]:
    """The migrations a file has not had. Refuses files of others, and files newer than this code."""
    cursor = connection.cursor()
    tables = {row[0] for row in cursor.execute("select name from sqlite_schema where type = 'table'")}
    if not tables:
        return MIGRATIONS
    if connection.pragma("application_id") != APPLICATION_ID or "schema_version" not in tables:
        raise TenureError("STORE_NOT_A_DATABASE", "the file is a database, but not one of Tenure's")
    applied = cursor.execute(SQL["schema_applied"]).fetchall()
    if len(applied) > len(MIGRATIONS):
        raise TenureError(
            "STORE_TOO_NEW",
            f"the file has migration {applied[-1][1]}; this Tenure knows {len(MIGRATIONS)} of them",
        )
    for (number, name, known), (_, _, text) in zip(applied, MIGRATIONS, strict=False):
        if known != checksum(text):
            raise TenureError(
                "STORE_NOT_A_DATABASE", f"migration {number} ({name}) is not the one this file has had"
            )
    return MIGRATIONS[len(applied) :]


def apply(connection: apsw.Connection, todo: list[tuple[int, str, str]], now_us: int) -> list[str]:
    """Apply migrations inside the caller's transaction."""
    cursor = connection.cursor()
    cursor.execute(f"pragma application_id = {APPLICATION_ID}")
    for number, name, text in todo:
        cursor.execute(text)
        cursor.execute(SQL["schema_record"], (number, name, now_us, checksum(text)))
    return [name for _, name, _ in todo]
