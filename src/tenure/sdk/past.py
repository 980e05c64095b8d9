"""What a run has recorded before: found again by key, and used up as the code asks for it."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.sdk.faults import Misfit
from tenure.store.port import Recorded, Waited

BESIDE = "!"
"""Keys with this in them belong to another key (a step's backoff) and are not asked for by code."""
PATCHED = "patched:"
"""Keys of patches begin so; the code may stop asking for one, once it has only the new way."""


def scope_of(key: str) -> str:
    """The path of a key's scope."""
    return key[: key.rfind("/") + 1]


class Past:
    """Checkpoints and waits by key. False when there is nothing, as in a first try."""

    def __init__(self, checkpoints: Iterable[Recorded] = (), waits: Iterable[Waited] = ()) -> None:
        self.checkpoints = {row.name: row for row in checkpoints}
        self.waits = {row.label: row for row in waits}
        self._unasked: dict[str, dict[str, None]] = {}
        for key in (*self.checkpoints, *self.waits):
            if BESIDE not in key and not key[key.rfind("/") + 1 :].startswith(PATCHED):
                self._unasked.setdefault(scope_of(key), {})[key] = None

    def __bool__(self) -> bool:
        return bool(self.checkpoints or self.waits)

    def ask(self, key: str) -> None:
        """The code has come to this key."""
        left = self._unasked.get(scope_of(key))
        if left is not None:
            left.pop(key, None)

    def is_before(self, scope: str) -> bool:
        """Whether something that was recorded at or beneath a scope has not been asked for yet."""
        return any(left and path.startswith(scope) for path, left in self._unasked.items())

    def check_new(self, key: str) -> None:
        """A call that was never recorded may come only after everything that was, in its scope."""
        left = self._unasked.get(scope_of(key))
        if left:
            raise Misfit(f"the code calls {key!r} where {next(iter(left))!r} was recorded")

    def check_end(self) -> None:
        """The code has ended: everything recorded must have been asked for."""
        for left in self._unasked.values():
            if left:
                raise Misfit(f"the code ends without {next(iter(left))!r}, which was recorded")
