"""The records of idempotency keys, read and written."""

from __future__ import annotations

from tenure.store.port import Answer

READS: dict[str, Answer] = {}
"""Queries used on their own; `keys.sql` has their texts."""

WRITES: dict[str, Answer] = {}
"""Statements of small transactions of their own."""
