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
        self.settled = {row.no: row for row in self.waits.values() if row.state == "settled"}
        self._begun: set[str] = set()
        self._unasked: dict[str, dict[str, None]] = {}
        for key in (*self.checkpoints, *self.waits):
            if BESIDE not in key and not key[key.rfind("/") + 1 :].startswith(PATCHED):
                self._unasked.setdefault(scope_of(key), {})[key] = None

    def __bool__(self) -> bool:
        return bool(self.checkpoints or self.waits)

    def ask(self, key: str) -> None:
        """The code has come to this key."""
        scope = scope_of(key)
        left = self._unasked.get(scope)
        if left is not None:
            left.pop(key, None)
            if not left:
                del self._unasked[scope]

    def begin(self, scope: str) -> None:
        """The code has made a branch of this path."""
        self._begun.add(scope)

    def is_before(self, scope: str) -> bool:
        """Whether something that was recorded at or beneath a scope has not been asked for yet."""
        return any(path.startswith(scope) for path in self._unasked)

    def check_new_wait(self, key: str) -> None:
        """The same for a wait. A run that resumes another has its checkpoints and none of its waits: it asks again."""
        if self.waits:
            self.check_new(key)

    def check_new(self, key: str) -> None:
        """A call that was never recorded may come only after everything that was, in its scope and in the branches
        that its scope has not made yet."""
        if not self._unasked:
            return
        scope = scope_of(key)
        for path, left in self._unasked.items():
            if path == scope or (path.startswith(scope) and self._is_ahead(path, scope)):
                raise Misfit(f"the code calls {key!r} where {next(iter(left))!r} was recorded")

    def _is_ahead(self, path: str, scope: str) -> bool:
        branch = path[: path.index("/", len(scope)) + 1]
        # Tasks of the code's own come to their first call when they do.
        return branch not in self._begun and not branch[len(scope) :].startswith("task[")

    def check_end(self) -> None:
        """The code has ended: everything recorded must have been asked for, but for what tasks said that nobody
        waits for: they are as far as they are."""
        for path, left in self._unasked.items():
            if "task[" not in path:
                raise Misfit(f"the code ends without {next(iter(left))!r}, which was recorded")
