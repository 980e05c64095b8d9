"""A page of a list."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Some items of a list, and the cursor of the next page."""

    items: list[T]
    next_cursor: str | None = None
    """None: this is the last page."""
