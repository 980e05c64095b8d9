"""What a run has recorded before: found again by key, and used up as the code asks for it."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.sdk.faults import Misfit
from tenure.store.acting import Acted
from tenure.store.port import Recorded, Waited

BESIDE = "!"
"""Keys with this in them belong to another key (a step's backoff) and are not asked for by code."""
ASKED, SETTLED = "act:", "receipt:"
"""How the labels of waits begin that belong to acts: for their approval (the act's key is behind it) and for whoever says how one
ended."""
PATCHED = "patched:"
"""Keys of patches begin so; the code may stop asking for one, once it has only the new way."""


def scope_of(key: str) -> str:
    """The path of a key's scope."""
    return key[: key.rfind("/") + 1]


def _act_of(label: str) -> str:
    """The key of an act from the label of a wait for its approval; those of later rounds have a number behind it."""
    key, _, number = label.removeprefix(ASKED).rpartition("~")
    return key if number.isdigit() and key else label.removeprefix(ASKED)


class Past:
    """Checkpoints, waits and acts by key. False when there is nothing, as in a first try."""

    def __init__(
        self,
        checkpoints: Iterable[Recorded] = (),
        waits: Iterable[Waited] = (),
        acts: Iterable[Acted] = (),
    ) -> None:
        self.checkpoints = {row.name: row for row in checkpoints}
        self.waits = {row.label: row for row in waits}
        self.acts: dict[str, Acted] = {}
        """The last receipt of each act."""
        self._acted_before: set[str] = set()
        """Acts of the runs that this one resumes: they are asked for again, under the same keys."""
        for row in acts:
            if row.own:
                self.acts[row.label] = row
            else:
                self._acted_before.add(row.label)
        self.settled = {row.no: row for row in self.waits.values() if row.state == "settled"}
        self._begun: set[str] = set()
        self._unasked: dict[str, dict[str, None]] = {}
        self.proposed = dict.fromkeys(_act_of(label) for label in self.waits if label.startswith(ASKED))
        """Acts that people were asked about."""
        self._beneath: dict[str, int] = {}
        """How many scopes beneath a scope have something that has not been asked for."""
        said = [label for label in self.waits if not label.startswith((ASKED, SETTLED))]
        for key in (*self.checkpoints, *said, *self.acts, *self.proposed):
            if BESIDE not in key and not key[key.rfind("/") + 1 :].startswith(PATCHED):
                self._unasked.setdefault(scope_of(key), {})[key] = None
        for scope in self._unasked:
            self._count(scope, 1)

    def _count(self, scope: str, change: int) -> None:
        """A scope has something that has not been asked for, or has it no more."""
        while scope:
            scope = scope_of(scope[:-1])
            self._beneath[scope] = self._beneath.get(scope, 0) + change

    def __bool__(self) -> bool:
        return bool(self.checkpoints or self.waits or self.acts)

    def ask(self, key: str) -> None:
        """The code has come to this key."""
        scope = scope_of(key)
        left = self._unasked.get(scope)
        if left is not None:
            left.pop(key, None)
            if not left:
                del self._unasked[scope]
                self._count(scope, -1)

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

    def check_new_act(self, key: str) -> None:
        """The same for an act."""
        if key not in self._acted_before:
            self.check_new(key)

    def check_new(self, key: str) -> None:
        """A call that was never recorded may come only after everything that was, in its scope and in the branches
        that its scope has not made yet."""
        if not self._unasked:
            return
        scope = scope_of(key)
        left = self._unasked.get(scope)
        if left is None and self._beneath.get(scope):
            beneath = (path for path in self._unasked if path.startswith(scope))
            left = next((self._unasked[path] for path in beneath if self._is_ahead(path, scope)), None)
        if left is not None:
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
