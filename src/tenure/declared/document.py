"""The text of a workflow file as a tree of nodes that know where they stand.

Laws:
1. A file is bounded before it is understood: bytes, depth, nodes. Anchors, aliases, tags and merge keys are refused,
   so that a file is as long as what it says.
2. Plain scalars are what YAML 1.2's core schema says: `on`, `no` and `1:30` are texts. The text is kept beside the
   value, for places where `8080` or `1.10` stands for itself.
3. Every problem has a line, a column and a path, and all of them are told at once.

PyYAML's C parser gives events; the tree is made from those without recursion, because its composer recurses in C.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from math import isfinite
from typing import Any, Literal

import msgspec
import yaml

from tenure.errors import Detail, TenureError
from tenure.limits import (
    WORKFLOW_BYTES_MAX,
    WORKFLOW_DEPTH_MAX,
    WORKFLOW_NODES_MAX,
    WORKFLOW_PROBLEMS_MAX,
)

Path = tuple[str | int, ...]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_INTEGER_CHARS_MAX = 24
INTEGER_BITS_MAX = 63


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


def close_to(word: str, known: list[str]) -> str:
    """A guess at what was meant, as the end of a sentence."""
    found = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


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
        shown = lines[:WORKFLOW_PROBLEMS_MAX]
        if len(lines) > len(shown):
            shown.append(f"{self.source}: and {len(lines) - len(shown)} more")
        details = tuple(
            Detail(f"{self.source}:{p.line}:{p.column}", f"{p.path + ': ' if p.path else ''}{p.text}")
            for p in inorder[:WORKFLOW_PROBLEMS_MAX]
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
    try:
        root = _Builder(problems).build(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as fault:
        at = fault.problem_mark or fault.context_mark
        mark = Mark(at.line + 1, at.column + 1) if at else Mark(1, 1)
        raise problems.stop((), f"this is not YAML: {fault.problem or fault.context}", mark) from fault
    except yaml.reader.ReaderError as fault:
        raise problems.stop((), f"this is not YAML: {fault.reason}", _place(text, fault)) from fault
    if root is None:
        raise problems.stop((), f"the file is empty; a {problems.what} has {problems.needs}")
    problems.root = root
    return root


def _place(text: str, fault: yaml.reader.ReaderError) -> Mark:
    """The C parser counts bytes up to a character that may not be in a text."""
    before = text.encode()[: max(fault.position, 0)].decode(errors="ignore")
    return Mark(before.count("\n") + 1, len(before) - before.rfind("\n"))


class _Builder:
    """Makes the tree from events."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.root: Node | None = None
        self.stack: list[tuple[Node, Path]] = []
        self.keys: list[tuple[str, Mark] | None] = []
        """For each open map, the key whose value comes next."""
        self.nodes = 0

    def build(self, events: Iterator[Any]) -> Node | None:
        documents = 0
        for event in events:
            mark = Mark(event.start_mark.line + 1, event.start_mark.column + 1)
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self.problems.stop(
                        (), f"a file has one {self.problems.what}; a second document begins here", mark
                    )
            elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                self._close()
            elif isinstance(event, yaml.NodeEvent):
                self._open(event, mark)
        return self.root

    def _open(self, event: Any, mark: Mark) -> None:
        self.nodes += 1
        path = self._path()
        if self.nodes > WORKFLOW_NODES_MAX:
            raise self.problems.stop(path, f"the file has over {WORKFLOW_NODES_MAX} keys and values", mark)
        if event.anchor is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            raise self.problems.stop(
                path, f"anchors and aliases are not allowed ({sign}{event.anchor}); write it out", mark
            )
        tag = event.tag
        if tag is not None and tag != "!":
            raise self.problems.stop(path, f"tags are not allowed ({tag}); put a text in quotes", mark)
        if isinstance(event, yaml.ScalarEvent):
            plain = bool(event.implicit[0]) and not event.style
            self._take(self._scalar(event.value, plain, mark, path), mark, path)
            return
        if len(self.stack) >= WORKFLOW_DEPTH_MAX:
            raise self.problems.stop(path, f"lists and maps are nested over {WORKFLOW_DEPTH_MAX} deep", mark)
        kind: Literal["list", "map"] = "list" if isinstance(event, yaml.SequenceStartEvent) else "map"
        node = Node(kind, mark, items=[], entries={})
        self._take(node, mark, path)
        self.stack.append((node, path))
        self.keys.append(None)

    def _close(self) -> None:
        self.stack.pop()
        self.keys.pop()

    def _path(self) -> Path:
        if not self.stack:
            return ()
        node, path = self.stack[-1]
        if node.kind == "list":
            return (*path, len(node.items))
        key = self.keys[-1]
        return path if key is None else (*path, key[0])

    def _take(self, node: Node, mark: Mark, path: Path) -> None:
        """Put a node where it belongs: the root, the next item, a key or its value."""
        if not self.stack:
            self.root = node
            return
        above, _ = self.stack[-1]
        if above.kind == "list":
            above.items.append(node)
            return
        key = self.keys[-1]
        if key is None:
            if node.kind != "scalar":
                raise self.problems.stop(path, "a key is a plain text", mark)
            if node.text == "<<":
                raise self.problems.stop(path, "merge keys (<<) are not allowed; write it out", mark)
            if node.text in above.entries:
                first = above.entries[node.text][0].line
                self.problems.add(
                    (*path, node.text), f"the key {node.text!r} is there already, in line {first}", mark
                )
            self.keys[-1] = (node.text, mark)
            return
        above.entries[key[0]] = (key[1], node)
        self.keys[-1] = None

    def _scalar(self, text: str, plain: bool, mark: Mark, path: Path) -> Node:
        value: Any = text
        if plain:
            if text in _WORDS:
                value = _WORDS[text]
            elif _INTEGER.fullmatch(text):
                value = self._integer(text, mark, path)
            elif _FLOAT.fullmatch(text):
                value = float(text)
                if not isfinite(value):
                    self.problems.add(path, f"{text} is too large for a number; put a text in quotes", mark)
            elif _NO_NUMBER.fullmatch(text):
                self.problems.add(path, f"{text} is no number here; put a text in quotes", mark)
        return Node("scalar", mark, value, text)

    def _integer(self, text: str, mark: Mark, path: Path) -> int:
        if len(text) <= _INTEGER_CHARS_MAX:
            value = int(text, 0 if text[:2] in ("0o", "0x") else 10)
            if value.bit_length() <= INTEGER_BITS_MAX:
                return value
        self.problems.add(path, "the number has over 63 bits; put a text in quotes", mark)
        return 0
