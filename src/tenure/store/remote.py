"""What remote runners hold and have uploaded, read and written."""

from __future__ import annotations

from tenure.store.port import Answer

READS: dict[str, Answer] = {}
"""Queries used on their own; `remote.sql` has their texts."""

WRITES: dict[str, Answer] = {}
"""Statements of small transactions of their own."""
