"""YAML as a tree of nodes.

Laws:
1. Anchors, aliases, tags and merge keys are refused, so that a file is as long as what it says; so are too many nodes, and too deep ones.
2. Plain scalars are what YAML 1.2's core schema says: `on`, `no` and `1:30` are texts. The text is kept beside the
   value, for places where `8080` or `1.10` stands for itself.

PyYAML's C parser gives events; the tree is made from those without recursion, because its composer recurses in C.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite
from typing import Any, Literal

import yaml

from tenure.declared.document import Mark, Node, Path, Problems
from tenure.limits import WORKFLOW_DEPTH_MAX, WORKFLOW_NODES_MAX

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


def tree(text: str, problems: Problems) -> Node | None:
    """The tree of a text; None: it is empty."""
    try:
        return _Builder(problems).build(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as fault:
        at = fault.problem_mark or fault.context_mark
        mark = Mark(at.line + 1, at.column + 1) if at else Mark(1, 1)
        raise problems.stop((), f"this is not YAML: {fault.problem or fault.context}", mark) from fault
    except yaml.reader.ReaderError as fault:
        raise problems.stop((), f"this is not YAML: {fault.reason}", _place(text, fault)) from fault


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
