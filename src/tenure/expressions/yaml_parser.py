"""Parses YAML into a tree of nodes.

Laws:
1. Anchors, aliases, tags and merge keys are refused, so that a file cannot expand. The number and depth of nodes are limited.
2. Plain scalars follow YAML 1.2's core schema: `on`, `no` and `1:30` are strings. The text of a scalar is kept for places where `8080`
   or `1.10` is a string.

PyYAML's C parser produces events. The tree is built from them iteratively, because PyYAML's composer recurses in C.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite
from typing import Any, Literal

import yaml

from tenure.expressions.yaml_document import FileProblems, TextPosition, YamlNode, YamlPath
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


def parse_yaml(text: str, problems: FileProblems) -> YamlNode | None:
    """The tree of a text, or None if the text is empty."""
    try:
        return _Builder(problems).build(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as fault:
        at = fault.problem_mark or fault.context_mark
        mark = TextPosition(at.line + 1, at.column + 1) if at else TextPosition(1, 1)
        raise problems.stop((), f"this is not YAML: {fault.problem or fault.context}", mark) from fault
    except yaml.reader.ReaderError as fault:
        raise problems.stop((), f"this is not YAML: {fault.reason}", _place(text, fault)) from fault


def _place(text: str, fault: yaml.reader.ReaderError) -> TextPosition:
    """The position of an invalid character. The C parser counts bytes up to it."""
    before = text.encode()[: max(fault.position, 0)].decode(errors="ignore")
    return TextPosition(before.count("\n") + 1, len(before) - before.rfind("\n"))


class _Builder:
    def __init__(self, problems: FileProblems) -> None:
        self.problems = problems
        self.root: YamlNode | None = None
        self.stack: list[tuple[YamlNode, YamlPath]] = []
        self.keys: list[tuple[str, TextPosition] | None] = []
        """For each open map, the key that waits for its value."""
        self.nodes = 0

    def build(self, events: Iterator[Any]) -> YamlNode | None:
        documents = 0
        for event in events:
            mark = TextPosition(event.start_mark.line + 1, event.start_mark.column + 1)
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self.problems.stop(
                        (),
                        f"a file must contain one {self.problems.what}; a second document begins here",
                        mark,
                    )
            elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                self.stack.pop()
                self.keys.pop()
            elif isinstance(event, yaml.NodeEvent):
                self._open(event, mark)
        return self.root

    def _open(self, event: Any, mark: TextPosition) -> None:
        self.nodes += 1
        path = self._path()
        if self.nodes > WORKFLOW_NODES_MAX:
            raise self.problems.stop(
                path, f"the file has more than {WORKFLOW_NODES_MAX} keys and values", mark
            )
        if event.anchor is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            raise self.problems.stop(
                path, f"anchors and aliases are not allowed ({sign}{event.anchor}); write the value out", mark
            )
        tag = event.tag
        if tag is not None and tag != "!":
            raise self.problems.stop(path, f"tags are not allowed ({tag}); put a string in quotes", mark)
        if isinstance(event, yaml.ScalarEvent):
            plain = bool(event.implicit[0]) and not event.style
            self._take(self._scalar(event.value, plain, mark, path), mark, path)
            return
        if len(self.stack) >= WORKFLOW_DEPTH_MAX:
            raise self.problems.stop(
                path, f"lists and maps are nested more than {WORKFLOW_DEPTH_MAX} levels deep", mark
            )
        kind: Literal["list", "map"] = "list" if isinstance(event, yaml.SequenceStartEvent) else "map"
        node = YamlNode(kind, mark, items=[], entries={})
        self._take(node, mark, path)
        self.stack.append((node, path))
        self.keys.append(None)

    def _path(self) -> YamlPath:
        if not self.stack:
            return ()
        node, path = self.stack[-1]
        if node.kind == "list":
            return (*path, len(node.items))
        key = self.keys[-1]
        return path if key is None else (*path, key[0])

    def _take(self, node: YamlNode, mark: TextPosition, path: YamlPath) -> None:
        """Put a node in its place: as the root, the next item, a key or a value."""
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
                raise self.problems.stop(path, "a key must be a plain string", mark)
            if node.text == "<<":
                raise self.problems.stop(path, "merge keys (<<) are not allowed; write the entries out", mark)
            if node.text in above.entries:
                first = above.entries[node.text][0].line
                self.problems.add(
                    (*path, node.text), f"the key {node.text!r} is already in line {first}", mark
                )
            self.keys[-1] = (node.text, mark)
            return
        above.entries[key[0]] = (key[1], node)
        self.keys[-1] = None

    def _scalar(self, text: str, plain: bool, mark: TextPosition, path: YamlPath) -> YamlNode:
        value: Any = text
        if plain:
            if text in _WORDS:
                value = _WORDS[text]
            elif _INTEGER.fullmatch(text):
                value = self._integer(text, mark, path)
            elif _FLOAT.fullmatch(text):
                value = float(text)
                if not isfinite(value):
                    self.problems.add(path, f"{text} is too large for a number; put a string in quotes", mark)
            elif _NO_NUMBER.fullmatch(text):
                self.problems.add(path, f"{text} is not a valid number; put a string in quotes", mark)
        return YamlNode("scalar", mark, value, text)

    def _integer(self, text: str, mark: TextPosition, path: YamlPath) -> int:
        if len(text) <= _INTEGER_CHARS_MAX:
            value = int(text, 0 if text[:2] in ("0o", "0x") else 10)
            if value.bit_length() <= INTEGER_BITS_MAX:
                return value
        self.problems.add(path, "the number has more than 63 bits; put a string in quotes", mark)
        return 0
