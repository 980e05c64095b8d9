"""The text of a workflow file as a tree of nodes that know where they stand.

Laws:
1. A file is bounded before it is understood: bytes here, depth and nodes in `parsing`.
2. Every problem has a line, a column and a path, and all of them are told at once.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tenure.errors import Detail, TenureError
from tenure.limits import PROBLEMS_MAX, WORKFLOW_BYTES_MAX
from tenure.suggestions import Suggestions

Path = tuple[str | int, ...]


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A place in a text, counted from 1."""

    line: int
    column: int


class Node(msgspec.Struct):
    """A scalar, a list or a map."""

    kind: Literal["scalar", "list", "map"]
    mark: Mark
    value: Any = None
    """Of a scalar: a text, a number, a truth value or None."""
    text: str = ""
    """Of a scalar: as it is written, without quotes."""
    items: list[Node] = []
    entries: dict[str, tuple[Mark, Node]] = {}
    """Of a map: key -> where the key stands, and its value."""

    def plain(self) -> Any:
        """The node as JSON."""
        if self.kind == "list":
            return [item.plain() for item in self.items]
        if self.kind == "map":
            return {key: node.plain() for key, (_, node) in self.entries.items()}
        return self.value

    def find(self, path: Path) -> Mark:
        """Where a path stands, or the nearest thing above it that does."""
        node, mark = self, self.mark
        for part in path:
            if isinstance(part, int) and node.kind == "list" and part < len(node.items):
                node = node.items[part]
                mark = node.mark
            elif isinstance(part, str) and part in node.entries:
                mark, node = node.entries[part]
            else:
                return mark
        return node.mark if node.kind == "scalar" else mark


class Problem(msgspec.Struct, frozen=True, order=True):
    """What is wrong at one place."""

    line: int
    column: int
    path: str
    text: str


def path_text(path: Path) -> str:
    """A path as people write it: `steps[2].retry.max`."""
    whole = ""
    for part in path:
        if isinstance(part, int):
            whole += f"[{part}]"
        else:
            whole += part if not whole else f".{part}"
    return whole


class Problems:
    """What was found wrong with a file so far."""

    def __init__(
        self,
        source: str,
        code: str = "WORKFLOW_INVALID",
        what: str = "workflow",
        needs: str = "a name and steps",
    ) -> None:
        self.source = source
        self.code = code
        self.what = what
        self.needs = needs
        self.root: Node | None = None
        self.found: set[Problem] = set()
        self.guesses = Suggestions()
        """What was meant, for the first few problems."""
        self.close_to = self.guesses.close_to

    def add(self, path: Path, text: str, mark: Mark | None = None) -> None:
        """Remember a problem; its place is the path's where no other is given."""
        mark = mark or (self.root.find(path) if self.root is not None else Mark(1, 1))
        self.found.add(Problem(mark.line, mark.column, path_text(path), text))

    def stop(self, path: Path, text: str, mark: Mark | None = None) -> TenureError:
        """A problem after which there is nothing left to look at."""
        self.add(path, text, mark)
        return self.error()

    def raise_any(self) -> None:
        """Refuse the file if anything is wrong with it."""
        if self.found:
            raise self.error()

    def error(self) -> TenureError:
        """Everything that is wrong, in the order of the lines."""
        inorder = sorted(self.found)
        lines = [
            f"{self.source}:{p.line}:{p.column}: {p.path + ': ' if p.path else ''}{p.text}" for p in inorder
        ]
        shown = lines[:PROBLEMS_MAX]
        if len(lines) > len(shown):
            shown.append(f"{self.source}: and {len(lines) - len(shown)} more")
        details = tuple(
            Detail(f"{self.source}:{p.line}:{p.column}", f"{p.path + ': ' if p.path else ''}{p.text}")
            for p in inorder[:PROBLEMS_MAX]
        )
        return TenureError(self.code, "\n".join(shown), details, problems=len(lines))


def read(text: str, problems: Problems) -> Node:
    """The tree of a file; what keeps it from being one is refused at once."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as fault:
        raise problems.stop((), "the file is not Unicode text") from fault
    if size > WORKFLOW_BYTES_MAX:
        raise problems.stop((), f"the file has {size} bytes; it may have {WORKFLOW_BYTES_MAX}")
    from tenure.declared.parsing import tree  # late: most workflows are code, and PyYAML is slow to load

    root = tree(text, problems)
    if root is None:
        raise problems.stop((), f"the file is empty; a {problems.what} has {problems.needs}")
    problems.root = root
    return root
