"""The SQLite store: one file, one writer at a time, any number of processes."""

from tenure.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
