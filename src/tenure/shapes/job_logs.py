"""The log of a job, as it is read."""

from __future__ import annotations

import msgspec


class JobLog(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the log of an attempt."""

    step: str
    attempt: int
    """0: the step has not begun."""
    offset: int
    """The number of the first byte of `data`."""
    size: int
    """The bytes that arrived while the lease was live."""
    late_size: int
    """The bytes that arrived after its end. They follow the others."""
    ended: bool
    """Whether the lease has ended, so that `size` does not grow any more."""
    data: bytes

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.data)
