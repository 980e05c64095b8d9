"""Hooks and what they were told, read and written."""

from __future__ import annotations

from tenure.store.port import Answer

READS: dict[str, Answer] = {}
"""Queries used on their own; `deliveries.sql` has their texts."""

WRITES: dict[str, Answer] = {}
"""Statements of small transactions of their own."""
