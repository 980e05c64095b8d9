"""The records of a run's earlier attempts, by key. The code must ask for all of them again, in order."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.sdk.exits import ReplayMismatch
from tenure.store.replay import ReplayAct, ReplayCheckpoint, ReplayWait

INNER_KEY_MARK = "!"
"""Keys with this mark belong to another key (a step's backoff); the code does not ask for them."""
APPROVAL_PREFIX, RECEIPT_PREFIX = "act:", "receipt:"
"""Prefixes of the labels of waits that belong to acts: for the approval of an act (followed by the act's key), and for a person who
reports how an act ended."""
PATCH_PREFIX = "patched:"
"""Prefix of the keys of patches. The code may stop asking for one when it has only the new path left."""


def scope_path(key: str) -> str:
    return key[: key.rfind("/") + 1]


def _act_of(label: str) -> str:
    """The key of an act from the label of a wait for its approval; later rounds have a number after it."""
    key, _, number = label.removeprefix(APPROVAL_PREFIX).rpartition("~")
    return key if number.isdigit() and key else label.removeprefix(APPROVAL_PREFIX)


class ReplayLog:
    """Checkpoints, waits and acts by key. False if there are none, as in a first attempt."""

    def __init__(
        self,
        checkpoints: Iterable[ReplayCheckpoint] = (),
        waits: Iterable[ReplayWait] = (),
        acts: Iterable[ReplayAct] = (),
    ) -> None:
        self.checkpoints = {row.name: row for row in checkpoints}
        self._reused = {row.name for row in self.checkpoints.values() if row.n == 0}
        """Checkpoints that this run took over from the run that it resumes. Calls that were not taken over come between them."""
        self.waits = {row.label: row for row in waits}
        self.acts: dict[str, ReplayAct] = {}
        """The last receipt of each act."""
        self._resumed_acts: set[str] = set()
        """Acts of the runs that this one resumes: the code asks for them again, under the same keys."""
        for row in acts:
            if row.own:
                self.acts[row.label] = row
            else:
                self._resumed_acts.add(row.label)
        self.settled = {row.no: row for row in self.waits.values() if row.state == "settled"}
        self._begun: set[str] = set()
        self._unasked: dict[str, dict[str, None]] = {}
        self.proposed = dict.fromkeys(
            _act_of(label) for label in self.waits if label.startswith(APPROVAL_PREFIX)
        )
        """Keys of acts that people were asked about."""
        self._beneath: dict[str, int] = {}
        """How many scopes beneath a scope have keys that the code has not asked for."""
        labels = [label for label in self.waits if not label.startswith((APPROVAL_PREFIX, RECEIPT_PREFIX))]
        for key in (*self.checkpoints, *labels, *self.acts, *self.proposed):
            if INNER_KEY_MARK not in key and not key[key.rfind("/") + 1 :].startswith(PATCH_PREFIX):
                self._unasked.setdefault(scope_path(key), {})[key] = None
        for scope in self._unasked:
            self._count(scope, 1)

    def _count(self, scope: str, change: int) -> None:
        """Count a scope with keys that the code has not asked for in all scopes above it."""
        while scope:
            scope = scope_path(scope[:-1])
            self._beneath[scope] = self._beneath.get(scope, 0) + change

    def __bool__(self) -> bool:
        return bool(self.checkpoints or self.waits or self.acts)

    def ask(self, key: str) -> None:
        scope = scope_path(key)
        left = self._unasked.get(scope)
        if left is not None:
            left.pop(key, None)
            if not left:
                del self._unasked[scope]
                self._count(scope, -1)

    def begin(self, scope: str) -> None:
        """Note that the code has made the branch with this path."""
        self._begun.add(scope)

    @property
    def is_replaying(self) -> bool:
        """Whether something was recorded that the code has not asked for yet."""
        return bool(self._unasked)

    def check_new_act(self, key: str) -> None:
        if key not in self._resumed_acts:
            self.check_new(key)

    def check_new(self, key: str) -> None:
        """Raise ReplayMismatch for a new call that comes before recorded ones, in its scope or in branches that its scope has not made yet."""
        if not self._unasked:
            return
        scope = scope_path(key)
        ahead: Iterable[str] = self._unasked.get(scope, ())
        if not ahead and self._beneath.get(scope):
            beneath = (path for path in self._unasked if path.startswith(scope))
            ahead = (one for path in beneath if self._is_ahead(path, scope) for one in self._unasked[path])
        if (recorded := next((one for one in ahead if one not in self._reused), None)) is not None:
            raise ReplayMismatch(f"the code calls {key!r} where {recorded!r} was recorded")

    def _is_ahead(self, path: str, scope: str) -> bool:
        branch = path[: path.index("/", len(scope)) + 1]
        # The code's own tasks make their first call at any time.
        return branch not in self._begun and not branch[len(scope) :].startswith("task[")

    def check_end(self) -> None:
        """Raise ReplayMismatch if the code ended without asking for everything recorded. Keys of its own tasks do not count, because the
        code need not wait for its tasks."""
        for path, left in self._unasked.items():
            if "task[" not in path:
                raise ReplayMismatch(f"the code ends without {next(iter(left))!r}, which was recorded")
