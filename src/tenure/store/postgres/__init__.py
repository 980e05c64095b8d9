"""The PostgreSQL store: a schema in a database, any number of processes, many writers."""

from tenure.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
